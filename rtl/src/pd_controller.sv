// PD Controller: commands from queues to the DMA engine and back as completions.
//
// `pd_fetch` visits queues in turn and has batches of entries read, `pd_dispatch` checks them and hands out copies, `pd_retire`
// writes completions; all at work at once on different batches. Entries stay in `pd_entry_ram` meanwhile.
// Interface: `doorbell_*`, `visit_*`, `retire_*` with the state registers; `fetch_*`, `copy_*`, `cq_*`, `entry_*` with the DMA
// engine; `wr_*` from it; `irq_*` to MSI-X. `idle_o`: no batch is in flight.
// Timing: see the parts.
module pd_controller #(
  parameter int unsigned QUEUES = 256,
  parameter int unsigned LOG2_DEPTH = 10,
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned BATCHES = 64,
  parameter int unsigned SLOTS = 31,
  parameter int unsigned ROW_BITS = 11,
  parameter int unsigned INDEX_BITS = 6,
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES),
  localparam int unsigned BYTES = TLP_WIDTH / 8,
  localparam int unsigned LANE_BITS = $clog2(BYTES)
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
  input  logic                  visit_phase_i,
  input  logic [LOG2_DEPTH-1:0] visit_slot_i,
  input  logic [ADDR_BITS-1:12] visit_sq_base_i,
  input  logic [ADDR_BITS-1:12] visit_cq_base_i,
  input  logic                  visit_irq_i,
  input  logic [QUEUE_BITS-1:0] visit_vector_i,
  output logic                  retire_valid_o,
  input  logic                  retire_ready_i,
  output logic [QUEUE_BITS-1:0] retire_queue_o,
  output logic                  retire_fail_o,
  output logic                  fetch_valid_o,
  input  logic                  fetch_ready_i,
  output logic [ADDR_BITS-1:0]  fetch_addr_o,
  output logic [4:0]            fetch_count_o,
  output logic [INDEX_BITS-1:0] fetch_batch_o,
  input  logic                  fetch_done_valid_i,
  output logic                  fetch_done_ready_o,
  input  logic [INDEX_BITS-1:0] fetch_done_batch_i,
  input  logic [2:0]            fetch_done_status_i,
  output logic                  copy_valid_o,
  input  logic                  copy_ready_i,
  output logic [ADDR_BITS-1:0]  copy_src_o,
  output logic [ADDR_BITS-1:0]  copy_dst_o,
  output logic [LEN_BITS-1:0]   copy_len_o,
  output logic [INDEX_BITS-1:0] copy_slot_o,
  input  logic                  copy_done_valid_i,
  input  logic [INDEX_BITS-1:0] copy_done_slot_i,
  input  logic [2:0]            copy_done_status_i,
  output logic                  cq_valid_o,
  input  logic                  cq_ready_i,
  output logic [ADDR_BITS-1:0]  cq_addr_o,
  output logic [4:0]            cq_count_o,
  output logic                  entry_valid_o,
  input  logic                  entry_ready_i,
  output logic [255:0]          entry_data_o,
  input  logic                  cq_sent_i,
  input  logic                  wr_valid_i,
  input  logic [ROW_BITS-1:0]   wr_row_i,
  input  logic [LANE_BITS-1:0]  wr_rot_i,
  input  logic [BYTES-1:0]      wr_mask_i,
  input  logic [TLP_WIDTH-1:0]  wr_data_i,
  output logic                  irq_valid_o,
  output logic [QUEUE_BITS-1:0] irq_vector_o,
  output logic                  count_command_o,
  output logic                  count_error_o,
  output logic                  idle_o
);
  localparam int unsigned BATCH_BITS = $clog2(BATCHES);
  localparam int unsigned ENTRY_BITS = BATCH_BITS + 4;
  localparam int unsigned SLOT_BITS = $clog2(SLOTS);

  logic ctx_valid, free_valid, start_valid, bad_valid, bad_ready, fail_valid, fail_ready;
  logic [BATCH_BITS-1:0] fetch_batch, ctx_batch, free_batch, done_batch, start_batch;
  logic [ADDR_BITS-1:0] ctx_cq_addr;
  logic [4:0] started, look_count, start_count;
  logic [ENTRY_BITS-1:0] bad_entry, end_entry, dispatch_entry, retire_entry;
  logic [2:0] bad_status;
  logic dispatch_read, retire_read;
  logic [255:0] read_data;

  assign fetch_batch_o = INDEX_BITS'(fetch_batch);
  assign done_batch = fetch_done_batch_i[BATCH_BITS-1:0];

  pd_fetch #(.QUEUES(QUEUES), .LOG2_DEPTH(LOG2_DEPTH), .ADDR_BITS(ADDR_BITS), .BATCHES(BATCHES)) u_fetch (
    .clk_i, .rst_ni, .init_i, .enable_i,
    .doorbell_valid_i, .doorbell_queue_i,
    .visit_valid_o, .visit_ready_i, .visit_queue_o, .visit_count_i, .visit_more_i, .visit_slot_i,
    .visit_sq_base_i, .visit_cq_base_i,
    .fetch_valid_o, .fetch_ready_i, .fetch_addr_o, .fetch_count_o, .fetch_batch_o(fetch_batch),
    .ctx_valid_o(ctx_valid), .ctx_batch_o(ctx_batch), .ctx_cq_addr_o(ctx_cq_addr),
    .started_i(started), .free_valid_i(free_valid), .free_batch_i(free_batch),
    .idle_o
  );
  pd_dispatch #(
    .ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS), .BATCHES(BATCHES), .SLOTS(SLOTS), .INDEX_BITS(INDEX_BITS)
  ) u_dispatch (
    .clk_i, .rst_ni, .init_i,
    .batch_valid_i(fetch_done_valid_i), .batch_ready_o(fetch_done_ready_o), .batch_i(done_batch),
    .batch_count_i(look_count), .batch_ok_i(fetch_done_status_i == '0),
    .fail_valid_o(fail_valid), .fail_ready_i(fail_ready), .start_valid_o(start_valid),
    .start_batch_o(start_batch), .start_count_o(start_count),
    .read_valid_o(dispatch_read), .read_ready_i(!retire_read), .read_entry_o(dispatch_entry), .read_data_i(read_data),
    .copy_valid_o, .copy_ready_i, .copy_src_o, .copy_dst_o, .copy_len_o, .copy_slot_o,
    .bad_valid_o(bad_valid), .bad_ready_i(bad_ready), .bad_entry_o(bad_entry), .bad_status_o(bad_status),
    .slot_done_valid_i(copy_done_valid_i), .slot_done_i(copy_done_slot_i), .end_entry_o(end_entry),
    .started_o(started)
  );
  pd_retire #(
    .QUEUE_BITS(QUEUE_BITS), .ADDR_BITS(ADDR_BITS), .BATCHES(BATCHES), .SLOT_BITS(SLOT_BITS)
  ) u_retire (
    .clk_i, .rst_ni,
    .ctx_valid_i(ctx_valid), .ctx_batch_i(ctx_batch), .ctx_queue_i(visit_queue_o), .ctx_count_i(visit_count_i),
    .ctx_phase_i(visit_phase_i), .ctx_cq_addr_i(ctx_cq_addr), .ctx_irq_i(visit_irq_i), .ctx_vector_i(visit_vector_i),
    .look_batch_i(done_batch), .look_count_o(look_count),
    .start_valid_i(start_valid), .start_batch_i(start_batch), .start_count_i(start_count),
    .end_valid_i(copy_done_valid_i), .end_entry_i(end_entry), .end_status_i(copy_done_status_i),
    .bad_valid_i(bad_valid), .bad_ready_o(bad_ready), .bad_entry_i(bad_entry), .bad_status_i(bad_status),
    .fail_valid_i(fail_valid), .fail_ready_o(fail_ready),
    .read_valid_o(retire_read), .read_entry_o(retire_entry), .read_data_i(read_data),
    .cq_valid_o, .cq_ready_i, .cq_addr_o, .cq_count_o,
    .entry_valid_o, .entry_ready_i, .entry_data_o, .cq_sent_i,
    .retire_valid_o, .retire_ready_i, .retire_queue_o, .retire_fail_o,
    .free_valid_o(free_valid), .free_batch_o(free_batch), .irq_valid_o, .irq_vector_o,
    .count_command_o, .count_error_o
  );
  pd_entry_ram #(.TLP_WIDTH(TLP_WIDTH), .BATCHES(BATCHES), .ROW_BITS(ROW_BITS)) u_entry_ram (
    .clk_i,
    .wr_valid_i, .wr_row_i, .wr_rot_i, .wr_mask_i, .wr_data_i,
    .rd_valid_i(dispatch_read || retire_read), .rd_entry_i(retire_read ? retire_entry : dispatch_entry),
    .rd_data_o(read_data)
  );

  logic unused;
  assign unused = ^fetch_done_batch_i;
endmodule
