"""pd_msix against a model: no interrupt is lost, none comes of itself, masks and pending bits, the interval."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("sent", "shared", "held by the vector's mask", "held by the function's mask", "held while disabled", "interval waited for", "pending bit read")


async def access(dut, vector, word, value=None, pba=False):
    dut.host_valid_i.value, dut.host_write_i.value, dut.host_pba_i.value = 1, value is not None, pba
    dut.host_vector_i.value, dut.host_word_i.value, dut.host_pba_word_i.value = vector, word & 3, word
    dut.host_wdata_i.value = value or 0
    while True:
        await FallingEdge(dut.clk_i)
        if dut.host_ready_o.value:
            break
    read = int(dut.host_rdata_o.value)
    await FallingEdge(dut.clk_i)
    dut.host_valid_i.value = 0
    return read


@cocotb.test()
async def vectors(dut):
    rng = rng_of("vectors")
    count = parameter("VECTORS", 256)
    await start(dut, enable_i=1, mask_i=0, interval_i=0, host_valid_i=0, irq_valid_i=0, msi_ready_i=0, host_write_i=0)
    raised, sent, cycle, asks = {}, {}, [0], []
    state = {"interval": 0, "open": True}

    async def messages():
        shown = None
        while True:
            dut.msi_ready_i.value = ready = rng.random() < 0.5
            now = (int(dut.msi_addr_o.value), int(dut.msi_data_o.value)) if dut.msi_valid_o.value else None
            assert shown in (None, now), "a message changed while it waited"
            shown = None if ready else now
            if now and ready:
                vector = now[1] & 0xFFF
                assert now == (0x2_FEE0_0000 + 4 * vector, 0xAB000 + vector), "not what the table says"
                assert raised.get(vector), f"vector {vector} of itself"
                assert cycle[0] - sent.get(vector, -99999) >= state["interval"], "two in an interval"
                if raised.pop(vector) > 1:
                    coverage.hit("shared")
                sent[vector] = cycle[0]
                coverage.hit("sent")
            # Raised in the cycle in which it is sent: it is sent once more.
            dut.irq_valid_i.value = bool(asks)
            if asks:
                vector = asks.pop(0)
                dut.irq_vector_i.value = vector
                raised[vector] = raised.get(vector, 0) + 1
            await FallingEdge(dut.clk_i)
            cycle[0] += 1

    # Masked after reset.
    assert await access(dut, count - 1, 3) == 1
    for vector in range(count):
        for word, value in enumerate((0xFEE0_0000 + 4 * vector, 2, 0xAB000 + vector, 0)):
            await access(dut, vector, word, value)
    cocotb.start_soon(messages())

    async def burst(number):
        for _ in range(number):
            vector = rng.choice([rng.randrange(count), 3, 3, count - 1])
            asks.append(vector)
            for _ in range(rng.choice([1, 2, 30])):
                await FallingEdge(dut.clk_i)

    async def drained(cycles):
        for _ in range(cycles):
            if not raised and not asks:
                return
            await FallingEdge(dut.clk_i)
        raise AssertionError(f"interrupts lost: {sorted(raised)}")

    for turn in range(30 if LONG else 6):
        await burst(150)
        await drained(20000)
        sent.clear()
        state["interval"] = 400
        dut.interval_i.value = 400
        await burst(40)
        await drained(400 * 8)
        coverage.hit("interval waited for")
        dut.interval_i.value = state["interval"] = 0
        for _ in range(400):
            await FallingEdge(dut.clk_i)
        # Held back, then all at once.
        kind = ("held by the vector's mask", "held by the function's mask", "held while disabled")[turn % 3]
        if turn % 3 == 0:
            for vector in range(count):
                await access(dut, vector, 3, 1)
        else:
            (dut.mask_i if turn % 3 == 1 else dut.enable_i).value = turn % 3 == 1
        before = dict(sent)
        await burst(50)
        for _ in range(300):
            await FallingEdge(dut.clk_i)
        assert sent == before and raised, kind
        bits = 0
        for word in range(max(1, count // 32)):
            bits |= await access(dut, 0, word, pba=True) << 32 * word
        assert bits == sum(1 << vector for vector in raised)
        coverage.hit("pending bit read")
        coverage.hit(kind)
        if turn % 3 == 0:
            for vector in range(count):
                await access(dut, vector, 3, 0)
        dut.mask_i.value, dut.enable_i.value = 0, 1
        await drained(20000)
    coverage.report()
