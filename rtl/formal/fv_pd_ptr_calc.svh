  // Whatever the pointers are: no more than there is, than fits and than a batch; in one piece; and something if possible.
  localparam logic [15:0] FV_DEPTH = 16'(1 << LOG2_DEPTH);
  logic [2:0] fv_held = '0;
  logic [15:0] fv_p = '0, fv_c = '0, fv_q = '0, fv_waiting, fv_used;
  logic [4:0] fv_b = '0;
  assign fv_waiting = fv_p - fv_c;
  assign fv_used = sq_consumer_next_o - fv_q;
  always @(posedge clk_i) begin
    // The user holds its inputs for four cycles.
    fv_held <= fv_held == 3'd4 ? 3'd0 : fv_held + 1'b1;
    if (fv_held == '0) {fv_p, fv_c, fv_q, fv_b} <= {sq_producer_i, sq_consumer_i, cq_consumer_i, batch_max_i};
    else assume ({fv_p, fv_c, fv_q, fv_b} == {sq_producer_i, sq_consumer_i, cq_consumer_i, batch_max_i});
    assume (batch_max_i <= 5'(pd_abi_pkg::BATCH_ENTRIES_MAX));
    assert (fv_held <= 3'd4);
    if (fv_held == 3'd4) begin
      assert (count_o <= fv_b && 16'(count_o) <= fv_waiting);
      // No completion will overwrite one that the host has not consumed.
      if (count_o != '0) assert (fv_used <= FV_DEPTH);
      assert (17'(slot_o) + 17'(count_o) <= 17'(FV_DEPTH));
      assert (sq_consumer_next_o == fv_c + 16'(count_o) && slot_o == fv_c[LOG2_DEPTH-1:0] && phase_o == !fv_c[LOG2_DEPTH]);
      if (16'(fv_c - fv_q) < FV_DEPTH && fv_waiting != '0 && fv_b != '0) assert (count_o != '0);
      if (more_o) assert (fv_waiting > 16'(count_o) && fv_used < FV_DEPTH);
      // Nothing is left that would have fitted.
      if (16'(fv_c - fv_q) <= FV_DEPTH && !more_o) assert (16'(count_o) == fv_waiting || fv_used == FV_DEPTH);
    end
  end
