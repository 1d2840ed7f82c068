// PD Controller, first part: queues in turn, a batch of entries from each.
//
// Interface: `doorbell_*` queues that may have work; `visit_*` to the state registers; `fetch_*` jobs to the DMA engine. What the
// later parts need to know of a batch is written to their tables with `ctx_*`. `started_*` entries have left the entry RAM for the
// DMA engine: no more than AHEAD are fetched and not started, so that a queue with much to do doesn't delay the others.
// Timing: a batch in about ten cycles.
module pd_fetch #(
  parameter int unsigned QUEUES = 256,
  parameter int unsigned LOG2_DEPTH = 10,
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned BATCHES = 64,
  parameter int unsigned AHEAD = 64,
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES),
  localparam int unsigned BATCH_BITS = $clog2(BATCHES)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  init_i,
  input  logic                  enable_i,
  input  logic                  doorbell_valid_i,
  input  logic [QUEUE_BITS-1:0] doorbell_queue_i,
  output logic                  visit_valid_o,
  input  logic                  visit_ready_i,
  output logic [QUEUE_BITS-1:0] visit_queue_o,
  input  logic [4:0]            visit_count_i,
  input  logic                  visit_more_i,
  input  logic [LOG2_DEPTH-1:0] visit_slot_i,
  input  logic [ADDR_BITS-1:12] visit_sq_base_i,
  input  logic [ADDR_BITS-1:12] visit_cq_base_i,
  output logic                  fetch_valid_o,
  input  logic                  fetch_ready_i,
  output logic [ADDR_BITS-1:0]  fetch_addr_o,
  output logic [4:0]            fetch_count_o,
  output logic [BATCH_BITS-1:0] fetch_batch_o,
  output logic                  ctx_valid_o,
  output logic [BATCH_BITS-1:0] ctx_batch_o,
  output logic [ADDR_BITS-1:0]  ctx_cq_addr_o,
  input  logic [4:0]            started_i,
  input  logic                  free_valid_i,
  input  logic [BATCH_BITS-1:0] free_batch_i,
  output logic                  idle_o
);
  localparam int unsigned AHEAD_BITS = $clog2(AHEAD) + 2;

  logic pick_valid, batch_valid, take, room, visiting_q;
  logic [QUEUE_BITS-1:0] queue;
  logic [BATCH_BITS-1:0] batch;
  logic [AHEAD_BITS-1:0] ahead_q;

  logic doorbell_q;
  logic [QUEUE_BITS-1:0] doorbell_queue_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) doorbell_q <= 1'b0;
    else doorbell_q <= doorbell_valid_i;
  end
  always_ff @(posedge clk_i) doorbell_queue_q <= doorbell_queue_i;

  logic unused_wrap;
  logic [QUEUES-1:0] waiting;
  pd_rr_pick #(.COUNT(QUEUES)) u_pick (
    .clk_i, .rst_ni, .clear_i(init_i),
    .set_a_valid_i(doorbell_q), .set_a_id_i(doorbell_queue_q),
    .set_b_valid_i(visit_ready_i && visit_more_i), .set_b_id_i(queue),
    .pick_valid_o(pick_valid), .pick_ready_i(visit_ready_i), .pick_keep_i(1'b0), .pick_id_o(queue),
    .wrap_o(unused_wrap), .set_o(waiting)
  );
  logic all_free;
  pd_ids #(.COUNT(BATCHES)) u_batches (
    .clk_i, .rst_ni, .init_i, .limit_i((BATCH_BITS + 1)'(BATCHES)),
    .get_valid_o(batch_valid), .get_ready_i(take), .get_id_o(batch),
    .put_valid_i(free_valid_i), .put_id_i(free_batch_i), .all_free_o(all_free)
  );

  // A visit begins only with all it needs, and is then finished.
  assign room = ahead_q <= AHEAD_BITS'(AHEAD - 16);
  assign visit_valid_o = pick_valid && (visiting_q || (enable_i && batch_valid && room && !fetch_valid_o));
  assign visit_queue_o = queue;
  assign take = visit_ready_i && visit_count_i != '0;

  assign ctx_valid_o = take;
  assign ctx_batch_o = batch;
  assign ctx_cq_addr_o = {visit_cq_base_i, 12'd0} + ADDR_BITS'({visit_slot_i, 5'd0});

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      visiting_q <= 1'b0;
      fetch_valid_o <= 1'b0;
      ahead_q <= '0;
    end else begin
      visiting_q <= visit_valid_o && !visit_ready_i;
      if (take) fetch_valid_o <= 1'b1;
      else if (fetch_ready_i) fetch_valid_o <= 1'b0;
      ahead_q <= ahead_q + (take ? AHEAD_BITS'(visit_count_i) : '0) - AHEAD_BITS'(started_i);
    end
  end
  always_ff @(posedge clk_i) begin
    if (take) begin
      fetch_addr_o <= {visit_sq_base_i, 12'd0} + ADDR_BITS'({visit_slot_i, 5'd0});
      fetch_count_o <= visit_count_i;
      fetch_batch_o <= batch;
    end
  end
  assign idle_o = all_free && !fetch_valid_o && !visiting_q;

  logic unused;
  assign unused = ^waiting;
`ifdef PD_ASSERT
  always @(posedge clk_i) if (rst_ni) assert (ahead_q <= AHEAD_BITS'(AHEAD));
  always @(posedge clk_i) if (rst_ni && take) assert (batch_valid && !fetch_valid_o);
`endif
endmodule
