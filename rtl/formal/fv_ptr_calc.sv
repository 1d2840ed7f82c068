// pd_ptr_calc: whatever the pointers are, no more than there is, than fits and than a batch; in one piece; and something if possible.
module fv_ptr_calc (
  input logic        clk_i,
  input logic [15:0] producer_i,
  input logic [15:0] consumer_i,
  input logic [15:0] cq_consumer_i,
  input logic [4:0]  batch_max_i
);
  localparam int unsigned L = 10;
  logic [4:0] count;
  logic more, phase;
  logic [15:0] next;
  logic [L-1:0] slot;
  pd_ptr_calc #(.LOG2_DEPTH(L)) u (
    .clk_i, .en_i(1'b1), .sq_producer_i(producer_i), .sq_consumer_i(consumer_i), .cq_consumer_i, .batch_max_i,
    .count_o(count), .more_o(more), .sq_consumer_next_o(next), .slot_o(slot), .phase_o(phase)
  );

  logic seen = 1'b0;
  logic [15:0] p = '0, c = '0, q = '0;
  logic [4:0] b = '0;
  always @(posedge clk_i) begin
    seen <= 1'b1;
    p <= producer_i;
    c <= consumer_i;
    q <= cq_consumer_i;
    b <= batch_max_i;
  end
  logic [15:0] waiting, held;
  assign waiting = p - c;
  assign held = next - q;
  always @(posedge clk_i) begin
    if (seen) begin
      assert (count <= b && 16'(count) <= waiting);
      // A completion overwrites nothing that has not been consumed, unless the host's index was nonsense: then nothing is fetched.
      if (count != '0) assert (held <= 16'd1024);
      assert (17'(slot) + 17'(count) <= 17'd1024);
      assert (next == c + 16'(count) && slot == c[L-1:0] && phase == !c[L]);
      if (16'(c - q) < 16'd1024 && waiting != '0 && b != '0) assert (count != '0);
      if (more) assert (waiting > 16'(count) && 16'(next - q) < 16'd1024);
    end
  end
endmodule
