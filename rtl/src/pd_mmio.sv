// BAR target: the host's reads and writes as register accesses, one DW at a time.
//
// Taken: memory reads of 1 or 2 DWs and writes of 1 or 2 whole DWs. Other reads get Unsupported Request, other writes are dropped;
// both are counted, as are accesses that the registers refuse (`reg_error_i`).
// Interface: `bar_*` requests in, `cpl_*` completions out (one beat each), `reg_*` accesses: `reg_ready_i` in their last cycle.
// Timing: a request every five cycles or so; the next is not looked at before the one at work is answered.
module pd_mmio (
  input  logic         clk_i,
  input  logic         rst_ni,
  input  logic [15:0]  completer_id_i,
  input  logic         bar_valid_i,
  output logic         bar_ready_o,
  input  logic         bar_sop_i,
  input  logic         bar_eop_i,
  input  logic [127:0] bar_hdr_i,
  input  logic [63:0]  bar_data_i,
  output logic         cpl_valid_o,
  input  logic         cpl_ready_i,
  output logic [127:0] cpl_hdr_o,
  output logic [63:0]  cpl_data_o,
  output logic         reg_valid_o,
  input  logic         reg_ready_i,
  output logic         reg_write_o,
  output logic [14:2]  reg_addr_o,
  output logic [31:0]  reg_wdata_o,
  input  logic [31:0]  reg_rdata_i,
  input  logic         reg_error_i,
  output logic         count_bad_o
);
  localparam logic [2:0] IDLE = 3'd0;
  localparam logic [2:0] DRAIN = 3'd1;
  localparam logic [2:0] CHECK = 3'd2;
  localparam logic [2:0] ACCESS = 3'd3;
  localparam logic [2:0] ANSWER = 3'd4;

  logic [2:0] state_q;
  logic [127:0] hdr_q;
  logic [63:0] data_q;
  logic second_q, error_q;

  logic [2:0] fmt;
  logic [4:0] kind;
  logic [3:0] first_be, last_be;
  logic [9:0] length;
  logic [14:2] addr, addr_q;
  logic is_mem, is_write, is_posted, shaped, two, nothing;
  assign fmt = hdr_q[127:125];
  assign kind = hdr_q[124:120];
  assign length = hdr_q[105:96];
  assign last_be = hdr_q[71:68];
  assign first_be = hdr_q[67:64];
  assign addr = fmt[0] ? hdr_q[14:2] : hdr_q[46:34];
  assign is_mem = kind == 5'd0 && !fmt[2];
  assign is_write = fmt[1];
  // Writes and messages are not answered.
  assign is_posted = (is_mem && is_write) || kind[4:3] == 2'b10;
  assign two = length == 10'd2;
  assign nothing = length == 10'd1 && first_be == '0;
  assign shaped = is_mem && (length == 10'd1 || (two && last_be == '1 && first_be == '1))
      && (!is_write || first_be == '1 || nothing);

  assign bar_ready_o = state_q == IDLE || state_q == DRAIN;
  assign reg_valid_o = state_q == ACCESS;
  assign reg_write_o = is_write;
  assign reg_addr_o = addr_q;
  assign reg_wdata_o = second_q ? data_q[63:32] : data_q[31:0];
  assign cpl_valid_o = state_q == ANSWER;
  assign cpl_data_o = data_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= IDLE;
      second_q <= 1'b0;
      error_q <= 1'b0;
      count_bad_o <= 1'b0;
    end else begin
      count_bad_o <= 1'b0;
      unique case (state_q)
        IDLE: if (bar_valid_i && bar_sop_i) state_q <= bar_eop_i ? CHECK : DRAIN;
        DRAIN: if (bar_valid_i && bar_eop_i) state_q <= CHECK;
        CHECK: begin
          second_q <= 1'b0;
          error_q <= !shaped;
          if (!shaped && kind[4:3] != 2'b10) count_bad_o <= 1'b1;
          if (!shaped) state_q <= is_posted ? IDLE : ANSWER;
          else if (nothing) state_q <= is_write ? IDLE : ANSWER;
          else state_q <= ACCESS;
        end
        ACCESS: begin
          if (reg_ready_i) begin
            error_q <= error_q || reg_error_i;
            count_bad_o <= reg_error_i;
            second_q <= 1'b1;
            if (second_q || !two) state_q <= is_write ? IDLE : ANSWER;
          end
        end
        default: if (cpl_ready_i) state_q <= IDLE;
      endcase
    end
  end
  always_ff @(posedge clk_i) begin
    if (state_q == CHECK) addr_q <= addr;
    else if (state_q == ACCESS && reg_ready_i) addr_q <= addr_q + 1'b1;
    if (state_q == IDLE) begin
      hdr_q <= bar_hdr_i;
      data_q <= bar_data_i;
    end else if (state_q == ACCESS && reg_ready_i && !is_write) begin
      if (second_q) data_q[63:32] <= reg_rdata_i;
      else data_q[31:0] <= reg_rdata_i;
    end
  end

  // The completion: byte count and lower address follow from the byte enables.
  logic [1:0] offset;
  logic [2:0] count;
  always_comb begin
    offset = 2'd0;
    if (first_be[0]) offset = 2'd0;
    else if (first_be[1]) offset = 2'd1;
    else if (first_be[2]) offset = 2'd2;
    else if (first_be[3]) offset = 2'd3;
    count = 3'd1;
    if (first_be[3]) count = 3'd4 - 3'(offset);
    else if (first_be[2]) count = 3'd3 - 3'(offset);
    else if (first_be[1]) count = 3'd2 - 3'(offset);
  end
  assign cpl_hdr_o[127:96] = {1'b0, !error_q, 6'b001010, 1'b0, hdr_q[118:116], 6'd0, hdr_q[109:108], 2'd0,
      error_q ? 10'd0 : length};
  assign cpl_hdr_o[95:64] = {completer_id_i, 2'b00, error_q, 1'b0, two ? 12'd8 : 12'(count)};
  assign cpl_hdr_o[63:32] = {hdr_q[95:72], 1'b0, addr[6:2], error_q ? 2'd0 : offset};
  assign cpl_hdr_o[31:0] = '0;

  logic unused;
  assign unused = ^hdr_q;
endmodule
