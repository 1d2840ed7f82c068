  // The bursts are the transfer, byte for byte and in order; each within its boundaries, and no more than needed.
  `include "fv_reset.svh"
  (* anyconst *) logic [2:0] fv_limit;
  logic fv_busy = 1'b0;
  logic [ADDR_BITS-1:0] fv_addr = '0, fv_size, fv_end;
  logic [LEN_BITS-1:0] fv_len = '0, fv_done = '0;
  logic [USER_BITS-1:0] fv_user = '0;
  assign fv_size = ADDR_BITS'(128) << fv_limit;
  assign fv_end = out_addr_o + ADDR_BITS'(out_len_o);
  always @(posedge clk_i) begin
    if (fv_run && take) fv_done <= fv_done + LEN_BITS'(out_len_o);
    if (fv_run && take && out_last_o) fv_busy <= 1'b0;
    if (fv_run && in_valid_i && in_ready_o) begin
      fv_busy <= 1'b1;
      {fv_addr, fv_len, fv_user} <= {in_addr_i, in_len_i, in_user_i};
      fv_done <= '0;
    end
    assume (limit_i == fv_limit && fv_limit <= 3'd5);
    assume (in_len_i >= LEN_BITS'(1) && in_len_i <= LEN_BITS'(4096));
    if (!fv_run) assert (!fv_busy);
    if (fv_run) begin
      assert (fv_busy == out_valid_o);
      if (fv_busy) begin
        assert (fv_len >= LEN_BITS'(1) && fv_len <= LEN_BITS'(4096) && fv_done < fv_len);
        assert (len_q == fv_len - fv_done && addr_q == fv_addr + ADDR_BITS'(fv_done));
        assert (out_user_o == fv_user && out_offset_o == fv_done && out_first_o == (fv_done == '0));
        assert (out_len_o != '0 && LEN_BITS'(out_len_o) <= len_q && out_last_o == (LEN_BITS'(out_len_o) == len_q));
        assert ((out_addr_o & ~(fv_size - 1'b1)) == ((fv_end - 1'b1) & ~(fv_size - 1'b1)));
        if (!out_last_o) assert ((fv_end & (fv_size - 1'b1)) == '0);
      end
    end
  end
