  // What is written comes out once, unchanged and in order; never more than fits.
  `include "fv_reset.svh"

  // One entry, chosen freely, is followed on its way: `fv_ahead` entries will leave before it.
  (* anyseq *) logic fv_choose;
  logic fv_following = 1'b0;
  logic [LOG2_DEPTH:0] fv_ahead = '0, fv_count = '0;
  logic [WIDTH-1:0] fv_value = '0;
  logic fv_wr, fv_rd;
  logic [LOG2_DEPTH-1:0] fv_at;
  assign fv_wr = fv_run && wr_valid_i && wr_ready_o;
  assign fv_rd = fv_run && rd_valid_o && rd_ready_i;
  assign fv_at = rd_q + fv_ahead[LOG2_DEPTH-1:0];
  always @(posedge clk_i) begin
    fv_count <= fv_count + (LOG2_DEPTH + 1)'(fv_wr) - (LOG2_DEPTH + 1)'(fv_rd);
    if (!fv_following && fv_wr && fv_choose) begin
      fv_following <= 1'b1;
      fv_value <= wr_data_i;
      fv_ahead <= fv_count - (LOG2_DEPTH + 1)'(fv_rd);
    end else if (fv_following && fv_rd) begin
      if (fv_ahead == '0) fv_following <= 1'b0;
      else fv_ahead <= fv_ahead - 1'b1;
    end
    if (!fv_run) assert (fv_count == '0 && !fv_following);
    if (fv_run) begin
      assert (fv_count <= (LOG2_DEPTH + 1)'(DEPTH) && LOG2_DEPTH'(wr_q - rd_q) == fv_count[LOG2_DEPTH-1:0]);
      assert (space_o == (LOG2_DEPTH + 1)'(DEPTH) - fv_count);
      assert (wr_ready_o == (space_o != '0) && rd_valid_o == (fv_count != '0));
      if (fv_following) begin
        assert (fv_ahead < fv_count && mem[fv_at] == fv_value);
        if (fv_rd && fv_ahead == '0) assert (rd_data_o == fv_value);
      end
    end
  end
