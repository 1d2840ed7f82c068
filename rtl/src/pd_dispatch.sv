// PD Controller, second part: entries of fetched batches, checked, as copies.
//
// Interface: `batch_*` fetched batches in the order of their arrival; `read_*` to the entry RAM (data two cycles later);
// `copy_*` jobs with a slot of the Data Buffer each; `bad_*` commands that are no copies; `fail_*` batches that couldn't be read.
// `start_*` announces each batch, or one that failed, to the retiring part before its first entry. `slot_done_*` ends a copy: `end_*` says of which entry.
// Timing: an entry a cycle while nothing waits; eight cycles from `batch_*` to `copy_*`.
module pd_dispatch #(
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned BATCHES = 64,
  parameter int unsigned SLOTS = 31,
  parameter int unsigned INDEX_BITS = 6,
  localparam int unsigned BATCH_BITS = $clog2(BATCHES),
  localparam int unsigned ENTRY_BITS = BATCH_BITS + 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  init_i,
  input  logic                  batch_valid_i,
  output logic                  batch_ready_o,
  input  logic [BATCH_BITS-1:0] batch_i,
  input  logic [4:0]            batch_count_i,
  input  logic                  batch_ok_i,
  output logic                  fail_valid_o,
  input  logic                  fail_ready_i,
  output logic                  start_valid_o,
  output logic [BATCH_BITS-1:0] start_batch_o,
  output logic [4:0]            start_count_o,
  output logic                  read_valid_o,
  input  logic                  read_ready_i,
  output logic [ENTRY_BITS-1:0] read_entry_o,
  input  logic [255:0]          read_data_i,
  output logic                  copy_valid_o,
  input  logic                  copy_ready_i,
  output logic [ADDR_BITS-1:0]  copy_src_o,
  output logic [ADDR_BITS-1:0]  copy_dst_o,
  output logic [LEN_BITS-1:0]   copy_len_o,
  output logic [INDEX_BITS-1:0] copy_slot_o,
  output logic                  bad_valid_o,
  input  logic                  bad_ready_i,
  output logic [ENTRY_BITS-1:0] bad_entry_o,
  output logic [2:0]            bad_status_o,
  input  logic                  slot_done_valid_i,
  input  logic [INDEX_BITS-1:0] slot_done_i,
  output logic [ENTRY_BITS-1:0] end_entry_o,
  output logic [4:0]            started_o
);
  localparam int unsigned SLOT_BITS = $clog2(SLOTS);
  localparam int unsigned WORD_BITS = ENTRY_BITS + 8 + 32 + 64 + 64;

  // The batch at work.
  logic b_valid_q, b_ok_q, b_go;
  logic [BATCH_BITS-1:0] b_batch_q;
  logic [4:0] b_count_q;
  assign batch_ready_o = !b_valid_q || b_go;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) b_valid_q <= 1'b0;
    else if (batch_ready_o) b_valid_q <= batch_valid_i;
  end
  always_ff @(posedge clk_i) begin
    if (batch_ready_o) {b_ok_q, b_batch_q, b_count_q} <= {batch_ok_i, batch_i, batch_count_i};
  end

  // Reading: entry after entry of it into a small FIFO.
  logic [3:0] index_q;
  logic last, read, fail_take;
  logic [1:0] pending_q;
  logic [ENTRY_BITS-1:0] entry0_q, entry1_q;
  logic [3:0] space;
  logic fifo_ready, fifo_valid, fifo_take;
  logic [WORD_BITS-1:0] word, head, head_q;

  assign last = 5'(index_q) + 5'd1 == b_count_q;
  assign fail_valid_o = b_valid_q && !b_ok_q;
  assign fail_take = fail_valid_o && fail_ready_i;
  assign read_valid_o = b_valid_q && b_ok_q && space > 4'd2;
  assign read = read_valid_o && read_ready_i;
  assign read_entry_o = {b_batch_q, index_q};
  assign start_valid_o = read && index_q == '0;
  assign start_batch_o = b_batch_q;
  assign start_count_o = b_count_q;
  assign b_go = fail_take || (read && last);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      index_q <= '0;
      pending_q <= '0;
    end else begin
      if (read) index_q <= last ? '0 : index_q + 1'b1;
      pending_q <= {pending_q[0], read};
    end
  end
  always_ff @(posedge clk_i) begin
    entry0_q <= read_entry_o;
    entry1_q <= entry0_q;
  end
  assign word = {entry1_q,
      read_data_i[pd_abi_pkg::CMD_REQUEST_TYPE_LSB +: 8], read_data_i[pd_abi_pkg::CMD_DATA_LEN_LSB +: 32],
      read_data_i[pd_abi_pkg::CMD_SRC_ADDR_LSB +: 64], read_data_i[pd_abi_pkg::CMD_DST_ADDR_LSB +: 64]};
  pd_fifo #(.WIDTH(WORD_BITS), .LOG2_DEPTH(3)) u_entries (
    .clk_i, .rst_ni,
    .wr_valid_i(pending_q[1]), .wr_ready_o(fifo_ready), .wr_data_i(word),
    .rd_valid_o(fifo_valid), .rd_ready_i(fifo_take), .rd_data_o(head),
    .space_o(space)
  );

  // Checking: a type it knows, a length in bounds, addresses that exist.
  logic [ENTRY_BITS-1:0] entry;
  logic [7:0] kind;
  logic [31:0] len;
  logic [63:0] src, dst;
  logic [ADDR_BITS:0] src_end, dst_end;
  logic bad_type, bad_len, bad_src, bad_dst;
  logic [2:0] status;
  localparam logic [31:0] COPY_BYTES_MAX = 32'd1 << (LEN_BITS - 1);
  assign {entry, kind, len, src, dst} = head_q;
  assign bad_type = kind != 8'(pd_abi_pkg::TYPE_GENERAL_SEND);
  assign bad_len = len == '0 || len > COPY_BYTES_MAX;
  assign src_end = (ADDR_BITS + 1)'(src[ADDR_BITS-1:0]) + (ADDR_BITS + 1)'(len[LEN_BITS-1:0]);
  assign dst_end = (ADDR_BITS + 1)'(dst[ADDR_BITS-1:0]) + (ADDR_BITS + 1)'(len[LEN_BITS-1:0]);
  assign bad_src = src == '0 || src[63:ADDR_BITS] != '0 || src_end[ADDR_BITS];
  assign bad_dst = dst == '0 || dst[63:ADDR_BITS] != '0 || dst_end[ADDR_BITS];
  always_comb begin
    status = 3'(pd_abi_pkg::STATUS_OK);
    if (bad_type) status = 3'(pd_abi_pkg::STATUS_BAD_TYPE);
    else if (bad_len) status = 3'(pd_abi_pkg::STATUS_BAD_LENGTH);
    else if (bad_src || bad_dst) status = 3'(pd_abi_pkg::STATUS_BAD_ADDRESS);
  end

  logic head_valid_q, check, valid_q, sent, slot_valid;
  logic [2:0] status_q;
  logic [ENTRY_BITS-1:0] entry_q;
  logic [SLOT_BITS-1:0] slot;
  assign check = !valid_q || sent;
  assign fifo_take = !head_valid_q || check;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      head_valid_q <= 1'b0;
      valid_q <= 1'b0;
    end else begin
      if (fifo_take) head_valid_q <= fifo_valid;
      if (check) valid_q <= head_valid_q;
    end
  end
  always_ff @(posedge clk_i) begin
    if (fifo_take) head_q <= head;
    if (check) begin
      status_q <= status;
      entry_q <= entry;
      copy_src_o <= src[ADDR_BITS-1:0];
      copy_dst_o <= dst[ADDR_BITS-1:0];
      copy_len_o <= len[LEN_BITS-1:0];
    end
  end

  // Sending.
  logic copy;
  assign bad_valid_o = valid_q && status_q != '0;
  assign bad_entry_o = entry_q;
  assign bad_status_o = status_q;
  assign copy_valid_o = valid_q && status_q == '0 && slot_valid;
  assign copy = copy_valid_o && copy_ready_i;
  assign copy_slot_o = INDEX_BITS'(slot);
  assign sent = copy || (bad_valid_o && bad_ready_i);
  assign started_o = 5'(sent) + (fail_take ? b_count_q : 5'd0);

  logic unused_all_free;
  pd_ids #(.COUNT(SLOTS)) u_slots (
    .clk_i, .rst_ni, .init_i, .limit_i((SLOT_BITS + 1)'(SLOTS)),
    .get_valid_o(slot_valid), .get_ready_i(copy), .get_id_o(slot),
    .put_valid_i(slot_done_valid_i), .put_id_i(slot_done_i[SLOT_BITS-1:0]), .all_free_o(unused_all_free)
  );
  logic [ENTRY_BITS-1:0] mem [0:(1 << SLOT_BITS)-1];
  always_ff @(posedge clk_i) if (copy) mem[slot] <= entry_q;
  assign end_entry_o = mem[slot_done_i[SLOT_BITS-1:0]];

  logic unused;
  assign unused = ^{read_data_i, slot_done_i, src_end, dst_end};
`ifdef PD_ASSERT
  always @(posedge clk_i) if (rst_ni && pending_q[1]) assert (fifo_ready);
`else
  logic unused_ready;
  assign unused_ready = fifo_ready;
`endif
endmodule
