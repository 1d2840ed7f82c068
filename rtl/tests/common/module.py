"""For the tests of single modules."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from common.settings import CLOCK_NS


async def start(dut, **inputs):
    """Clock, inputs and reset; returns on a falling edge. As in tlp.Bus, tests change and look at signals there."""
    cocotb.start_soon(Clock(dut.clk_i, CLOCK_NS, units="ns").start())
    for name, value in inputs.items():
        getattr(dut, name).value = value
    if hasattr(dut, "rst_ni"):
        dut.rst_ni.value = 0
    for _ in range(3):
        await FallingEdge(dut.clk_i)
    if hasattr(dut, "rst_ni"):
        dut.rst_ni.value = 1
    await FallingEdge(dut.clk_i)
