// Round robin over a set of numbered requests.
//
// Interface: `set_*` (two ports) put a request into the set; `pick_*` offers one. Taking it (`pick_ready_i`) removes it, unless
// `pick_keep_i`, and goes on behind it: every request is offered once before any is offered twice. `wrap_o` comes with the
// first offer of a new round. `set_o` is the set. `clear_i` empties it.
// Timing: an offer stands until it is taken. The next comes two cycles after, or four when it is in another group of 16; the first
// four after its request.
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

  localparam logic [1:0] LOOK = 2'd0;
  localparam logic [1:0] PICK = 2'd1;
  localparam logic [1:0] OFFER = 2'd2;

  logic [1:0] state_q;
  logic [COUNT-1:0] set_q, set_d;
  logic [GROUP_BITS-1:0] group_q, group_next;
  logic [IN-1:0] mask_q, above, in_group, candidates_q;
  logic [3:0] first;
  logic [15:0] any_q, any_behind_q;
  logic valid_q, wrap_q, wrapped_q;
  logic [BITS-1:0] id_q;
  logic take, drop;

  // Number of the lowest bit that is set, of 16 (that is the last if it is no other), in steps of four bits.
  function automatic logic [3:0] lowest(input logic [14:0] x);
    logic [4:0] low;
    if (x[3:0] != '0) low = {2'd0, x[2:0]};
    else if (x[7:4] != '0) low = {2'd1, x[6:4]};
    else if (x[11:8] != '0) low = {2'd2, x[10:8]};
    else low = {2'd3, x[14:12]};
    lowest = {low[4:3], low[0] ? 2'd0 : low[1] ? 2'd1 : low[2] ? 2'd2 : 2'd3};
  endfunction

  assign set_o = set_q;
  assign valid_q = state_q == OFFER;
  assign pick_valid_o = valid_q;
  assign pick_id_o = id_q;
  assign wrap_o = wrap_q;
  assign take = valid_q && pick_ready_i;
  assign drop = take && !pick_keep_i;

  for (genvar i = 0; i < COUNT; i++) begin : gen_set
    assign set_d[i] = !clear_i && ((set_a_valid_i && set_a_id_i == BITS'(i)) || (set_b_valid_i && set_b_id_i == BITS'(i))
        || (set_q[i] && !(drop && id_q == BITS'(i))));
  end

  // In the group: those still to come in this round, the lowest first. Else: the next group with any, behind this one, this one
  // last. With nothing at all the round stands where it is.
  always_comb begin
    in_group = '0;
    for (int g = 0; g < GROUPS; g++) if (GROUP_BITS'(g) == group_q) in_group |= set_q[g*IN +: IN];
  end
  assign first = lowest(15'(candidates_q));
  // Groups of less than 16 have shorter numbers.
  logic unused_first;
  assign unused_first = ^first;
  always_comb begin
    for (int i = 0; i < IN; i++) above[i] = (candidates_q & ~({IN{1'b1}} << i)) != '0;
  end
  assign group_next = GROUP_BITS'(any_behind_q != '0 ? lowest(any_behind_q[14:0]) : lowest(any_q[14:0]));

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= LOOK;
      set_q <= '0;
      any_q <= '0;
      any_behind_q <= '0;
      group_q <= '0;
      mask_q <= '0;
      candidates_q <= '0;
      wrap_q <= 1'b0;
      wrapped_q <= 1'b1;
      id_q <= '0;
    end else begin
      set_q <= set_d;
      candidates_q <= in_group & mask_q;
      for (int g = 0; g < GROUPS; g++) begin
        any_q[g] <= set_q[g*IN +: IN] != '0;
        any_behind_q[g] <= set_q[g*IN +: IN] != '0 && GROUP_BITS'(g) > group_q;
      end
      unique case (state_q)
        LOOK: state_q <= PICK;
        PICK: begin
          if (candidates_q != '0) begin
            state_q <= OFFER;
            id_q <= BITS'({group_q, first[IN_BITS-1:0]});
            wrap_q <= wrapped_q;
            wrapped_q <= 1'b0;
            mask_q <= above;
          end else if (any_q != '0) begin
            state_q <= LOOK;
            group_q <= group_next;
            mask_q <= '1;
            if (any_behind_q == '0) wrapped_q <= 1'b1;
          end
        end
        default: if (take) state_q <= LOOK;
      endcase
      if (clear_i) state_q <= LOOK;
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
