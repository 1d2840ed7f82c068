// Data Buffer: payload between its read and its write.
//
// One RAM per byte lane, all read at one row. A write covers one beat that starts at any lane: the lanes from `wr_rot_i` on
// belong to row `wr_row_i`, the ones below it to the row behind.
// Interface: write with `wr_valid_i`, a byte enable per lane and data already in its lanes; read with `rd_valid_i`.
// Timing: one write and one read per cycle; `rd_data_o` two cycles after `rd_row_i`.
module pd_data_buffer #(
  parameter int unsigned BYTES = 64,
  parameter int unsigned ROWS = 2048,
  localparam int unsigned LANE_BITS = $clog2(BYTES),
  localparam int unsigned ROW_BITS = $clog2(ROWS)
) (
  input  logic                 clk_i,
  input  logic                 wr_valid_i,
  input  logic [ROW_BITS-1:0]  wr_row_i,
  input  logic [LANE_BITS-1:0] wr_rot_i,
  input  logic [BYTES-1:0]     wr_mask_i,
  input  logic [8*BYTES-1:0]   wr_data_i,
  input  logic                 rd_valid_i,
  input  logic [ROW_BITS-1:0]  rd_row_i,
  output logic [8*BYTES-1:0]   rd_data_o
);
  logic [ROW_BITS-1:0] row_next;
  assign row_next = wr_row_i + 1'b1;

  logic [BYTES-1:0] wraps;
  assign wraps = ~({BYTES{1'b1}} << wr_rot_i);

  // Written one cycle later, so that the choice of the row has a cycle of its own.
  logic [8*BYTES-1:0] data_q;
  always_ff @(posedge clk_i) data_q <= wr_data_i;

  for (genvar lane = 0; lane < BYTES; lane++) begin : gen_lane
    logic [ROW_BITS-1:0] row_q;
    logic we_q;
    logic [7:0] mem_data;
    always_ff @(posedge clk_i) begin
      we_q <= wr_valid_i && wr_mask_i[lane];
      row_q <= wraps[lane] ? row_next : wr_row_i;
    end
    pd_ram #(.WIDTH(8), .DEPTH(ROWS)) u_ram (
      .clk_i,
      .we_i(we_q), .waddr_i(row_q), .wdata_i(data_q[8*lane +: 8]),
      .re_i(rd_valid_i), .raddr_i(rd_row_i), .rdata_o(mem_data)
    );
    always_ff @(posedge clk_i) rd_data_o[8*lane +: 8] <= mem_data;
  end
endmodule
