// DMA engine, mid end: cuts a transfer into bursts that PCIe allows in one TLP.
//
// No burst crosses a multiple of 128 << `limit_i` bytes, hence none is longer than that nor crosses a 4 KB boundary.
// Interface: transfers in (`in_*`, at least one byte), bursts out (`out_*`) in address order with their offset in the
// transfer; `user` goes along.
// Timing: the first burst one cycle after its transfer, then one a cycle without a gap between transfers.
module pd_dma_split #(
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned USER_BITS = 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic [2:0]           limit_i,
  input  logic                 in_valid_i,
  output logic                 in_ready_o,
  input  logic [ADDR_BITS-1:0] in_addr_i,
  input  logic [LEN_BITS-1:0]  in_len_i,
  input  logic [USER_BITS-1:0] in_user_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [ADDR_BITS-1:0] out_addr_o,
  output logic [12:0]          out_len_o,
  output logic [LEN_BITS-1:0]  out_offset_o,
  output logic                 out_first_o,
  output logic                 out_last_o,
  output logic [USER_BITS-1:0] out_user_o
);
  logic valid_q, first_q;
  logic [ADDR_BITS-1:0] addr_q;
  logic [LEN_BITS-1:0] len_q, offset_q;
  logic [USER_BITS-1:0] user_q;
  logic [12:0] limit, room;
  logic take;

  assign limit = 13'd128 << limit_i;
  assign room = limit - (13'(addr_q[11:0]) & (limit - 1'b1));

  assign out_valid_o = valid_q;
  assign out_addr_o = addr_q;
  assign out_last_o = len_q <= LEN_BITS'(room);
  assign out_len_o = out_last_o ? 13'(len_q) : room;
  assign out_offset_o = offset_q;
  assign out_first_o = first_q;
  assign out_user_o = user_q;
  assign take = valid_q && out_ready_i;
  assign in_ready_o = !valid_q || (take && out_last_o);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) valid_q <= 1'b0;
    else if (in_ready_o) valid_q <= in_valid_i;
  end

  always_ff @(posedge clk_i) begin
    if (in_ready_o) begin
      addr_q <= in_addr_i;
      len_q <= in_len_i;
      user_q <= in_user_i;
      offset_q <= '0;
      first_q <= 1'b1;
    end else if (take) begin
      addr_q <= addr_q + ADDR_BITS'(out_len_o);
      len_q <= len_q - LEN_BITS'(out_len_o);
      offset_q <= offset_q + LEN_BITS'(out_len_o);
      first_q <= 1'b0;
    end
  end

`ifdef PD_ASSERT
  logic [12:0] last_byte;
  assign last_byte = 13'(addr_q[11:0]) + out_len_o - 1'b1;
  always @(posedge clk_i) begin
    if (rst_ni && valid_q) begin
      assert (out_len_o != '0 && LEN_BITS'(out_len_o) <= len_q);
      // First and last byte lie between the same two boundaries.
      assert ((13'(addr_q[11:0]) & ~(limit - 1'b1)) == (last_byte & ~(limit - 1'b1)));
    end
  end
`endif
`ifdef PD_FORMAL
  `include "fv_pd_dma_split.svh"
`endif
endmodule
