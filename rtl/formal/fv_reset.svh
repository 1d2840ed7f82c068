  // Reset for one cycle, then never again.
  logic fv_run = 1'b0;
  always @(posedge clk_i) begin
    fv_run <= 1'b1;
    assume (rst_ni == fv_run);
  end
