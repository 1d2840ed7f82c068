"""pd_dma_hdr: the bytes that its headers enable are those asked for."""

import cocotb
from cocotb.triggers import Timer

from common import coverage, tlp
from common.settings import LONG, rng as rng_of

coverage.declare("one DW", "two DWs", "4 KB", "short address", "long address", "ends a page", *(f"begins at byte {n}" for n in range(4)))


@cocotb.test()
async def headers(dut):
    rng = rng_of("headers")
    for _ in range(5000 if LONG else 1000):
        addr = rng.choice([rng.getrandbits(52), rng.getrandbits(32), rng.getrandbits(12), rng.getrandbits(40) | 0xFF0])
        room = 4096 - addr % 4096
        length = min(room, rng.choice([1, 2, 3, 4, 5, rng.randint(1, 64), rng.randint(1, 4096), room]))
        write, tag, requester = rng.random() < 0.5, rng.randrange(256), rng.randrange(1 << 16)
        for name, value in (("write_i", write), ("addr_i", addr), ("len_i", length), ("tag_i", tag), ("requester_id_i", requester)):
            getattr(dut, name).value = value
        await Timer(1, "ns")
        request = tlp.parse_request(int(dut.hdr_o.value), b"")
        assert (request.start, request.end, request.write, request.tag, request.requester) \
            == (addr, addr + length, write, tag, requester), (hex(addr), length, request)
        assert int(dut.dws_o.value) == request.dws and bool(request.last) == (request.dws > 1)
        assert int(dut.hdr_o.value) == request.header()
        coverage.hit("one DW" if request.dws == 1 else "two DWs" if request.dws == 2 else "more DWs")
        coverage.hit("long address" if addr >> 32 else "short address")
        coverage.hit(f"begins at byte {addr & 3}")
        if length == 4096:
            coverage.hit("4 KB")
        if length == room:
            coverage.hit("ends a page")
        # A whole page now and then.
        if rng.random() < 0.02:
            dut.addr_i.value, dut.len_i.value = 0x1000, 4096
            await Timer(1, "ns")
            assert int(dut.dws_o.value) == 1024 and tlp.parse_request(int(dut.hdr_o.value), b"").end == 0x2000
            coverage.hit("4 KB")
    coverage.report()
