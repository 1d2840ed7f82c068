// DMA engine, back end: completions of reads, in any order between tags and in any number of pieces, into their place.
//
// The place of a piece follows from its byte count (what is left of the read, itself included), so that a read has no
// running state. The bytes of a beat are turned to their lanes here, at any byte alignment; nothing else in the data path shifts.
// Dropped and counted: completions of tags that are not out, of other requesters, with more bytes than were asked for.
// Interface: `cpl_*` always ready; `look_*`, `state_*`, `end_*`, `free_*`, `kill_*` to the tags; `wr_*` to Data Buffer or
// (`wr_entry_o`) entry RAM; `event_*` to the tracker, with the last write of its read or later.
// Timing: five cycles from `cpl_*` to `wr_*` and `event_*`; a time-out takes the place of a beat when none comes.
module pd_dma_rx #(
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned TAGS = 128,
  parameter int unsigned ROW_BITS = 11,
  parameter int unsigned OWNER_BITS = 7,
  localparam int unsigned TAG_BITS = $clog2(TAGS),
  localparam int unsigned BYTES = TLP_WIDTH / 8,
  localparam int unsigned LANE_BITS = $clog2(BYTES),
  localparam int unsigned POS_BITS = ROW_BITS + LANE_BITS,
  localparam int unsigned INFO_BITS = POS_BITS + 13 + OWNER_BITS
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [15:0]           requester_id_i,
  input  logic                  cpl_valid_i,
  input  logic                  cpl_sop_i,
  input  logic                  cpl_eop_i,
  input  logic [127:0]          cpl_hdr_i,
  input  logic [TLP_WIDTH-1:0]  cpl_data_i,
  output logic [TAG_BITS-1:0]   look_tag_o,
  input  logic [INFO_BITS-1:0]  look_info_i,
  output logic [TAG_BITS-1:0]   state_tag_o,
  input  logic                  state_out_i,
  input  logic                  state_dead_i,
  output logic                  end_valid_o,
  output logic                  end_timeout_o,
  output logic                  free_valid_o,
  output logic [TAG_BITS-1:0]   free_tag_o,
  input  logic                  kill_valid_i,
  input  logic [TAG_BITS-1:0]   kill_tag_i,
  output logic                  wr_valid_o,
  output logic                  wr_entry_o,
  output logic [ROW_BITS-1:0]   wr_row_o,
  output logic [LANE_BITS-1:0]  wr_rot_o,
  output logic [BYTES-1:0]      wr_mask_o,
  output logic [TLP_WIDTH-1:0]  wr_data_o,
  output logic                  event_valid_o,
  output logic [OWNER_BITS-1:0] event_owner_o,
  output logic                  event_final_o,
  output logic [2:0]            event_status_o,
  output logic                  count_timeout_o,
  output logic                  count_unexpected_o
);
  localparam logic [2:0] OK = 3'(pd_abi_pkg::STATUS_OK);
  localparam logic [2:0] BAD_ADDRESS = 3'(pd_abi_pkg::STATUS_BAD_ADDRESS);
  localparam logic [2:0] FAILED = 3'(pd_abi_pkg::STATUS_FAILED);

  // Stage 0: the beat, or a time-out between two TLPs.
  logic valid0_q, sop0_q, eop0_q, kill0_q;
  logic [TLP_WIDTH-1:0] data0_q;
  logic [9:0] dw0_q;
  logic [11:0] bc0_q;
  logic [2:0] status0_q;
  logic [15:0] id0_q;
  logic [7:0] tag0_q;
  logic [1:0] la0_q;
  logic odd0_q, is_cpl0_q, has_data0_q, poisoned0_q;
  logic in_tlp_q, kill;

  assign kill = kill_valid_i && !cpl_valid_i && !in_tlp_q && !kill0_q;
  assign look_tag_o = kill ? kill_tag_i : cpl_hdr_i[40 +: TAG_BITS];

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid0_q <= 1'b0;
      kill0_q <= 1'b0;
      in_tlp_q <= 1'b0;
    end else begin
      valid0_q <= cpl_valid_i;
      kill0_q <= kill;
      if (cpl_valid_i) in_tlp_q <= !cpl_eop_i;
    end
  end
  always_ff @(posedge clk_i) begin
    data0_q <= cpl_data_i;
    sop0_q <= cpl_sop_i;
    eop0_q <= cpl_eop_i;
    dw0_q <= cpl_hdr_i[105:96];
    poisoned0_q <= cpl_hdr_i[110];
    is_cpl0_q <= cpl_hdr_i[124:120] == 5'b01010 && !cpl_hdr_i[125] && !cpl_hdr_i[127];
    has_data0_q <= cpl_hdr_i[126];
    bc0_q <= cpl_hdr_i[75:64];
    status0_q <= cpl_hdr_i[79:77];
    id0_q <= cpl_hdr_i[63:48];
    tag0_q <= kill ? 8'(kill_tag_i) : cpl_hdr_i[47:40];
    la0_q <= cpl_hdr_i[33:32];
    odd0_q <= cpl_hdr_i[36:32] != 5'd0;
  end
  logic unused_hdr;
  assign unused_hdr = ^{cpl_hdr_i[119:111], cpl_hdr_i[109:106], cpl_hdr_i[95:80], cpl_hdr_i[76],
      cpl_hdr_i[39:37], cpl_hdr_i[31:0]};

  // Stage 1: what is it, and where does it go.
  logic [POS_BITS-1:0] info_end, start;
  logic [12:0] info_len, bc, in_tlp, bytes;
  logic [OWNER_BITS-1:0] info_owner;
  logic known, late, shaped, good, ends, cut;
  logic [2:0] status;
  assign {info_end, info_len, info_owner} = look_info_i;
  assign state_tag_o = tag0_q[TAG_BITS-1:0];

  assign bc = {bc0_q == '0, bc0_q};
  assign in_tlp = {dw0_q == '0, dw0_q, 2'b00} - 13'(la0_q);
  assign ends = status0_q != 3'd0 || bc <= in_tlp;
  assign bytes = ends ? bc : in_tlp;
  assign shaped = is_cpl0_q && id0_q == requester_id_i && 32'(tag0_q) < TAGS
      && (status0_q != 3'd0 || (has_data0_q && bc <= info_len));
  assign known = shaped && state_out_i;
  assign late = is_cpl0_q && id0_q == requester_id_i && 32'(tag0_q) < TAGS && state_dead_i;
  // SQ entries come whole.
  assign cut = !info_owner[OWNER_BITS-1] && (odd0_q || bytes[4:0] != 5'd0);
  assign good = known && status0_q == 3'd0 && !poisoned0_q && !cut;
  assign start = info_end - POS_BITS'(bc) - POS_BITS'(la0_q);
  always_comb begin
    status = OK;
    if (kill0_q) status = FAILED;
    else if (status0_q == 3'd1) status = BAD_ADDRESS;
    else if (!good) status = FAILED;
  end

  logic first;
  assign first = valid0_q && sop0_q;
  assign end_valid_o = (first && (known || late) && ends) || (kill0_q && (state_out_i || state_dead_i));
  assign end_timeout_o = kill0_q;

  logic valid1_q, write1_q, first1_q, last1_q, entry1_q;
  logic [TLP_WIDTH-1:0] data1_q;
  logic [ROW_BITS-1:0] row1_q;
  logic [LANE_BITS-1:0] rot1_q;
  logic [1:0] la1_q;
  logic [12:0] to_end1_q;
  logic known1_q, final1_q, free1_q, timeout1_q, unexpected1_q;
  logic [2:0] status1_q;
  logic [OWNER_BITS-1:0] owner1_q;
  logic [TAG_BITS-1:0] tag1_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid1_q <= 1'b0;
      write1_q <= 1'b0;
      known1_q <= 1'b0;
      final1_q <= 1'b0;
      free1_q <= 1'b0;
      timeout1_q <= 1'b0;
      unexpected1_q <= 1'b0;
    end else begin
      valid1_q <= valid0_q || kill0_q;
      unexpected1_q <= first && !known;
      timeout1_q <= kill0_q && state_out_i;
      if (first) begin
        write1_q <= good;
        known1_q <= known && (ends || status != OK);
        final1_q <= ends;
        free1_q <= (known || late) && ends;
      end else if (kill0_q) begin
        write1_q <= 1'b0;
        known1_q <= state_out_i;
        final1_q <= 1'b1;
        free1_q <= state_dead_i;
      end
    end
  end
  always_ff @(posedge clk_i) begin
    data1_q <= data0_q;
    last1_q <= eop0_q || kill0_q;
    first1_q <= sop0_q;
    if (first || kill0_q) begin
      {row1_q, rot1_q} <= start;
      la1_q <= la0_q;
      to_end1_q <= bytes + 13'(la0_q);
      status1_q <= status;
      owner1_q <= info_owner;
      entry1_q <= !info_owner[OWNER_BITS-1];
      tag1_q <= state_tag_o;
    end else if (valid0_q) begin
      row1_q <= row1_q + 1'b1;
      to_end1_q <= to_end1_q > 13'(BYTES) ? to_end1_q - 13'(BYTES) : '0;
    end
  end

  // Stages 2 and 3: a byte enable beside each byte, both turned by `rot`.
  localparam int unsigned TURN_BITS = 9 * BYTES;
  logic [BYTES-1:0] from, to;
  logic [TURN_BITS-1:0] lanes1, lanes2, lanes2_q, lanes3, lanes3_q;
  assign from = first1_q ? {BYTES{1'b1}} << la1_q : '1;
  assign to = to_end1_q >= 13'(BYTES) ? '1 : ~({BYTES{1'b1}} << to_end1_q[LANE_BITS-1:0]);
  for (genvar lane = 0; lane < BYTES; lane++) begin : gen_lane
    assign lanes1[9*lane +: 9] = {from[lane] && to[lane], data1_q[8*lane +: 8]};
    assign {wr_mask_o[lane], wr_data_o[8*lane +: 8]} = lanes3_q[9*lane +: 9];
  end
  pd_rotate #(.LANES(BYTES), .STEP(1), .SEL_BITS(4)) u_turn_fine (
    .data_i(lanes1), .sel_i(rot1_q[3:0]), .data_o(lanes2)
  );
  pd_rotate #(.LANES(BYTES), .STEP(16), .SEL_BITS(LANE_BITS - 4)) u_turn_coarse (
    .data_i(lanes2_q), .sel_i(rot2_q[LANE_BITS-1:4]), .data_o(lanes3)
  );

  logic valid2_q, entry2_q, event2_q, final2_q, free2_q;
  logic [ROW_BITS-1:0] row2_q;
  logic [LANE_BITS-1:0] rot2_q;
  logic [2:0] status2_q;
  logic [OWNER_BITS-1:0] owner2_q;
  logic [TAG_BITS-1:0] tag2_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid2_q <= 1'b0;
      event2_q <= 1'b0;
      free2_q <= 1'b0;
      wr_valid_o <= 1'b0;
      event_valid_o <= 1'b0;
      free_valid_o <= 1'b0;
      count_timeout_o <= 1'b0;
      count_unexpected_o <= 1'b0;
    end else begin
      valid2_q <= valid1_q && write1_q;
      event2_q <= valid1_q && last1_q && known1_q;
      free2_q <= valid1_q && last1_q && free1_q;
      wr_valid_o <= valid2_q;
      event_valid_o <= event2_q;
      free_valid_o <= free2_q;
      count_timeout_o <= timeout1_q;
      count_unexpected_o <= unexpected1_q;
    end
  end
  always_ff @(posedge clk_i) begin
    lanes2_q <= lanes2;
    row2_q <= row1_q;
    rot2_q <= rot1_q;
    entry2_q <= entry1_q;
    final2_q <= final1_q;
    status2_q <= status1_q;
    owner2_q <= owner1_q;
    tag2_q <= tag1_q;
    lanes3_q <= lanes3;
    wr_row_o <= row2_q;
    wr_rot_o <= rot2_q;
    wr_entry_o <= entry2_q;
    event_final_o <= final2_q;
    event_status_o <= status2_q;
    event_owner_o <= owner2_q;
    free_tag_o <= tag2_q;
  end
endmodule
