// FIFO of a power of two of entries; the first entry is visible without a read.
//
// Interface: valid/ready on both sides. `space_o` is the number of free entries.
// Timing: a written entry is readable in the next cycle; one write and one read per cycle. `wr_ready_o` and `rd_valid_o` are
// registers' functions alone: neither depends on the other side's handshake.
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
  logic [LOG2_DEPTH:0] wr_q, rd_q, level;

  assign level = wr_q - rd_q;
  assign space_o = (LOG2_DEPTH + 1)'(DEPTH) - level;
  assign wr_ready_o = !level[LOG2_DEPTH];
  assign rd_valid_o = level != '0;
  assign rd_data_o = mem[rd_q[LOG2_DEPTH-1:0]];

  always_ff @(posedge clk_i) begin
    if (wr_valid_i && wr_ready_o) mem[wr_q[LOG2_DEPTH-1:0]] <= wr_data_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      wr_q <= '0;
      rd_q <= '0;
    end else begin
      if (wr_valid_i && wr_ready_o) wr_q <= wr_q + 1'b1;
      if (rd_valid_o && rd_ready_i) rd_q <= rd_q + 1'b1;
    end
  end

`ifdef PD_ASSERT
  // Never more entries than there is room for.
  always @(posedge clk_i) if (rst_ni) assert (level <= (LOG2_DEPTH + 1)'(DEPTH));
`endif
`ifdef PD_FORMAL
  `include "fv_pd_fifo.svh"
`endif
endmodule
