// pd_fifo: what is written comes out once, unchanged and in order; never more than fits.
module fv_fifo (
  input logic       clk_i,
  input logic       wr_valid_i,
  input logic [3:0] wr_data_i,
  input logic       rd_ready_i
);
  localparam int unsigned L = 2;
  logic rst_ni = 1'b0;
  always @(posedge clk_i) rst_ni <= 1'b1;

  logic wr_ready, rd_valid;
  logic [3:0] rd_data;
  logic [L:0] space;
  pd_fifo #(.WIDTH(4), .LOG2_DEPTH(L)) u (
    .clk_i, .rst_ni, .wr_valid_i, .wr_ready_o(wr_ready), .wr_data_i,
    .rd_valid_o(rd_valid), .rd_ready_i, .rd_data_o(rd_data), .space_o(space)
  );

  // One entry, chosen freely, is followed on its way: `ahead` entries will leave before it.
  (* anyseq *) logic choose;
  logic following = 1'b0;
  logic [L:0] ahead = '0;
  logic [3:0] value = '0;
  logic [L:0] count = '0;
  logic wr, rd;
  assign wr = rst_ni && wr_valid_i && wr_ready;
  assign rd = rst_ni && rd_valid && rd_ready_i;
  always @(posedge clk_i) begin
    count <= count + (L + 1)'(wr) - (L + 1)'(rd);
    if (!following && wr && choose) begin
      following <= 1'b1;
      value <= wr_data_i;
      ahead <= count - (L + 1)'(rd);
    end else if (following && rd) begin
      if (ahead == '0) following <= 1'b0;
      else ahead <= ahead - 1'b1;
    end
  end

  logic [L-1:0] at;
  assign at = u.rd_q[L-1:0] + ahead[L-1:0];
  always @(posedge clk_i) begin
    if (rst_ni) begin
      assert (count == u.level && count <= (L + 1)'(1 << L));
      assert (space == (L + 1)'(1 << L) - count);
      assert (wr_ready == (space != '0) && rd_valid == (count != '0));
      if (following) begin
        assert (ahead < count);
        assert (u.mem[at] == value);
        if (rd && ahead == '0) assert (rd_data == value);
      end
    end
  end
endmodule
