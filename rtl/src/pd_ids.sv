// Free list: hands out numbers 0 .. limit-1 and takes them back.
//
// Interface: `get_*` gives a number, `put_*` returns one; `init_i`, while nothing is out, makes 0 .. `limit_i`-1 free.
// `all_free_o`: none is out. Numbers go round: the one returned longest ago comes next.
// Timing: one of each per cycle; `get_valid_o` and `get_id_o` are registers. A returned number can be had again after two cycles.
module pd_ids #(
  parameter int unsigned COUNT = 64,
  localparam int unsigned BITS = $clog2(COUNT)
) (
  input  logic            clk_i,
  input  logic            rst_ni,
  input  logic            init_i,
  input  logic [BITS:0]   limit_i,
  output logic            get_valid_o,
  input  logic            get_ready_i,
  output logic [BITS-1:0] get_id_o,
  input  logic            put_valid_i,
  input  logic [BITS-1:0] put_id_i,
  output logic            all_free_o
);
  // Numbers never handed out since `init_i` come from a counter, the others from a ring of returned ones.
  logic [BITS-1:0] mem [0:(1 << BITS)-1];
  logic [BITS:0] fresh_q, limit_q, put_q, get_q, out_q;
  logic fresh, more, get, refill, valid_q;
  logic [BITS-1:0] id_q;

  assign fresh = fresh_q != limit_q;
  assign more = fresh || put_q != get_q;
  assign get_valid_o = valid_q;
  assign get_id_o = id_q;
  assign get = valid_q && get_ready_i;
  assign refill = !valid_q || get;
  assign all_free_o = out_q == '0;

  always_ff @(posedge clk_i) begin
    if (put_valid_i) mem[put_q[BITS-1:0]] <= put_id_i;
    if (refill) id_q <= fresh ? fresh_q[BITS-1:0] : mem[get_q[BITS-1:0]];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      fresh_q <= '0;
      limit_q <= '0;
      put_q <= '0;
      get_q <= '0;
      out_q <= '0;
      valid_q <= 1'b0;
    end else if (init_i) begin
      fresh_q <= '0;
      limit_q <= limit_i;
      put_q <= '0;
      get_q <= '0;
      valid_q <= 1'b0;
    end else begin
      if (refill) valid_q <= more;
      if (refill && fresh) fresh_q <= fresh_q + 1'b1;
      if (refill && more && !fresh) get_q <= get_q + 1'b1;
      if (put_valid_i) put_q <= put_q + 1'b1;
      out_q <= out_q + (BITS + 1)'(get) - (BITS + 1)'(put_valid_i);
    end
  end

`ifdef PD_ASSERT
  // As many are out as were handed out and not returned; nobody returns what is not out.
  always @(posedge clk_i) begin
    if (rst_ni) begin
      assert (out_q <= limit_q);
      if (put_valid_i) assert (out_q != '0);
      if (init_i) assert (out_q == '0 && !put_valid_i);
    end
  end
`endif
`ifdef PD_FORMAL
  `include "fv_pd_ids.svh"
`endif
endmodule
