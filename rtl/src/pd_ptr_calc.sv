// Ptr Calculator: from a queue's pointers, what to fetch next and where.
//
// Interface: the three free-running 16-bit pointers of a queue pair and the largest batch in; entries to fetch, their slot in SQ and
// CQ (one number: a completion goes to the slot of its command), the phase of that pass, and whether more is left out.
// It never asks for an entry without a free CQ slot, whatever the pointers are, nor for one across the end of the ring.
// Timing: inputs are held; outputs belong to them from the fourth cycle after. One subtraction or comparison a cycle.
module pd_ptr_calc #(
  parameter int unsigned LOG2_DEPTH = 10
) (
  input  logic                  clk_i,
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
  // The largest batch. Of larger numbers it is enough to know that they are.
  localparam logic [15:0] BATCH = 16'(pd_abi_pkg::BATCH_ENTRIES_MAX);
  localparam logic [15:0] MANY = BATCH + 16'd1;

  // First: the differences.
  logic [15:0] waiting_q, unused_q;
  logic [LOG2_DEPTH-1:0] to_end_q;
  always_ff @(posedge clk_i) begin
    waiting_q <= sq_producer_i - sq_consumer_i;
    unused_q <= cq_consumer_i - sq_consumer_i;
    to_end_q <= -sq_consumer_i[LOG2_DEPTH-1:0];
  end

  // Second: in five bits. Free CQ slots are DEPTH + `unused_q`, if that is between 0 and DEPTH.
  logic [4:0] waiting5_q, free5_q, to_end5_q;
  logic [15:0] free_low, to_end;
  assign free_low = 16'(unused_q[LOG2_DEPTH-1:0]);
  assign to_end = 16'(to_end_q);
  always_ff @(posedge clk_i) begin
    waiting5_q <= waiting_q > MANY ? MANY[4:0] : waiting_q[4:0];
    if (unused_q == '0) free5_q <= MANY[4:0];
    else if (unused_q[15:LOG2_DEPTH] != '1) free5_q <= '0;
    else free5_q <= free_low > MANY ? MANY[4:0] : free_low[4:0];
    to_end5_q <= to_end_q == '0 || to_end > BATCH ? BATCH[4:0] : to_end[4:0];
  end

  // Third and fourth: the least of all.
  logic [4:0] limit_q, piece_q;
  always_ff @(posedge clk_i) begin
    limit_q <= waiting5_q < free5_q ? waiting5_q : free5_q;
    piece_q <= to_end5_q < batch_max_i ? to_end5_q : batch_max_i;
    count_o <= limit_q < piece_q ? limit_q : piece_q;
    more_o <= limit_q > piece_q;
  end
  assign sq_consumer_next_o = sq_consumer_i + 16'(count_o);
  assign slot_o = sq_consumer_i[LOG2_DEPTH-1:0];
  assign phase_o = !sq_consumer_i[LOG2_DEPTH];

`ifdef PD_FORMAL
  `include "fv_pd_ptr_calc.svh"
`endif
endmodule
