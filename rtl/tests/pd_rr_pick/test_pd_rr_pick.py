"""pd_rr_pick against a set: nothing lost, nothing invented, nobody passed over twice."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("taken", "kept", "set while taken", "all set", "one set", "wrap", "both ports")


@cocotb.test()
async def turns(dut):
    rng = rng_of("turns")
    count = parameter("COUNT", 256)
    await start(dut, clear_i=0, set_a_valid_i=0, set_b_valid_i=0, pick_ready_i=0, pick_keep_i=0)
    model, passed, idle = set(), {}, 0
    last = None
    for cycle in range(30000 if LONG else 6000):
        # Now many requests, now few, now none.
        busy = (0.9, 0.02, 0.0)[cycle // 500 % 3]
        a = rng.randrange(count) if rng.random() < busy else None
        b = rng.randrange(count) if rng.random() < busy / 2 else None
        offer = int(dut.pick_id_o.value) if dut.pick_valid_o.value else None
        if offer is not None and rng.random() < 0.02:
            a = offer
        ready, keep = rng.random() < 0.6, rng.random() < 0.1
        assert int(dut.set_o.value) == sum(1 << i for i in model)
        if offer is not None:
            assert offer in model
            idle = 0
        elif model:
            idle += 1
            assert idle < 8, "requests, and no offer"
        if offer is not None and ready:
            if not keep:
                model.discard(offer)
            for waiting in model - {offer}:
                passed.setdefault(waiting, {})[offer] = passed.get(waiting, {}).get(offer, 0) + 1
                assert passed[waiting][offer] <= 2, f"{waiting} waits while {offer} is served for the third time"
            passed.pop(offer, None)
            coverage.hit("kept" if keep else "taken")
            if offer in (a, b):
                coverage.hit("set while taken")
            if dut.wrap_o.value:
                coverage.hit("wrap")
            assert dut.wrap_o.value or offer > last, "an earlier number again, and no new round"
            last = offer
        if a is not None and b is not None:
            coverage.hit("both ports")
        dut.set_a_valid_i.value, dut.set_a_id_i.value = a is not None, a or 0
        dut.set_b_valid_i.value, dut.set_b_id_i.value = b is not None, b or 0
        dut.pick_ready_i.value, dut.pick_keep_i.value = ready, keep
        model |= {i for i in (a, b) if i is not None}
        if len(model) == count or len(model) > 100:
            coverage.hit("all set")
        if len(model) == 1:
            coverage.hit("one set")
        await FallingEdge(dut.clk_i)
    coverage.report()
