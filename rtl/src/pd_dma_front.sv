// DMA engine, front end: the controller's jobs as one-dimensional transfers.
//
// A copy is read in one or two segments: up to the first multiple of the largest payload in the *destination*, and the rest.
// Each begins at a row of the Data Buffer, the first at the lane of the destination's lowest two address bits; so every write TLP later
// begins at a row and needs no shifting. When all of a slot's reads are in, its write follows.
// Interface: `fetch_*` (SQ entries to entry RAM) before `copy_*`; `read_*` transfers out, their number of reads to the
// tracker (`load_*`) before the first; `done_*` from the tracker; `write_*` transfers out; `failed_*` slots whose reads failed.
// Timing: a job a cycle while nothing waits, two for a copy in two segments; four cycles from job to transfer. `max_*` stand still.
module pd_dma_front #(
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned COUNT_BITS = 7,
  parameter int unsigned BYTES = 64,
  parameter int unsigned ROW_BITS = 11,
  parameter int unsigned INDEX_BITS = 6,
  localparam int unsigned LANE_BITS = $clog2(BYTES),
  localparam int unsigned POS_BITS = ROW_BITS + LANE_BITS
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [2:0]            max_payload_i,
  input  logic [2:0]            max_read_i,
  input  logic                  fetch_valid_i,
  output logic                  fetch_ready_o,
  input  logic [ADDR_BITS-1:0]  fetch_addr_i,
  input  logic [4:0]            fetch_count_i,
  input  logic [INDEX_BITS-1:0] fetch_batch_i,
  input  logic                  copy_valid_i,
  output logic                  copy_ready_o,
  input  logic [ADDR_BITS-1:0]  copy_src_i,
  input  logic [ADDR_BITS-1:0]  copy_dst_i,
  input  logic [LEN_BITS-1:0]   copy_len_i,
  input  logic [INDEX_BITS-1:0] copy_slot_i,
  output logic                  load_valid_o,
  input  logic                  load_ready_i,
  output logic [INDEX_BITS:0]   load_owner_o,
  output logic [COUNT_BITS-1:0] load_count_o,
  output logic                  read_valid_o,
  input  logic                  read_ready_i,
  output logic [ADDR_BITS-1:0]  read_addr_o,
  output logic [LEN_BITS-1:0]   read_len_o,
  output logic [POS_BITS-1:0]   read_pos_o,
  output logic [INDEX_BITS:0]   read_owner_o,
  input  logic                  done_valid_i,
  input  logic [INDEX_BITS-1:0] done_slot_i,
  input  logic [2:0]            done_status_i,
  output logic                  write_valid_o,
  input  logic                  write_ready_i,
  output logic [ADDR_BITS-1:0]  write_addr_o,
  output logic [LEN_BITS-1:0]   write_len_o,
  output logic [INDEX_BITS-1:0] write_slot_o,
  output logic                  failed_valid_o,
  input  logic                  failed_ready_i,
  output logic [INDEX_BITS-1:0] failed_slot_o,
  output logic [2:0]            failed_status_o,
  output logic                  idle_o
);
  localparam int unsigned SLOT_LOG2_ROWS = LEN_BITS - 1 - LANE_BITS;

  // Lengths are carried less one: the distance to the last byte is what boundaries are compared with.
  logic [11:0] payload_mask_q, read_mask_q;
  always_ff @(posedge clk_i) begin
    payload_mask_q <= 12'((13'd128 << max_payload_i) - 13'd1);
    read_mask_q <= 12'((13'd128 << max_read_i) - 13'd1);
  end

  // Stage A: the job.
  logic a_valid_q, a_is_copy_q, a_go;
  logic [ADDR_BITS-1:0] a_addr_q;
  logic [11:0] a_dst_q;
  logic [LEN_BITS-1:0] a_len_q;
  logic [INDEX_BITS-1:0] a_index_q;
  logic b_go, c_go, d_go;

  assign a_go = !a_valid_q || b_go;
  assign fetch_ready_o = a_go;
  assign copy_ready_o = a_go && !fetch_valid_i;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) a_valid_q <= 1'b0;
    else if (a_go) a_valid_q <= fetch_valid_i || copy_valid_i;
  end
  always_ff @(posedge clk_i) begin
    if (a_go) begin
      a_is_copy_q <= !fetch_valid_i;
      a_addr_q <= fetch_valid_i ? fetch_addr_i : copy_src_i;
      a_dst_q <= copy_dst_i[11:0];
      a_len_q <= fetch_valid_i ? LEN_BITS'({fetch_count_i, 5'd0}) : copy_len_i;
      a_index_q <= fetch_valid_i ? fetch_batch_i : copy_slot_i;
    end
  end

  // Stage B: how far it is to the end, and to where the destination is next aligned.
  logic b_valid_q, b_is_copy_q, b_aligned_q;
  logic [ADDR_BITS-1:0] b_addr_q;
  logic [1:0] b_lane_q;
  logic [LEN_BITS-1:0] b_less_q;
  logic [11:0] b_before_q;
  logic [INDEX_BITS-1:0] b_index_q;

  assign b_go = !b_valid_q || c_go;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) b_valid_q <= 1'b0;
    else if (b_go) b_valid_q <= a_valid_q;
  end
  always_ff @(posedge clk_i) begin
    if (b_go) begin
      b_is_copy_q <= a_is_copy_q;
      b_aligned_q <= !a_is_copy_q || (a_dst_q & payload_mask_q) == '0;
      b_addr_q <= a_addr_q;
      b_lane_q <= a_is_copy_q ? a_dst_q[1:0] : 2'd0;
      b_less_q <= a_len_q - 1'b1;
      b_before_q <= ~a_dst_q & payload_mask_q;
      b_index_q <= a_index_q;
    end
  end

  // Stage C: one segment or two. As many reads as the whole would take, counted by where its last byte is.
  logic c_valid_q, c_is_copy_q, c_two_q, b_two;
  logic [ADDR_BITS-1:0] c_addr_q;
  logic [1:0] c_lane_q;
  logic [LEN_BITS-1:0] c_less_q, c_head_less_q;
  logic [LEN_BITS:0] c_last_q;
  logic [INDEX_BITS-1:0] c_index_q;
  logic [ROW_BITS-1:0] c_slot_row_q;

  assign b_two = !b_aligned_q && b_less_q > LEN_BITS'(b_before_q);
  assign c_go = !c_valid_q || d_go;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) c_valid_q <= 1'b0;
    else if (c_go) c_valid_q <= b_valid_q;
  end
  always_ff @(posedge clk_i) begin
    if (c_go) begin
      c_is_copy_q <= b_is_copy_q;
      c_two_q <= b_two;
      c_addr_q <= b_addr_q;
      c_lane_q <= b_lane_q;
      c_less_q <= b_less_q;
      c_head_less_q <= b_two ? LEN_BITS'(b_before_q) : b_less_q;
      c_last_q <= (LEN_BITS + 1)'({b_addr_q[11:0] & read_mask_q}) + (LEN_BITS + 1)'(b_less_q);
      c_index_q <= b_index_q;
      c_slot_row_q <= ROW_BITS'({b_index_q, {SLOT_LOG2_ROWS{1'b0}}}) + ROW_BITS'(b_index_q);
    end
  end

  // Stage D: the transfers. A cut between two segments costs a read more, unless it is where a read ends anyway.
  logic d_valid_q, d_two_q, d_loaded_q, d_second_q, d_extra_q;
  logic [ADDR_BITS-1:0] d_addr_q, d_addr2_q, addr2;
  logic [LEN_BITS-1:0] d_head_q, d_body_q;
  logic [POS_BITS-1:0] d_pos_q;
  logic [ROW_BITS-1:0] d_row2_q;
  logic [INDEX_BITS:0] d_owner_q;
  logic [COUNT_BITS-1:0] d_reads_q;
  logic [LEN_BITS-1:0] head_end;

  assign addr2 = c_addr_q + ADDR_BITS'(c_head_less_q) + 1'b1;
  assign head_end = c_head_less_q + LEN_BITS'(c_lane_q);
  assign d_go = !d_valid_q || (read_valid_o && read_ready_i && (d_second_q || !d_two_q));
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      d_valid_q <= 1'b0;
      d_loaded_q <= 1'b0;
      d_second_q <= 1'b0;
    end else if (d_go) begin
      d_valid_q <= c_valid_q;
      d_loaded_q <= 1'b0;
      d_second_q <= 1'b0;
    end else begin
      if (load_valid_o && load_ready_i) d_loaded_q <= 1'b1;
      if (read_valid_o && read_ready_i) d_second_q <= 1'b1;
    end
  end
  always_ff @(posedge clk_i) begin
    if (d_go) begin
      d_two_q <= c_two_q;
      d_addr_q <= c_addr_q;
      d_addr2_q <= addr2;
      d_head_q <= c_head_less_q + 1'b1;
      d_body_q <= c_less_q - c_head_less_q;
      d_pos_q <= c_is_copy_q ? {c_slot_row_q, LANE_BITS'(c_lane_q)} : POS_BITS'({c_index_q, 9'd0});
      d_row2_q <= c_slot_row_q + ROW_BITS'(head_end >> LANE_BITS) + 1'b1;
      d_owner_q <= {c_is_copy_q, c_index_q};
      d_reads_q <= COUNT_BITS'(c_last_q >> (4'd7 + 4'(max_read_i))) + 1'b1;
      d_extra_q <= c_two_q && (addr2[11:0] & read_mask_q) != '0;
    end
  end

  assign load_valid_o = d_valid_q && !d_loaded_q;
  assign load_owner_o = d_owner_q;
  assign load_count_o = d_reads_q + COUNT_BITS'(d_extra_q);
  assign read_valid_o = d_valid_q && (d_loaded_q || load_ready_i);
  assign read_addr_o = d_second_q ? d_addr2_q : d_addr_q;
  assign read_len_o = d_second_q ? d_body_q : d_head_q;
  assign read_pos_o = d_second_q ? {d_row2_q, LANE_BITS'(0)} : d_pos_q;
  assign read_owner_o = d_owner_q;

  // Slots whose reads are done: good ones are written.
  logic [ADDR_BITS+LEN_BITS-1:0] mem [0:(1 << INDEX_BITS)-1];
  always_ff @(posedge clk_i) begin
    if (copy_valid_i && copy_ready_o) mem[copy_slot_i] <= {copy_dst_i, copy_len_i};
  end

  logic done_fifo_ready;
  logic [INDEX_BITS:0] done_space;
  logic done_valid, w_valid_q, w_go;
  logic [INDEX_BITS-1:0] done_slot, w_slot_q;
  logic [2:0] done_status, w_status_q;
  pd_fifo #(.WIDTH(INDEX_BITS + 3), .LOG2_DEPTH(INDEX_BITS)) u_done (
    .clk_i, .rst_ni,
    .wr_valid_i(done_valid_i), .wr_ready_o(done_fifo_ready), .wr_data_i({done_slot_i, done_status_i}),
    .rd_valid_o(done_valid), .rd_ready_i(w_go),
    .rd_data_o({done_slot, done_status}),
    .space_o(done_space)
  );
  assign w_go = !w_valid_q || (w_status_q == '0 ? write_ready_i : failed_ready_i);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) w_valid_q <= 1'b0;
    else if (w_go) w_valid_q <= done_valid;
  end
  always_ff @(posedge clk_i) if (w_go) {w_slot_q, w_status_q} <= {done_slot, done_status};
  assign {write_addr_o, write_len_o} = mem[w_slot_q];
  assign write_valid_o = w_valid_q && w_status_q == '0;
  assign write_slot_o = w_slot_q;
  assign failed_valid_o = w_valid_q && w_status_q != '0;
  assign failed_status_o = w_status_q;
  assign failed_slot_o = w_slot_q;
  assign idle_o = !a_valid_q && !b_valid_q && !c_valid_q && !d_valid_q && !done_valid && !w_valid_q;

  logic unused;
  assign unused = ^{done_space, head_end, c_last_q};
`ifdef PD_ASSERT
  always @(posedge clk_i) if (rst_ni && done_valid_i) assert (done_fifo_ready);
`else
  logic unused_ready;
  assign unused_ready = done_fifo_ready;
`endif
endmodule
