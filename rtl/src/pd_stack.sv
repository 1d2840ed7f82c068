// PD Stack: the engine in hardware. See README.md for parameters, ports, registers and how to program it.
//
// Interface: four TLP streams with headers beside the data, and the PCIe configuration that matters.
// Timing: one clock; a beat a cycle on every stream; from doorbell to the first read of payload one host read of SQ entries
// and about 40 cycles; no output depends on an input of the same cycle, except `ready`-driven holds.
module pd_stack #(
  parameter int unsigned QUEUES = 256,
  parameter int unsigned LOG2_DEPTH = 10,
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned COPY_BYTES_MAX = 4096,
  parameter int unsigned BUFFER_BYTES = 131072,
  parameter int unsigned TAGS = 128,
  parameter int unsigned BATCHES = 64
) (
  input  logic                    clk_i,
  input  logic                    rst_ni,
  input  logic [15:0]             cfg_requester_id_i,
  input  logic [2:0]              cfg_max_payload_i,
  input  logic [2:0]              cfg_max_read_req_i,
  input  logic                    cfg_ext_tag_i,
  input  logic                    cfg_bus_master_i,
  input  logic                    cfg_msix_enable_i,
  input  logic                    cfg_msix_mask_i,
  output logic                    req_valid_o,
  input  logic                    req_ready_i,
  output logic                    req_sop_o,
  output logic                    req_eop_o,
  output logic [127:0]            req_hdr_o,
  output logic [TLP_WIDTH-1:0]    req_data_o,
  output logic [TLP_WIDTH/32-1:0] req_strb_o,
  input  logic                    cpl_valid_i,
  output logic                    cpl_ready_o,
  input  logic                    cpl_sop_i,
  input  logic                    cpl_eop_i,
  input  logic [127:0]            cpl_hdr_i,
  input  logic [TLP_WIDTH-1:0]    cpl_data_i,
  input  logic                    bar_valid_i,
  output logic                    bar_ready_o,
  input  logic                    bar_sop_i,
  input  logic                    bar_eop_i,
  input  logic [127:0]            bar_hdr_i,
  input  logic [TLP_WIDTH-1:0]    bar_data_i,
  output logic                    bar_cpl_valid_o,
  input  logic                    bar_cpl_ready_i,
  output logic [127:0]            bar_cpl_hdr_o,
  output logic [63:0]             bar_cpl_data_o
);
  localparam int unsigned ADDR_BITS = 52;
  localparam int unsigned BYTES = TLP_WIDTH / 8;
  localparam int unsigned LANE_BITS = $clog2(BYTES);
  localparam int unsigned ROWS = BUFFER_BYTES / BYTES;
  localparam int unsigned ROW_BITS = $clog2(ROWS);
  localparam int unsigned LEN_BITS = $clog2(COPY_BYTES_MAX) + 1;
  // A slot has a row more than its bytes fill, for the two segments of a copy.
  localparam int unsigned SLOTS_FIT = ROWS / (COPY_BYTES_MAX / BYTES + 1);
  localparam int unsigned SLOTS = SLOTS_FIT > 64 ? 64 : SLOTS_FIT;
  localparam int unsigned INDEX_BITS = $clog2(BATCHES) > $clog2(SLOTS) ? $clog2(BATCHES) : $clog2(SLOTS);
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES);

  // Registers.
  logic reg_valid, reg_ready, reg_write, reg_error, queue_valid, queue_ready, msix_valid, msix_ready, msix_pba;
  logic [14:2] reg_addr;
  logic [31:0] reg_wdata, reg_rdata, queue_rdata, msix_rdata;
  logic [QUEUE_BITS-1:0] reg_queue, msix_vector;
  logic [2:0] max_payload, max_read;
  logic ext_tag, init, init_busy, fetch_enable, error_queues, controller_idle, dma_idle;
  logic [15:0] irq_interval, cpl_timeout;
  logic [4:0] batch_max;
  logic count_command, count_error, count_timeout, count_unexpected, count_irq, count_mmio_bad;

  pd_mmio u_mmio (
    .clk_i, .rst_ni, .completer_id_i(cfg_requester_id_i),
    .bar_valid_i, .bar_ready_o, .bar_sop_i, .bar_eop_i, .bar_hdr_i, .bar_data_i(bar_data_i[63:0]),
    .cpl_valid_o(bar_cpl_valid_o), .cpl_ready_i(bar_cpl_ready_i), .cpl_hdr_o(bar_cpl_hdr_o),
    .cpl_data_o(bar_cpl_data_o),
    .reg_valid_o(reg_valid), .reg_ready_i(reg_ready), .reg_write_o(reg_write), .reg_addr_o(reg_addr),
    .reg_wdata_o(reg_wdata), .reg_rdata_i(reg_rdata), .reg_error_i(reg_error), .count_bad_o(count_mmio_bad)
  );
  pd_regs #(.QUEUES(QUEUES), .LOG2_DEPTH(LOG2_DEPTH), .COPY_BYTES_MAX(COPY_BYTES_MAX), .BYTES(BYTES)) u_regs (
    .clk_i, .rst_ni,
    .reg_valid_i(reg_valid), .reg_ready_o(reg_ready), .reg_write_i(reg_write), .reg_addr_i(reg_addr),
    .reg_wdata_i(reg_wdata), .reg_rdata_o(reg_rdata), .reg_error_o(reg_error),
    .queue_valid_o(queue_valid), .queue_ready_i(queue_ready), .queue_o(reg_queue), .queue_rdata_i(queue_rdata),
    .msix_valid_o(msix_valid), .msix_ready_i(msix_ready), .msix_pba_o(msix_pba), .msix_vector_o(msix_vector),
    .msix_rdata_i(msix_rdata),
    .cfg_max_payload_i, .cfg_max_read_i(cfg_max_read_req_i), .cfg_ext_tag_i,
    .max_payload_o(max_payload), .max_read_o(max_read), .ext_tag_o(ext_tag),
    .init_o(init), .init_busy_i(init_busy || !dma_idle), .fetch_enable_o(fetch_enable),
    .idle_i(controller_idle && dma_idle), .error_queues_i(error_queues),
    .irq_interval_o(irq_interval), .cpl_timeout_o(cpl_timeout), .batch_max_o(batch_max),
    .count_command_i(count_command), .count_error_i(count_error), .count_timeout_i(count_timeout),
    .count_unexpected_i(count_unexpected), .count_irq_i(count_irq), .count_mmio_bad_i(count_mmio_bad)
  );

  // PD State Registers, with the Ptr Calculator.
  logic visit_valid, visit_ready, visit_more, visit_phase, visit_irq, retire_valid, retire_ready, retire_fail;
  logic [QUEUE_BITS-1:0] visit_queue, visit_vector, retire_queue, doorbell_queue;
  logic [4:0] visit_count;
  logic [LOG2_DEPTH-1:0] visit_slot;
  logic [ADDR_BITS-1:12] visit_sq_base, visit_cq_base;
  logic doorbell_valid;
  pd_state_regs #(.QUEUES(QUEUES), .LOG2_DEPTH(LOG2_DEPTH), .ADDR_BITS(ADDR_BITS)) u_state_regs (
    .clk_i, .rst_ni, .init_i(init), .init_busy_o(init_busy), .batch_max_i(batch_max),
    .host_valid_i(queue_valid), .host_ready_o(queue_ready), .host_write_i(reg_write), .host_queue_i(reg_queue),
    .host_word_i(reg_addr[4:2]), .host_wdata_i(reg_wdata), .host_rdata_o(queue_rdata),
    .visit_valid_i(visit_valid), .visit_ready_o(visit_ready), .visit_queue_i(visit_queue),
    .visit_count_o(visit_count), .visit_more_o(visit_more), .visit_phase_o(visit_phase), .visit_slot_o(visit_slot),
    .visit_sq_base_o(visit_sq_base), .visit_cq_base_o(visit_cq_base), .visit_irq_o(visit_irq),
    .visit_vector_o(visit_vector),
    .retire_valid_i(retire_valid), .retire_ready_o(retire_ready), .retire_queue_i(retire_queue),
    .retire_fail_i(retire_fail),
    .doorbell_valid_o(doorbell_valid), .doorbell_queue_o(doorbell_queue), .error_queues_o(error_queues)
  );

  // PD Controller.
  logic fetch_valid, fetch_ready, fetch_done_valid, fetch_done_ready, copy_valid, copy_ready, copy_done_valid;
  logic cq_valid, cq_ready, entry_valid, entry_ready, cq_sent, irq_valid;
  logic [ADDR_BITS-1:0] fetch_addr, copy_src, copy_dst, cq_addr;
  logic [4:0] fetch_count, cq_count;
  logic [INDEX_BITS-1:0] fetch_batch, fetch_done_batch, copy_slot, copy_done_slot;
  logic [2:0] fetch_done_status, copy_done_status;
  logic [LEN_BITS-1:0] copy_len;
  logic [255:0] entry_data;
  logic [QUEUE_BITS-1:0] irq_vector;
  logic wr_valid, wr_entry, rd_valid;
  logic [ROW_BITS-1:0] wr_row, rd_row;
  logic [LANE_BITS-1:0] wr_rot;
  logic [BYTES-1:0] wr_mask;
  logic [TLP_WIDTH-1:0] wr_data, rd_data;
  pd_controller #(
    .QUEUES(QUEUES), .LOG2_DEPTH(LOG2_DEPTH), .TLP_WIDTH(TLP_WIDTH), .ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS),
    .BATCHES(BATCHES), .SLOTS(SLOTS), .ROW_BITS(ROW_BITS), .INDEX_BITS(INDEX_BITS)
  ) u_controller (
    .clk_i, .rst_ni, .init_i(init), .enable_i(fetch_enable),
    .doorbell_valid_i(doorbell_valid), .doorbell_queue_i(doorbell_queue),
    .visit_valid_o(visit_valid), .visit_ready_i(visit_ready), .visit_queue_o(visit_queue),
    .visit_count_i(visit_count), .visit_more_i(visit_more), .visit_phase_i(visit_phase), .visit_slot_i(visit_slot),
    .visit_sq_base_i(visit_sq_base), .visit_cq_base_i(visit_cq_base), .visit_irq_i(visit_irq),
    .visit_vector_i(visit_vector),
    .retire_valid_o(retire_valid), .retire_ready_i(retire_ready), .retire_queue_o(retire_queue),
    .retire_fail_o(retire_fail),
    .fetch_valid_o(fetch_valid), .fetch_ready_i(fetch_ready), .fetch_addr_o(fetch_addr),
    .fetch_count_o(fetch_count), .fetch_batch_o(fetch_batch),
    .fetch_done_valid_i(fetch_done_valid), .fetch_done_ready_o(fetch_done_ready),
    .fetch_done_batch_i(fetch_done_batch), .fetch_done_status_i(fetch_done_status),
    .copy_valid_o(copy_valid), .copy_ready_i(copy_ready), .copy_src_o(copy_src), .copy_dst_o(copy_dst),
    .copy_len_o(copy_len), .copy_slot_o(copy_slot),
    .copy_done_valid_i(copy_done_valid), .copy_done_slot_i(copy_done_slot), .copy_done_status_i(copy_done_status),
    .cq_valid_o(cq_valid), .cq_ready_i(cq_ready), .cq_addr_o(cq_addr), .cq_count_o(cq_count),
    .entry_valid_o(entry_valid), .entry_ready_i(entry_ready), .entry_data_o(entry_data), .cq_sent_i(cq_sent),
    .wr_valid_i(wr_valid && wr_entry), .wr_row_i(wr_row), .wr_rot_i(wr_rot), .wr_mask_i(wr_mask), .wr_data_i(wr_data),
    .irq_valid_o(irq_valid), .irq_vector_o(irq_vector),
    .count_command_o(count_command), .count_error_o(count_error), .idle_o(controller_idle)
  );

  logic msi_valid, msi_ready;
  logic [ADDR_BITS-1:0] msi_addr;
  logic [31:0] msi_data;
  pd_msix #(.VECTORS(QUEUES), .ADDR_BITS(ADDR_BITS)) u_msix (
    .clk_i, .rst_ni, .enable_i(cfg_msix_enable_i), .mask_i(cfg_msix_mask_i), .interval_i(irq_interval),
    .host_valid_i(msix_valid), .host_ready_o(msix_ready), .host_write_i(reg_write), .host_pba_i(msix_pba),
    .host_vector_i(msix_vector), .host_word_i(reg_addr[3:2]), .host_pba_word_i(reg_addr[4:2]),
    .host_wdata_i(reg_wdata), .host_rdata_o(msix_rdata),
    .irq_valid_i(irq_valid), .irq_vector_i(irq_vector),
    .msi_valid_o(msi_valid), .msi_ready_i(msi_ready), .msi_addr_o(msi_addr), .msi_data_o(msi_data),
    .count_o(count_irq)
  );

  // DMA engine and Data Buffer.
  pd_dma #(
    .TLP_WIDTH(TLP_WIDTH), .ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS), .ROW_BITS(ROW_BITS), .INDEX_BITS(INDEX_BITS),
    .TAGS(TAGS)
  ) u_dma (
    .clk_i, .rst_ni, .init_i(init), .requester_id_i(cfg_requester_id_i), .max_payload_i(max_payload),
    .max_read_i(max_read), .ext_tag_i(ext_tag), .bus_master_i(cfg_bus_master_i), .timeout_i(cpl_timeout),
    .fetch_valid_i(fetch_valid), .fetch_ready_o(fetch_ready), .fetch_addr_i(fetch_addr),
    .fetch_count_i(fetch_count), .fetch_batch_i(fetch_batch),
    .copy_valid_i(copy_valid), .copy_ready_o(copy_ready), .copy_src_i(copy_src), .copy_dst_i(copy_dst),
    .copy_len_i(copy_len), .copy_slot_i(copy_slot),
    .cq_valid_i(cq_valid), .cq_ready_o(cq_ready), .cq_addr_i(cq_addr), .cq_count_i(cq_count),
    .entry_valid_i(entry_valid), .entry_ready_o(entry_ready), .entry_data_i(entry_data),
    .msi_valid_i(msi_valid), .msi_ready_o(msi_ready), .msi_addr_i(msi_addr), .msi_data_i(msi_data),
    .fetch_done_valid_o(fetch_done_valid), .fetch_done_ready_i(fetch_done_ready),
    .fetch_done_batch_o(fetch_done_batch), .fetch_done_status_o(fetch_done_status),
    .copy_done_valid_o(copy_done_valid), .copy_done_slot_o(copy_done_slot), .copy_done_status_o(copy_done_status),
    .cq_sent_o(cq_sent),
    .wr_valid_o(wr_valid), .wr_entry_o(wr_entry), .wr_row_o(wr_row), .wr_rot_o(wr_rot), .wr_mask_o(wr_mask),
    .wr_data_o(wr_data), .rd_valid_o(rd_valid), .rd_row_o(rd_row), .rd_data_i(rd_data),
    .cpl_valid_i, .cpl_sop_i, .cpl_eop_i, .cpl_hdr_i, .cpl_data_i,
    .req_valid_o, .req_ready_i, .req_sop_o, .req_eop_o, .req_hdr_o, .req_data_o, .req_strb_o,
    .count_timeout_o(count_timeout), .count_unexpected_o(count_unexpected), .idle_o(dma_idle)
  );
  assign cpl_ready_o = 1'b1;

  pd_data_buffer #(.BYTES(BYTES), .ROWS(ROWS)) u_data_buffer (
    .clk_i,
    .wr_valid_i(wr_valid && !wr_entry), .wr_row_i(wr_row), .wr_rot_i(wr_rot), .wr_mask_i(wr_mask), .wr_data_i(wr_data),
    .rd_valid_i(rd_valid), .rd_row_i(rd_row), .rd_data_o(rd_data)
  );

  logic unused;
  assign unused = ^bar_data_i;
endmodule
