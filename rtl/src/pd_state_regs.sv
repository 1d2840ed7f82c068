// PD State Registers: what the device knows of each queue pair.
//
// Base addresses and interrupt settings, written by the host, and the pointers: 32 bits from the doorbell (SQ producer, CQ
// consumer) and 26 of the device (SQ consumer, batches in flight, enabled, in error). All in RAM; nothing of connections.
// One operation at a time, so that nobody sees half of one: register access of the host, `visit_*` (advance the SQ consumer by
// the next batch, as `pd_ptr_calc` says), `retire_*` (a batch has ended; with `fail`: disable the queue and mark it).
// Interface: requests valid/ready, `ready` in the operation's last cycle, when its results are there. `doorbell_*`: a queue may have work.
// Timing: three cycles an operation, six a visit; host before retire before visit. `init_i` disables all queues in QUEUES cycles (`init_busy_o`).
module pd_state_regs #(
  parameter int unsigned QUEUES = 256,
  parameter int unsigned LOG2_DEPTH = 10,
  parameter int unsigned ADDR_BITS = 52,
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  init_i,
  output logic                  init_busy_o,
  input  logic [4:0]            batch_max_i,
  input  logic                  host_valid_i,
  output logic                  host_ready_o,
  input  logic                  host_write_i,
  input  logic [QUEUE_BITS-1:0] host_queue_i,
  input  logic [2:0]            host_word_i,
  input  logic [31:0]           host_wdata_i,
  output logic [31:0]           host_rdata_o,
  input  logic                  visit_valid_i,
  output logic                  visit_ready_o,
  input  logic [QUEUE_BITS-1:0] visit_queue_i,
  output logic [4:0]            visit_count_o,
  output logic                  visit_more_o,
  output logic                  visit_phase_o,
  output logic [LOG2_DEPTH-1:0] visit_slot_o,
  output logic [ADDR_BITS-1:12] visit_sq_base_o,
  output logic [ADDR_BITS-1:12] visit_cq_base_o,
  output logic                  visit_irq_o,
  output logic [QUEUE_BITS-1:0] visit_vector_o,
  input  logic                  retire_valid_i,
  output logic                  retire_ready_o,
  input  logic [QUEUE_BITS-1:0] retire_queue_i,
  input  logic                  retire_fail_i,
  output logic                  doorbell_valid_o,
  output logic [QUEUE_BITS-1:0] doorbell_queue_o,
  output logic                  error_queues_o
);
  localparam logic [2:0] SQ_LO = 3'(pd_abi_pkg::REG_QUEUE_SQ_BASE_LO / 4);
  localparam logic [2:0] SQ_HI = 3'(pd_abi_pkg::REG_QUEUE_SQ_BASE_HI / 4);
  localparam logic [2:0] CQ_LO = 3'(pd_abi_pkg::REG_QUEUE_CQ_BASE_LO / 4);
  localparam logic [2:0] CQ_HI = 3'(pd_abi_pkg::REG_QUEUE_CQ_BASE_HI / 4);
  localparam logic [2:0] CONFIG = 3'(pd_abi_pkg::REG_QUEUE_CONFIG / 4);
  localparam logic [2:0] DOORBELL = 3'(pd_abi_pkg::REG_QUEUE_DOORBELL / 4);
  localparam logic [2:0] CONTROL = 3'(pd_abi_pkg::REG_QUEUE_CONTROL / 4);
  localparam int unsigned HI_BITS = ADDR_BITS - 32;

  // Who is served: 0 host, 1 retire, 2 visit.
  logic [2:0] step_q;
  logic [1:0] who_q;
  logic init_q;
  logic [QUEUE_BITS-1:0] queue_q, init_queue_q, pick_queue;
  logic start, exec, host, retire, visit;

  assign start = step_q == '0 && !init_q && (host_valid_i || retire_valid_i || visit_valid_i);
  always_comb begin
    if (host_valid_i) pick_queue = host_queue_i;
    else if (retire_valid_i) pick_queue = retire_queue_i;
    else pick_queue = visit_queue_i;
  end
  // The Ptr Calculator takes its time.
  assign exec = step_q == (who_q == 2'd2 ? 3'd5 : 3'd2);
  assign host = exec && who_q == 2'd0;
  assign retire = exec && who_q == 2'd1;
  assign visit = exec && who_q == 2'd2;
  assign host_ready_o = host;
  assign retire_ready_o = retire;
  assign visit_ready_o = visit;
  assign init_busy_o = init_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      step_q <= '0;
      who_q <= '0;
      queue_q <= '0;
      init_q <= 1'b0;
      init_queue_q <= '0;
    end else begin
      if (start) begin
        step_q <= 3'd1;
        queue_q <= pick_queue;
        if (host_valid_i) who_q <= 2'd0;
        else if (retire_valid_i) who_q <= 2'd1;
        else who_q <= 2'd2;
      end else if (step_q != '0) begin
        step_q <= exec ? '0 : step_q + 1'b1;
      end
      if (init_i) begin
        init_q <= 1'b1;
        init_queue_q <= '0;
      end else if (init_q && step_q == '0) begin
        init_queue_q <= init_queue_q + 1'b1;
        if (init_queue_q == QUEUE_BITS'(QUEUES - 1)) init_q <= 1'b0;
      end
    end
  end

  // Set by the host alone.
  logic [31:12] sq_lo, cq_lo;
  logic [HI_BITS-1:0] sq_hi, cq_hi;
  logic [12:0] cfg;
  logic host_write;
  assign host_write = host && host_write_i;
  pd_ram #(.WIDTH(20), .DEPTH(QUEUES)) u_sq_lo (
    .clk_i, .we_i(host_write && host_word_i == SQ_LO), .waddr_i(queue_q), .wdata_i(host_wdata_i[31:12]),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(sq_lo)
  );
  pd_ram #(.WIDTH(HI_BITS), .DEPTH(QUEUES)) u_sq_hi (
    .clk_i, .we_i(host_write && host_word_i == SQ_HI), .waddr_i(queue_q), .wdata_i(host_wdata_i[HI_BITS-1:0]),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(sq_hi)
  );
  pd_ram #(.WIDTH(20), .DEPTH(QUEUES)) u_cq_lo (
    .clk_i, .we_i(host_write && host_word_i == CQ_LO), .waddr_i(queue_q), .wdata_i(host_wdata_i[31:12]),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(cq_lo)
  );
  pd_ram #(.WIDTH(HI_BITS), .DEPTH(QUEUES)) u_cq_hi (
    .clk_i, .we_i(host_write && host_word_i == CQ_HI), .waddr_i(queue_q), .wdata_i(host_wdata_i[HI_BITS-1:0]),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(cq_hi)
  );
  pd_ram #(.WIDTH(13), .DEPTH(QUEUES)) u_cfg (
    .clk_i, .we_i(host_write && host_word_i == CONFIG), .waddr_i(queue_q),
    .wdata_i({host_wdata_i[pd_abi_pkg::QUEUE_CONFIG_IRQ_ENABLE_LSB],
        host_wdata_i[pd_abi_pkg::QUEUE_CONFIG_VECTOR_LSB +: pd_abi_pkg::QUEUE_CONFIG_VECTOR_BITS]}),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(cfg)
  );

  // Pointers: {CQ consumer, SQ producer} of the host, {error, enabled, batches, SQ consumer} of the device.
  logic enable_now, doorbell_we, dev_we;
  logic [31:0] doorbell, doorbell_d;
  logic [25:0] dev, dev_d;
  logic error, enabled;
  logic [7:0] batches;
  logic [15:0] sq_consumer, sq_consumer_next;
  logic [4:0] count;
  logic more;
  assign {error, enabled, batches, sq_consumer} = dev;

  pd_ram #(.WIDTH(32), .DEPTH(QUEUES)) u_doorbell (
    .clk_i, .we_i(doorbell_we), .waddr_i(queue_q), .wdata_i(doorbell_d),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(doorbell)
  );
  pd_ram #(.WIDTH(26), .DEPTH(QUEUES)) u_dev (
    .clk_i, .we_i(dev_we), .waddr_i(init_q ? init_queue_q : queue_q), .wdata_i(dev_d),
    .re_i(start), .raddr_i(pick_queue), .rdata_o(dev)
  );

  // A queue with batches in flight is not enabled anew: its pointers are still in use.
  assign enable_now = host_write && host_word_i == CONTROL && host_wdata_i[pd_abi_pkg::QUEUE_CONTROL_ENABLE_LSB] && batches == '0;
  assign doorbell_we = enable_now || (host_write && host_word_i == DOORBELL);
  assign doorbell_d = enable_now ? '0 : host_wdata_i;
  assign visit_count_o = enabled ? count : '0;
  assign visit_more_o = enabled && more;

  always_comb begin
    dev_we = 1'b0;
    dev_d = dev;
    if (init_q && step_q == '0) begin
      dev_we = 1'b1;
      dev_d = '0;
    end else if (enable_now) begin
      dev_we = 1'b1;
      dev_d = {1'b0, 1'b1, 8'd0, 16'd0};
    end else if (host_write && host_word_i == CONTROL && !host_wdata_i[pd_abi_pkg::QUEUE_CONTROL_ENABLE_LSB]) begin
      dev_we = 1'b1;
      dev_d = {error, 1'b0, batches, sq_consumer};
    end else if (retire) begin
      dev_we = 1'b1;
      dev_d = {error || retire_fail_i, enabled && !retire_fail_i, batches - 1'b1, sq_consumer};
    end else if (visit && visit_count_o != '0) begin
      dev_we = 1'b1;
      dev_d = {error, enabled, batches + 1'b1, sq_consumer_next};
    end
  end

  pd_ptr_calc #(.LOG2_DEPTH(LOG2_DEPTH)) u_ptr_calc (
    .clk_i,
    .sq_producer_i(doorbell[15:0]), .sq_consumer_i(sq_consumer), .cq_consumer_i(doorbell[31:16]), .batch_max_i,
    .count_o(count), .more_o(more), .sq_consumer_next_o(sq_consumer_next), .slot_o(visit_slot_o), .phase_o(visit_phase_o)
  );

  assign visit_sq_base_o = {sq_hi, sq_lo};
  assign visit_cq_base_o = {cq_hi, cq_lo};
  assign visit_vector_o = cfg[QUEUE_BITS-1:0];
  assign visit_irq_o = cfg[12];
  assign doorbell_valid_o = host_write && host_word_i == DOORBELL;
  assign doorbell_queue_o = queue_q;

  always_comb begin
    unique case (host_word_i)
      SQ_LO: host_rdata_o = {sq_lo, 12'd0};
      SQ_HI: host_rdata_o = 32'(sq_hi);
      CQ_LO: host_rdata_o = {cq_lo, 12'd0};
      CQ_HI: host_rdata_o = 32'(cq_hi);
      CONFIG: host_rdata_o = {cfg[12], 19'd0, cfg[11:0]};
      DOORBELL: host_rdata_o = doorbell;
      CONTROL: host_rdata_o = {31'd0, enabled};
      default: host_rdata_o = {error, enabled, 6'd0, batches, sq_consumer};
    endcase
  end

  // How many queues are in error.
  logic [QUEUE_BITS:0] errors_q;
  assign error_queues_o = errors_q != '0;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) errors_q <= '0;
    else if (init_q) errors_q <= '0;
    else if (retire && retire_fail_i && !error) errors_q <= errors_q + 1'b1;
    else if (enable_now && error) errors_q <= errors_q - 1'b1;
  end

`ifdef PD_ASSERT
  always @(posedge clk_i) if (rst_ni && retire) assert (batches != '0);
`endif
endmodule
