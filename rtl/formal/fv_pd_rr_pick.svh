  // Only what is in the set is offered; who waits is passed by each other at most once, but for an offer already made.
  `include "fv_reset.svh"
  (* anyconst *) logic [BITS-1:0] fv_one;
  (* anyconst *) logic [BITS-1:0] fv_other;
  logic [1:0] fv_passed = '0;
  always @(posedge clk_i) begin
    assume (fv_one != fv_other);
    assume (!clear_i);
    // Offers of `other` taken while `one` waits.
    if (!fv_run || !set_q[fv_one] || (take && id_q == fv_one)) fv_passed <= '0;
    else if (take && id_q == fv_other) fv_passed <= fv_passed + 1'b1;
    if (fv_run) begin
      if (valid_q) assert (set_q[id_q]);
      assert (fv_passed <= 2'd2);
    end
  end
