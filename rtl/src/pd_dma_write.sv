// DMA engine, back end: write TLPs.
//
// Three kinds of bursts, each from its source: payload from the Data Buffer (a beat a cycle), completion entries from the
// controller (an entry a cycle), one DW that came with the job (MSI). They leave in the order they came, so that a completion is
// behind its payload and an interrupt behind its completions.
// Interface: bursts in, `in_data_i` of payload, `in_cq_i` of entries, otherwise a DW; `rd_*` to the Data Buffer; `entry_*` from the
// controller, as many as the bursts have; TLP stream out.
// `slot_done_*`: a slot's payload has been read and is on its way. `out_cq_o` marks the last beat of a
// completion job.
// Timing: six cycles from burst to TLP; TLPs back to back.
module pd_dma_write #(
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned ROW_BITS = 11,
  parameter int unsigned INDEX_BITS = 6,
  parameter int unsigned SLOT_LOG2_ROWS = 6,
  localparam int unsigned BYTES = TLP_WIDTH / 8,
  localparam int unsigned LANE_BITS = $clog2(BYTES),
  localparam int unsigned DWS = BYTES / 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic [15:0]           requester_id_i,
  input  logic                  in_valid_i,
  output logic                  in_ready_o,
  input  logic [ADDR_BITS-1:0]  in_addr_i,
  input  logic [12:0]           in_len_i,
  input  logic                  in_first_i,
  input  logic                  in_last_i,
  input  logic                  in_data_i,
  input  logic                  in_cq_i,
  input  logic [31:0]           in_word_i,
  output logic                  rd_valid_o,
  output logic [ROW_BITS-1:0]   rd_row_o,
  input  logic [TLP_WIDTH-1:0]  rd_data_i,
  input  logic                  entry_valid_i,
  output logic                  entry_ready_o,
  input  logic [255:0]          entry_data_i,
  output logic                  slot_done_valid_o,
  output logic [INDEX_BITS-1:0] slot_done_o,
  output logic                  out_valid_o,
  input  logic                  out_ready_i,
  output logic                  out_sop_o,
  output logic                  out_eop_o,
  output logic [127:0]          out_hdr_o,
  output logic [TLP_WIDTH-1:0]  out_data_o,
  output logic [DWS-1:0]        out_strb_o,
  output logic                  out_cq_o,
  output logic                  idle_o
);
  localparam int unsigned LOG2_FIFO = 4;
  localparam int unsigned PER_BEAT = BYTES / 32;
  localparam int unsigned PER_BEAT_BITS = $clog2(PER_BEAT);

  // The next burst: its header.
  logic h_valid_q, h_first_q, h_last_q, h_data_q, h_cq_q, h_go;
  logic [127:0] h_hdr_q, hdr;
  logic [10:0] h_dws_q, dws;
  logic [31:0] h_word_q;
  logic [ROW_BITS-1:0] h_row_q;

  pd_dma_hdr #(.ADDR_BITS(ADDR_BITS)) u_hdr (
    .write_i(1'b1), .addr_i(in_addr_i), .len_i(in_len_i), .tag_i(8'd0), .requester_id_i,
    .hdr_o(hdr), .dws_o(dws)
  );
  assign in_ready_o = !h_valid_q || h_go;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) h_valid_q <= 1'b0;
    else if (in_ready_o) h_valid_q <= in_valid_i;
  end
  always_ff @(posedge clk_i) begin
    if (in_ready_o) begin
      h_first_q <= in_first_i;
      h_last_q <= in_last_i;
      h_data_q <= in_data_i;
      h_cq_q <= in_cq_i;
      h_hdr_q <= hdr;
      h_dws_q <= dws;
      h_word_q <= in_word_i;
      h_row_q <= ROW_BITS'({in_word_i[INDEX_BITS-1:0], {SLOT_LOG2_ROWS{1'b0}}}) + ROW_BITS'(in_word_i[INDEX_BITS-1:0]);
    end
  end

  // The burst at work: whose turn it is and how much is left of it.
  logic b_data_q, b_cq_q, b_word_q, b_last_q, b_sop_q, b_eop_q, b_valid;
  logic [127:0] b_hdr_q;
  logic [10:0] b_dws_q;
  logic [31:0] b_value_q;
  logic beat, data_beat, side_beat;

  assign b_valid = b_data_q || b_cq_q || b_word_q;
  assign h_go = !b_valid || (beat && b_eop_q);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) {b_data_q, b_cq_q, b_word_q} <= '0;
    else if (h_go) {b_data_q, b_cq_q, b_word_q} <= {h_data_q, h_cq_q, !h_data_q && !h_cq_q} & {3{h_valid_q}};
  end
  always_ff @(posedge clk_i) begin
    if (h_go) begin
      b_last_q <= h_last_q;
      b_sop_q <= 1'b1;
      b_eop_q <= h_dws_q <= 11'(DWS);
      b_hdr_q <= h_hdr_q;
      b_dws_q <= h_dws_q;
      b_value_q <= h_word_q;
    end else if (beat) begin
      b_sop_q <= 1'b0;
      b_eop_q <= b_dws_q <= 11'(2 * DWS);
      b_dws_q <= b_dws_q - 11'(DWS);
    end
  end

  // Room: three beats may be on their way from the Data Buffer.
  logic [LOG2_FIFO:0] space;
  logic room, fifo_ready, hdr_ready;
  assign room = space > (LOG2_FIFO + 1)'(3);

  // Payload: the rows of a slot one after the other, over all its bursts.
  logic [ROW_BITS-1:0] row_q;
  assign data_beat = b_data_q && room;
  assign rd_row_o = row_q;
  always_ff @(posedge clk_i) begin
    if (h_go && h_first_q) row_q <= h_row_q;
    else if (data_beat) row_q <= row_q + 1'b1;
  end

  logic [1:0] pipe_valid_q;
  logic [1:0] pipe_sop_q, pipe_eop_q;
  logic [LANE_BITS-2:0] pipe_dws0_q, pipe_dws1_q, beat_dws;
  assign rd_valid_o = data_beat;
  assign beat_dws = b_eop_q ? (LANE_BITS - 1)'(b_dws_q) : (LANE_BITS - 1)'(DWS);
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) pipe_valid_q <= '0;
    else pipe_valid_q <= {pipe_valid_q[0], data_beat};
  end
  always_ff @(posedge clk_i) begin
    pipe_sop_q <= {pipe_sop_q[0], b_sop_q};
    pipe_eop_q <= {pipe_eop_q[0], b_eop_q};
    pipe_dws0_q <= beat_dws;
    pipe_dws1_q <= pipe_dws0_q;
  end

  // Entries and words: collected beside the pipeline, put in when it is empty.
  logic [TLP_WIDTH-1:0] side_q;
  logic [PER_BEAT_BITS:0] have_q, want;
  logic side_full, side_take;
  assign want = b_eop_q ? (PER_BEAT_BITS + 1)'(b_dws_q[LANE_BITS-2:3]) : (PER_BEAT_BITS + 1)'(PER_BEAT);
  assign side_full = b_cq_q ? have_q == want : have_q != '0;
  assign entry_ready_o = b_cq_q && have_q != want;
  assign side_take = (b_cq_q && entry_valid_i && have_q != want) || (b_word_q && have_q == '0);
  assign side_beat = (b_cq_q || b_word_q) && side_full && pipe_valid_q == '0 && room;
  assign beat = data_beat || side_beat;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) have_q <= '0;
    else if (side_beat) have_q <= '0;
    else if (side_take) have_q <= have_q + 1'b1;
  end
  for (genvar i = 0; i < PER_BEAT; i++) begin : gen_side
    always_ff @(posedge clk_i) begin
      if (b_cq_q && have_q == (PER_BEAT_BITS + 1)'(i)) side_q[256*i +: 256] <= entry_data_i;
      else if (b_word_q && i == 0) side_q[256*i +: 256] <= 256'(b_value_q);
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) slot_done_valid_o <= 1'b0;
    else slot_done_valid_o <= data_beat && b_eop_q && b_last_q;
  end
  always_ff @(posedge clk_i) slot_done_o <= b_value_q[INDEX_BITS-1:0];

  // Out: headers and beats.
  logic push, push_sop, push_eop, push_cq;
  logic [LANE_BITS-2:0] push_dws, out_dws;
  assign push = pipe_valid_q[1] || side_beat;
  assign push_sop = pipe_valid_q[1] ? pipe_sop_q[1] : b_sop_q;
  assign push_eop = pipe_valid_q[1] ? pipe_eop_q[1] : b_eop_q;
  assign push_dws = pipe_valid_q[1] ? pipe_dws1_q : beat_dws;
  assign push_cq = !pipe_valid_q[1] && b_cq_q && b_eop_q && b_last_q;
  pd_fifo #(.WIDTH(TLP_WIDTH + LANE_BITS + 2), .LOG2_DEPTH(LOG2_FIFO)) u_beats (
    .clk_i, .rst_ni,
    .wr_valid_i(push), .wr_ready_o(fifo_ready),
    .wr_data_i({push_sop, push_eop, push_cq, push_dws, pipe_valid_q[1] ? rd_data_i : side_q}),
    .rd_valid_o(out_valid_o), .rd_ready_i(out_ready_i),
    .rd_data_o({out_sop_o, out_eop_o, out_cq_o, out_dws, out_data_o}),
    .space_o(space)
  );
  logic [LOG2_FIFO:0] hdr_space;
  logic hdr_valid;
  pd_fifo #(.WIDTH(128), .LOG2_DEPTH(LOG2_FIFO)) u_hdrs (
    .clk_i, .rst_ni,
    .wr_valid_i(beat && b_sop_q), .wr_ready_o(hdr_ready), .wr_data_i(b_hdr_q),
    .rd_valid_o(hdr_valid), .rd_ready_i(out_valid_o && out_ready_i && out_sop_o), .rd_data_o(out_hdr_o),
    .space_o(hdr_space)
  );
  assign out_strb_o = ~({DWS{1'b1}} << out_dws);
  assign idle_o = !h_valid_q && !b_valid && pipe_valid_q == '0 && !out_valid_o;

  logic unused;
  assign unused = ^{hdr_space, b_value_q, h_word_q};
`ifdef PD_ASSERT
  always @(posedge clk_i) begin
    if (rst_ni) begin
      if (push) assert (fifo_ready);
      if (beat && b_sop_q) assert (hdr_ready);
      if (out_valid_o && out_sop_o) assert (hdr_valid);
      assert (!(pipe_valid_q[1] && side_beat));
    end
  end
`else
  logic unused_ready;
  assign unused_ready = ^{fifo_ready, hdr_ready, hdr_valid};
`endif
endmodule
