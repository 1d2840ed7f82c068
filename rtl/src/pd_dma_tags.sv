// DMA engine, back end: the tags of reads in flight.
//
// A tag is free, out (its completions are awaited) or dead (its read timed out; a late completion is dropped). A dead tag is
// free again once its last completion came, or after a second time-out.
// Interface: `alloc_*` gives a tag to a read with what its completions need to know; `look_*` reads that; `end_*` (last
// completion, or time-out: `end_dead_i`) changes the state; `free_*` returns the tag. `kill_*` asks the receiver to treat a tag as
// timed out; it stands until the tag comes to an end. `idle_o`: none is out, and the list is ready.
// Timing: `look_info_o` one cycle after `look_tag_i`; `state_out_o`/`state_dead_o` belong to `state_tag_i` at once. A tag is looked
// at for its time-out every 4 * TAGS cycles.
module pd_dma_tags #(
  parameter int unsigned TAGS = 128,
  parameter int unsigned INFO_BITS = 40,
  localparam int unsigned TAG_BITS = $clog2(TAGS)
) (
  input  logic                 clk_i,
  input  logic                 rst_ni,
  input  logic                 init_i,
  input  logic                 ext_tag_i,
  input  logic [15:0]          timeout_i,
  output logic                 alloc_valid_o,
  input  logic                 alloc_ready_i,
  output logic [TAG_BITS-1:0]  alloc_tag_o,
  input  logic [INFO_BITS-1:0] alloc_info_i,
  input  logic [TAG_BITS-1:0]  look_tag_i,
  output logic [INFO_BITS-1:0] look_info_o,
  input  logic [TAG_BITS-1:0]  state_tag_i,
  output logic                 state_out_o,
  output logic                 state_dead_o,
  input  logic                 end_valid_i,
  input  logic [TAG_BITS-1:0]  end_tag_i,
  input  logic                 end_dead_i,
  input  logic                 free_valid_i,
  input  logic [TAG_BITS-1:0]  free_tag_i,
  output logic                 kill_valid_o,
  output logic [TAG_BITS-1:0]  kill_tag_o,
  output logic                 idle_o
);
  logic [TAGS-1:0] out_q, dead_q;
  logic alloc;

  assign alloc = alloc_valid_o && alloc_ready_i;
  assign state_out_o = out_q[state_tag_i];
  assign state_dead_o = dead_q[state_tag_i];

  logic [TAG_BITS:0] limit;
  logic all_free, id_valid;
  logic [TAG_BITS-1:0] id;
  assign limit = ext_tag_i ? (TAG_BITS + 1)'(TAGS) : (TAG_BITS + 1)'(32);
  // Dead tags are out of the list for a long time: the list starts anew only when none is.
  logic init_wait_q, init;
  assign init = (init_i || init_wait_q) && all_free;
  assign alloc_valid_o = id_valid && !init_wait_q && !init_i;
  assign alloc_tag_o = id;
  assign idle_o = out_q == '0 && !init_wait_q;
  pd_ids #(.COUNT(TAGS)) u_ids (
    .clk_i, .rst_ni,
    .init_i(init), .limit_i(limit),
    .get_valid_o(id_valid), .get_ready_i(alloc), .get_id_o(id),
    .put_valid_i(free_valid_i), .put_id_i(free_tag_i),
    .all_free_o(all_free)
  );
  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) init_wait_q <= 1'b0;
    else init_wait_q <= (init_i || init_wait_q) && !init;
  end

  pd_ram #(.WIDTH(INFO_BITS), .DEPTH(TAGS)) u_info (
    .clk_i,
    .we_i(alloc), .waddr_i(alloc_tag_o), .wdata_i(alloc_info_i),
    .re_i(1'b1), .raddr_i(look_tag_i), .rdata_o(look_info_o)
  );

  for (genvar i = 0; i < TAGS; i++) begin : gen_tag
    always_ff @(posedge clk_i or negedge rst_ni) begin
      if (!rst_ni) begin
        out_q[i] <= 1'b0;
        dead_q[i] <= 1'b0;
      end else begin
        if (alloc && alloc_tag_o == TAG_BITS'(i)) out_q[i] <= 1'b1;
        if (end_valid_i && end_tag_i == TAG_BITS'(i)) begin
          out_q[i] <= 1'b0;
          dead_q[i] <= end_dead_i;
        end
      end
    end
  end

  // Time-outs: one tag after the other, a step a cycle: its state and stamp, its age, comparison, verdict, the wait for its end.
  localparam logic [2:0] READ = 3'd0;
  localparam logic [2:0] JUDGE = 3'd3;
  localparam logic [2:0] WAIT = 3'd4;
  logic [7:0] cycles_q;
  logic [17:0] now_q, stamp, age_q;
  logic [TAG_BITS-1:0] scan_q;
  logic [2:0] step_q;
  logic scan_out_q, scan_dead_q, old_q, older_q, ended_q, over, kill;

  pd_ram #(.WIDTH(18), .DEPTH(TAGS)) u_stamp (
    .clk_i,
    .we_i(alloc), .waddr_i(alloc_tag_o), .wdata_i(now_q),
    .re_i(step_q == READ), .raddr_i(scan_q), .rdata_o(stamp)
  );
  // A tag that has come to an end since it was looked at, and perhaps to new use, is left alone.
  assign over = end_valid_i && end_tag_i == scan_q;
  assign kill = timeout_i != '0 && ((scan_out_q && old_q) || (scan_dead_q && older_q)) && !ended_q && !over;
  assign kill_valid_o = step_q == WAIT;
  assign kill_tag_o = scan_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      cycles_q <= '0;
      now_q <= '0;
      scan_q <= '0;
      step_q <= READ;
    end else begin
      cycles_q <= cycles_q + 1'b1;
      if (cycles_q == '1) now_q <= now_q + 1'b1;
      if (step_q == JUDGE && kill) begin
        step_q <= WAIT;
      end else if (step_q == JUDGE || (step_q == WAIT && over)) begin
        step_q <= READ;
        scan_q <= scan_q + 1'b1;
      end else if (step_q != WAIT) begin
        step_q <= step_q + 1'b1;
      end
    end
  end
  always_ff @(posedge clk_i) begin
    if (step_q == READ) begin
      scan_out_q <= out_q[scan_q];
      scan_dead_q <= dead_q[scan_q];
    end
    ended_q <= over || (ended_q && step_q != READ);
    age_q <= now_q - stamp;
    old_q <= age_q >= 18'(timeout_i);
    older_q <= age_q >= {1'b0, timeout_i, 1'b0};
  end

`ifdef PD_ASSERT
  always @(posedge clk_i) begin
    if (rst_ni) begin
      assert ((out_q & dead_q) == '0);
      // Nobody waits for the end of a tag that is free.
      if (kill_valid_o) assert (out_q[scan_q] || dead_q[scan_q]);
      if (end_valid_i) assert (out_q[end_tag_i] || dead_q[end_tag_i]);
      if (alloc) assert (!out_q[alloc_tag_o] && !dead_q[alloc_tag_o]);
    end
  end
`endif
endmodule
