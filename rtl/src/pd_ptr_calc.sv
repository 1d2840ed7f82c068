// Ptr Calculator: from a queue's pointers, what to fetch next and where.
//
// Interface: the three free-running 16-bit pointers of a queue pair and the largest batch in; entries to fetch, their slot in SQ and
// CQ (one number: a completion goes to the slot of its command), the phase of that pass, and whether more is left out.
// It never asks for an entry without a free CQ slot, whatever the pointers are, nor for one across the end of the ring.
// Timing: registered; outputs follow inputs by one cycle while `en_i`.
module pd_ptr_calc #(
  parameter int unsigned LOG2_DEPTH = 10
) (
  input  logic                  clk_i,
  input  logic                  en_i,
  input  logic [15:0]           sq_producer_i,
  input  logic [15:0]           sq_consumer_i,
  input  logic [15:0]           cq_consumer_i,
  input  logic [4:0]            batch_max_i,
  output logic [4:0]            count_o,
  output logic                  more_o,
  output logic [15:0]           sq_consumer_next_o,
  output logic [LOG2_DEPTH-1:0] slot_o,
  output logic                  phase_o
);
  localparam logic [15:0] DEPTH = 16'(1 << LOG2_DEPTH);

  logic [15:0] waiting, used, free, to_end, limit;
  logic [4:0] count;

  assign waiting = sq_producer_i - sq_consumer_i;
  assign used = sq_consumer_i - cq_consumer_i;
  assign free = used > DEPTH ? 16'd0 : DEPTH - used;
  assign to_end = DEPTH - 16'(sq_consumer_i[LOG2_DEPTH-1:0]);
  assign limit = waiting < free ? waiting : free;

  always_comb begin
    count = batch_max_i;
    if (to_end < 16'(count)) count = to_end[4:0];
    if (limit < 16'(count)) count = limit[4:0];
  end

  always_ff @(posedge clk_i) begin
    if (en_i) begin
      count_o <= count;
      more_o <= limit > 16'(count);
      sq_consumer_next_o <= sq_consumer_i + 16'(count);
      slot_o <= sq_consumer_i[LOG2_DEPTH-1:0];
      phase_o <= !sq_consumer_i[LOG2_DEPTH];
    end
  end
`ifdef PD_FORMAL
  `include "fv_pd_ptr_calc.svh"
`endif
endmodule
