"""A host: memory, a root complex that answers reads out of order and in pieces, and whose every byte knows whether it
may be written now."""

from common import tlp


class Host:
    """`memory` begins at address `base`. `latency` is a range of cycles, `rcb` the read completion boundary.

    A write to a byte that nobody expects to be written, or that was written before, fails the test at once: `expect` allows one
    write per byte. Writes from address `payload_from` on count as payload. `fault(start, end)` may return "ur", "ca", "poison" or
    "lost" for a read.
    """

    def __init__(self, bus, random, size, base, max_payload, max_read, requester, tags=256):
        self.bus, self.random, self.base = bus, random, base
        self.memory = bytearray(size)
        self.writable = bytearray(size)
        self.expected_bytes = 0
        self.max_payload, self.max_read, self.requester, self.tags = max_payload, max_read, requester, tags
        self.rcb, self.latency, self.reorder, self.split = 64, (40, 80), True, True
        self.fault = lambda start, end: None
        self.on_msi = lambda addr, data: None
        self.msi_base = 0xFEE00000
        self.outstanding, self.asked = {}, {}
        self.lost = []
        self.reads = self.writes = self.read_bytes = self.payload_bytes = 0
        self.payload_from = base
        self.seen = {}
        self._due = []
        bus.on_request = self._request
        bus.on_cycle = self._cycle

    def note(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    def expect(self, addr, length):
        start = addr - self.base
        assert not any(self.writable[start:start + length]), "the test expects two writes at once"
        self.writable[start:start + length] = b"\x01" * length
        self.expected_bytes += length

    def forbid(self, addr, length):
        start = addr - self.base
        self.expected_bytes -= sum(self.writable[start:start + length])
        self.writable[start:start + length] = bytes(length)

    def still_expected(self):
        """Bytes that may yet be written."""
        return self.expected_bytes

    def _request(self, header, data):
        request = tlp.parse_request(header, data)
        assert request.requester == self.requester
        assert request.first and (request.last if request.dws > 1 else not request.last), "byte enables"
        assert request.start >> 12 == (request.end - 1) >> 12, "a request crosses a 4 KB boundary"
        if request.write:
            self._write(request)
        else:
            self._read(request)

    def _write(self, request):
        assert len(request.data) == 4 * request.dws
        assert len(request.data) <= self.max_payload, "a write above the maximum payload size"
        if request.addr & ~0xFFFFF == self.msi_base:
            assert request.dws == 1 and request.first == 0xF
            self.on_msi(request.addr, int.from_bytes(request.data, "little"))
            return
        start, end = request.start - self.base, request.end - self.base
        assert 0 <= start < end <= len(self.memory), f"a write outside memory at {request.start:#x}"
        assert all(self.writable[start:end]), \
            f"a stray or doubled write at {request.start:#x}, {end - start} bytes: {self.writable[start:end].hex()}"
        self.writable[start:end] = bytes(end - start)
        self.expected_bytes -= end - start
        skip = request.start - request.addr
        self.memory[start:end] = request.data[skip:skip + end - start]
        self.writes += 1
        if request.start >= self.payload_from:
            self.payload_bytes += end - start
        if end % 4096 == 0:
            self.note("write up to a 4 KB boundary")
        if end - start == self.max_payload:
            self.note("write of the maximum payload size")
        if request.dws == 1:
            self.note("write of one DW")

    def _read(self, request):
        assert 4 * request.dws <= self.max_read, "a read above the maximum read request size"
        assert request.tag < self.tags, "a tag above the limit"
        assert request.tag not in self.outstanding, \
            f"a tag used twice, {self.bus.cycle - self.asked[request.tag]} cycles after it was first, with an answer owed"
        self.asked[request.tag] = self.bus.cycle
        start, end = request.start, request.end
        assert 0 <= start - self.base < end - self.base <= len(self.memory), f"a read outside memory at {start:#x}"
        self.reads += 1
        self.read_bytes += end - start
        if end % 4096 == 0:
            self.note("read up to a 4 KB boundary")
        if 4 * request.dws == self.max_read:
            self.note("read of the maximum request size")
        fault = self.fault(start, end)
        due = self.bus.cycle + self.random.randint(*self.latency)
        if fault != "lost":
            self.outstanding[request.tag] = request
        else:
            self.lost.append(request)
            self.note("completion lost")
            return
        pieces = self.pieces(request, fault)
        if not self.reorder and self._due:
            due = max(due, self._due[-1][0])
        self._due.append([due, request.tag, pieces])

    def forget_reads(self):
        """The device was reset: nobody is owed an answer."""
        self.outstanding.clear()
        self._due.clear()
        self.lost.clear()

    def pieces(self, request, fault=None):
        """The completions of a read, in order."""
        start, end = request.start, request.end
        if fault in ("ur", "ca"):
            self.note("completion with " + fault)
            status = tlp.UNSUPPORTED if fault == "ur" else tlp.ABORT
            return [tlp.completion(request.requester, request.tag, byte_count=end - start, lower=start & 0x7F, status=status)]
        result, at = [], start
        poisoned_at = self.random.randrange(start, end) if fault == "poison" else None
        while at < end:
            stop = min(end, (at // self.max_payload + 1) * self.max_payload)
            if self.split:
                first = (at // self.rcb + 1) * self.rcb
                stop = min(end, stop, self.random.choice([first, first + self.rcb, stop]))
            dw = at & ~3
            data = self.memory[dw - self.base:((stop + 3) & ~3) - self.base]
            poisoned = poisoned_at is not None and at <= poisoned_at < stop
            result.append(tlp.completion(request.requester, request.tag, bytes(data), end - at, at & 0x7F, poisoned=poisoned))
            at = stop
        if fault == "poison":
            self.note("completion poisoned")
        if len(result) > 1:
            self.note("completion in pieces")
        return result

    def all_answers_beats(self):
        """Beats of the answers to as many reads as can be out, each in the smallest pieces, the first and last cut."""
        return self.tags * (self.max_read // min(self.rcb, self.bus.bytes) + 1)

    def answer_cycles(self):
        """Cycles from a read to its last completion, at most, if it is answered at all.

        When it is due it waits for luck as long as all answers take once; from then on only older ones go before it. To that come
        the pauses of the completions, with a quarter for their luck, and its way out of the device: behind four others and, in
        turns with them, as many writes.
        """
        beats, pause = self.all_answers_beats(), self.bus.pause
        out = 5 * (self.max_payload // self.bus.bytes + 3) / (1 - pause["req"])
        return int(self.latency[1] + beats + 1.25 * (beats / (1 - pause["cpl"]) + out)) + 16

    def _cycle(self):
        # One piece at a time, of any read that is due; of one that has waited long before all others.
        if self.bus.completions_waiting > 1 or not self._due:
            return
        now = self.bus.cycle
        ripe = [i for i, (due, _, _) in enumerate(self._due) if due <= now]
        if not ripe:
            return
        oldest = min(ripe, key=lambda i: self._due[i][0])
        fair = not self.reorder or self._due[oldest][0] + self.all_answers_beats() < now
        at = oldest if fair else self.random.choice(ripe)
        _, tag, pieces = self._due[at]
        if at != 0:
            self.note("completions out of order")
        self.bus.send_completion(*pieces.pop(0))
        if not pieces:
            del self._due[at]
            del self.outstanding[tag]
