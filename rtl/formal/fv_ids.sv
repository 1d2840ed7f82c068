// pd_ids: no number is out twice, and none is lost.
module fv_ids (
  input logic       clk_i,
  input logic       get_ready_i,
  input logic       put_valid_i,
  input logic [1:0] put_id_i
);
  logic rst_ni = 1'b0, started = 1'b0;
  always @(posedge clk_i) begin
    rst_ni <= 1'b1;
    if (rst_ni) started <= 1'b1;
  end

  logic get_valid, all_free;
  logic [1:0] get_id;
  pd_ids #(.COUNT(4)) u (
    .clk_i, .rst_ni, .init_i(rst_ni && !started), .limit_i(3'd3),
    .get_valid_o(get_valid), .get_ready_i, .get_id_o(get_id), .put_valid_i, .put_id_i, .all_free_o(all_free)
  );

  logic [3:0] out = '0;
  logic get;
  assign get = started && get_valid && get_ready_i;
  always @(posedge clk_i) begin
    if (get) out[get_id] <= 1'b1;
    if (put_valid_i) out[put_id_i] <= 1'b0;
    // The user returns what it has.
    assume (!put_valid_i || (started && out[put_id_i]));
  end

  // Where each number is: out, still fresh, or once in the ring.
  logic [2:0] in_ring;
  assign in_ring = u.put_q - u.get_q;
  for (genvar id = 0; id < 3; id++) begin : gen_id
    logic [2:0] places;
    assign places = 3'(out[id]) + 3'(3'(id) >= u.fresh_q)
        + 3'(in_ring > 3'd0 && u.mem[u.get_q[1:0]] == 2'(id))
        + 3'(in_ring > 3'd1 && u.mem[u.get_q[1:0] + 2'd1] == 2'(id))
        + 3'(in_ring > 3'd2 && u.mem[u.get_q[1:0] + 2'd2] == 2'(id))
        + 3'(in_ring > 3'd3 && u.mem[u.get_q[1:0] + 2'd3] == 2'(id));
    always @(posedge clk_i) if (started) assert (places == 3'd1);
  end
  always @(posedge clk_i) begin
    if (!started) assert (out == '0 && u.out_q == '0);
    if (started) begin
      assert (u.limit_q == 3'd3 && u.fresh_q <= 3'd3 && in_ring <= 3'd3 && !out[3]);
      assert (u.out_q == 3'(out[0]) + 3'(out[1]) + 3'(out[2]));
      assert (all_free == (out == '0) && get_valid == (out != 4'b0111));
      if (get) assert (!out[get_id] && get_id < 2'd3);
    end
  end
endmodule
