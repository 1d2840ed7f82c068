// Rotation of lanes: lane i goes to lane (i + STEP * `sel_i`) modulo LANES.
//
// Interface: lane 0 in the lowest bits. Timing: combinational, a 2:1 multiplexer a bit of `sel_i`.
module pd_rotate #(
  parameter int unsigned LANES = 64,
  parameter int unsigned LANE_WIDTH = 9,
  parameter int unsigned STEP = 1,
  parameter int unsigned SEL_BITS = 2
) (
  input  logic [LANES*LANE_WIDTH-1:0] data_i,
  input  logic [SEL_BITS-1:0]         sel_i,
  output logic [LANES*LANE_WIDTH-1:0] data_o
);
  localparam int unsigned WIDTH = LANES * LANE_WIDTH;
  localparam int unsigned SHIFT = LANE_WIDTH * STEP;
  always_comb begin
    data_o = data_i;
    for (int s = 0; s < SEL_BITS; s++) begin
      if (sel_i[s]) data_o = (data_o << (SHIFT << s)) | (data_o >> (WIDTH - (SHIFT << s)));
    end
  end
endmodule
