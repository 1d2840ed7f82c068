"""TLPs as the ports of pd_stack carry them: a 128-bit header, DW 0 on top, and the payload."""

from dataclasses import dataclass

MRD, MWR, CPL = 0, 1, 2
SUCCESS, UNSUPPORTED, RETRY, ABORT = 0, 1, 2, 4


def payload_code(code, width):
    """Max_Payload_Size as Device Control codes it, but no less than a beat of `width` bits: with less the device doesn't start."""
    return max(code, (width // 1024).bit_length() - 1)


@dataclass
class Request:
    """A memory request. `first` and `last` are the byte enables; `data` is whole DWs."""

    write: bool
    addr: int
    dws: int
    requester: int
    tag: int
    first: int
    last: int
    data: bytes = b""

    @property
    def start(self):
        """Address of the first enabled byte."""
        return self.addr + (self.first & -self.first).bit_length() - 1 if self.first else self.addr

    @property
    def end(self):
        """Address behind the last enabled byte."""
        enables = self.last if self.dws > 1 else self.first
        return self.addr + 4 * (self.dws - 1) + max(enables.bit_length(), 1 if self.dws == 1 and not self.first else 0)

    def header(self):
        long_addr = self.addr >> 32 != 0
        dw0 = (self.write << 30) | (long_addr << 29) | (self.dws & 0x3FF)
        dw1 = self.requester << 16 | self.tag << 8 | self.last << 4 | self.first
        if long_addr:
            return dw0 << 96 | dw1 << 64 | (self.addr >> 32) << 32 | self.addr & 0xFFFFFFFC
        return dw0 << 96 | dw1 << 64 | (self.addr & 0xFFFFFFFC) << 32


def parse_request(header, data):
    dw0, dw1, dw2, dw3 = (header >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0))
    assert dw0 >> 24 & 0x1F == 0 and dw0 >> 31 == 0, f"not a memory request: {header:032x}"
    long_addr = dw0 >> 29 & 1
    addr = dw2 << 32 | dw3 if long_addr else dw2
    assert addr & 3 == 0
    assert not long_addr or dw2, "an address below 4 GB in the long form"
    return Request(write=bool(dw0 >> 30 & 1), addr=addr, dws=dw0 & 0x3FF or 1024, requester=dw1 >> 16,
                   tag=dw1 >> 8 & 0xFF, last=dw1 >> 4 & 0xF, first=dw1 & 0xF, data=data)


def completion(requester, tag, data=None, byte_count=4, lower=0, status=SUCCESS, completer=0x0100, poisoned=False):
    """Header and payload. `data` begins at the DW of `lower`."""
    dws = len(data or b"") // 4
    dw0 = ((0x4A if data is not None else 0x0A) << 24) | (poisoned << 14) | (dws & 0x3FF)
    dw1 = completer << 16 | status << 13 | (byte_count & 0xFFF)
    dw2 = requester << 16 | tag << 8 | (lower & 0x7F)
    return dw0 << 96 | dw1 << 64 | dw2 << 32, data or b""


def parse_completion(header):
    dw0, dw1, dw2 = (header >> shift & 0xFFFFFFFF for shift in (96, 64, 32))
    return {"with_data": bool(dw0 >> 30 & 1), "dws": dw0 & 0x3FF, "status": dw1 >> 13 & 7, "byte_count": dw1 & 0xFFF,
            "requester": dw2 >> 16, "tag": dw2 >> 8 & 0xFF, "lower": dw2 & 0x7F}


class Bus:
    """Drives the four streams of pd_stack, one step a cycle.

    Signals change and are looked at on the falling edge: no output of the design depends on an input of the same
    cycle, so what is seen there is what holds at the next rising edge.
    `pause` are probabilities of holding back `req` (ready), `cpl`, `bar` (valid) and `bar_cpl` (ready) for a cycle.
    """

    def __init__(self, dut, random, width):
        self.dut, self.random, self.bytes = dut, random, width // 8
        self.pause = {"req": 0.0, "cpl": 0.0, "bar": 0.0, "bar_cpl": 0.0}
        self.on_request = lambda header, data: None
        self.on_bar_completion = lambda header, data: None
        self.cycle = 0
        self.on_cycle = lambda: None
        self._cpl, self._bar = [], []
        self._cpl_beats, self._bar_beats = [], []
        self._req_header, self._req_data, self._held = None, b"", None
        self.busy_req = self.busy_cpl = 0
        self.error = None

    def send_completion(self, header, data):
        self._cpl.append((header, data))

    def send_bar(self, header, data):
        self._bar.append((header, data))

    @property
    def completions_waiting(self):
        return len(self._cpl)

    def _split(self, header, data):
        beats = [data[i:i + self.bytes] for i in range(0, len(data), self.bytes)] or [b""]
        return [(i == 0, i == len(beats) - 1, header, int.from_bytes(beat, "little")) for i, beat in enumerate(beats)]

    def _pause(self, name):
        return self.pause[name] and self.random.random() < self.pause[name]

    def forget(self):
        """The device was reset: what was under way in either direction is gone."""
        for waiting in (self._cpl, self._bar, self._cpl_beats, self._bar_beats):
            waiting.clear()
        self._req_header, self._held = None, None

    async def run(self):
        """For ever. What fails here is in `error`, for the test to raise."""
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001 (the test gets it)
            self.error = error
            raise

    async def _run(self):
        from cocotb.triggers import FallingEdge
        dut = self.dut
        falling = FallingEdge(dut.clk_i)
        cpl_valid = bar_valid = req_ready = bar_cpl_ready = None
        while True:
            await falling
            self.cycle += 1
            self.on_cycle()
            # Requests out.
            ready = not self._pause("req")
            if ready != req_ready:
                dut.req_ready_i.value = ready
                req_ready = ready
            if dut.req_valid_o.value:
                self._request_beat(ready)
            else:
                assert self._held is None, "req_valid fell without a transfer"
            # Completions in.
            if not self._cpl_beats and self._cpl:
                self._cpl_beats = self._split(*self._cpl.pop(0))
            valid = bool(self._cpl_beats) and not self._pause("cpl")
            if valid:
                assert dut.cpl_ready_o.value
                self.busy_cpl += 1
                sop, eop, header, data = self._cpl_beats.pop(0)
                dut.cpl_sop_i.value, dut.cpl_eop_i.value = sop, eop
                dut.cpl_hdr_i.value, dut.cpl_data_i.value = header, data
            if valid != cpl_valid:
                dut.cpl_valid_i.value = valid
                cpl_valid = valid
            # BAR requests in: once valid, held until taken.
            if not self._bar_beats and self._bar:
                self._bar_beats = self._split(*self._bar.pop(0))
            valid = bool(self._bar_beats) and not self._pause("bar")
            if valid:
                sop, eop, header, data = self._bar_beats[0]
                dut.bar_sop_i.value, dut.bar_eop_i.value = sop, eop
                dut.bar_hdr_i.value, dut.bar_data_i.value = header, data
                if dut.bar_ready_o.value:
                    self._bar_beats.pop(0)
            if valid != bar_valid:
                dut.bar_valid_i.value = valid
                bar_valid = valid
            # BAR completions out.
            ready = not self._pause("bar_cpl")
            if ready != bar_cpl_ready:
                dut.bar_cpl_ready_i.value = ready
                bar_cpl_ready = ready
            if ready and dut.bar_cpl_valid_o.value:
                header = int(dut.bar_cpl_hdr_o.value)
                data = int(dut.bar_cpl_data_o.value).to_bytes(8, "little")
                self.on_bar_completion(header, data[:4 * (header >> 96 & 0x3FF)] if header >> 126 & 1 else b"")

    def _request_beat(self, ready):
        dut = self.dut
        sop, eop = int(dut.req_sop_o.value), int(dut.req_eop_o.value)
        strb = int(dut.req_strb_o.value)
        header = int(dut.req_hdr_o.value) if sop else None
        beat = (sop, eop, strb, header)
        assert self._held in (None, beat), "a beat changed while it waited"
        self._held = None if ready else beat
        if not ready:
            return
        self.busy_req += 1
        assert bool(sop) == (self._req_header is None), "sop and eop out of order"
        if sop:
            self._req_header, self._req_data = header, []
        if strb:
            dws = strb.bit_length()
            assert strb == (1 << dws) - 1 and (eop or 4 * dws == self.bytes), "holes in a payload"
            value = dut.req_data_o.value.buff if hasattr(dut.req_data_o.value, "buff") else None
            data = value[::-1] if value else int(dut.req_data_o.value).to_bytes(self.bytes, "little")
            self._req_data.append(data[:4 * dws])
        if eop:
            header, data = self._req_header, b"".join(self._req_data)
            self._req_header = None
            self.on_request(header, data)
