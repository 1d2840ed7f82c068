// pd_dma_split: the bursts are the transfer, byte for byte and in order; each within its boundaries.
module fv_split (
  input logic        clk_i,
  input logic        in_valid_i,
  input logic [15:0] in_addr_i,
  input logic [12:0] in_len_i,
  input logic [3:0]  in_user_i,
  input logic        out_ready_i
);
  (* anyconst *) logic [2:0] limit;
  logic rst_ni = 1'b0;
  always @(posedge clk_i) rst_ni <= 1'b1;

  logic in_ready, out_valid, first, last;
  logic [15:0] out_addr;
  logic [12:0] out_len, offset;
  logic [3:0] user;
  pd_dma_split #(.ADDR_BITS(16), .LEN_BITS(13), .USER_BITS(4)) u (
    .clk_i, .rst_ni, .limit_i(limit),
    .in_valid_i, .in_ready_o(in_ready), .in_addr_i, .in_len_i, .in_user_i,
    .out_valid_o(out_valid), .out_ready_i, .out_addr_o(out_addr), .out_len_o(out_len), .out_offset_o(offset),
    .out_first_o(first), .out_last_o(last), .out_user_o(user)
  );

  logic busy = 1'b0;
  logic [15:0] addr = '0;
  logic [12:0] len = '0, done = '0;
  logic [3:0] tag = '0;
  logic in_take, out_take;
  assign in_take = rst_ni && in_valid_i && in_ready;
  assign out_take = rst_ni && out_valid && out_ready_i;
  always @(posedge clk_i) begin
    if (out_take) done <= done + out_len;
    if (out_take && last) busy <= 1'b0;
    if (in_take) begin
      busy <= 1'b1;
      addr <= in_addr_i;
      len <= in_len_i;
      tag <= in_user_i;
      done <= '0;
    end
    assume (limit <= 3'd5);
    assume (in_len_i >= 13'd1 && in_len_i <= 13'd4096);
  end
  logic [15:0] size, begins, ends;
  assign size = 16'd128 << limit;
  assign begins = out_addr & ~(size - 1'b1);
  assign ends = (out_addr + 16'(out_len) - 1'b1) & ~(size - 1'b1);
  always @(posedge clk_i) begin
    if (rst_ni) begin
      assert (busy == out_valid);
      if (busy) begin
        assert (len >= 13'd1 && len <= 13'd4096);
        assert (done < len && u.len_q == len - done && u.offset_q == done && u.addr_q == addr + 16'(done));
        assert (user == tag && offset == done && first == (done == '0));
        assert (u.first_q == (done == '0));
        assert (out_len != '0 && out_addr == addr + 16'(done) && begins == ends);
        assert (last == (done + out_len == len) && out_len <= len - done);
        // All bursts but the last end at a boundary: there is none too many.
        if (!last) assert (((out_addr + 16'(out_len)) & (size - 1'b1)) == '0);
      end
    end
  end
endmodule
