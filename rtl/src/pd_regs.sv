// Global registers, and the way to those of queues and MSI-X; start and stop of the whole device.
//
// Start: `init_o` once everything is idle, then ready when the state registers and tags are. Stop: `fetch_enable_o` falls at once.
// Interface: `reg_*` from the BAR target; `queue_*` and `msix_*` accesses on; settings out, events to count in.
// Timing: a global register answers in the cycle after its request, the others when they do.
module pd_regs #(
  parameter int unsigned QUEUES = 256,
  parameter int unsigned LOG2_DEPTH = 10,
  parameter int unsigned COPY_BYTES_MAX = 4096,
  parameter int unsigned BYTES = 64,
  localparam int unsigned QUEUE_BITS = $clog2(QUEUES)
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  reg_valid_i,
  output logic                  reg_ready_o,
  input  logic                  reg_write_i,
  input  logic [14:2]           reg_addr_i,
  input  logic [31:0]           reg_wdata_i,
  output logic [31:0]           reg_rdata_o,
  output logic                  reg_error_o,
  output logic                  queue_valid_o,
  input  logic                  queue_ready_i,
  output logic [QUEUE_BITS-1:0] queue_o,
  input  logic [31:0]           queue_rdata_i,
  output logic                  msix_valid_o,
  input  logic                  msix_ready_i,
  output logic                  msix_pba_o,
  output logic [QUEUE_BITS-1:0] msix_vector_o,
  input  logic [31:0]           msix_rdata_i,
  input  logic [2:0]            cfg_max_payload_i,
  input  logic [2:0]            cfg_max_read_i,
  input  logic                  cfg_ext_tag_i,
  output logic [2:0]            max_payload_o,
  output logic [2:0]            max_read_o,
  output logic                  ext_tag_o,
  output logic                  init_o,
  input  logic                  init_busy_i,
  output logic                  fetch_enable_o,
  input  logic                  idle_i,
  input  logic                  error_queues_i,
  output logic [15:0]           irq_interval_o,
  output logic [15:0]           cpl_timeout_o,
  output logic [4:0]            batch_max_o,
  input  logic                  count_command_i,
  input  logic                  count_error_i,
  input  logic                  count_timeout_i,
  input  logic                  count_unexpected_i,
  input  logic                  count_irq_i,
  input  logic                  count_mmio_bad_i
);
  localparam logic [1:0] OFF = 2'd0;
  localparam logic [1:0] INIT = 2'd1;
  localparam logic [1:0] ON = 2'd2;

  // Which block an access is for.
  logic is_queue, is_table, is_pba, is_global, missing, missing_q, global_ready_q;
  logic [14:0] offset;
  assign offset = {reg_addr_i, 2'b00};
  assign is_queue = 32'(offset) >= pd_abi_pkg::REG_QUEUE_BASE
      && 32'(offset) < pd_abi_pkg::REG_QUEUE_BASE + QUEUES * pd_abi_pkg::REG_QUEUE_STRIDE;
  assign is_table = 32'(offset) >= pd_abi_pkg::REG_MSIX_BASE
      && 32'(offset) < pd_abi_pkg::REG_MSIX_BASE + QUEUES * pd_abi_pkg::REG_MSIX_STRIDE;
  assign is_pba = 32'(offset) >= pd_abi_pkg::REG_MSIX_PBA_BASE && 32'(offset) < pd_abi_pkg::REG_MSIX_PBA_BASE + 32;
  assign is_global = !is_queue && !is_table && !is_pba;
  assign queue_valid_o = reg_valid_i && is_queue;
  assign queue_o = offset[5 +: QUEUE_BITS];
  assign msix_valid_o = reg_valid_i && (is_table || is_pba);
  assign msix_pba_o = is_pba;
  assign msix_vector_o = offset[4 +: QUEUE_BITS];
  always_comb begin
    if (is_queue) reg_ready_o = queue_ready_i;
    else if (is_global) reg_ready_o = global_ready_q;
    else reg_ready_o = msix_ready_i;
  end
  assign reg_error_o = is_global && missing_q;

  logic control_q;
  logic [1:0] state_q;
  logic [31:0] commands_q, errors_q, timeouts_q, unexpected_q, irqs_q, mmio_bad_q;
  logic write, ready, start;
  assign write = global_ready_q && reg_valid_i && reg_write_i && is_global;
  assign ready = state_q == ON;
  assign fetch_enable_o = ready && control_q;
  assign start = state_q == OFF && control_q && idle_i && (32'd128 << cfg_max_payload_i) >= BYTES;

  logic [31:0] global, global_q;
  always_comb begin
    missing = 1'b0;
    unique case (32'(offset))
      pd_abi_pkg::REG_ID: global = pd_abi_pkg::DEVICE_ID;
      pd_abi_pkg::REG_VERSION: global = pd_abi_pkg::DEVICE_VERSION;
      pd_abi_pkg::REG_CAPS:
        global = (QUEUES << pd_abi_pkg::CAPS_QUEUES_LSB) | (LOG2_DEPTH << pd_abi_pkg::CAPS_LOG2_DEPTH_LSB)
            | (pd_abi_pkg::BATCH_ENTRIES_MAX << pd_abi_pkg::CAPS_BATCH_ENTRIES_LSB);
      pd_abi_pkg::REG_COPY_BYTES_MAX: global = COPY_BYTES_MAX;
      pd_abi_pkg::REG_CONTROL: global = 32'(control_q) << pd_abi_pkg::CONTROL_ENABLE_LSB;
      pd_abi_pkg::REG_STATUS:
        global = (32'(ready) << pd_abi_pkg::STATUS_READY_LSB) | (32'(!idle_i) << pd_abi_pkg::STATUS_BUSY_LSB)
            | (32'(error_queues_i) << pd_abi_pkg::STATUS_ERROR_QUEUES_LSB);
      pd_abi_pkg::REG_IRQ_INTERVAL: global = 32'(irq_interval_o);
      pd_abi_pkg::REG_CPL_TIMEOUT: global = 32'(cpl_timeout_o);
      pd_abi_pkg::REG_BATCH_MAX: global = 32'(batch_max_o);
      pd_abi_pkg::REG_COUNT_COMMANDS: global = commands_q;
      pd_abi_pkg::REG_COUNT_ERRORS: global = errors_q;
      pd_abi_pkg::REG_COUNT_TIMEOUTS: global = timeouts_q;
      pd_abi_pkg::REG_COUNT_UNEXPECTED: global = unexpected_q;
      pd_abi_pkg::REG_COUNT_IRQS: global = irqs_q;
      pd_abi_pkg::REG_COUNT_MMIO_BAD: global = mmio_bad_q;
      default: begin
        global = '0;
        missing = 1'b1;
      end
    endcase
    if (is_queue) reg_rdata_o = queue_rdata_i;
    else if (is_global) reg_rdata_o = global_q;
    else reg_rdata_o = msix_rdata_i;
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      global_ready_q <= 1'b0;
      init_o <= 1'b0;
      control_q <= 1'b0;
      state_q <= OFF;
      irq_interval_o <= 16'(pd_abi_pkg::IRQ_INTERVAL_RESET);
      cpl_timeout_o <= 16'(pd_abi_pkg::CPL_TIMEOUT_RESET);
      batch_max_o <= 5'(pd_abi_pkg::BATCH_MAX_RESET);
      max_payload_o <= '0;
      max_read_o <= '0;
      ext_tag_o <= 1'b0;
      commands_q <= '0;
      errors_q <= '0;
      timeouts_q <= '0;
      unexpected_q <= '0;
      irqs_q <= '0;
      mmio_bad_q <= '0;
    end else begin
      global_ready_q <= reg_valid_i && !global_ready_q;
      init_o <= start;
      if (write) begin
        case (32'(offset))
          pd_abi_pkg::REG_CONTROL: control_q <= reg_wdata_i[pd_abi_pkg::CONTROL_ENABLE_LSB];
          pd_abi_pkg::REG_IRQ_INTERVAL: irq_interval_o <= reg_wdata_i[15:0];
          pd_abi_pkg::REG_CPL_TIMEOUT: cpl_timeout_o <= reg_wdata_i[15:0];
          pd_abi_pkg::REG_BATCH_MAX:
            if (reg_wdata_i[4:0] != '0 && reg_wdata_i[4:0] <= 5'(pd_abi_pkg::BATCH_ENTRIES_MAX)) batch_max_o <= reg_wdata_i[4:0];
          default: ;
        endcase
      end
      unique case (state_q)
        OFF: begin
          if (start) begin
            state_q <= INIT;
            // What the host set is taken here and holds until the next start; `init_o` comes when it is there.
            max_payload_o <= cfg_max_payload_i;
            max_read_o <= cfg_max_read_i;
            ext_tag_o <= cfg_ext_tag_i;
          end
        end
        INIT: if (!init_o && !init_busy_i) state_q <= ON;
        default: if (!control_q && idle_i) state_q <= OFF;
      endcase
      commands_q <= commands_q + 32'(count_command_i);
      errors_q <= errors_q + 32'(count_error_i);
      timeouts_q <= timeouts_q + 32'(count_timeout_i);
      unexpected_q <= unexpected_q + 32'(count_unexpected_i);
      irqs_q <= irqs_q + 32'(count_irq_i);
      mmio_bad_q <= mmio_bad_q + 32'(count_mmio_bad_i);
    end
  end

  always_ff @(posedge clk_i) {missing_q, global_q} <= {missing, global};

  logic unused;
  assign unused = ^offset;
endmodule
