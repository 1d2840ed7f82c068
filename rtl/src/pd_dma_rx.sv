// DMA engine, back end: completions of reads, in any order between tags and in any number of pieces, into their place.
//
// The place of a piece follows from its byte count (what is left of the read, itself included), so that a read has no
// running state. The bytes of a beat are turned to their lanes here, at any byte alignment; nothing else in the data path shifts.
// Dropped and counted: completions of tags that are not out, of other requesters, with more bytes than were asked for.
// Interface: `cpl_*` always ready; `look_*`, `state_*`, `end_*`, `free_*`, `kill_*` to the tags; `wr_*` to Data Buffer or
// (`wr_entry_o`) entry RAM; `event_*` to the tracker, with the last write of its read or later.
// Timing: five cycles from `cpl_*` to `wr_*` and `event_*`, three to `end_*`; a time-out takes the place of a beat when none comes.
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
  output logic [TAG_BITS-1:0]   end_tag_o,
  output logic                  end_dead_o,
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
  logic in_tlp_q, kill, kill1_q, kill2_q;

  // One at a time: its end takes three cycles.
  assign kill = kill_valid_i && !cpl_valid_i && !in_tlp_q && !kill0_q && !kill1_q && !kill2_q;
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

  // Stage 1: what is known of its tag, and sums.
  logic valid1_q, sop1_q, eop1_q, out1_q, dead1_q, mine1_q, ok1_q, refused1_q, has_data1_q, poisoned1_q;
  logic cut_bc1_q, cut_tlp1_q;
  logic [TLP_WIDTH-1:0] data1_q;
  logic [POS_BITS-1:0] end1_q;
  logic [12:0] len1_q, bc, bc1_q, sum1_q, all1_q, in_tlp1_q;
  logic [OWNER_BITS-1:0] owner1_q;
  logic [TAG_BITS-1:0] tag1_q;
  logic [1:0] la1_q;
  logic ended0;
  assign state_tag_o = tag0_q[TAG_BITS-1:0];
  assign bc = {bc0_q == '0, bc0_q};
  // Its state may have changed by those before it that are not through yet.
  assign ended0 = end_valid_o && end_tag_o == state_tag_o;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid1_q <= 1'b0;
      kill1_q <= 1'b0;
    end else begin
      valid1_q <= valid0_q;
      kill1_q <= kill0_q;
    end
  end
  always_ff @(posedge clk_i) begin
    data1_q <= data0_q;
    sop1_q <= sop0_q;
    eop1_q <= eop0_q;
    {end1_q, len1_q, owner1_q} <= look_info_i;
    out1_q <= state_out_i && !ended0;
    dead1_q <= state_dead_i && !ended0;
    mine1_q <= is_cpl0_q && id0_q == requester_id_i && 32'(tag0_q) < TAGS;
    ok1_q <= status0_q == 3'd0;
    refused1_q <= status0_q == 3'd1;
    has_data1_q <= has_data0_q;
    poisoned1_q <= poisoned0_q;
    // SQ entries come whole: not, if this is the last piece, or if it isn't.
    cut_bc1_q <= odd0_q || bc0_q[4:0] != 5'd0;
    cut_tlp1_q <= odd0_q || dw0_q[2:0] != 3'd0;
    la1_q <= la0_q;
    tag1_q <= state_tag_o;
    // Bytes that are left of the read; bytes in this TLP; and both counted from the first DW.
    bc1_q <= bc;
    in_tlp1_q <= {dw0_q == '0, dw0_q, 2'b00} - 13'(la0_q);
    sum1_q <= bc + 13'(la0_q);
    all1_q <= {dw0_q == '0, dw0_q, 2'b00};
  end

  // Stage 2: what is it, and where does it go.
  logic first, out, dead, ends, known, late, cut, whole, ended1;
  logic [2:0] status;
  assign first = valid1_q && sop1_q;
  assign ended1 = end_valid_o && end_tag_o == tag1_q;
  assign out = out1_q && !ended1;
  assign dead = dead1_q && !ended1;
  assign ends = !ok1_q || bc1_q <= in_tlp1_q;
  assign known = mine1_q && out && (!ok1_q || (has_data1_q && bc1_q <= len1_q));
  assign late = mine1_q && dead;
  assign cut = !owner1_q[OWNER_BITS-1] && (ends ? cut_bc1_q : cut_tlp1_q);
  assign whole = ok1_q && !poisoned1_q && !cut;
  always_comb begin
    status = OK;
    if (kill1_q) status = FAILED;
    else if (refused1_q) status = BAD_ADDRESS;
    else if (!whole) status = FAILED;
  end

  logic valid2_q, write2_q, first2_q, last2_q, entry2_q;
  logic [TLP_WIDTH-1:0] data2_q;
  logic [ROW_BITS-1:0] row2_q;
  logic [LANE_BITS-1:0] rot2_q;
  logic [1:0] la2_q;
  logic [12:0] to_end2_q;
  logic known2_q, final2_q, free2_q;
  logic [2:0] status2_q;
  logic [OWNER_BITS-1:0] owner2_q;
  logic [TAG_BITS-1:0] tag2_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid2_q <= 1'b0;
      kill2_q <= 1'b0;
      write2_q <= 1'b0;
      known2_q <= 1'b0;
      final2_q <= 1'b0;
      free2_q <= 1'b0;
      end_valid_o <= 1'b0;
      count_timeout_o <= 1'b0;
      count_unexpected_o <= 1'b0;
    end else begin
      valid2_q <= valid1_q || kill1_q;
      kill2_q <= kill1_q;
      end_valid_o <= (first && (known || late) && ends) || (kill1_q && (out || dead));
      count_timeout_o <= kill1_q && out;
      count_unexpected_o <= first && !known;
      if (first) begin
        write2_q <= known && whole;
        known2_q <= known && (ends || !whole);
        final2_q <= ends;
        free2_q <= (known || late) && ends;
      end else if (kill1_q) begin
        write2_q <= 1'b0;
        known2_q <= out;
        final2_q <= 1'b1;
        free2_q <= dead;
      end
    end
  end
  always_ff @(posedge clk_i) begin
    data2_q <= data1_q;
    last2_q <= eop1_q || kill1_q;
    first2_q <= sop1_q;
    end_tag_o <= tag1_q;
    end_dead_o <= kill1_q && out;
    if (first || kill1_q) begin
      {row2_q, rot2_q} <= end1_q - POS_BITS'(sum1_q);
      la2_q <= la1_q;
      to_end2_q <= ends ? sum1_q : all1_q;
      status2_q <= status;
      owner2_q <= owner1_q;
      entry2_q <= !owner1_q[OWNER_BITS-1];
      tag2_q <= tag1_q;
    end else if (valid1_q) begin
      row2_q <= row2_q + 1'b1;
      to_end2_q <= to_end2_q[12:LANE_BITS] == '0 ? '0 : {to_end2_q[12:LANE_BITS] - 1'b1, to_end2_q[LANE_BITS-1:0]};
    end
  end

  // Stages 3 and 4: the bytes turned by `rot`, fine and coarse; their enables made, and turned.
  logic [BYTES-1:0] from, to, mask3_q, mask4;
  logic [TLP_WIDTH-1:0] data3, data3_q, data4;
  logic [LANE_BITS-1:0] rot3_q;
  assign from = first2_q ? {BYTES{1'b1}} << la2_q : '1;
  assign to = to_end2_q[12:LANE_BITS] != '0 ? '1 : ~({BYTES{1'b1}} << to_end2_q[LANE_BITS-1:0]);
  pd_rotate #(.LANES(BYTES), .LANE_WIDTH(8), .STEP(1), .SEL_BITS(4)) u_turn_fine (
    .data_i(data2_q), .sel_i(rot2_q[3:0]), .data_o(data3)
  );
  pd_rotate #(.LANES(BYTES), .LANE_WIDTH(8), .STEP(16), .SEL_BITS(LANE_BITS - 4)) u_turn_coarse (
    .data_i(data3_q), .sel_i(rot3_q[LANE_BITS-1:4]), .data_o(data4)
  );
  pd_rotate #(.LANES(BYTES), .LANE_WIDTH(1), .STEP(1), .SEL_BITS(LANE_BITS)) u_turn_mask (
    .data_i(mask3_q), .sel_i(rot3_q), .data_o(mask4)
  );

  logic valid3_q, entry3_q, event3_q, final3_q, free3_q;
  logic [ROW_BITS-1:0] row3_q;
  logic [2:0] status3_q;
  logic [OWNER_BITS-1:0] owner3_q;
  logic [TAG_BITS-1:0] tag3_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      valid3_q <= 1'b0;
      event3_q <= 1'b0;
      free3_q <= 1'b0;
      wr_valid_o <= 1'b0;
      event_valid_o <= 1'b0;
      free_valid_o <= 1'b0;
    end else begin
      valid3_q <= valid2_q && write2_q;
      event3_q <= valid2_q && last2_q && known2_q;
      free3_q <= valid2_q && last2_q && free2_q;
      wr_valid_o <= valid3_q;
      event_valid_o <= event3_q;
      free_valid_o <= free3_q;
    end
  end
  always_ff @(posedge clk_i) begin
    data3_q <= data3;
    mask3_q <= from & to;
    row3_q <= row2_q;
    rot3_q <= rot2_q;
    entry3_q <= entry2_q;
    final3_q <= final2_q;
    status3_q <= status2_q;
    owner3_q <= owner2_q;
    tag3_q <= tag2_q;
    wr_data_o <= data4;
    wr_mask_o <= mask4;
    wr_row_o <= row3_q;
    wr_rot_o <= rot3_q;
    wr_entry_o <= entry3_q;
    event_final_o <= final3_q;
    event_status_o <= status3_q;
    event_owner_o <= owner3_q;
    free_tag_o <= tag3_q;
  end
endmodule
