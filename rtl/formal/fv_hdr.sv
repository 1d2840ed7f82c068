// pd_dma_hdr: byte enables say exactly the bytes asked for.
module fv_hdr (
  input logic        clk_i,
  input logic        write_i,
  input logic [51:0] addr_i,
  input logic [12:0] len_i,
  input logic [7:0]  tag_i
);
  logic [127:0] hdr;
  logic [10:0] dws;
  pd_dma_hdr u (.write_i, .addr_i, .len_i, .tag_i, .requester_id_i(16'h1234), .hdr_o(hdr), .dws_o(dws));

  logic [3:0] first, last;
  logic [63:0] at;
  logic [2:0] skip, cut;
  assign {last, first} = hdr[71:64];
  assign at = hdr[125] ? hdr[63:0] : {32'd0, hdr[63:32]};
  // Disabled bytes before the first enabled one, and behind the last.
  assign skip = first[0] ? 3'd0 : first[1] ? 3'd1 : first[2] ? 3'd2 : 3'd3;
  always_comb begin
    if (dws == 11'd1) cut = first[3] ? 3'd0 : first[2] ? 3'd1 : first[1] ? 3'd2 : 3'd3;
    else cut = last[3] ? 3'd0 : last[2] ? 3'd1 : last[1] ? 3'd2 : 3'd3;
  end
  always @(posedge clk_i) begin
    assume (len_i >= 13'd1 && 14'(addr_i[11:0]) + 14'(len_i) <= 14'd4096);
    assert (first != '0 && (dws == 11'd1) == (last == '0));
    assert (at + 64'(skip) == 64'(addr_i));
    assert (13'({dws, 2'b00}) - 13'(skip) - 13'(cut) == len_i);
    assert (hdr[105:96] == dws[9:0] && dws <= 11'd1024 && hdr[126] == write_i && hdr[125] == (at[63:32] != '0));
    assert (hdr[127] == 1'b0 && hdr[124:106] == '0 && hdr[95:72] == {16'h1234, tag_i});
    // Enabled bytes are in one piece.
    assert ((first & (first << 1)) == (first & ~(first & (~first + 4'd1))));
  end
endmodule
