// DMA engine, back end: which transfers' reads have all come back.
//
// An owner is a batch of SQ entries or a slot of the Data Buffer: {0, batch} or {1, slot}.
// Interface: `load_*` says how many reads an owner will have, before the first is sent; `event_*` reports the end of
// one (`final`) and any error. When the last has ended, `done_*` gives the owner and its first error.
// Timing: an event a cycle, always taken; a load when there is no event. `done_*` is a pulse in the cycle after.
module pd_dma_track #(
  parameter int unsigned OWNER_BITS = 7,
  parameter int unsigned COUNT_BITS = 7
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  load_valid_i,
  output logic                  load_ready_o,
  input  logic [OWNER_BITS-1:0] load_owner_i,
  input  logic [COUNT_BITS-1:0] load_count_i,
  input  logic                  event_valid_i,
  input  logic [OWNER_BITS-1:0] event_owner_i,
  input  logic                  event_final_i,
  input  logic [2:0]            event_status_i,
  output logic                  done_valid_o,
  output logic [OWNER_BITS-1:0] done_owner_o,
  output logic [2:0]            done_status_o
);
  logic [COUNT_BITS+2:0] mem [0:(1 << OWNER_BITS)-1];
  logic [2:0] status_old, status;
  logic [COUNT_BITS-1:0] count_old, count;

  assign load_ready_o = !event_valid_i;
  assign {status_old, count_old} = mem[event_owner_i];
  assign status = status_old == '0 ? event_status_i : status_old;
  assign count = count_old - COUNT_BITS'(event_final_i);

  always_ff @(posedge clk_i) begin
    if (event_valid_i) mem[event_owner_i] <= {status, count};
    else if (load_valid_i) mem[load_owner_i] <= {3'd0, load_count_i};
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) done_valid_o <= 1'b0;
    else done_valid_o <= event_valid_i && event_final_i && count == '0;
  end
  always_ff @(posedge clk_i) begin
    done_owner_o <= event_owner_i;
    done_status_o <= status;
  end

`ifdef PD_ASSERT
  // No completion is counted twice.
  always @(posedge clk_i) if (rst_ni && event_valid_i) assert (count_old != '0);
  always @(posedge clk_i) if (rst_ni && load_valid_i) assert (load_count_i != '0);
`endif
`ifdef PD_FORMAL
  `include "fv_pd_dma_track.svh"
`endif
endmodule
