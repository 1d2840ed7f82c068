// FIFO of a power of two of entries; the first entry is visible without a read.
//
// Interface: valid/ready on both sides. `space_o` is the number of free entries.
// Timing: a written entry is readable in the next cycle; one write and one read per cycle. `wr_ready_o`, `rd_valid_o` and
// `space_o` come from one register: none depends on a handshake of the same cycle.
module pd_fifo #(
  parameter int unsigned WIDTH = 8,
  parameter int unsigned LOG2_DEPTH = 4
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic                wr_valid_i,
  output logic                wr_ready_o,
  input  logic [WIDTH-1:0]    wr_data_i,
  output logic                rd_valid_o,
  input  logic                rd_ready_i,
  output logic [WIDTH-1:0]    rd_data_o,
  output logic [LOG2_DEPTH:0] space_o
);
  localparam int unsigned DEPTH = 1 << LOG2_DEPTH;

  logic [WIDTH-1:0] mem [0:DEPTH-1];
  logic [LOG2_DEPTH-1:0] wr_q, rd_q;
  logic [LOG2_DEPTH:0] space_q;
  logic wr, rd;

  assign space_o = space_q;
  assign wr_ready_o = space_q != '0;
  // Empty: the highest bit is that of DEPTH itself.
  assign rd_valid_o = !space_q[LOG2_DEPTH];
  assign rd_data_o = mem[rd_q];
  assign wr = wr_valid_i && wr_ready_o;
  assign rd = rd_valid_o && rd_ready_i;

  always_ff @(posedge clk_i) if (wr) mem[wr_q] <= wr_data_i;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q <= '0;
      rd_q <= '0;
      space_q <= (LOG2_DEPTH + 1)'(DEPTH);
    end else begin
      if (wr) wr_q <= wr_q + 1'b1;
      if (rd) rd_q <= rd_q + 1'b1;
      if (wr && !rd) space_q <= space_q - 1'b1;
      if (rd && !wr) space_q <= space_q + 1'b1;
    end
  end

`ifdef PD_ASSERT
  // Never more entries than there is room for.
  always @(posedge clk_i) if (rst_ni) assert (space_q <= (LOG2_DEPTH + 1)'(DEPTH));
`endif
`ifdef PD_FORMAL
  `include "fv_pd_fifo.svh"
`endif
endmodule
