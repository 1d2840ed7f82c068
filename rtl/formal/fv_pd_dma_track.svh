  // An owner is done once, with its last read and its first error.
  `include "fv_reset.svh"
  (* anyconst *) logic [OWNER_BITS-1:0] fv_who;
  logic [COUNT_BITS-1:0] fv_left = '0;
  logic [2:0] fv_status = '0, fv_first = '0;
  logic fv_ended = 1'b0, fv_load, fv_hit;
  assign fv_load = load_valid_i && load_ready_o && load_owner_i == fv_who;
  assign fv_hit = event_valid_i && event_owner_i == fv_who;
  always @(posedge clk_i) begin
    if (fv_load) {fv_left, fv_status} <= {load_count_i, 3'd0};
    if (fv_hit) begin
      fv_left <= fv_left - COUNT_BITS'(event_final_i);
      if (fv_status == '0) fv_status <= event_status_i;
    end
    fv_ended <= fv_run && fv_hit && event_final_i && fv_left == COUNT_BITS'(1);
    fv_first <= fv_status == '0 ? event_status_i : fv_status;
    // The users: no load while reads are out, no event without a read.
    assume (fv_run || (!load_valid_i && !event_valid_i));
    assume (!load_valid_i || load_count_i != '0);
    assume (!event_valid_i || count_old != '0);
    if (fv_load) assume (fv_left == '0);
    if (fv_hit) assume (fv_left != '0);
    if (!fv_run) assert (fv_left == '0);
    if (fv_run) begin
      if (fv_left != '0) assert (mem[fv_who] == {fv_status, fv_left});
      if (done_valid_o && done_owner_o == fv_who) assert (fv_ended && done_status_o == fv_first);
      if (fv_ended) assert (done_valid_o && done_owner_o == fv_who);
    end
  end
