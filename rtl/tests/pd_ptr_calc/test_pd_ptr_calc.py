"""pd_ptr_calc against arithmetic: pointers of every kind, those too that no honest driver has."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("nothing waits", "CQ full", "batch limit", "end of the ring", "more is left", "pointers past 65,536", "impossible consumer", "phase 0", "phase 1")


@cocotb.test()
async def pointers(dut):
    rng = rng_of("pointers")
    depth = 1 << parameter("LOG2_DEPTH", 10)
    await start(dut, sq_producer_i=0, sq_consumer_i=0, cq_consumer_i=0, batch_max_i=16)
    for _ in range(20000 if LONG else 1500):
        consumer = rng.choice([rng.randrange(1 << 16), rng.choice([0, depth, 1 << 16]) - rng.randint(0, 20) & 0xFFFF])
        waiting = rng.choice([0, rng.randint(0, 20), rng.randint(0, depth), rng.randrange(1 << 16)])
        used = rng.choice([0, rng.randint(0, depth), depth - rng.randint(0, 20), depth, depth + 1, rng.randrange(1 << 16)])
        producer, cq, batch = consumer + waiting & 0xFFFF, consumer - used & 0xFFFF, rng.choice([16, rng.randint(1, 16)])
        dut.sq_producer_i.value, dut.sq_consumer_i.value, dut.cq_consumer_i.value = producer, consumer, cq
        dut.batch_max_i.value = batch
        for _ in range(4):
            await FallingEdge(dut.clk_i)
        slot, free = consumer % depth, max(0, depth - used)
        limit = min(waiting, free)
        count = min(limit, batch, depth - slot)
        what = f"consumer {consumer}, waiting {waiting}, used {used}, batch {batch}"
        assert int(dut.count_o.value) == count, what
        assert bool(dut.more_o.value) == (limit > count), what
        assert int(dut.sq_consumer_next_o.value) == consumer + count & 0xFFFF, what
        assert int(dut.slot_o.value) == slot and int(dut.phase_o.value) == 1 - (consumer // depth & 1), what
        for feature, seen in (("nothing waits", not waiting), ("CQ full", waiting and used == depth), ("batch limit", 0 < count == batch < limit),
                              ("end of the ring", 0 < count == depth - slot < min(limit, batch)), ("more is left", limit > count),
                              ("pointers past 65,536", count and consumer + count > 0xFFFF), ("impossible consumer", used > depth),
                              (f"phase {1 - (consumer // depth & 1)}", True)):
            if seen:
                coverage.hit(feature)
    coverage.report()
