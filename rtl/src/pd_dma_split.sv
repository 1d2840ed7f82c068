// DMA engine, mid end: cuts a transfer into bursts that PCIe allows in one TLP.
//
// No burst crosses a multiple of 128 << `limit_i` bytes, hence none is longer than that nor crosses a 4 KB boundary.
// Interface: transfers in (`in_*`, at least one byte), bursts out (`out_*`) in address order, each with its position: that of the
// transfer, `in_pos_i`, plus the bytes before it; `user` goes along. `idle_o`: nothing is inside.
// Timing: the first burst two cycles after its transfer, then one a cycle without a gap between transfers. `limit_i` stands still.
module pd_dma_split #(
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned LEN_BITS = 13,
  parameter int unsigned POS_BITS = 17,
  parameter int unsigned USER_BITS = 1
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic [2:0]           limit_i,
  input  logic                 in_valid_i,
  output logic                 in_ready_o,
  input  logic [ADDR_BITS-1:0] in_addr_i,
  input  logic [LEN_BITS-1:0]  in_len_i,
  input  logic [POS_BITS-1:0]  in_pos_i,
  input  logic [USER_BITS-1:0] in_user_i,
  output logic                 out_valid_o,
  input  logic                 out_ready_i,
  output logic [ADDR_BITS-1:0] out_addr_o,
  output logic [12:0]          out_len_o,
  output logic [POS_BITS-1:0]  out_pos_o,
  output logic                 out_first_o,
  output logic                 out_last_o,
  output logic [USER_BITS-1:0] out_user_o,
  output logic                 idle_o
);
  logic valid_q, first_q;
  logic [ADDR_BITS-1:0] addr_q;
  logic [LEN_BITS-1:0] len_q, less_q, room_less;
  logic [POS_BITS-1:0] pos_q;
  logic [USER_BITS-1:0] user_q;
  logic [11:0] mask_q;
  logic [12:0] len;
  logic last, go, take;

  // `room_less`: bytes up to the next boundary, less one; `less_q`: those left, less one. So nothing is added twice.
  always_ff @(posedge clk_i) mask_q <= 12'((13'd128 << limit_i) - 13'd1);
  assign room_less = LEN_BITS'({~addr_q[11:0] & mask_q});
  assign last = less_q <= room_less;
  assign len = last ? 13'(len_q) : 13'(room_less) + 1'b1;
  assign take = valid_q && go;
  assign in_ready_o = !valid_q || (go && last);

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) valid_q <= 1'b0;
    else if (in_ready_o) valid_q <= in_valid_i;
  end

  always_ff @(posedge clk_i) begin
    if (in_ready_o) begin
      addr_q <= in_addr_i;
      len_q <= in_len_i;
      less_q <= in_len_i - 1'b1;
      pos_q <= in_pos_i;
      user_q <= in_user_i;
      first_q <= 1'b1;
    end else if (take) begin
      addr_q <= {addr_q[ADDR_BITS-1:12], addr_q[11:0] | mask_q} + 1'b1;
      len_q <= len_q + ~room_less;
      less_q <= less_q + ~room_less;
      pos_q <= pos_q + POS_BITS'(room_less) + 1'b1;
      first_q <= 1'b0;
    end
  end

  logic [1:0] space;
  pd_fifo #(.WIDTH(ADDR_BITS + 13 + POS_BITS + 2 + USER_BITS), .LOG2_DEPTH(1)) u_out (
    .clk_i, .rst_ni,
    .wr_valid_i(valid_q), .wr_ready_o(go), .wr_data_i({addr_q, len, pos_q, first_q, last, user_q}),
    .rd_valid_o(out_valid_o), .rd_ready_i(out_ready_i),
    .rd_data_o({out_addr_o, out_len_o, out_pos_o, out_first_o, out_last_o, out_user_o}),
    .space_o(space)
  );
  assign idle_o = !valid_q && !out_valid_o;

  logic unused;
  assign unused = ^space;
`ifdef PD_ASSERT
  logic [12:0] last_byte;
  assign last_byte = 13'(addr_q[11:0]) + len - 1'b1;
  always @(posedge clk_i) begin
    if (rst_ni && valid_q) begin
      assert (len != '0 && LEN_BITS'(len) <= len_q);
      // First and last byte lie between the same two boundaries.
      assert ((13'(addr_q[11:0]) & ~13'(mask_q)) == (last_byte & ~13'(mask_q)));
    end
  end
`endif
`ifdef PD_FORMAL
  `include "fv_pd_dma_split.svh"
`endif
endmodule
