"""pd_fifo against a list, full and empty often."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("full", "empty", "written and read at once", "write refused", "reset with entries")


@cocotb.test()
async def queue(dut):
    rng = rng_of("queue")
    depth, width = 1 << parameter("LOG2_DEPTH", 4), parameter("WIDTH", 8)
    await start(dut, wr_valid_i=0, rd_ready_i=0)
    model = []
    for cycle in range(20000 if LONG else 4000):
        assert int(dut.space_o.value) == depth - len(model)
        assert bool(dut.wr_ready_o.value) == (len(model) < depth) and bool(dut.rd_valid_o.value) == bool(model)
        if model:
            assert int(dut.rd_data_o.value) == model[0], f"cycle {cycle}"
        coverage.hit("full" if len(model) == depth else "partly" if model else "empty")
        wr, rd = rng.random() < (0.8, 0.2)[cycle // 100 % 2], rng.random() < 0.5
        data = rng.getrandbits(width)
        dut.wr_valid_i.value, dut.wr_data_i.value, dut.rd_ready_i.value = wr, data, rd
        if rng.random() < 0.002 and model:
            dut.rst_ni.value = 0
            model.clear()
            coverage.hit("reset with entries")
        else:
            dut.rst_ni.value = 1
            room, some = len(model) < depth, bool(model)
            if rd and some:
                model.pop(0)
            if wr and room:
                model.append(data)
            if wr and not room:
                coverage.hit("write refused")
            if wr and room and rd and some:
                coverage.hit("written and read at once")
        await FallingEdge(dut.clk_i)
    coverage.report()
