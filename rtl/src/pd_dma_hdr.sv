// Header of a memory request TLP, as the PCIe specification draws it: DW 0 in bits 127:96.
//
// Interface: address, length in bytes (1 to 4,096, inside one 4 KB page) and tag in; header out, and the number of DWs.
// Timing: combinational.
module pd_dma_hdr #(
  parameter int unsigned ADDR_BITS = 52
) (
  input  logic                 write_i,
  input  logic [ADDR_BITS-1:0] addr_i,
  input  logic [12:0]          len_i,
  input  logic [7:0]           tag_i,
  input  logic [15:0]          requester_id_i,
  output logic [127:0]         hdr_o,
  output logic [10:0]          dws_o
);
  logic [12:0] end_byte;
  logic [3:0] first_be, last_be, ones_from, ones_to;
  logic long_addr;
  logic [63:2] addr;

  assign end_byte = 13'(addr_i[1:0]) + len_i;
  assign dws_o = end_byte[12:2] + 11'(end_byte[1:0] != 2'd0);
  assign ones_from = 4'b1111 << addr_i[1:0];
  always_comb begin
    unique case (end_byte[1:0])
      2'd1: ones_to = 4'b0001;
      2'd2: ones_to = 4'b0011;
      2'd3: ones_to = 4'b0111;
      default: ones_to = 4'b1111;
    endcase
  end
  assign first_be = dws_o == 11'd1 ? ones_from & ones_to : ones_from;
  assign last_be = dws_o == 11'd1 ? 4'b0000 : ones_to;

  // Addresses below 4 GB must have the short form.
  assign addr = 62'(addr_i[ADDR_BITS-1:2]);
  assign long_addr = addr[63:32] != 32'd0;
  assign hdr_o[127:96] = {1'b0, write_i, long_addr, 5'b00000, 14'd0, dws_o[9:0]};
  assign hdr_o[95:64] = {requester_id_i, tag_i, last_be, first_be};
  assign hdr_o[63:32] = long_addr ? addr[63:32] : {addr[31:2], 2'b00};
  assign hdr_o[31:0] = long_addr ? {addr[31:2], 2'b00} : 32'd0;
endmodule
