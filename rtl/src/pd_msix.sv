// MSI-X: table, pending bits, and interrupts of one vector at least `interval_i` cycles apart.
//
// Vectors are sent in turns; after a turn in which something was sent, the next waits for the interval. The first interrupt
// after a pause hence leaves at once, and the completions that come in the interval share the next.
// Interface: `host_*` reads and writes of table (`host_pba_i` 0) and pending bits; `irq_*` raises a vector; `msi_*` the DW to write.
// Timing: about six cycles from `irq_*` to `msi_*`; `host_ready_o` in the access's last cycle. Vectors are masked after reset.
module pd_msix #(
  parameter int unsigned VECTORS = 256,
  parameter int unsigned ADDR_BITS = 52,
  localparam int unsigned VECTOR_BITS = $clog2(VECTORS)
) (
  input  logic                   clk_i,
  input  logic                   rst_ni,
  input  logic                   enable_i,
  input  logic                   mask_i,
  input  logic [15:0]            interval_i,
  input  logic                   host_valid_i,
  output logic                   host_ready_o,
  input  logic                   host_write_i,
  input  logic                   host_pba_i,
  input  logic [VECTOR_BITS-1:0] host_vector_i,
  input  logic [1:0]             host_word_i,
  input  logic [2:0]             host_pba_word_i,
  input  logic [31:0]            host_wdata_i,
  output logic [31:0]            host_rdata_o,
  input  logic                   irq_valid_i,
  input  logic [VECTOR_BITS-1:0] irq_vector_i,
  output logic                   msi_valid_o,
  input  logic                   msi_ready_i,
  output logic [ADDR_BITS-1:0]   msi_addr_o,
  output logic [31:0]            msi_data_o,
  output logic                   count_o
);
  localparam int unsigned HI_BITS = ADDR_BITS - 32;
  localparam logic [1:0] IDLE = 2'd0;
  localparam logic [1:0] HOST = 2'd1;
  localparam logic [1:0] CHECK = 2'd2;
  localparam logic [1:0] SEND = 2'd3;

  logic [1:0] state_q;
  logic init_q, host_start, pick_start, pick_valid, pick_take, pick_keep, wrap, write, sent;
  logic [VECTOR_BITS-1:0] init_vector_q, vector, addr;
  logic [VECTORS-1:0] pending;
  logic [15:0] timer_q;
  logic [31:2] lo;
  logic [HI_BITS-1:0] hi;
  logic [31:0] data;
  logic masked;

  pd_rr_pick #(.COUNT(VECTORS)) u_pick (
    .clk_i, .rst_ni, .clear_i(1'b0),
    .set_a_valid_i(irq_valid_i), .set_a_id_i(irq_vector_i), .set_b_valid_i(1'b0), .set_b_id_i('0),
    .pick_valid_o(pick_valid), .pick_ready_i(pick_take), .pick_keep_i(pick_keep), .pick_id_o(vector),
    .wrap_o(wrap), .set_o(pending)
  );

  assign host_start = state_q == IDLE && host_valid_i && !init_q;
  assign pick_start = state_q == IDLE && !host_valid_i && !init_q && pick_valid && !(wrap && timer_q != '0);
  assign addr = host_start ? host_vector_i : vector;
  assign host_ready_o = state_q == HOST;
  assign write = host_ready_o && host_write_i && !host_pba_i;
  assign sent = state_q == SEND && msi_ready_i;
  assign pick_keep = state_q == CHECK;
  assign pick_take = sent || (state_q == CHECK && (masked || mask_i || !enable_i));
  assign count_o = sent;
  assign msi_valid_o = state_q == SEND;
  assign msi_addr_o = {hi, lo, 2'b00};
  assign msi_data_o = data;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= IDLE;
      init_q <= 1'b1;
      init_vector_q <= '0;
      timer_q <= '0;
    end else begin
      unique case (state_q)
        HOST: state_q <= IDLE;
        CHECK: state_q <= pick_take ? IDLE : SEND;
        SEND: if (msi_ready_i) state_q <= IDLE;
        default: begin
          if (host_start) state_q <= HOST;
          else if (pick_start) state_q <= CHECK;
        end
      endcase
      if (init_q) begin
        init_vector_q <= init_vector_q + 1'b1;
        init_q <= init_vector_q != VECTOR_BITS'(VECTORS - 1);
      end
      if (sent) timer_q <= interval_i;
      else if (timer_q != '0) timer_q <= timer_q - 1'b1;
    end
  end

  pd_ram #(.WIDTH(30), .DEPTH(VECTORS)) u_lo (
    .clk_i, .we_i(write && host_word_i == 2'd0), .waddr_i(host_vector_i), .wdata_i(host_wdata_i[31:2]),
    .re_i(host_start || pick_start), .raddr_i(addr), .rdata_o(lo)
  );
  pd_ram #(.WIDTH(HI_BITS), .DEPTH(VECTORS)) u_hi (
    .clk_i, .we_i(write && host_word_i == 2'd1), .waddr_i(host_vector_i), .wdata_i(host_wdata_i[HI_BITS-1:0]),
    .re_i(host_start || pick_start), .raddr_i(addr), .rdata_o(hi)
  );
  pd_ram #(.WIDTH(32), .DEPTH(VECTORS)) u_data (
    .clk_i, .we_i(write && host_word_i == 2'd2), .waddr_i(host_vector_i), .wdata_i(host_wdata_i),
    .re_i(host_start || pick_start), .raddr_i(addr), .rdata_o(data)
  );
  pd_ram #(.WIDTH(1), .DEPTH(VECTORS)) u_mask (
    .clk_i, .we_i(init_q || (write && host_word_i == 2'd3)), .waddr_i(init_q ? init_vector_q : host_vector_i),
    .wdata_i(init_q || host_wdata_i[pd_abi_pkg::MSIX_VECTOR_CONTROL_MASK_LSB]),
    .re_i(host_start || pick_start), .raddr_i(addr), .rdata_o(masked)
  );

  logic [255:0] pending_all;
  assign pending_all = 256'(pending);
  always_comb begin
    unique case (host_word_i)
      2'd0: host_rdata_o = {lo, 2'b00};
      2'd1: host_rdata_o = 32'(hi);
      2'd2: host_rdata_o = data;
      default: host_rdata_o = {31'd0, masked};
    endcase
    if (host_pba_i) host_rdata_o = pending_all[32*host_pba_word_i +: 32];
  end
endmodule
