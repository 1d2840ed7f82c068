"""pd_controller between models of state registers, DMA engine and MSI-X: every entry ends once, in its slot, with its status."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly, Timer

from common import abi, coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("copy", "copy failed", "BadType", "BadLength", "BadAddress", "batch of one", "batch of 16", "batch not read", "interrupt",
                 "queue with more left", "fetching off", "ends out of order")
if parameter("BATCHES", 64) == 8:
    coverage.declare("all batches in flight")
KINDS = {abi.STATUS_BAD_TYPE: "BadType", abi.STATUS_BAD_LENGTH: "BadLength", abi.STATUS_BAD_ADDRESS: "BadAddress"}


def command(rng, most):
    """An entry, and the status it gets before any DMA (0: it is a copy)."""
    entry = abi.Command(request_type=abi.TYPE_GENERAL_SEND, data_len=rng.choice([1, rng.randint(1, most), most]), src_addr=rng.randrange(1, 1 << 48),
                        dst_addr=rng.randrange(1, 1 << 48), cid=rng.getrandbits(16), conn_id=rng.getrandbits(32), entry_seq=rng.getrandbits(16))
    kind = rng.randrange(12)
    if kind == 0:
        entry.request_type = rng.choice([0, 2, 255])
        return entry, abi.STATUS_BAD_TYPE
    if kind == 1:
        entry.data_len = rng.choice([0, most + 1, 1 << 31])
        return entry, abi.STATUS_BAD_LENGTH
    if kind == 2:
        name = rng.choice(["src_addr", "dst_addr"])
        # Null, too wide, or wrapping at the end of the address space; the last byte of it is still good.
        setattr(entry, name, rng.choice([0, 1 << rng.randrange(52, 64), (1 << 52) - entry.data_len + 1]))
        return entry, abi.STATUS_BAD_ADDRESS
    return entry, 0


@cocotb.test()
async def batches(dut):
    rng = rng_of("batches")
    queues, most, width = parameter("QUEUES", 256), 4096, parameter("TLP_WIDTH", 512) // 8
    depth = 1 << parameter("LOG2_DEPTH", 10)
    slots = 31
    await start(dut, init_i=0, enable_i=1, doorbell_valid_i=0, visit_ready_i=0, retire_ready_i=0, fetch_ready_i=0, fetch_done_valid_i=0, copy_ready_i=0,
                copy_done_valid_i=0, cq_ready_i=0, entry_ready_i=0, cq_sent_i=0, wr_valid_i=0)
    dut.init_i.value = 1
    await FallingEdge(dut.clk_i)
    dut.init_i.value = 0
    # What the host wrote: entries of each queue; `at`: the next to be visited; `ends`: statuses that are due, by CQ address.
    waiting, at, due, ended = {q: [] for q in range(queues)}, dict.fromkeys(range(queues), 0), {}, 0
    fetches, beats, done, copies, copy_slots, jobs, sent, retiring, irqs = [], [], [], [], {}, [], 0, {}, []
    submitted, doorbells, entries_of, job = 0, [], {}, None
    total, cycle, visiting, failing = 20000 if LONG else 4000, 0, None, {}
    while submitted < total or due or retiring or doorbells:
        cycle += 1
        assert cycle < 400_000, (len(due), retiring)
        # The host.
        if submitted < total and rng.random() < 0.05:
            queue = rng.choice([0, rng.randrange(queues)])
            for _ in range(rng.choice([1, 5, 16, 40])):
                waiting[queue].append(command(rng, most))
                submitted += 1
            doorbells.append(queue)
        doorbell = doorbells.pop(0) if doorbells and rng.random() < 0.5 else None
        dut.doorbell_valid_i.value, dut.doorbell_queue_i.value = doorbell is not None, doorbell or 0
        enabled = cycle // 700 % 4 != 3
        dut.enable_i.value = enabled
        await Timer(1, "ps")
        # State registers: a visit is answered after some cycles.
        visit = False
        if dut.visit_valid_o.value:
            queue = int(dut.visit_queue_o.value)
            assert visiting in (None, queue), "a visit changed its mind"
            visiting, visit = queue, rng.random() < 0.3
            slot = at[queue] % depth
            count = min(len(waiting[queue]), 16, depth - slot)
            sq, cq, irq = 0x1000_0000 + (queue << 20), 0x5000_0000 + (queue << 20), queue & 1
            if visit:
                more = len(waiting[queue]) > count
                phase = 1 - (at[queue] // depth & 1)
                dut.visit_count_i.value, dut.visit_more_i.value, dut.visit_phase_i.value = count, more, phase
                dut.visit_slot_i.value, dut.visit_sq_base_i.value, dut.visit_cq_base_i.value = slot, sq >> 12, cq >> 12
                dut.visit_irq_i.value, dut.visit_vector_i.value = irq, queue
                visiting = None
                if count:
                    batch = [waiting[queue].pop(0) for _ in range(count)]
                    at[queue] += count
                    lost = rng.random() < 0.03
                    fetches.append((sq + 32 * slot, batch, lost, queue))
                    retiring.setdefault(queue, []).append(lost)
                    if not lost:
                        for i, (entry, status) in enumerate(batch):
                            due[cq + 32 * (slot + i)] = (entry, status, phase)
                    coverage.hit("batch of one" if count == 1 else "batch of 16" if count == 16 else "batch")
                    if more:
                        coverage.hit("queue with more left")
        else:
            assert visiting is None, "a visit was taken back"
        dut.visit_ready_i.value = visit
        # DMA engine: fetches, their data, their ends.
        fetch = bool(fetches) and bool(dut.fetch_valid_o.value) and rng.random() < 0.5
        dut.fetch_ready_i.value = fetch
        if fetch:
            addr, batch, lost, queue = fetches.pop(0)
            assert int(dut.fetch_addr_o.value) == addr and int(dut.fetch_count_o.value) == len(batch)
            index = int(dut.fetch_batch_o.value)
            assert index not in entries_of
            entries_of[index] = [entry for entry, _ in batch]
            failing[index] = lost
            data = b"".join(entry.pack() for entry, _ in batch)
            if not lost:
                beats.append([index, data, 0])
            else:
                done.append(index)
            if sum(map(len, retiring.values())) == parameter("BATCHES", 64):
                coverage.hit("all batches in flight")
        write = bool(beats) and rng.random() < 0.7
        dut.wr_valid_i.value = write
        if write:
            which = rng.randrange(len(beats))
            index, data, offset = beats[which]
            piece = data[offset:offset + width]
            place = index * 512 + offset
            dut.wr_row_i.value, dut.wr_rot_i.value = place // width, 0
            dut.wr_mask_i.value = (1 << len(piece)) - 1
            dut.wr_data_i.value = int.from_bytes(piece, "little")
            beats[which][2] += width
            if beats[which][2] >= len(data):
                del beats[which]
                done.append(index)
        # A batch is handed over when all of it has been written for some cycles.
        offered = done[0] if done and (not write or done[0] != index) else None
        dut.fetch_done_valid_i.value = offered is not None
        if offered is not None:
            dut.fetch_done_batch_i.value, dut.fetch_done_status_i.value = offered, 3 if failing[offered] else 0
        # Copies begin and end, in any order.
        end = rng.choice(sorted(copy_slots)) if copy_slots and rng.random() < 0.4 else None
        copy = bool(dut.copy_valid_o.value) and rng.random() < 0.7
        dut.copy_ready_i.value = copy
        if copy:
            slot = int(dut.copy_slot_o.value)
            assert slot < slots and slot not in copy_slots, "a slot of the Data Buffer handed out twice"
            what = int(dut.copy_src_o.value), int(dut.copy_dst_o.value), int(dut.copy_len_o.value)
            copy_slots[slot] = what
            copies.append(what)
        dut.copy_done_valid_i.value = end is not None
        if end is not None:
            if end != next(iter(copy_slots)):
                coverage.hit("ends out of order")
            src, dst, length = copy_slots.pop(end)
            status = abi.STATUS_FAILED if src % 10 == 0 else 0
            dut.copy_done_slot_i.value, dut.copy_done_status_i.value = end, status
            coverage.hit("copy failed" if status else "copy")
        # Completions: a job, its entries, and word that they are on their way.
        take = job is None and bool(dut.cq_valid_o.value) and rng.random() < 0.5
        dut.cq_ready_i.value = take
        entry_ready = job is not None and job[1] > 0 and rng.random() < 0.6
        dut.entry_ready_i.value = entry_ready
        dut.cq_sent_i.value = sending = job is not None and job[1] == 0
        if sending:
            job = None
        elif entry_ready and dut.entry_valid_o.value:
            entry = abi.Command.unpack(int(dut.entry_data_o.value).to_bytes(32, "little"))
            given, status, phase = due.pop(job[0])
            if status == 0 and given.src_addr % 10 == 0:
                status = abi.STATUS_FAILED
            assert entry.status == status, f"status {entry.status}, not {status}"
            assert entry.reserved == phase and entry.request_type == abi.TYPE_GENERAL_COMPLETED
            for name in ("cid", "data_len", "src_addr", "dst_addr", "conn_id", "table_id", "entry_seq"):
                assert getattr(entry, name) == getattr(given, name), name
            if status == 0 or status == abi.STATUS_FAILED:
                copies.remove((given.src_addr, given.dst_addr, given.data_len))
            else:
                coverage.hit(KINDS[status])
            ended += 1
            job = (job[0] + 32, job[1] - 1)
        if take:
            job = (int(dut.cq_addr_o.value), int(dut.cq_count_o.value))
        # Retiring.
        retire = bool(dut.retire_valid_o.value) and rng.random() < 0.3
        dut.retire_ready_i.value = retire
        if retire:
            queue, fail = int(dut.retire_queue_o.value), bool(dut.retire_fail_o.value)
            retiring[queue].remove(fail)
            if not retiring[queue]:
                del retiring[queue]
            if queue & 1:
                irqs.append(queue)
            if fail:
                coverage.hit("batch not read")
        if dut.irq_valid_o.value:
            irqs.remove(int(dut.irq_vector_o.value))
            coverage.hit("interrupt")
        await ReadOnly()
        ready, before = bool(dut.fetch_done_ready_o.value), bool(dut.visit_valid_o.value)
        await FallingEdge(dut.clk_i)
        if offered is not None and ready:
            done.pop(0)
            del entries_of[offered]
        if not enabled and not before and not dut.visit_valid_o.value:
            coverage.hit("fetching off")
    for _ in range(50):
        dut.visit_ready_i.value = dut.retire_ready_i.value = dut.cq_sent_i.value = dut.copy_done_valid_i.value = 0
        dut.fetch_done_valid_i.value = 0
        if dut.irq_valid_o.value:
            irqs.remove(int(dut.irq_vector_o.value))
        await FallingEdge(dut.clk_i)
    assert dut.idle_o.value and not copies and not copy_slots and not irqs
    coverage.report()
