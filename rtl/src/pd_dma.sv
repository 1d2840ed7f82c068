// DMA engine: jobs of the PD Controller as PCIe requests.
//
// Front end (`pd_dma_front`): jobs as transfers. Mid end (`pd_dma_split`, one for reads, one for writes): transfers as
// bursts. Back end (`pd_dma_tags`, `pd_dma_rx`, `pd_dma_track`, `pd_dma_write`, `pd_dma_out`): bursts as TLPs, completions as data.
// Interface: jobs, each valid/ready: `fetch_*` SQ entries to entry RAM, `copy_*` a command, `cq_*` completion entries (their
// contents on `entry_*`), `msi_*` one DW. Ends: `fetch_done_*` valid/ready; `copy_done_*` and `cq_sent_o` pulses. A copy whose
// reads failed writes nothing. A job order is kept where it matters: a completion never passes its payload.
// Timing: see the parts. Full rate: one beat a cycle out and one in.
module pd_dma #(
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned ROW_BITS = 11,
  parameter int unsigned INDEX_BITS = 6,
  parameter int unsigned TAGS = 128,
  localparam int unsigned BYTES = TLP_WIDTH / 8,
  localparam int unsigned LANE_BITS = $clog2(BYTES)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   init_i,
  input  logic [15:0]            requester_id_i,
  input  logic [2:0]             max_payload_i,
  input  logic [2:0]             max_read_i,
  input  logic                   ext_tag_i,
  input  logic                   bus_master_i,
  input  logic [15:0]            timeout_i,
  input  logic                   fetch_valid_i,
  output logic                   fetch_ready_o,
  input  logic [ADDR_BITS-1:0]   fetch_addr_i,
  input  logic [4:0]             fetch_count_i,
  input  logic [INDEX_BITS-1:0]  fetch_batch_i,
  input  logic                   copy_valid_i,
  output logic                   copy_ready_o,
  input  logic [ADDR_BITS-1:0]   copy_src_i,
  input  logic [ADDR_BITS-1:0]   copy_dst_i,
  input  logic [LEN_BITS-1:0]    copy_len_i,
  input  logic [INDEX_BITS-1:0]  copy_slot_i,
  input  logic                   cq_valid_i,
  output logic                   cq_ready_o,
  input  logic [ADDR_BITS-1:0]   cq_addr_i,
  input  logic [4:0]             cq_count_i,
  input  logic                   entry_valid_i,
  output logic                   entry_ready_o,
  input  logic [255:0]           entry_data_i,
  input  logic                   msi_valid_i,
  output logic                   msi_ready_o,
  input  logic [ADDR_BITS-1:0]   msi_addr_i,
  input  logic [31:0]            msi_data_i,
  output logic                   fetch_done_valid_o,
  input  logic                   fetch_done_ready_i,
  output logic [INDEX_BITS-1:0]  fetch_done_batch_o,
  output logic [2:0]             fetch_done_status_o,
  output logic                   copy_done_valid_o,
  output logic [INDEX_BITS-1:0]  copy_done_slot_o,
  output logic [2:0]             copy_done_status_o,
  output logic                   cq_sent_o,
  output logic                   wr_valid_o,
  output logic                   wr_entry_o,
  output logic [ROW_BITS-1:0]    wr_row_o,
  output logic [LANE_BITS-1:0]   wr_rot_o,
  output logic [BYTES-1:0]       wr_mask_o,
  output logic [TLP_WIDTH-1:0]   wr_data_o,
  output logic                   rd_valid_o,
  output logic [ROW_BITS-1:0]    rd_row_o,
  input  logic [TLP_WIDTH-1:0]   rd_data_i,
  input  logic                   cpl_valid_i,
  input  logic                   cpl_sop_i,
  input  logic                   cpl_eop_i,
  input  logic [127:0]           cpl_hdr_i,
  input  logic [TLP_WIDTH-1:0]   cpl_data_i,
  output logic                   req_valid_o,
  input  logic                   req_ready_i,
  output logic                   req_sop_o,
  output logic                   req_eop_o,
  output logic [127:0]           req_hdr_o,
  output logic [TLP_WIDTH-1:0]   req_data_o,
  output logic [TLP_WIDTH/32-1:0] req_strb_o,
  output logic                   count_timeout_o,
  output logic                   count_unexpected_o,
  output logic                   idle_o
);
  localparam int unsigned OWNER_BITS = INDEX_BITS + 1;
  localparam int unsigned POS_BITS = ROW_BITS + LANE_BITS;
  localparam int unsigned COUNT_BITS = LEN_BITS - 5;
  localparam int unsigned TAG_BITS = $clog2(TAGS);
  localparam int unsigned INFO_BITS = POS_BITS + 13 + OWNER_BITS;

  // Front end.
  logic load_valid, load_ready;
  logic [OWNER_BITS-1:0] load_owner, read_owner, done_owner;
  logic [COUNT_BITS-1:0] load_count;
  logic read_valid, read_ready, write_valid, write_ready;
  logic [ADDR_BITS-1:0] read_addr, write_addr;
  logic [LEN_BITS-1:0] read_len, write_len;
  logic [POS_BITS-1:0] read_pos;
  logic [INDEX_BITS-1:0] write_slot, failed_slot;
  logic done_valid, failed_valid, front_idle, slot_done;
  logic [INDEX_BITS-1:0] slot_done_id;
  logic [2:0] done_status, failed_status;

  pd_dma_front #(
    .ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS), .COUNT_BITS(COUNT_BITS), .BYTES(BYTES), .ROW_BITS(ROW_BITS),
    .INDEX_BITS(INDEX_BITS)
  ) u_front (
    .clk_i, .rst_ni,
    .max_payload_i, .max_read_i,
    .fetch_valid_i, .fetch_ready_o, .fetch_addr_i, .fetch_count_i, .fetch_batch_i,
    .copy_valid_i, .copy_ready_o, .copy_src_i, .copy_dst_i, .copy_len_i, .copy_slot_i,
    .load_valid_o(load_valid), .load_ready_i(load_ready), .load_owner_o(load_owner), .load_count_o(load_count),
    .read_valid_o(read_valid), .read_ready_i(read_ready), .read_addr_o(read_addr), .read_len_o(read_len),
    .read_pos_o(read_pos), .read_owner_o(read_owner),
    .done_valid_i(done_valid && done_owner[INDEX_BITS]), .done_slot_i(done_owner[INDEX_BITS-1:0]),
    .done_status_i(done_status),
    .write_valid_o(write_valid), .write_ready_i(write_ready), .write_addr_o(write_addr), .write_len_o(write_len),
    .write_slot_o(write_slot),
    .failed_valid_o(failed_valid), .failed_ready_i(!slot_done), .failed_slot_o(failed_slot),
    .failed_status_o(failed_status),
    .idle_o(front_idle)
  );
  assign copy_done_valid_o = slot_done || failed_valid;
  assign copy_done_slot_o = slot_done ? slot_done_id : failed_slot;
  assign copy_done_status_o = slot_done ? '0 : failed_status;

  logic fetch_fifo_ready;
  logic [INDEX_BITS:0] fetch_space;
  pd_fifo #(.WIDTH(INDEX_BITS + 3), .LOG2_DEPTH(INDEX_BITS)) u_fetched (
    .clk_i, .rst_ni,
    .wr_valid_i(done_valid && !done_owner[INDEX_BITS]), .wr_ready_o(fetch_fifo_ready),
    .wr_data_i({done_owner[INDEX_BITS-1:0], done_status}),
    .rd_valid_o(fetch_done_valid_o), .rd_ready_i(fetch_done_ready_i),
    .rd_data_o({fetch_done_batch_o, fetch_done_status_o}),
    .space_o(fetch_space)
  );

  // Reads: bursts, each with a tag, as headers.
  logic rb_valid, rb_ready, rb_first, rb_last, read_split_idle;
  logic [ADDR_BITS-1:0] rb_addr;
  logic [12:0] rb_len;
  logic [POS_BITS-1:0] rb_pos;
  logic [OWNER_BITS-1:0] rb_owner;
  pd_dma_split #(.ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS), .POS_BITS(POS_BITS), .USER_BITS(OWNER_BITS)) u_read_split (
    .clk_i, .rst_ni, .limit_i(max_read_i),
    .in_valid_i(read_valid), .in_ready_o(read_ready), .in_addr_i(read_addr), .in_len_i(read_len),
    .in_pos_i(read_pos), .in_user_i(read_owner),
    .out_valid_o(rb_valid), .out_ready_i(rb_ready), .out_addr_o(rb_addr), .out_len_o(rb_len), .out_pos_o(rb_pos),
    .out_first_o(rb_first), .out_last_o(rb_last), .out_user_o(rb_owner), .idle_o(read_split_idle)
  );

  logic tag_valid, mrd_ready, mrd_valid, mrd_take, tags_idle;
  logic [TAG_BITS-1:0] tag, look_tag, state_tag, end_tag, free_tag, kill_tag;
  logic [INFO_BITS-1:0] info, look_info;
  logic state_out, state_dead, end_valid, end_dead, free_valid, kill_valid;
  logic [127:0] mrd_hdr, mrd_out_hdr;
  logic [10:0] mrd_dws;
  logic [2:0] mrd_space;
  assign rb_ready = tag_valid && mrd_ready;
  assign info = {rb_pos + POS_BITS'(rb_len), rb_len, rb_owner};
  pd_dma_tags #(.TAGS(TAGS), .INFO_BITS(INFO_BITS)) u_tags (
    .clk_i, .rst_ni, .init_i, .ext_tag_i, .timeout_i,
    .alloc_valid_o(tag_valid), .alloc_ready_i(rb_valid && mrd_ready), .alloc_tag_o(tag), .alloc_info_i(info),
    .look_tag_i(look_tag), .look_info_o(look_info),
    .state_tag_i(state_tag), .state_out_o(state_out), .state_dead_o(state_dead),
    .end_valid_i(end_valid), .end_tag_i(end_tag), .end_dead_i(end_dead),
    .free_valid_i(free_valid), .free_tag_i(free_tag),
    .kill_valid_o(kill_valid), .kill_tag_o(kill_tag), .idle_o(tags_idle)
  );
  pd_dma_hdr #(.ADDR_BITS(ADDR_BITS)) u_mrd_hdr (
    .write_i(1'b0), .addr_i(rb_addr), .len_i(rb_len), .tag_i(8'(tag)), .requester_id_i,
    .hdr_o(mrd_hdr), .dws_o(mrd_dws)
  );
  pd_fifo #(.WIDTH(128), .LOG2_DEPTH(2)) u_mrd (
    .clk_i, .rst_ni,
    .wr_valid_i(rb_valid && tag_valid), .wr_ready_o(mrd_ready), .wr_data_i(mrd_hdr),
    .rd_valid_o(mrd_valid), .rd_ready_i(mrd_take), .rd_data_o(mrd_out_hdr),
    .space_o(mrd_space)
  );

  // Completions.
  logic event_valid, event_final;
  logic [OWNER_BITS-1:0] event_owner;
  logic [2:0] event_status;
  pd_dma_rx #(.TLP_WIDTH(TLP_WIDTH), .TAGS(TAGS), .ROW_BITS(ROW_BITS), .OWNER_BITS(OWNER_BITS)) u_rx (
    .clk_i, .rst_ni, .requester_id_i,
    .cpl_valid_i, .cpl_sop_i, .cpl_eop_i, .cpl_hdr_i, .cpl_data_i,
    .look_tag_o(look_tag), .look_info_i(look_info),
    .state_tag_o(state_tag), .state_out_i(state_out), .state_dead_i(state_dead),
    .end_valid_o(end_valid), .end_tag_o(end_tag), .end_dead_o(end_dead),
    .free_valid_o(free_valid), .free_tag_o(free_tag),
    .kill_valid_i(kill_valid), .kill_tag_i(kill_tag),
    .wr_valid_o, .wr_entry_o, .wr_row_o, .wr_rot_o, .wr_mask_o, .wr_data_o,
    .event_valid_o(event_valid), .event_owner_o(event_owner), .event_final_o(event_final),
    .event_status_o(event_status),
    .count_timeout_o, .count_unexpected_o
  );
  pd_dma_track #(.OWNER_BITS(OWNER_BITS), .COUNT_BITS(COUNT_BITS)) u_track (
    .clk_i, .rst_ni,
    .load_valid_i(load_valid), .load_ready_o(load_ready), .load_owner_i(load_owner), .load_count_i(load_count),
    .event_valid_i(event_valid), .event_owner_i(event_owner), .event_final_i(event_final),
    .event_status_i(event_status),
    .done_valid_o(done_valid), .done_owner_o(done_owner), .done_status_o(done_status)
  );

  // Writes: completions before interrupts before payload.
  logic job_valid, job_ready;
  logic [ADDR_BITS-1:0] job_addr;
  logic [LEN_BITS-1:0] job_len;
  // A job of neither kind is one DW.
  logic job_data, job_cq;
  logic [31:0] job_word;
  always_comb begin
    job_valid = cq_valid_i || msi_valid_i || write_valid;
    job_cq = cq_valid_i;
    job_data = !cq_valid_i && !msi_valid_i;
    if (cq_valid_i) begin
      {job_addr, job_len, job_word} = {cq_addr_i, LEN_BITS'({cq_count_i, 5'd0}), 32'd0};
    end else if (msi_valid_i) begin
      {job_addr, job_len, job_word} = {msi_addr_i, LEN_BITS'(4), msi_data_i};
    end else begin
      {job_addr, job_len, job_word} = {write_addr, write_len, 32'(write_slot)};
    end
  end
  assign cq_ready_o = job_ready;
  assign msi_ready_o = job_ready && !cq_valid_i;
  assign write_ready = job_ready && !cq_valid_i && !msi_valid_i;

  logic wb_valid, wb_ready, wb_first, wb_last, wb_pos, wb_data, wb_cq, write_split_idle;
  logic [ADDR_BITS-1:0] wb_addr;
  logic [12:0] wb_len;
  logic [31:0] wb_word;
  pd_dma_split #(.ADDR_BITS(ADDR_BITS), .LEN_BITS(LEN_BITS), .POS_BITS(1), .USER_BITS(34)) u_write_split (
    .clk_i, .rst_ni, .limit_i(max_payload_i),
    .in_valid_i(job_valid), .in_ready_o(job_ready), .in_addr_i(job_addr), .in_len_i(job_len),
    .in_pos_i(1'b0), .in_user_i({job_data, job_cq, job_word}),
    .out_valid_o(wb_valid), .out_ready_i(wb_ready), .out_addr_o(wb_addr), .out_len_o(wb_len), .out_pos_o(wb_pos),
    .out_first_o(wb_first), .out_last_o(wb_last), .out_user_o({wb_data, wb_cq, wb_word}), .idle_o(write_split_idle)
  );

  logic mwr_valid, mwr_ready, mwr_sop, mwr_eop, mwr_cq, write_idle;
  logic [127:0] mwr_hdr;
  logic [TLP_WIDTH-1:0] mwr_data;
  logic [TLP_WIDTH/32-1:0] mwr_strb;
  pd_dma_write #(
    .TLP_WIDTH(TLP_WIDTH), .ADDR_BITS(ADDR_BITS), .ROW_BITS(ROW_BITS), .INDEX_BITS(INDEX_BITS),
    .SLOT_LOG2_ROWS(LEN_BITS - 1 - LANE_BITS)
  ) u_write (
    .clk_i, .rst_ni, .requester_id_i,
    .in_valid_i(wb_valid), .in_ready_o(wb_ready), .in_addr_i(wb_addr), .in_len_i(wb_len), .in_first_i(wb_first),
    .in_last_i(wb_last), .in_data_i(wb_data), .in_cq_i(wb_cq), .in_word_i(wb_word),
    .rd_valid_o, .rd_row_o, .rd_data_i,
    .entry_valid_i, .entry_ready_o, .entry_data_i,
    .slot_done_valid_o(slot_done), .slot_done_o(slot_done_id),
    .out_valid_o(mwr_valid), .out_ready_i(mwr_ready), .out_sop_o(mwr_sop), .out_eop_o(mwr_eop), .out_hdr_o(mwr_hdr),
    .out_data_o(mwr_data), .out_strb_o(mwr_strb), .out_cq_o(mwr_cq),
    .idle_o(write_idle)
  );
  pd_dma_out #(.TLP_WIDTH(TLP_WIDTH)) u_out (
    .clk_i, .rst_ni, .enable_i(bus_master_i),
    .read_valid_i(mrd_valid), .read_ready_o(mrd_take), .read_hdr_i(mrd_out_hdr),
    .write_valid_i(mwr_valid), .write_ready_o(mwr_ready), .write_sop_i(mwr_sop), .write_eop_i(mwr_eop),
    .write_hdr_i(mwr_hdr), .write_data_i(mwr_data), .write_strb_i(mwr_strb),
    .write_mark_i(mwr_cq), .mark_sent_o(cq_sent_o),
    .out_valid_o(req_valid_o), .out_ready_i(req_ready_i), .out_sop_o(req_sop_o), .out_eop_o(req_eop_o),
    .out_hdr_o(req_hdr_o), .out_data_o(req_data_o), .out_strb_o(req_strb_o)
  );

  assign idle_o = front_idle && tags_idle && write_idle && write_split_idle && read_split_idle && !mrd_valid && !req_valid_o;
  logic unused;
  assign unused = ^{fetch_space, rb_first, rb_last, mrd_dws, mrd_space, wb_pos};
`ifdef PD_ASSERT
  always @(posedge clk_i) if (rst_ni && done_valid && !done_owner[INDEX_BITS]) assert (fetch_fifo_ready);
`else
  logic unused_ready;
  assign unused_ready = fetch_fifo_ready;
`endif
endmodule
