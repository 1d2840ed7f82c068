// pd_rr_pick: only what is in the set is offered; who waits is passed by each other at most once.
module fv_rr_pick #(
  parameter int unsigned COUNT = 4,
  localparam int unsigned BITS = $clog2(COUNT)
) (
  input logic            clk_i,
  input logic            set_a_valid_i,
  input logic [BITS-1:0] set_a_id_i,
  input logic            set_b_valid_i,
  input logic [BITS-1:0] set_b_id_i,
  input logic            pick_ready_i,
  input logic            pick_keep_i
);
  logic rst_ni = 1'b0;
  always @(posedge clk_i) rst_ni <= 1'b1;

  logic pick_valid, wrap;
  logic [BITS-1:0] pick_id;
  logic [COUNT-1:0] set;
  pd_rr_pick #(.COUNT(COUNT)) u (
    .clk_i, .rst_ni, .clear_i(1'b0), .set_a_valid_i, .set_a_id_i, .set_b_valid_i, .set_b_id_i,
    .pick_valid_o(pick_valid), .pick_ready_i, .pick_keep_i, .pick_id_o(pick_id), .wrap_o(wrap), .set_o(set)
  );

  (* anyconst *) logic [BITS-1:0] one;
  (* anyconst *) logic [BITS-1:0] other;
  logic take;
  logic [1:0] passed = '0;
  assign take = rst_ni && pick_valid && pick_ready_i;
  always @(posedge clk_i) begin
    // Offers of `other` taken since `one` waits.
    if (!set[one] || (take && pick_id == one)) passed <= '0;
    else if (take && pick_id == other) passed <= passed + 1'b1;
  end
  always @(posedge clk_i) begin
    assume (one != other);
    if (rst_ni) begin
      if (pick_valid) assert (set[pick_id]);
      // One offer of `other` may be on its way when `one` comes; a second is a round, and `one` is in it.
      assert (passed <= 2'd2);
    end
  end
  logic unused;
  assign unused = wrap;
endmodule
