  // The bursts are the transfer, byte for byte and in order; each within its boundaries, and no more than needed. Behind them is a
  // FIFO, which has a proof of its own.
  `include "fv_reset.svh"
  (* anyconst *) logic [2:0] fv_limit;
  logic fv_busy = 1'b0;
  logic [ADDR_BITS-1:0] fv_addr = '0, fv_size, fv_end;
  logic [LEN_BITS-1:0] fv_len = '0, fv_done = '0;
  logic [POS_BITS-1:0] fv_pos = '0;
  logic [USER_BITS-1:0] fv_user = '0;
  assign fv_size = ADDR_BITS'(128) << fv_limit;
  assign fv_end = addr_q + ADDR_BITS'(len);
  always @(posedge clk_i) begin
    if (fv_run && take) fv_done <= fv_done + LEN_BITS'(len);
    if (fv_run && take && last) fv_busy <= 1'b0;
    if (fv_run && in_valid_i && in_ready_o) begin
      fv_busy <= 1'b1;
      {fv_addr, fv_len, fv_pos, fv_user} <= {in_addr_i, in_len_i, in_pos_i, in_user_i};
      fv_done <= '0;
    end
    assume (limit_i == fv_limit && fv_limit <= 3'd5);
    assume (in_len_i >= LEN_BITS'(1) && in_len_i <= LEN_BITS'(4096));
    if (!fv_run) assert (!fv_busy);
    if (fv_run) begin
      assert (fv_busy == valid_q && ADDR_BITS'(mask_q) == fv_size - 1'b1);
      if (fv_busy) begin
        assert (fv_len >= LEN_BITS'(1) && fv_len <= LEN_BITS'(4096) && fv_done < fv_len);
        assert (len_q == fv_len - fv_done && less_q == len_q - 1'b1 && addr_q == fv_addr + ADDR_BITS'(fv_done));
        assert (user_q == fv_user && pos_q == fv_pos + POS_BITS'(fv_done) && first_q == (fv_done == '0));
        assert (len != '0 && LEN_BITS'(len) <= len_q && last == (LEN_BITS'(len) == len_q));
        assert ((addr_q & ~(fv_size - 1'b1)) == ((fv_end - 1'b1) & ~(fv_size - 1'b1)));
        if (!last) assert ((fv_end & (fv_size - 1'b1)) == '0);
      end
    end
  end
