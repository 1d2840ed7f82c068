// pd_dma_track: an owner is done once, with its last read and its first error.
module fv_track (
  input logic       clk_i,
  input logic       load_valid_i,
  input logic [1:0] load_owner_i,
  input logic [2:0] load_count_i,
  input logic       event_valid_i,
  input logic [1:0] event_owner_i,
  input logic       event_final_i,
  input logic [2:0] event_status_i
);
  logic rst_ni = 1'b0;
  always @(posedge clk_i) rst_ni <= 1'b1;
  logic load_ready, done_valid;
  logic [1:0] done_owner;
  logic [2:0] done_status;
  pd_dma_track #(.OWNER_BITS(2), .COUNT_BITS(3)) u (
    .clk_i, .rst_ni, .load_valid_i, .load_ready_o(load_ready), .load_owner_i, .load_count_i,
    .event_valid_i, .event_owner_i, .event_final_i, .event_status_i,
    .done_valid_o(done_valid), .done_owner_o(done_owner), .done_status_o(done_status)
  );

  (* anyconst *) logic [1:0] who;
  logic [2:0] left = '0, status = '0, status_then = '0;
  logic ended = 1'b0;
  logic load, hit;
  assign load = load_valid_i && load_ready && load_owner_i == who;
  assign hit = event_valid_i && event_owner_i == who;
  always @(posedge clk_i) begin
    if (load) {left, status} <= {load_count_i, 3'd0};
    if (hit) begin
      left <= left - 3'(event_final_i);
      if (status == '0) status <= event_status_i;
    end
    ended <= rst_ni && hit && event_final_i && left == 3'd1;
    status_then <= status == '0 ? event_status_i : status;
    // Users: no load while reads are out, no event without one, none for owners never loaded.
    assume (rst_ni || (!load_valid_i && !event_valid_i));
    assume (!load_valid_i || load_count_i != '0);
    if (load) assume (left == '0);
    if (hit) assume (left != '0);
    if (event_valid_i) assume (u.count_old != '0);
  end
  always @(posedge clk_i) begin
    if (rst_ni) begin
      if (left != '0) assert (u.mem[who] == {status, left});
      assert ((done_valid && done_owner == who) == ended);
      if (ended) assert (done_status == status_then);
    end
  end
endmodule
