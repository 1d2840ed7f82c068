"""pd_rotate against a list."""

import cocotb
from cocotb.triggers import Timer

from common import coverage
from common.settings import LONG, parameter, rng as rng_of


@cocotb.test()
async def rotates(dut):
    rng = rng_of("rotates")
    step, bits = parameter("STEP", 1), parameter("SEL_BITS", 2)
    for _ in range(300 if LONG else 60):
        lanes, sel = [rng.getrandbits(9) for _ in range(64)], rng.randrange(1 << bits)
        dut.data_i.value = sum(lane << 9 * i for i, lane in enumerate(lanes))
        dut.sel_i.value = sel
        await Timer(1, "ns")
        out = int(dut.data_o.value)
        for i, lane in enumerate(lanes):
            assert out >> 9 * ((i + step * sel) % 64) & 0x1FF == lane, (i, sel)
        coverage.hit(f"turn by {step * sel}")
    coverage.report()
