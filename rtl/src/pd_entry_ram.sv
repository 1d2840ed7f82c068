// PD Controller: the entries of all batches in flight, from their fetch to their completion.
//
// Interface: written by the DMA engine in beats, as the Data Buffer is; read by entry number {batch, entry}.
// Timing: one beat and one entry a cycle; `rd_data_o` two cycles after `rd_entry_i`.
module pd_entry_ram #(
  parameter int unsigned TLP_WIDTH = 512,
  parameter int unsigned BATCHES = 64,
  parameter int unsigned ROW_BITS = 11,
  localparam int unsigned BYTES = TLP_WIDTH / 8,
  localparam int unsigned LANE_BITS = $clog2(BYTES),
  localparam int unsigned ENTRY_BITS = $clog2(BATCHES) + 4
) (
  input  logic                  clk_i,
  input  logic                  wr_valid_i,
  input  logic [ROW_BITS-1:0]   wr_row_i,
  input  logic [LANE_BITS-1:0]  wr_rot_i,
  input  logic [BYTES-1:0]      wr_mask_i,
  input  logic [TLP_WIDTH-1:0]  wr_data_i,
  input  logic                  rd_valid_i,
  input  logic [ENTRY_BITS-1:0] rd_entry_i,
  output logic [255:0]          rd_data_o
);
  localparam int unsigned BANKS = TLP_WIDTH / 256;
  localparam int unsigned BANK_BITS = $clog2(BANKS);
  localparam int unsigned DEPTH = BATCHES * 16 / BANKS;
  localparam int unsigned DEPTH_BITS = $clog2(DEPTH);

  logic [DEPTH_BITS-1:0] row, row_next;
  logic [TLP_WIDTH-1:0] rd_banks;
  logic [BANK_BITS-1:0] bank_q;
  logic [BYTES-1:0] wraps;
  assign row = wr_row_i[DEPTH_BITS-1:0];
  assign row_next = row + 1'b1;
  assign wraps = ~({BYTES{1'b1}} << wr_rot_i);

  for (genvar bank = 0; bank < BANKS; bank++) begin : gen_bank
    pd_ram #(.WIDTH(256), .DEPTH(DEPTH)) u_ram (
      .clk_i,
      .we_i(wr_valid_i && wr_mask_i[32*bank]),
      .waddr_i(wraps[32*bank] ? row_next : row),
      .wdata_i(wr_data_i[256*bank +: 256]),
      .re_i(rd_valid_i),
      .raddr_i(rd_entry_i[ENTRY_BITS-1:BANK_BITS]),
      .rdata_o(rd_banks[256*bank +: 256])
    );
  end
  always_ff @(posedge clk_i) begin
    if (rd_valid_i) bank_q <= rd_entry_i[BANK_BITS-1:0];
    rd_data_o <= rd_banks[bank_q*256 +: 256];
  end

  logic unused;
  assign unused = ^{wr_mask_i, wraps, wr_row_i};
endmodule
