  // Whatever the pointers are: no more than there is, than fits and than a batch; in one piece; and something if possible.
  logic fv_seen = 1'b0;
  logic [15:0] fv_p = '0, fv_c = '0, fv_q = '0, fv_waiting, fv_held;
  logic [4:0] fv_b = '0;
  assign fv_waiting = fv_p - fv_c;
  assign fv_held = sq_consumer_next_o - fv_q;
  always @(posedge clk_i) begin
    assume (en_i);
    fv_seen <= 1'b1;
    {fv_p, fv_c, fv_q, fv_b} <= {sq_producer_i, sq_consumer_i, cq_consumer_i, batch_max_i};
    if (fv_seen) begin
      assert (count_o <= fv_b && 16'(count_o) <= fv_waiting);
      // No completion will overwrite one that the host has not consumed.
      if (count_o != '0) assert (fv_held <= DEPTH);
      assert (17'(slot_o) + 17'(count_o) <= 17'(DEPTH));
      assert (sq_consumer_next_o == fv_c + 16'(count_o) && slot_o == fv_c[LOG2_DEPTH-1:0] && phase_o == !fv_c[LOG2_DEPTH]);
      if (16'(fv_c - fv_q) < DEPTH && fv_waiting != '0 && fv_b != '0) assert (count_o != '0);
      if (more_o) assert (fv_waiting > 16'(count_o) && fv_held < DEPTH);
    end
  end
