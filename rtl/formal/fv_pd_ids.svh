  // No number is out twice, and none is lost.
  `include "fv_reset.svh"
  logic fv_on = 1'b0;
  logic [COUNT-1:0] fv_out = '0;
  logic [BITS:0] fv_back, fv_sum;
  logic fv_get;
  assign fv_get = fv_on && get;
  assign fv_back = put_q - get_q;
  always @(posedge clk_i) begin
    if (fv_run) fv_on <= 1'b1;
    if (fv_get) fv_out[get_id_o] <= 1'b1;
    if (put_valid_i) fv_out[put_id_i] <= 1'b0;
    // The user starts it once, and returns only what it has.
    assume (init_i == (fv_run && !fv_on));
    assume (limit_i == (BITS + 1)'(COUNT - 1));
    assume (!put_valid_i || (fv_on && fv_out[put_id_i]));
    assume (!get_ready_i || fv_on);
    if (!fv_on) assert (fv_out == '0);
    assert (fv_run || !fv_on);
    if (fv_run && !fv_on) assert (out_q == '0);
    if (fv_on) begin
      assert (limit_q == (BITS + 1)'(COUNT - 1) && fresh_q <= limit_q && fv_back <= limit_q);
      assert (fv_back + fv_sum + (BITS + 1)'(valid_q) == fresh_q);
      assert (out_q == fv_sum && all_free_o == (fv_out == '0));
      assert ((valid_q || more || fv_sum == limit_q) && !fv_out[COUNT-1]);
      if (fv_get) assert (!fv_out[get_id_o]);
    end
  end
  always_comb begin
    fv_sum = '0;
    for (int i = 0; i < COUNT; i++) fv_sum = fv_sum + (BITS + 1)'(fv_out[i]);
  end
  // Where each number is: out, not handed out yet, the next, or once in the ring.
  for (genvar id = 0; id < COUNT - 1; id++) begin : fv_gen_id
    logic [BITS:0] places;
    always_comb begin
      places = (BITS + 1)'(fv_out[id]) + (BITS + 1)'((BITS + 1)'(id) >= fresh_q) + (BITS + 1)'(valid_q && id_q == BITS'(id));
      for (int i = 0; i < COUNT; i++) begin
        if ((BITS + 1)'(i) < fv_back && mem[BITS'(get_q + (BITS + 1)'(i))] == BITS'(id)) places = places + 1'b1;
      end
    end
    always @(posedge clk_i) if (fv_on) assert (places == (BITS + 1)'(1));
  end
