// PD Controller, third part: ended commands, batch by batch, as completions.
//
// When the last command of a batch has ended, its entries are written to the CQ slots of their SQ slots in one go, each with its
// status and the phase. When they are on their way, the batch is retired in the state registers and its interrupt raised.
// Interface: `ctx_*` what is known of a batch from its fetch (`look_*`: its number of entries); `start_*` its commands will end now;
// `end_*` (never refused) and `bad_*` commands that ended; `fail_*` a batch that couldn't be read. `cq_*` jobs, with contents on
// `entry_*`; `cq_sent_i` in their order.
// Timing: a command's end a cycle; two cycles plus one an entry for a batch. `irq_*` one cycle after the end of its batch.
module pd_retire #(
  parameter int unsigned QUEUE_BITS = 8,
  parameter int unsigned ADDR_BITS = 52,
  parameter int unsigned BATCHES = 64,
  parameter int unsigned SLOT_BITS = 5,
  localparam int unsigned BATCH_BITS = $clog2(BATCHES),
  localparam int unsigned ENTRY_BITS = BATCH_BITS + 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  ctx_valid_i,
  input  logic [BATCH_BITS-1:0] ctx_batch_i,
  input  logic [QUEUE_BITS-1:0] ctx_queue_i,
  input  logic [4:0]            ctx_count_i,
  input  logic                  ctx_phase_i,
  input  logic [ADDR_BITS-1:0]  ctx_cq_addr_i,
  input  logic                  ctx_irq_i,
  input  logic [QUEUE_BITS-1:0] ctx_vector_i,
  input  logic [BATCH_BITS-1:0] look_batch_i,
  output logic [4:0]            look_count_o,
  input  logic                  start_valid_i,
  input  logic [BATCH_BITS-1:0] start_batch_i,
  input  logic [4:0]            start_count_i,
  input  logic                  end_valid_i,
  input  logic [ENTRY_BITS-1:0] end_entry_i,
  input  logic [2:0]            end_status_i,
  input  logic                  bad_valid_i,
  output logic                  bad_ready_o,
  input  logic [ENTRY_BITS-1:0] bad_entry_i,
  input  logic [2:0]            bad_status_i,
  input  logic                  fail_valid_i,
  output logic                  fail_ready_o,
  output logic                  read_valid_o,
  output logic [ENTRY_BITS-1:0] read_entry_o,
  input  logic [255:0]          read_data_i,
  output logic                  cq_valid_o,
  input  logic                  cq_ready_i,
  output logic [ADDR_BITS-1:0]  cq_addr_o,
  output logic [4:0]            cq_count_o,
  output logic                  entry_valid_o,
  input  logic                  entry_ready_i,
  output logic [255:0]          entry_data_o,
  input  logic                  cq_sent_i,
  output logic                  retire_valid_o,
  input  logic                  retire_ready_i,
  output logic [QUEUE_BITS-1:0] retire_queue_o,
  output logic                  retire_fail_o,
  output logic                  free_valid_o,
  output logic [BATCH_BITS-1:0] free_batch_o,
  output logic                  irq_valid_o,
  output logic [QUEUE_BITS-1:0] irq_vector_o,
  output logic                  count_command_o,
  output logic                  count_error_o
);
  // What is known of a batch: for its completions, and for its end.
  logic [4:0] count_mem [0:BATCHES-1];
  logic [ADDR_BITS+5:0] cq_mem [0:BATCHES-1];
  logic [2*QUEUE_BITS:0] end_mem [0:BATCHES-1];
  always_ff @(posedge clk_i) begin
    if (ctx_valid_i) begin
      count_mem[ctx_batch_i] <= ctx_count_i;
      cq_mem[ctx_batch_i] <= {ctx_phase_i, ctx_count_i, ctx_cq_addr_i};
      end_mem[ctx_batch_i] <= {ctx_irq_i, ctx_vector_i, ctx_queue_i};
    end
  end
  assign look_count_o = count_mem[look_batch_i];

  // Ends, from the DMA engine first; a start goes before both.
  localparam int unsigned END_BITS = ENTRY_BITS + 3;
  logic end_fifo_ready, end_valid, event_valid_q, event_take;
  logic [SLOT_BITS:0] end_space;
  logic [ENTRY_BITS-1:0] end_entry, event_entry_q;
  logic [2:0] end_status, event_status_q;
  pd_fifo #(.WIDTH(END_BITS), .LOG2_DEPTH(SLOT_BITS)) u_ends (
    .clk_i, .rst_ni,
    .wr_valid_i(end_valid_i), .wr_ready_o(end_fifo_ready), .wr_data_i({end_entry_i, end_status_i}),
    .rd_valid_o(end_valid), .rd_ready_i(event_go), .rd_data_o({end_entry, end_status}),
    .space_o(end_space)
  );
  // One is taken ahead, so that reading the number left has a cycle of its own.
  logic event_go;
  assign event_go = !event_valid_q || event_take;
  assign event_take = !start_valid_i;
  assign bad_ready_o = event_go && !end_valid;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) event_valid_q <= 1'b0;
    else if (event_go) event_valid_q <= end_valid || bad_valid_i;
  end
  always_ff @(posedge clk_i) begin
    if (event_go) begin
      event_entry_q <= end_valid ? end_entry : bad_entry_i;
      event_status_q <= end_valid ? end_status : bad_status_i;
    end
  end

  // Commands of each batch that have not ended.
  logic [4:0] left_mem [0:BATCHES-1];
  logic [BATCH_BITS-1:0] event_batch;
  logic [4:0] left;
  logic event_fire, complete;
  assign event_batch = event_entry_q[ENTRY_BITS-1:4];
  assign left = left_mem[event_batch] - 5'd1;
  assign event_fire = event_valid_q && event_take;
  assign complete = event_fire && left == '0;
  always_ff @(posedge clk_i) begin
    if (start_valid_i) left_mem[start_batch_i] <= start_count_i;
    else if (event_fire) left_mem[event_batch] <= left;
  end
  assign count_command_o = event_fire;
  assign count_error_o = event_fire && event_status_q != '0;

  logic [2:0] status, status_q;
  pd_ram #(.WIDTH(3), .DEPTH(16 * BATCHES)) u_status (
    .clk_i, .we_i(event_fire), .waddr_i(event_entry_q), .wdata_i(event_status_q),
    .re_i(read_valid_o), .raddr_i(read_entry_o), .rdata_o(status)
  );

  // Complete batches, one after the other: a job, and its entries.
  logic ready_full, ready_valid, ready_take;
  logic [BATCH_BITS:0] ready_space;
  logic [BATCH_BITS-1:0] ready_batch;
  pd_fifo #(.WIDTH(BATCH_BITS), .LOG2_DEPTH(BATCH_BITS)) u_complete (
    .clk_i, .rst_ni,
    .wr_valid_i(complete), .wr_ready_o(ready_full), .wr_data_i(event_batch),
    .rd_valid_o(ready_valid), .rd_ready_i(ready_take), .rd_data_o(ready_batch),
    .space_o(ready_space)
  );
  logic reading_q, phase_q;
  logic [BATCH_BITS-1:0] batch_q;
  logic [3:0] index_q;
  logic [1:0] pending_q;
  logic [3:0] space;
  logic fifo_ready, sent_ready;
  logic phase;
  logic [4:0] count;
  logic [ADDR_BITS-1:0] cq_addr;
  logic [255:0] patched;

  assign {phase, count, cq_addr} = cq_mem[ready_batch];
  assign ready_take = ready_valid && !reading_q && !cq_valid_o && pending_q == '0;
  assign read_valid_o = reading_q && space > 4'd2;
  assign read_entry_o = {batch_q, index_q};
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      reading_q <= 1'b0;
      cq_valid_o <= 1'b0;
      pending_q <= '0;
      index_q <= '0;
    end else begin
      pending_q <= {pending_q[0], read_valid_o};
      if (ready_take) begin
        reading_q <= 1'b1;
        cq_valid_o <= 1'b1;
        index_q <= '0;
      end else begin
        if (cq_ready_i) cq_valid_o <= 1'b0;
        if (read_valid_o) begin
          index_q <= index_q + 1'b1;
          if (5'(index_q) + 5'd1 == cq_count_o) reading_q <= 1'b0;
        end
      end
    end
  end
  always_ff @(posedge clk_i) begin
    status_q <= status;
    if (ready_take) begin
      cq_addr_o <= cq_addr;
      cq_count_o <= count;
      phase_q <= phase;
      batch_q <= ready_batch;
    end
  end
  always_comb begin
    patched = read_data_i;
    patched[pd_abi_pkg::CMD_REQUEST_TYPE_LSB +: 8] = 8'(pd_abi_pkg::TYPE_GENERAL_COMPLETED);
    patched[pd_abi_pkg::CMD_STATUS_LSB +: 8] = 8'(status_q);
    patched[pd_abi_pkg::CMD_RESERVED_LSB +: 8] = 8'd0;
    patched[pd_abi_pkg::CMD_PHASE_LSB] = phase_q;
  end
  pd_fifo #(.WIDTH(256), .LOG2_DEPTH(3)) u_entries (
    .clk_i, .rst_ni,
    .wr_valid_i(pending_q[1]), .wr_ready_o(fifo_ready), .wr_data_i(patched),
    .rd_valid_o(entry_valid_o), .rd_ready_i(entry_ready_i), .rd_data_o(entry_data_o),
    .space_o(space)
  );

  // Batches whose completions are on their way, in that order; and those that failed.
  logic [BATCH_BITS-1:0] sent_batch;
  logic [QUEUE_BITS-1:0] vector;
  logic sent_valid, sent_take, fail_take;
  logic [BATCH_BITS:0] sent_q, sent_space;
  pd_fifo #(.WIDTH(BATCH_BITS), .LOG2_DEPTH(BATCH_BITS)) u_sent (
    .clk_i, .rst_ni,
    .wr_valid_i(ready_take), .wr_ready_o(sent_ready), .wr_data_i(ready_batch),
    .rd_valid_o(sent_valid), .rd_ready_i(sent_take), .rd_data_o(sent_batch),
    .space_o(sent_space)
  );
  logic irq, failing_q;
  logic [BATCH_BITS-1:0] ending_q;
  logic retiring_q;
  // A choice once shown to the state registers stays.
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      sent_q <= '0;
      failing_q <= 1'b0;
      retiring_q <= 1'b0;
    end else begin
      sent_q <= sent_q + (BATCH_BITS + 1)'(cq_sent_i) - (BATCH_BITS + 1)'(sent_take);
      if (retiring_q) retiring_q <= !retire_ready_i;
      else begin
        retiring_q <= sent_q != '0 || fail_valid_i;
        failing_q <= sent_q == '0;
      end
    end
  end
  always_ff @(posedge clk_i) if (!retiring_q) ending_q <= sent_q == '0 ? start_batch_i : sent_batch;
  assign retire_valid_o = retiring_q;
  assign retire_fail_o = failing_q;
  assign sent_take = retiring_q && retire_ready_i && !failing_q;
  assign fail_take = retiring_q && retire_ready_i && failing_q;
  assign fail_ready_o = fail_take;
  assign {irq, vector, retire_queue_o} = end_mem[ending_q];
  assign free_valid_o = retiring_q && retire_ready_i;
  assign free_batch_o = ending_q;
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) irq_valid_o <= 1'b0;
    else irq_valid_o <= free_valid_o && irq;
  end
  always_ff @(posedge clk_i) irq_vector_o <= vector;

  logic unused;
  assign unused = ^{end_space, ready_space, sent_space, read_data_i};
`ifdef PD_ASSERT
  always @(posedge clk_i) begin
    if (rst_ni) begin
      if (end_valid_i) assert (end_fifo_ready);
      if (complete) assert (ready_full);
      if (ready_take) assert (sent_ready);
      if (pending_q[1]) assert (fifo_ready);
      if (sent_q != '0) assert (sent_valid);
      // No command ends twice.
      if (event_fire) assert (left != '1);
    end
  end
`else
  logic unused_ready;
  assign unused_ready = ^{end_fifo_ready, ready_full, sent_ready, fifo_ready, sent_valid};
`endif
endmodule
