// DMA engine, back end: reads and writes into one stream of requests, TLP by TLP, in turns.
//
// Interface: read headers (one beat each) and a TLP stream of writes in; one TLP stream out. While `enable_i` is 0 no TLP begins.
// `mark_sent_o`: a beat that came with `write_mark_i` has been taken from `out_*`.
// Timing: one cycle; a beat a cycle.
module pd_dma_out #(
  parameter int unsigned TLP_WIDTH = 512,
  localparam int unsigned DWS = TLP_WIDTH / 32
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 enable_i,
  input  logic                 read_valid_i,
  output logic                 read_ready_o,
  input  logic [127:0]         read_hdr_i,
  input  logic                 write_valid_i,
  output logic                 write_ready_o,
  input  logic                 write_sop_i,
  input  logic                 write_eop_i,
  input  logic [127:0]         write_hdr_i,
  input  logic [TLP_WIDTH-1:0] write_data_i,
  input  logic [DWS-1:0]       write_strb_i,
  input  logic                 write_mark_i,
  output logic                 mark_sent_o,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic                 out_sop_o,
  output logic                 out_eop_o,
  output logic [127:0]         out_hdr_o,
  output logic [TLP_WIDTH-1:0] out_data_o,
  output logic [DWS-1:0]       out_strb_o
);
  logic go, between, last_read_q, in_write_q, take_read, take_write;

  logic mark_q;

  assign mark_sent_o = out_valid_o && out_ready_i && mark_q;
  assign between = !in_write_q;
  assign go = !out_valid_o || out_ready_i;
  assign take_read = go && between && enable_i && read_valid_i && (!write_valid_i || !last_read_q);
  assign take_write = go && write_valid_i && (in_write_q || (enable_i && !take_read));
  assign read_ready_o = take_read;
  assign write_ready_o = take_write;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      out_valid_o <= 1'b0;
      last_read_q <= 1'b0;
      in_write_q <= 1'b0;
    end else begin
      if (go) out_valid_o <= take_read || take_write;
      if (take_read) last_read_q <= 1'b1;
      if (take_write) begin
        last_read_q <= 1'b0;
        in_write_q <= !write_eop_i;
      end
    end
  end
  always_ff @(posedge clk_i) begin
    if (go) begin
      out_sop_o <= take_read || write_sop_i;
      out_eop_o <= take_read || write_eop_i;
      out_hdr_o <= take_read ? read_hdr_i : write_hdr_i;
      out_data_o <= write_data_i;
      mark_q <= take_write && write_mark_i;
      out_strb_o <= take_read ? '0 : write_strb_i;
    end
  end
endmodule
