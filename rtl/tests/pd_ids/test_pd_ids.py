"""pd_ids against a set: no number out twice, none lost, in the order of return."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("all out", "all free", "returned and taken at once", "a smaller limit")


@cocotb.test()
async def numbers(dut):
    rng = rng_of("numbers")
    count = parameter("COUNT", 64)
    await start(dut, init_i=0, get_ready_i=0, put_valid_i=0)
    for limit in (count, count // 2, count):
        coverage.hit("a smaller limit" if limit < count else "the whole")
        dut.init_i.value, dut.limit_i.value = 1, limit
        await FallingEdge(dut.clk_i)
        dut.init_i.value = 0
        out, order, idle = set(), list(range(limit)), 0
        for cycle in range(12000 if LONG else 2000):
            get = rng.random() < (0.9, 0.2)[cycle // 200 % 2]
            put = rng.choice(sorted(out)) if out and rng.random() < (0.2, 0.9)[cycle // 200 % 2] else None
            if cycle > 1900:
                get, put = False, min(out, default=None)
            assert bool(dut.all_free_o.value) == (not out)
            dut.get_ready_i.value = get
            dut.put_valid_i.value, dut.put_id_i.value = put is not None, put or 0
            if dut.get_valid_o.value:
                idle = 0
                if get:
                    number = int(dut.get_id_o.value)
                    assert number == order.pop(0) and number not in out and number < limit
                    out.add(number)
                    if put is not None:
                        coverage.hit("returned and taken at once")
            elif order:
                idle += 1
                assert idle < 3, "numbers, and no offer"
            if put is not None:
                out.remove(put)
                order.append(put)
            coverage.hit("all out" if len(out) == limit else "some out" if out else "all free")
            await FallingEdge(dut.clk_i)
        dut.get_ready_i.value = 0
        while out:
            dut.put_valid_i.value, dut.put_id_i.value = 1, out.pop()
            await FallingEdge(dut.clk_i)
        dut.put_valid_i.value = 0
        await FallingEdge(dut.clk_i)
    coverage.report()
