"""The whole PD Stack on a modelled host, at the level of TLPs: every feature once, and random traffic."""

import itertools

import cocotb

from common import abi, coverage, limit, tlp
from common.driver import STUCK_CYCLES, Device, Queue
from common.settings import CLOCK_NS, LONG, parameter, rng as rng_of

SEND = abi.TYPE_GENERAL_SEND
BAD = "command with BadType", "command with BadLength", "command with BadAddress", "command with Failed"
coverage.declare(
    "command with OK", *BAD, "queue full", "queue wrapped", "CQ not consumed holds the SQ", "completion in pieces", "completions out of order",
    "completion with ur", "completion with ca", "completion poisoned", "completion lost", "write up to a 4 KB boundary",
    "read up to a 4 KB boundary", "write of the maximum payload size", "read of the maximum request size", "write of one DW",
    "copy of one byte", "copy of the maximum", "source not aligned to a DW", "destination not aligned to a DW", "batch of 16", "all queues busy",
    "interrupts shared", "interrupt masked", "queue disabled in flight", "queue in error", "device stopped in flight", "device reset in flight",
    "completion unexpected", "late completion dropped", "32 tags", "bus master off", *(f"MPS {128 << n}" for n in range(parameter("TLP_WIDTH", 512) // 2048, 3)),
    *(f"MRRS {128 << n}" for n in range(4)), "RCB 64", "RCB 128")


def fill(device, length, offset=None, align=64):
    """Random source bytes and a destination; both `offset` bytes behind a multiple of `align`, or anywhere in 64 bytes behind it."""
    rng = device.random
    room = length + 64
    src = device.alloc(room, align) + (rng.randrange(64) if offset is None else offset)
    dst = device.alloc(room, align) + (rng.randrange(64) if offset is None else offset)
    start = src - device.host.base
    device.host.memory[start:start + length] = rng.randbytes(length)
    return src, dst


def copy(device, length, offset=None, align=64):
    rng = device.random
    src, dst = fill(device, length, offset, align)
    if src & 3:
        coverage.hit("source not aligned to a DW")
    if dst & 3:
        coverage.hit("destination not aligned to a DW")
    if length == 1:
        coverage.hit("copy of one byte")
    if length == device.copy_bytes_max:
        coverage.hit("copy of the maximum")
    return abi.Command(request_type=SEND, data_len=length, src_addr=src, dst_addr=dst, cid=rng.getrandbits(16),
                       conn_id=rng.getrandbits(32), table_id=rng.getrandbits(8), entry_seq=rng.getrandbits(16))


def bad_command(device):
    """A command that the device must refuse, and how."""
    rng = device.random
    command = copy(device, 64)
    kind = rng.randrange(7)
    if kind == 0:
        command.request_type = rng.choice([0, 2, 3, 0xFF])
        return command, abi.STATUS_BAD_TYPE
    if kind == 1:
        command.data_len = rng.choice([0, device.copy_bytes_max + 1, 1 << 31, 0xFFFFFFFF])
        return command, abi.STATUS_BAD_LENGTH
    if kind == 2:
        command.src_addr = 0
    elif kind == 3:
        command.dst_addr = 0
    elif kind == 4:
        command.src_addr |= 1 << rng.randrange(52, 64)
    elif kind == 5:
        command.dst_addr |= 1 << rng.randrange(52, 64)
    else:
        command.dst_addr = (1 << 52) - 63
    return command, abi.STATUS_BAD_ADDRESS


def lengths(device):
    rng, most = device.random, device.copy_bytes_max
    return rng.choice([1, rng.randint(1, 8), rng.randint(1, 130), rng.randint(1, most), most, 64, 256])


def count_statuses(queue):
    names = {abi.STATUS_OK: "OK", abi.STATUS_BAD_TYPE: "BadType", abi.STATUS_BAD_LENGTH: "BadLength",
             abi.STATUS_BAD_ADDRESS: "BadAddress", abi.STATUS_FAILED: "Failed"}
    for _, status in queue.completed:
        coverage.hit("command with " + names[status])


async def finish(device, queues=()):
    """At the end of a test: everything is at rest, every expected byte came, every command had one end."""
    for queue in queues:
        await queue.drain()
        count_statuses(queue)
    await device.idle()
    await device.cycles(50)
    assert device.host.still_expected() == 0, "bytes that never came"
    for what, hits in device.host.seen.items():
        coverage.hit(what, hits)
    coverage.hit(f"MPS {128 << device.mps}")
    coverage.hit(f"MRRS {128 << device.mrrs}")
    coverage.hit(f"RCB {device.host.rcb}")


def reuse(device, floor):
    """Gives the payload memory of finished commands back."""
    device.next_free = floor


@cocotb.test()
async def one_copy(dut):
    """One queue, one command."""
    device = Device(dut, rng_of("one_copy"))
    await device.start()
    queue = Queue(device, 0)
    queue.enable()
    queue.submit(copy(device, 4096, offset=0))
    queue.doorbell()
    await finish(device, [queue])
    assert await device.read(abi.REG_COUNT_COMMANDS) == 1 and await device.read(abi.REG_COUNT_ERRORS) == 0


async def traffic(dut, name, commands, queues=4, bad=0.1, pauses=0.2, fault=None, **options):
    """Random commands in random batches on some queues, back-pressure everywhere."""
    rng = rng_of(name)
    device = Device(dut, rng, **options)
    device.host.rcb = rng.choice([64, 128])
    device.host.latency = rng.choice([(5, 20), (40, 300)])
    for stream in device.bus.pause:
        device.bus.pause[stream] = rng.choice([0, pauses, 2 * pauses])
    await device.start()
    pairs = [Queue(device, number, irq=rng.random() < 0.5) for number in rng.sample(range(device.queues_max), queues)]
    for queue in pairs:
        queue.enable()
    floor, left, doorbells = device.next_free, commands, device.mmio_writes
    batches, progress = 0, device.bus.cycle
    while left or any(queue.flying for queue in pairs):
        if device.next_free - device.host.base > len(device.host.memory) * 3 // 4:
            for queue in pairs:
                queue.doorbell()
                batches += 1
                await queue.drain()
            reuse(device, floor)
            progress = device.bus.cycle
        queue = rng.choice(pairs)
        if queue.reap():
            progress = device.bus.cycle
        assert device.bus.cycle - progress < STUCK_CYCLES, f"no completions any more, {left} commands to come"
        batch = min(left, queue.room(), rng.choice([1, 1, 3, 16, 40]))
        for _ in range(batch):
            if rng.random() < bad:
                queue.submit(*bad_command(device))
            else:
                expected = abi.STATUS_OK if fault is None else {abi.STATUS_OK, abi.STATUS_BAD_ADDRESS, abi.STATUS_FAILED}
                queue.submit(copy(device, lengths(device)), expected)
        left -= batch
        if batch >= 16:
            coverage.hit("batch of 16")
        if queue.room() == 0:
            coverage.hit("queue full")
        if batch or rng.random() < 0.05:
            queue.doorbell()
            batches += 1
        if all(queue.flying for queue in pairs):
            coverage.hit("all queues busy")
        await device.cycles(rng.choice([1, 20, 200]))
    for queue in pairs:
        if queue.consumer > device.depth:
            coverage.hit("queue wrapped")
    assert device.mmio_writes - doorbells == batches, "more than one MMIO write for a batch"
    await finish(device, pairs)
    return device, pairs


for _mps, _mrrs, _tags in ((0, 0, True), (1, 2, True), (2, 3, False), (0, 2, False), (2, 1, True), (1, 0, True)):
    if not LONG and (_mps, _mrrs) in ((0, 2), (1, 0)):
        continue

    async def _traffic(dut, mps=_mps, mrrs=_mrrs, tags=_tags):
        name = f"traffic {mps} {mrrs} {tags}"
        await traffic(dut, name, 3000 if LONG else 220, mps=mps, mrrs=mrrs, ext_tag=tags)
        if not tags:
            coverage.hit("32 tags")
    _traffic.__name__ = _traffic.__qualname__ = f"traffic_mps{128 << _mps}_mrrs{128 << _mrrs}_{'ext' if _tags else '32'}_tags"
    globals()[_traffic.__name__] = cocotb.test()(_traffic)


@cocotb.test()
async def full_queue(dut):
    """A full queue; a producer index beyond the free CQ slots; wrap-around with the phase."""
    device = Device(dut, rng_of("full_queue"))
    await device.start()
    queue = Queue(device, 3)
    queue.enable()
    for _ in range(3):
        while queue.room():
            queue.submit(copy(device, device.random.randint(1, 64)))
        coverage.hit("queue full")
        queue.doorbell()
        await device.until(lambda: not device.host.still_expected(), what="a full queue")
        # Entries again, while the device doesn't know that their CQ slots are free.
        queue.reap()
        known = queue.consumer - device.depth & 0xFFFF
        for _ in range(5):
            queue.submit(copy(device, 32))
        waiting = device.host.still_expected()
        device.write(queue.base + abi.REG_QUEUE_DOORBELL, queue.producer | known << 16)
        await device.cycles(300)
        assert device.host.still_expected() == waiting, "an entry without a CQ slot was fetched"
        coverage.hit("CQ not consumed holds the SQ")
        queue.doorbell()
        await queue.drain()
    coverage.hit("queue wrapped")
    # A consumer index that cannot be: nothing is fetched.
    for ahead in (1, 700, 0x8000):
        reads = device.host.reads
        device.write(queue.base + abi.REG_QUEUE_DOORBELL, (queue.producer + 5 & 0xFFFF) | (queue.consumer + ahead & 0xFFFF) << 16)
        await device.cycles(100)
        assert device.host.reads == reads
    await finish(device, [queue])


@cocotb.test()
async def faults(dut):
    """Reads that fail in every way, on some queues; the others notice nothing."""
    rng = rng_of("faults")
    device = Device(dut, rng)
    device.host.latency = (10, 60)
    await device.start()
    pairs = [Queue(device, number) for number in range(4)]
    for queue in pairs:
        queue.enable()
    faulty = {}

    def fault(start, end):
        return next((kind for begin, (stop, kind) in faulty.items() if start < stop and begin < end), None)
    device.host.fault = fault
    status = {"ur": abi.STATUS_BAD_ADDRESS, "ca": abi.STATUS_FAILED, "poison": abi.STATUS_FAILED, "lost": abi.STATUS_FAILED}
    errors, lost, floor = 0, 0, device.next_free
    # A lost read holds a slot until its time-out: some are left.
    lost_most = max(limit.slots() // 4, 1)
    for turn in range(12 if LONG else 5):
        commands, kinds = [], []
        for queue in pairs:
            for _ in range(8):
                if queue.number < 2 and rng.random() < 0.4:
                    command = copy(device, rng.choice([40, 600, 4096]))
                    kind = rng.choice([kind for kind in status if kind != "lost" or kinds.count("lost") < lost_most])
                    at = command.src_addr + rng.randrange(command.data_len)
                    faulty[at] = (at + 1, kind)
                    kinds.append(kind)
                    queue.submit(command, status[kind])
                else:
                    command = copy(device, lengths(device))
                    queue.submit(command)
                commands.append(command)
        errors += len(kinds)
        # The unharmed queues are through before the first time-out, and no read that is answered meets it.
        through = limit.cycles(device, commands, lost_most)
        device.time_out_after(max(through, device.host.answer_cycles()))
        for queue in pairs:
            queue.doorbell()
        begin = device.bus.cycle
        for queue in pairs[2:]:
            await queue.drain(through)
        dut._log.info("unharmed queues: %d of %d cycles", device.bus.cycle - begin, through)
        assert device.bus.cycle - begin < through
        for queue in pairs[:2]:
            await queue.drain()
        # Late completions of some of the lost reads: dropped.
        for request in device.host.lost:
            lost += 1
            if rng.random() < 0.7:
                for piece in device.host.pieces(request):
                    device.bus.send_completion(*piece)
                coverage.hit("late completion dropped")
        device.host.lost.clear()
        await device.cycles(20)
        faulty.clear()
        reuse(device, floor)
    await finish(device, pairs)
    assert await device.read(abi.REG_COUNT_ERRORS) == errors
    assert await device.read(abi.REG_COUNT_TIMEOUTS) == lost


@cocotb.test()
async def tags_come_back(dut):
    """Every tag lost once, never answered: after a second time-out all are in use again."""
    device = Device(dut, rng_of("tags_come_back"), ext_tag=False)
    await device.start()
    time_out = device.time_out_after(device.host.answer_cycles())
    queue = Queue(device, 1)
    queue.enable()
    losing = [True]
    device.host.fault = lambda start, end: "lost" if losing[0] and start >= floor else None
    floor = device.next_free
    for _ in range(5):
        queue.submit(copy(device, 4096, offset=0), abi.STATUS_FAILED)
    queue.doorbell()
    await queue.drain()
    losing[0] = False
    await device.cycles(2 * time_out + 512)
    for _ in range(8):
        queue.submit(copy(device, 4096))
    queue.doorbell()
    await finish(device, [queue])
    assert await device.read(abi.REG_COUNT_TIMEOUTS) == len(device.host.lost) >= 32


@cocotb.test()
async def time_out_when_due(dut):
    """A lost read fails its command when CPL_TIMEOUT says, neither before nor much later."""
    device = Device(dut, rng_of("time_out_when_due"))
    await device.start()
    queue = Queue(device, 1)
    queue.enable()
    floor = device.next_free
    device.host.fault = lambda start, end: "lost" if start >= floor else None
    # A tag is looked at every four cycles for each that there is; then the completion is written.
    late = 4 * parameter("TAGS", 128) + 256
    # With one unit a read of entries, which the host answers, could be too old at once.
    for units in (2, 3, 6):
        device.write(abi.REG_CPL_TIMEOUT, units)
        for _ in range(12):
            queue.submit(copy(device, 64, offset=0), abi.STATUS_FAILED)
            queue.doorbell()
            seen = len(device.host.lost)
            await device.until(lambda: len(device.host.lost) > seen, what="the read")
            asked = device.bus.cycle
            await queue.drain()
            waited = device.bus.cycle - asked
            assert 256 * (units - 1) < waited <= 256 * units + late, f"timed out after {waited} cycles, {units} units"
            await device.cycles(device.random.randrange(256))
    await finish(device, [queue])
    assert await device.read(abi.REG_COUNT_TIMEOUTS) == len(device.host.lost)


@cocotb.test()
async def unexpected_completions(dut):
    """Completions that nobody asked for change nothing."""
    rng = rng_of("unexpected")
    device = Device(dut, rng)
    await device.start()
    queue = Queue(device, 2)
    queue.enable()
    device.host.latency = (200, 400)
    sent = 0
    for _ in range(20):
        queue.submit(copy(device, 2048))
    queue.doorbell()
    for _ in range(60):
        await device.cycles(rng.randint(1, 60))
        outstanding = list(device.host.outstanding)
        # Tags are handed out in turn: one so far ahead belongs to no read, not even to one that the host doesn't know of yet.
        tag, requester, count, data = rng.randrange(max(device.host.asked, default=0) + 32, 256), device.requester, 64, bytes(64)
        kind = rng.randrange(3)
        if kind == 1:
            requester ^= 1 << rng.randrange(16)
        if kind == 2:
            if not outstanding:
                continue
            # More bytes than the read asked for.
            tag, count = rng.choice(outstanding), 4096
            if device.host.outstanding[tag].dws == 1024:
                continue
        device.bus.send_completion(*tlp.completion(requester, tag, data, count, 0))
        coverage.hit("completion unexpected")
        sent += 1
    await queue.drain()
    await device.idle()
    # At rest every tag is free.
    for _ in range(20):
        device.bus.send_completion(*tlp.completion(device.requester, rng.randrange(device.host.tags), bytes(64), 64, 0))
        sent += 1
    await finish(device, [queue])
    assert await device.read(abi.REG_COUNT_UNEXPECTED) == sent


@cocotb.test()
async def queue_error(dut):
    """SQ entries that cannot be read: the queue is in error, disabled, tells so, and can be enabled anew."""
    device = Device(dut, rng_of("queue_error"))
    await device.start()
    pairs = [Queue(device, number, irq=True) for number in (4, 5)]
    for queue in pairs:
        queue.enable()
    broken = pairs[0]
    for kind in ("ur", "poison", "ca"):
        device.host.fault = lambda start, end: kind if broken.sq <= start < broken.sq + 4096 else None
        for queue in pairs:
            for _ in range(3):
                queue.submit(copy(device, 100))
            queue.doorbell()
        await pairs[1].drain()
        await device.until(lambda: device.msis.get(4), what="the interrupt of the queue in error")
        state = await broken.state()
        assert state >> abi.QUEUE_STATE_ERROR_LSB & 1 and not state >> abi.QUEUE_STATE_ENABLED_LSB & 1
        assert await device.read(abi.REG_STATUS) >> abi.STATUS_ERROR_QUEUES_LSB & 1
        coverage.hit("queue in error")
        for command, _ in broken.flying.values():
            device.host.forbid(command.dst_addr, command.data_len)
        device.host.forbid(broken.cq, 4096)
        broken.flying.clear()
        device.host.fault = lambda start, end: None
        device.msis.clear()
        broken.enable()
        assert not await device.read(abi.REG_STATUS) >> abi.STATUS_ERROR_QUEUES_LSB & 1
        broken.submit(copy(device, 500))
        broken.doorbell()
        await broken.drain()
        await device.idle()
        device.msis.clear()
        await device.cycles(100)
    await finish(device, pairs)


def abandon(device, pairs):
    """What is still in flight will not come."""
    for queue in pairs:
        for command, _ in queue.flying.values():
            if device.host.base <= command.dst_addr < device.host.base + len(device.host.memory):
                device.host.forbid(command.dst_addr, command.data_len)
        device.host.forbid(queue.cq, device.depth * abi.CMD_BYTES)
        queue.flying.clear()


@cocotb.test()
async def queue_disable(dut):
    """Queues disabled with commands in flight: when they say so, nothing more is written for them."""
    rng = rng_of("queue_disable")
    device = Device(dut, rng)
    device.host.latency = (20, 200)
    device.bus.pause["req"] = 0.3
    await device.start()
    pairs = [Queue(device, number, irq=number & 1) for number in range(6)]
    for queue in pairs:
        queue.enable()
    for _ in range(20 if LONG else 6):
        for queue in pairs:
            for _ in range(rng.randint(1, min(40, queue.room()))):
                queue.submit(copy(device, rng.randint(1, 1000)))
            queue.doorbell()
        await device.cycles(rng.randint(0, 700))
        victim = rng.choice(pairs)
        await victim.disable()
        victim.reap()
        if victim.flying:
            coverage.hit("queue disabled in flight")
        abandon(device, [victim])
        victim.doorbell()
        await device.cycles(200)
        victim.enable()
        for queue in pairs:
            await queue.drain()
    await finish(device, pairs)


@cocotb.test()
async def device_stop(dut):
    """The device stopped and started, and reset, with commands in flight."""
    rng = rng_of("device_stop")
    device = Device(dut, rng)
    device.host.latency = (20, 200)
    await device.start()
    for turn in range(16 if LONG else 6):
        pairs = [Queue(device, number, irq=True) for number in range(5)]
        for queue in pairs:
            queue.enable()
            for _ in range(20):
                queue.submit(copy(device, rng.randint(1, 2000)))
            queue.doorbell()
        await device.cycles(rng.randint(0, 900))
        if turn & 1:
            # Hot reset: at once, wherever the device is.
            abandon(device, pairs)
            dut.rst_ni.value = 0
            await device.reset()
            coverage.hit("device reset in flight")
            await device.cycles(300)
            # Bits of before: completions of reads that nobody remembers.
            for tag in range(40):
                device.bus.send_completion(*tlp.completion(device.requester, tag, bytes(64), 64, 0))
            await device.cycles(100)
        else:
            device.write(abi.REG_CONTROL, 0)
            await device.idle()
            for queue in pairs:
                queue.reap()
            if any(queue.flying for queue in pairs):
                coverage.hit("device stopped in flight")
            abandon(device, pairs)
            for queue in pairs:
                queue.doorbell()
            await device.cycles(200)
        device.next_free = device.host.base + 4096
        await device.enable()
    queue = Queue(device, 9)
    queue.enable()
    queue.submit(copy(device, 3000))
    queue.doorbell()
    await finish(device, [queue])


@cocotb.test()
async def bus_master(dut):
    """No request begins while bus mastering is off."""
    device = Device(dut, rng_of("bus_master"))
    await device.start()
    queue = Queue(device, 7)
    queue.enable()
    for _ in range(16):
        queue.submit(copy(device, 1500))
    queue.doorbell()
    for _ in range(12):
        await device.cycles(device.random.randint(5, 40))
        dut.cfg_bus_master_i.value = 0
        await device.cycles(10)
        before = device.host.reads + device.host.writes
        await device.cycles(60)
        assert device.host.reads + device.host.writes == before
        dut.cfg_bus_master_i.value = 1
        coverage.hit("bus master off")
    await finish(device, [queue])


@cocotb.test()
async def interrupts(dut):
    """One vector a queue, at most one message in the interval, masks and pending bits."""
    device = Device(dut, rng_of("interrupts"))
    await device.start()
    pairs = [Queue(device, number, irq=True) for number in (0, 1, 15)]
    for queue in pairs:
        queue.enable()
    device.write(abi.REG_IRQ_INTERVAL, 800)
    for _ in range(6):
        for queue in pairs:
            queue.submit(copy(device, 64))
            queue.doorbell()
        await device.cycles(200)
    for queue in pairs:
        await queue.drain()
    await device.cycles(2000)
    for number, when in device.msis.items():
        assert all(later - earlier >= 800 for earlier, later in zip(when, when[1:])), "two interrupts in an interval"
        assert 2 <= len(when) < 6
        coverage.hit("interrupts shared")
    assert sorted(device.msis) == [0, 1, 15]
    assert await device.read(abi.REG_COUNT_IRQS) == sum(map(len, device.msis.values()))
    # Masked by vector, then by function: pending, and sent when unmasked.
    device.write(abi.REG_IRQ_INTERVAL, 0)
    device.msis.clear()
    device.vector(1, masked=True)
    for queue in pairs:
        queue.submit(copy(device, 64))
        queue.doorbell()
        await queue.drain()
    await device.cycles(300)
    assert sorted(device.msis) == [0, 15]
    assert await device.read(abi.REG_MSIX_PBA_BASE) == 1 << 1
    device.vector(1)
    await device.cycles(100)
    assert sorted(device.msis) == [0, 1, 15]
    assert await device.read(abi.REG_MSIX_PBA_BASE) == 0
    device.msis.clear()
    dut.cfg_msix_mask_i.value = 1
    pairs[2].submit(copy(device, 64))
    pairs[2].doorbell()
    await pairs[2].drain()
    await device.cycles(200)
    assert not device.msis and await device.read(abi.REG_MSIX_PBA_BASE) == 1 << 15
    dut.cfg_msix_mask_i.value = 0
    await device.until(lambda: device.msis.get(15), 200, "the interrupt behind the mask")
    coverage.hit("interrupt masked")
    await finish(device, pairs)


@cocotb.test()
async def registers(dut):
    """Registers as documented; accesses that no register takes; all byte enables."""
    rng = rng_of("registers")
    device = Device(dut, rng)
    await device.start()
    caps = await device.read(abi.REG_CAPS)
    assert caps & 0xFFFF == device.queues_max and 1 << (caps >> 16 & 0x1F) == device.depth and caps >> 24 == 16
    assert await device.read(abi.REG_COPY_BYTES_MAX) == device.copy_bytes_max
    assert await device.read(abi.REG_CPL_TIMEOUT) == abi.CPL_TIMEOUT_RESET
    device.write(abi.REG_BATCH_MAX, 5)
    device.write(abi.REG_BATCH_MAX, 17)
    device.write(abi.REG_BATCH_MAX, 0)
    assert await device.read(abi.REG_BATCH_MAX) == 5
    words = {}
    for number in range(device.queues_max):
        base = abi.REG_QUEUE_BASE + number * abi.REG_QUEUE_STRIDE
        for offset, mask in ((0, 0xFFFFF000), (4, 0xFFFFF), (8, 0xFFFFF000), (12, 0xFFFFF), (16, 0x80000FFF)):
            value = rng.getrandbits(32)
            device.write(base + offset, value)
            words[base + offset] = value & mask
        for word, mask in enumerate((0xFFFFFFFC, 0xFFFFF, 0xFFFFFFFF, 1)):
            at = abi.REG_MSIX_BASE + 16 * number + 4 * word
            value = rng.getrandbits(32) | (word == 3)
            device.write(at, value)
            words[at] = value & mask
    for at, value in words.items():
        assert await device.read(at) == value, hex(at)
    # Two DWs at a time.
    base = abi.REG_QUEUE_BASE + 2 * abi.REG_QUEUE_STRIDE
    device.write(base, 0x0000_1234_5678_9000, dws=2)
    header, data = await device.read_raw(base, dws=2)
    assert int.from_bytes(data, "little") == 0x0000_1234_5678_9000
    assert tlp.parse_completion(header)["byte_count"] == 8
    # Parts of a DW.
    for first in range(16):
        header, data = await device.read_raw(abi.REG_ID, first=first)
        fields = tlp.parse_completion(header)
        offset = (first & -first).bit_length() - 1 if first else 0
        assert fields["lower"] == offset and fields["byte_count"] == max(first.bit_length() - offset, 1), (first, fields)
        assert data == abi.DEVICE_ID.to_bytes(4, "little") or not first
    # Nobody's.
    refused = 0
    for offset, dws in ((0x24, 1), (0x3000, 1), (0x7FFC, 1), (0, 3), (0x10, 16), (0x20, 2)):
        header, _ = await device.read_raw(offset, dws)
        assert tlp.parse_completion(header)["status"] == tlp.UNSUPPORTED, hex(offset)
        refused += 1
    device.write(0x30, 0)
    device.write(abi.REG_BATCH_MAX, 1 << 64 | 3, dws=4)
    partial = tlp.Request(True, abi.REG_BATCH_MAX, 1, 0, 0, 0x3, 0)
    device.bus.send_bar(partial.header(), bytes(4))
    nothing = tlp.Request(True, abi.REG_BATCH_MAX, 1, 0, 0, 0x0, 0)
    device.bus.send_bar(nothing.header(), bytes(4))
    assert await device.read(abi.REG_BATCH_MAX) == 5
    assert await device.read(abi.REG_COUNT_MMIO_BAD) == refused + 3
    # A message is ignored, I/O refused.
    device.bus.send_bar(0x34000000 << 96, b"")
    device.bus.send_bar((0x02000001 << 96) | (0x0008_F0_0F << 64), b"")
    header, _ = await device.answer(0xF0)
    assert tlp.parse_completion(header)["status"] == tlp.UNSUPPORTED
    await device.idle()


@cocotb.test(skip=parameter("TLP_WIDTH", 512) <= 1024)
async def payload_below_a_beat(dut):
    """With a maximum payload below a beat the device stays off, and starts as soon as there is enough."""
    device = Device(dut, rng_of("payload_below_a_beat"))
    await device.start()
    device.write(abi.REG_CONTROL, 0)
    await device.idle()
    least = device.mps
    for code in range(least):
        dut.cfg_max_payload_i.value = code
        device.write(abi.REG_CONTROL, 1)
        await device.cycles(4 * device.queues_max)
        assert not await device.ready(), f"it runs with {128 << code} bytes"
    dut.cfg_max_payload_i.value = least
    await device.enable()
    queue = Queue(device, 1)
    queue.enable()
    queue.submit(copy(device, 4096))
    queue.doorbell()
    await finish(device, [queue])


@cocotb.test()
async def random_faults(dut):
    """Random traffic with random faults, everywhere but in SQ entries."""
    await traffic_with_faults(dut)


async def traffic_with_faults(dut):
    rng = rng_of("random_faults")
    device = Device(dut, rng, mps=rng.randrange(3), mrrs=rng.randrange(4))
    device.bus.pause.update(req=0.2, cpl=0.2)
    await device.start()
    time_out = device.time_out_after(device.host.answer_cycles())
    pairs = [Queue(device, number) for number in range(5)]
    for queue in pairs:
        queue.enable()
    floor = device.next_free
    device.host.fault = lambda start, end: rng.choice([None] * 30 + ["ur", "ca", "poison", "lost"]) if start >= floor else None
    any_end = {abi.STATUS_OK, abi.STATUS_BAD_ADDRESS, abi.STATUS_FAILED}
    for _ in range(20 if LONG else 3):
        for queue in pairs:
            for _ in range(rng.randint(1, 30)):
                queue.submit(copy(device, lengths(device)), any_end)
            queue.doorbell()
        for queue in pairs:
            await queue.drain()
        # The tags of lost reads come back.
        await device.cycles(2 * time_out + 512)
        device.next_free = floor
    await finish(device, pairs)


async def throughput(dut, length, share, numbers=(0,), offset=0, align=512):
    """Gbit/s of payload at 250 MHz, in the middle of a run: at least `share` of what the model in common/limit.py allows."""
    device = Device(dut, rng_of("throughput"), size=64 << 20 if LONG else 8 << 20)
    latency = 200
    device.host.latency, device.host.reorder, device.host.split = (latency, latency), False, False
    await device.start()
    pairs = [Queue(device, number, irq=True) for number in numbers]
    device.host.payload_from = device.next_free
    total = min(max(device.depth * len(pairs), 512), 4096) if LONG else 400
    commands = [copy(device, length, offset, align) for _ in range(total)]
    most = limit.gbit_per_s(device, commands, latency)
    ample = device.width <= 1024 and parameter("BUFFER_BYTES", 131072) >= 131072 and parameter("TAGS", 128) >= 128
    if ample and align == 512 and not offset:
        assert most == limit.LINK_GBIT_PER_S * device.width / 512, "nothing but the link may hold such a device back"
    for queue in pairs:
        queue.enable()
    waiting, stamps, begin = iter(commands), [], device.bus.cycle
    while device.host.payload_bytes < length * total:
        assert device.bus.cycle - begin < STUCK_CYCLES + total * length * 16 / device.width, "the copies come to no end"
        for queue in pairs:
            queue.reap()
            if queue.room() >= 16:
                batch = list(itertools.islice(waiting, min(queue.room(), -(-total // len(pairs)))))
                for command in batch:
                    queue.submit(command)
                if batch:
                    queue.doorbell()
        stamps.append((device.bus.cycle, device.host.payload_bytes))
        await device.cycles(20)
    # Neither start-up nor tail.
    low = next(stamp for stamp in stamps if stamp[1] > length * total * 0.3)
    high = next(stamp for stamp in stamps if stamp[1] > length * total * 0.8)
    rate = (high[1] - low[1]) * 8 / ((high[0] - low[0]) * CLOCK_NS)
    dut._log.info("%d-byte copies on %d queues: %.1f of %.1f Gbit/s at 250 MHz and %d bits", length, len(pairs), rate, most, device.width)
    await finish(device, pairs)
    assert rate >= share * most


@cocotb.test()
async def throughput_4096(dut):
    """4 KB copies: at least 95 % of the limit, which is that of the links of a gen3 2 x 8 card."""
    await throughput(dut, 4096, 0.95)


@cocotb.test()
async def throughput_1024(dut):
    """1 KB copies in batches: at least 90 % of it."""
    await throughput(dut, 1024, 0.90, range(8))


@cocotb.test()
async def throughput_unaligned(dut):
    """4 KB copies to and from odd addresses."""
    await throughput(dut, 4096, 0.95, offset=33)


@cocotb.test()
async def throughput_lines(dut):
    """1 KB copies between cache lines, which cross boundaries of payload and read requests."""
    await throughput(dut, 1024, 0.90, range(8), align=64)


@cocotb.test()
async def throughput_all_queues(dut):
    """All queues, and one: the same."""
    await throughput(dut, 4096, 0.95, range(parameter("QUEUES", 256)))


@cocotb.test()
async def zz_coverage(dut):
    """What the tests above made happen."""
    coverage.report()
