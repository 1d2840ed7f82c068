"""pd_dma between models of controller, Data Buffer and host: bytes go where a job says and nowhere else, in the order that matters."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from common import abi, coverage, tlp
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("copy", "copy over a page", "copy of one byte", "copy of 4 KB", "copy that failed", "fetch", "fetch that failed", "completion entries", "interrupt",
                 "ur", "ca", "poison", "lost", "late completion", "unexpected completion", "completions out of order", "more than 32 tags", "bus master off")
ENTRIES, SOURCE, TARGET, COMPLETED = 0xE000_0000, 0x1_8000_0000, 0x4_0000_0000, 0x9_0000_0000
REQUESTER, SLOTS = 0x4200, 31
TIMEOUT = 2048
STATUS = {"ur": abi.STATUS_BAD_ADDRESS, "ca": abi.STATUS_FAILED, "poison": abi.STATUS_FAILED, "lost": abi.STATUS_FAILED}


class Bench:
    def __init__(self, dut, rng, mps, mrrs):
        self.dut, self.rng, self.width = dut, rng, parameter("TLP_WIDTH", 512) // 8
        self.mps, self.mrrs, self.rows = 128 << mps, 128 << mrrs, 1 << parameter("ROW_BITS", 11)
        self.random_bytes = rng.randbytes(1 << 18)
        self.random_bytes += self.random_bytes[:8192]
        self.buffer, self.entries = bytearray(self.rows * self.width), bytearray(self.rows * self.width)
        # Bytes that may be written once, with what they must become, and whose they are.
        self.owed, self.owed_of = {}, {}
        self.reads, self.pieces, self.late, self.beats, self.unexpected = {}, [], [], [], 0
        self.header, self.payload = None, []
        # Jobs whose payload must be out before a completion entry is.
        self.fault_of, self.msis, self.now, self.behind = None, [], 0, {}

    def memory(self, addr, length):
        """What is there: other bytes for each job."""
        at = addr % (1 << 18)
        return self.random_bytes[at:at + length]

    def request(self, header, data):
        request = tlp.parse_request(header, data)
        assert request.requester == REQUESTER and request.start >> 12 == (request.end - 1) >> 12
        if not request.write:
            assert 4 * request.dws <= self.mrrs and request.tag not in self.reads, "a tag used twice"
            fault = self.fault_of(request)
            self.reads[request.tag] = (request, fault)
            if len(self.reads) > 32:
                coverage.hit("more than 32 tags")
            if fault:
                coverage.hit(fault)
            self.answer(request, fault, self.late if fault == "lost" else self.pieces)
            if fault == "lost":
                self.late[-1].append(self.now)
            return
        assert len(data) == 4 * request.dws <= self.mps
        if request.addr == 0xFEE0_0000:
            self.msis.remove(int.from_bytes(data, "little"))
            coverage.hit("interrupt")
            return
        for i, at in enumerate(range(request.start, request.end)):
            value, job = self.owed.pop(at, (None, None))
            assert value is not None, f"a stray or doubled write at {at:#x}"
            assert data[request.start - request.addr + i] == value, f"a wrong byte at {at:#x}"
            self.owed_of[job] -= 1
            assert job not in self.behind or not any(self.owed_of[other] for other in self.behind[job]), "a completion passed its payload"

    def answer(self, request, fault, where):
        rng, at, pieces = self.rng, request.start, []
        if fault in ("ur", "ca"):
            status = tlp.UNSUPPORTED if fault == "ur" else tlp.ABORT
            where.append([request.tag, [tlp.completion(REQUESTER, request.tag, byte_count=request.end - at, lower=at & 127, status=status)]])
            return
        while at < request.end:
            stop = min(request.end, rng.choice([at // 64 * 64 + 64, at // 128 * 128 + 128, at // self.mps * self.mps + self.mps]))
            data = self.memory(at & ~3, (stop + 3 & ~3) - (at & ~3))
            pieces.append(tlp.completion(REQUESTER, request.tag, data, request.end - at, at & 127, poisoned=fault == "poison" and not pieces))
            at = stop
        where.append([request.tag, pieces])

    def cycle(self):
        """What the host and the Data Buffer do between two clock edges."""
        dut, rng = self.dut, self.rng
        ready = rng.random() < 0.8
        dut.req_ready_i.value = ready
        if ready and dut.req_valid_o.value:
            if dut.req_sop_o.value:
                assert self.header is None
                self.header, self.payload = int(dut.req_hdr_o.value), []
            dws = int(dut.req_strb_o.value).bit_length()
            self.payload.append(int(dut.req_data_o.value).to_bytes(self.width, "little")[:4 * dws])
            if dut.req_eop_o.value:
                header, self.header = self.header, None
                self.request(header, b"".join(self.payload))
        if not self.beats and self.pieces and rng.random() < 0.8:
            which = rng.randrange(min(8, len(self.pieces)))
            if which:
                coverage.hit("completions out of order")
            tag, pieces = self.pieces[which]
            header, data = pieces.pop(0)
            if not pieces:
                del self.pieces[which]
                del self.reads[tag]
            self.load(header, data)
        elif not self.beats and rng.random() < 0.01:
            # Of another requester, or of a tag that has no read.
            tag = next(tag for tag in range(256) if tag not in self.reads)
            self.load(*tlp.completion(REQUESTER ^ 1, rng.choice([tag, *self.reads]), bytes(64), 64, 0))
            self.unexpected += 1
            coverage.hit("unexpected completion")
        beat = self.beats.pop(0) if self.beats and rng.random() < 0.9 else None
        dut.cpl_valid_i.value = beat is not None
        if beat:
            dut.cpl_sop_i.value, dut.cpl_eop_i.value, dut.cpl_hdr_i.value, dut.cpl_data_i.value = beat
        if dut.wr_valid_o.value:
            row, rot, mask = int(dut.wr_row_o.value), int(dut.wr_rot_o.value), int(dut.wr_mask_o.value)
            data = int(dut.wr_data_o.value).to_bytes(self.width, "little")
            target = self.entries if dut.wr_entry_o.value else self.buffer
            if mask + 1 == 1 << self.width:
                row, behind = row * self.width, (row + 1) % self.rows * self.width
                target[row + rot:row + self.width], target[behind:behind + rot] = data[rot:], data[:rot]
                return
            for lane in range(self.width):
                if mask >> lane & 1:
                    target[(row + (lane < rot)) % self.rows * self.width + lane] = data[lane]

    def load(self, header, data):
        parts = [data[i:i + self.width] for i in range(0, len(data), self.width)] or [b""]
        self.beats = [(i == 0, i == len(parts) - 1, header, int.from_bytes(part, "little")) for i, part in enumerate(parts)]


async def jobs(dut, name, mps, mrrs, faulty):
    rng = rng_of(name)
    bench = Bench(dut, rng, mps, mrrs)
    width = bench.width
    await start(dut, init_i=0, requester_id_i=REQUESTER, max_payload_i=mps, max_read_i=mrrs, ext_tag_i=1, bus_master_i=1, timeout_i=TIMEOUT // 256 if faulty else 0,
                fetch_valid_i=0, copy_valid_i=0, cq_valid_i=0, entry_valid_i=0, msi_valid_i=0, fetch_done_ready_i=0, cpl_valid_i=0, req_ready_i=0, rd_data_i=0)
    dut.init_i.value = 1
    await FallingEdge(dut.clk_i)
    dut.init_i.value = 0
    await FallingEdge(dut.clk_i)
    bad = {}
    bench.fault_of = lambda request: next((kind for at, kind in bad.items() if request.start <= at < request.end), None)
    total, begun, unexpected, cycle, off, fetched = (3000 if LONG else 150), 0, 0, 0, 0, 0
    copies, fetches, offers, to_complete, entries, marks, shown = {}, {}, {}, [], [], 0, {}
    reading = [None, None]

    while begun < total or copies or fetches or to_complete or entries or marks or bench.owed or bench.msis or offers or bench.late:
        cycle += 1
        bench.now = cycle
        assert cycle < 200_000, (copies, fetches, len(bench.owed))
        # The Data Buffer answers after two cycles.
        row = reading.pop(0)
        if row is not None:
            dut.rd_data_i.value = int.from_bytes(bench.buffer[row * width:(row + 1) * width], "little")
        reading.append(int(dut.rd_row_o.value) if dut.rd_valid_o.value else None)
        # Bus master off now and then: no TLP begins.
        off = off - 1 if off else 30 if rng.random() < 0.002 else 0
        dut.bus_master_i.value = not off
        if 0 < off < 28 and bench.header is None:
            assert not (dut.req_valid_o.value and dut.req_sop_o.value) or shown.get("held"), "a TLP began"
            coverage.hit("bus master off")
        bench.cycle()
        shown["held"] = bool(dut.req_valid_o.value) and not int(dut.req_ready_i.value)
        # New jobs.
        if begun < total and "copy" not in offers and len(copies) < SLOTS and rng.random() < 0.3:
            slot = rng.choice([slot for slot in range(SLOTS) if slot not in copies])
            length = rng.choice([1, rng.randint(1, 200), rng.randint(1, 4096), 4096])
            src = SOURCE + begun * 12288 + rng.randrange(4096)
            dst = TARGET + begun * 12288 + rng.randrange(4096)
            kind = rng.choice(list(STATUS)) if faulty and rng.random() < 0.15 else None
            if kind:
                bad[src + rng.randrange(length)] = kind
            copies[slot] = (src, dst, length, kind, begun)
            offers["copy"] = slot
            begun += 1
            if dst >> 12 != (dst + length - 1) >> 12:
                coverage.hit("copy over a page")
            if length in (1, 4096):
                coverage.hit("copy of one byte" if length == 1 else "copy of 4 KB")
        if begun < total and "fetch" not in offers and len(fetches) < 20 and rng.random() < 0.05:
            batch = rng.choice([batch for batch in range(64) if batch not in fetches])
            count = rng.randint(1, 16)
            fetched += 1
            fetches[batch] = (ENTRIES + 8192 * fetched + 32 * rng.randrange(128), count)
            offers["fetch"] = batch
            if faulty and rng.random() < 0.1:
                bad[fetches[batch][0] + rng.randrange(32 * count)] = rng.choice(["ur", "poison"])
        for kind, table in (("copy", copies), ("fetch", fetches)):
            if kind in offers:
                if kind == "copy":
                    dut.copy_slot_i.value = offers[kind]
                    dut.copy_src_i.value, dut.copy_dst_i.value, dut.copy_len_i.value = copies[offers[kind]][:3]
                else:
                    dut.fetch_batch_i.value = offers[kind]
                    dut.fetch_addr_i.value, dut.fetch_count_i.value = fetches[offers[kind]]
        dut.copy_valid_i.value, dut.fetch_valid_i.value = "copy" in offers, "fetch" in offers
        # Ends.
        if dut.copy_done_valid_o.value:
            src, dst, length, kind, job = copies.pop(int(dut.copy_done_slot_o.value))
            status = int(dut.copy_done_status_o.value)
            assert status == STATUS.get(kind, 0), (status, kind)
            for at in range(dst, dst + length) if status else ():
                bench.owed.pop(at, None)
            coverage.hit("copy that failed" if status else "copy")
            # Its completion: behind the payload.
            to_complete.append((job, status))
        take = rng.random() < 0.5
        dut.fetch_done_ready_i.value = take
        if take and dut.fetch_done_valid_o.value:
            batch, status = int(dut.fetch_done_batch_o.value), int(dut.fetch_done_status_o.value)
            addr, count = fetches.pop(batch)
            own = [kind for at, kind in bad.items() if addr <= at < addr + 32 * count]
            assert bool(status) == bool(own), "a failed fetch"
            if not status:
                got = bench.entries[batch * 512:batch * 512 + 32 * count]
                assert got == bench.memory(addr, 32 * count), "entries are wrong"
            coverage.hit("fetch that failed" if status else "fetch")
        if "cq" not in offers and to_complete and rng.random() < 0.2:
            batch, to_complete = to_complete[:16], to_complete[16:]
            addr = COMPLETED + 4096 * cycle + 32 * rng.randrange(128)
            words = [rng.randbytes(32) for _ in batch]
            offers["cq"] = (addr, len(batch), [job for job, _ in batch])
            for i, byte in enumerate(b"".join(words)):
                bench.owed[addr + i] = (byte, ("cq", addr))
            bench.owed_of[("cq", addr)] = 32 * len(batch)
            bench.behind[("cq", addr)] = [job for job, status in batch if not status]
            entries += words
            marks += 1
            coverage.hit("completion entries")
        dut.cq_valid_i.value = "cq" in offers
        if "cq" in offers:
            dut.cq_addr_i.value, dut.cq_count_i.value = offers["cq"][:2]
        show = bool(entries) and rng.random() < 0.8
        dut.entry_valid_i.value = show
        if show:
            dut.entry_data_i.value = int.from_bytes(entries[0], "little")
        if "msi" not in offers and rng.random() < 0.01 and begun < total:
            offers["msi"] = rng.getrandbits(32)
            bench.msis.append(offers["msi"])
        dut.msi_valid_i.value, dut.msi_addr_i.value = "msi" in offers, 0xFEE0_0000
        if "msi" in offers:
            dut.msi_data_i.value = offers["msi"]
        # Answers to lost reads after the first time-out, or none before the second.
        for lost in [lost for lost in bench.late if cycle - lost[2] > TIMEOUT + 600]:
            bench.late.remove(lost)
            if rng.random() < 0.5:
                bench.pieces.append(lost[:2])
                coverage.hit("late completion")
            else:
                del bench.reads[lost[0]]
        await ReadOnly()
        took = [kind for kind in ("copy", "fetch", "cq", "msi") if kind in offers and getattr(dut, f"{kind}_ready_o").value]
        if show and dut.entry_ready_o.value:
            entries.pop(0)
        marks -= int(dut.cq_sent_o.value)
        await FallingEdge(dut.clk_i)
        unexpected += int(dut.count_unexpected_o.value)
        for kind in took:
            value = offers.pop(kind)
            if kind == "copy":
                src, dst, length, _, job = copies[value]
                for i, byte in enumerate(bench.memory(src, length)):
                    bench.owed[dst + i] = (byte, job)
                bench.owed_of[job] = length
    for _ in range(30):
        for kind in ("copy", "fetch", "cq", "msi"):
            getattr(dut, f"{kind}_valid_i").value = 0
        bench.cycle()
        await FallingEdge(dut.clk_i)


@cocotb.test()
async def plain(dut):
    await jobs(dut, "plain", 1, 2, False)


@cocotb.test()
async def least_requests(dut):
    await jobs(dut, "least", 0, 0, False)


@cocotb.test()
async def failing(dut):
    await jobs(dut, "failing", 1, 1, True)


@cocotb.test()
async def zz_coverage(dut):
    coverage.report()
