// Round robin over a set of numbered requests.
//
// Interface: `set_*` (two ports) put a request into the set; `pick_*` offers one. Taking it (`pick_ready_i`) removes it, unless
// `pick_keep_i`, and goes on behind it: every request is offered once before any is offered twice. `wrap_o` comes with the
// first offer of a new round. `set_o` is the set. `clear_i` empties it.
// Timing: an offer stands until it is taken. The next comes one cycle after, or three when it is in another group of 16.
// A request set in the cycle in which it is taken stays.
module pd_rr_pick #(
  parameter int unsigned COUNT = 256,
  localparam int unsigned BITS = $clog2(COUNT)
) (
  input  logic             clk_i,
  input  logic             rst_ni,
  input  logic             clear_i,
  input  logic             set_a_valid_i,
  input  logic [BITS-1:0]  set_a_id_i,
  input  logic             set_b_valid_i,
  input  logic [BITS-1:0]  set_b_id_i,
  output logic             pick_valid_o,
  input  logic             pick_ready_i,
  input  logic             pick_keep_i,
  output logic [BITS-1:0]  pick_id_o,
  output logic             wrap_o,
  output logic [COUNT-1:0] set_o
);
  localparam int unsigned IN_BITS = BITS > 4 ? 4 : BITS;
  localparam int unsigned IN = 1 << IN_BITS;
  localparam int unsigned GROUPS = COUNT / IN;
  localparam int unsigned GROUP_BITS = GROUPS > 1 ? $clog2(GROUPS) : 1;

  logic [COUNT-1:0] set_q, set_d;
  logic [GROUP_BITS-1:0] group_q, group_next;
  logic [IN-1:0] mask_q, mask_next, candidates;
  logic [IN_BITS-1:0] first;
  logic [GROUPS-1:0] any;
  logic group_found;
  logic valid_q, wrap_q, wrapped_q;
  logic [BITS-1:0] id_q;
  logic take;

  assign set_o = set_q;
  assign pick_valid_o = valid_q;
  assign pick_id_o = id_q;
  assign wrap_o = wrap_q;
  assign take = valid_q && pick_ready_i;

  always_comb begin
    set_d = set_q;
    if (take && !pick_keep_i) set_d[id_q] = 1'b0;
    if (set_a_valid_i) set_d[set_a_id_i] = 1'b1;
    if (set_b_valid_i) set_d[set_b_id_i] = 1'b1;
    if (clear_i) set_d = '0;
  end

  // In the group: the lowest that is still to come in this round.
  assign candidates = set_q[group_q*IN +: IN] & mask_q;
  always_comb begin
    first = '0;
    for (int i = IN - 1; i >= 0; i--) if (candidates[i]) first = IN_BITS'(i);
    mask_next = '0;
    for (int i = 0; i < IN; i++) mask_next[i] = IN_BITS'(i) > first;
  end

  // Else: the next group with any, behind this one, this one last.
  for (genvar g = 0; g < GROUPS; g++) begin : gen_any
    assign any[g] = |set_q[g*IN +: IN];
  end
  always_comb begin
    group_found = 1'b0;
    group_next = group_q;
    for (int g = GROUPS - 1; g >= 0; g--) begin
      if (any[g]) begin
        group_found = 1'b1;
        group_next = GROUP_BITS'(g);
      end
    end
    for (int g = GROUPS - 1; g >= 0; g--) begin
      if (any[g] && GROUP_BITS'(g) > group_q) group_next = GROUP_BITS'(g);
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      set_q <= '0;
      group_q <= '0;
      mask_q <= '0;
      valid_q <= 1'b0;
      wrap_q <= 1'b0;
      wrapped_q <= 1'b1;
      id_q <= '0;
    end else begin
      set_q <= set_d;
      if (clear_i) begin
        valid_q <= 1'b0;
      end else if (!valid_q || take) begin
        valid_q <= 1'b0;
        if (candidates != '0) begin
          valid_q <= 1'b1;
          id_q <= BITS'({group_q, first});
          wrap_q <= wrapped_q;
          wrapped_q <= 1'b0;
          mask_q <= mask_next;
        end else begin
          mask_q <= '0;
          if (group_found) begin
            group_q <= group_next;
            mask_q <= '1;
            if (group_next <= group_q) wrapped_q <= 1'b1;
          end
        end
      end
    end
  end

`ifdef PD_ASSERT
  // Only what is in the set is offered.
  always @(posedge clk_i) if (rst_ni && valid_q) assert (set_q[id_q]);
`endif
`ifdef PD_FORMAL
  `include "fv_pd_rr_pick.svh"
`endif
endmodule
