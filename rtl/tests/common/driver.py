"""A model of the driver: registers, queues, doorbells, reaping; and of what the device must do."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import Event, FallingEdge, with_timeout

from common import abi, tlp
from common.host import Host
from common.settings import CLOCK_NS, parameter

# After so many cycles without any of it nothing will come any more: the longest that a test waits for are time-outs of lost reads, two
# one after the other, of copies that queued up for their tags.
STUCK_CYCLES = 200_000


class Device:
    """pd_stack with its streams and a host around it."""

    def __init__(self, dut, random, size=8 << 20, base=0x1_2340_0000, mps=1, mrrs=2, ext_tag=True):
        self.dut, self.random = dut, random
        self.width = len(dut.req_data_o)
        self.bus = tlp.Bus(dut, random, self.width)
        self.requester = 0x0300
        mps = tlp.payload_code(mps, self.width)
        tags = min(parameter("TAGS", 128), 256 if ext_tag else 32)
        self.host = Host(self.bus, random, size, base, 128 << mps, 128 << mrrs, self.requester, tags)
        self.host.on_msi = self._msi
        self.bus.on_bar_completion = self._bar_completion
        self.mps, self.mrrs, self.ext_tag = mps, mrrs, ext_tag
        self.depth = 1 << parameter("LOG2_DEPTH", 10)
        self.queues_max = parameter("QUEUES", 256)
        self.copy_bytes_max = parameter("COPY_BYTES_MAX", 4096)
        self.next_free = base + 4096
        self.msis = {}
        self.mmio_writes = 0
        self._waiting = {}
        self._bar_tag = 0

    async def start(self):
        dut = self.dut
        cocotb.start_soon(Clock(dut.clk_i, CLOCK_NS, units="ns").start())
        for name in ("cpl_valid_i", "bar_valid_i", "req_ready_i", "bar_cpl_ready_i", "cpl_sop_i", "cpl_eop_i",
                     "bar_sop_i", "bar_eop_i", "cpl_hdr_i", "bar_hdr_i", "cpl_data_i", "bar_data_i"):
            getattr(dut, name).value = 0
        dut.cfg_requester_id_i.value = self.requester
        dut.cfg_max_payload_i.value, dut.cfg_max_read_req_i.value = self.mps, self.mrrs
        dut.cfg_ext_tag_i.value, dut.cfg_bus_master_i.value = self.ext_tag, 1
        dut.cfg_msix_enable_i.value, dut.cfg_msix_mask_i.value = 1, 0
        await self.reset()
        cocotb.start_soon(self.bus.run())
        assert await self.read(abi.REG_ID) == abi.DEVICE_ID
        await self.enable()

    async def reset(self):
        self.dut.rst_ni.value = 0
        await self.cycles(4)
        self.bus.forget()
        self.host.forget_reads()
        self.dut.rst_ni.value = 1
        await self.cycles(2)

    async def cycles(self, count):
        falling = FallingEdge(self.dut.clk_i)
        for _ in range(count):
            await falling
            if self.bus.error:
                raise self.bus.error

    async def until(self, condition, cycles=STUCK_CYCLES, what="an event"):
        falling = FallingEdge(self.dut.clk_i)
        for _ in range(cycles):
            if self.bus.error:
                raise self.bus.error
            if condition():
                return
            await falling
        raise AssertionError(f"waited in vain for {what}")

    # Registers.
    def write(self, offset, value, dws=1):
        self.mmio_writes += 1
        last = 0xF if dws > 1 else 0
        request = tlp.Request(True, 0xC000_0000 + offset, dws, 0, 0, 0xF, last)
        self.bus.send_bar(request.header(), value.to_bytes(4 * dws, "little"))

    async def read_raw(self, offset, dws=1, first=0xF, last=None):
        tag = self._bar_tag = (self._bar_tag + 1) % 256
        last = (0xF if dws > 1 else 0) if last is None else last
        request = tlp.Request(False, 0xC000_0000 + offset, dws, 0x0008, tag, first, last)
        self.bus.send_bar(request.header(), b"")
        return await self.answer(tag)

    async def answer(self, tag):
        """Header and payload of the completion of a read of the BAR."""
        event = self._waiting[tag] = Event()
        await with_timeout(event.wait(), STUCK_CYCLES * CLOCK_NS, "ns")
        return event.data

    async def read(self, offset):
        header, data = await self.read_raw(offset)
        fields = tlp.parse_completion(header)
        assert fields["status"] == tlp.SUCCESS and fields["requester"] == 0x0008, fields
        assert fields["byte_count"] == 4 and fields["lower"] == offset & 0x7F, fields
        return int.from_bytes(data, "little")

    def _bar_completion(self, header, data):
        event = self._waiting.pop(tlp.parse_completion(header)["tag"])
        event.set((header, data))

    def _msi(self, addr, data):
        assert addr == 0xFEE00000 + 16 * (data & 0xFFFF)
        self.msis.setdefault(data & 0xFFFF, []).append(self.bus.cycle)

    async def ready(self):
        return await self.read(abi.REG_STATUS) >> abi.STATUS_READY_LSB & 1

    async def enable(self):
        self.write(abi.REG_CONTROL, 1)
        # A queue a cycle is disabled first; a read of a register takes longer than that.
        for _ in range(self.queues_max + 8):
            if await self.ready():
                return
        raise AssertionError("the device doesn't start")

    def time_out_after(self, cycles):
        """Sets the least completion time-out that no read of so many cycles meets, and returns it.

        A read's age is the difference of two readings of a counter of 256 cycles, so it may be a unit less than it seems.
        """
        units = -(-cycles // 256) + 1
        self.write(abi.REG_CPL_TIMEOUT, units)
        return 256 * units

    async def idle(self, polls=20000):
        for _ in range(polls):
            if not await self.read(abi.REG_STATUS) >> abi.STATUS_BUSY_LSB & 1:
                return
        raise AssertionError("the device does not come to rest")

    def vector(self, index, masked=False):
        at = abi.REG_MSIX_BASE + index * abi.REG_MSIX_STRIDE
        self.write(at + abi.REG_MSIX_ADDRESS_LO, 0xFEE00000 + 16 * index)
        self.write(at + abi.REG_MSIX_ADDRESS_HI, 0)
        self.write(at + abi.REG_MSIX_DATA, index)
        self.write(at + abi.REG_MSIX_VECTOR_CONTROL, int(masked))

    def alloc(self, size, align=4096):
        addr = -(-self.next_free // align) * align
        self.next_free = addr + size
        assert self.next_free - self.host.base <= len(self.host.memory), "the test's memory is used up"
        return addr


class Queue:
    """One SQ/CQ pair, and the reference model of what becomes of its commands."""

    def __init__(self, device, number, irq=False):
        self.device, self.number, self.irq = device, number, irq
        self.host = device.host
        size = -(-device.depth * abi.CMD_BYTES // 4096) * 4096
        self.sq, self.cq = device.alloc(size), device.alloc(size)
        self.base = abi.REG_QUEUE_BASE + number * abi.REG_QUEUE_STRIDE
        self.producer = self.consumer = 0
        self.flying = {}
        self.completed = []

    def enable(self):
        device, base = self.device, self.base
        for offset, value in ((abi.REG_QUEUE_SQ_BASE_LO, self.sq & 0xFFFFFFFF), (abi.REG_QUEUE_SQ_BASE_HI, self.sq >> 32),
                              (abi.REG_QUEUE_CQ_BASE_LO, self.cq & 0xFFFFFFFF), (abi.REG_QUEUE_CQ_BASE_HI, self.cq >> 32),
                              (abi.REG_QUEUE_CONFIG, self.number | self.irq << abi.QUEUE_CONFIG_IRQ_ENABLE_LSB)):
            device.write(base + offset, value)
        if self.irq:
            device.vector(self.number)
        start = self.cq - self.host.base
        self.host.memory[start:start + device.depth * abi.CMD_BYTES] = bytes(device.depth * abi.CMD_BYTES)
        device.write(base + abi.REG_QUEUE_CONTROL, 1)
        self.producer = self.consumer = 0

    async def disable(self):
        self.device.write(self.base + abi.REG_QUEUE_CONTROL, 0)
        for _ in range(20000):
            state = await self.state()
            if not state >> abi.QUEUE_STATE_BATCHES_LSB & 0xFF:
                return state
        raise AssertionError("batches in flight for ever")

    async def state(self):
        return await self.device.read(self.base + abi.REG_QUEUE_STATE)

    def room(self):
        return self.device.depth - ((self.producer - self.consumer) & 0xFFFF)

    def submit(self, command, expected=abi.STATUS_OK):
        """Writes an entry, not the doorbell. `expected` is the status it must come back with, or a set of them."""
        assert self.room() > 0
        slot = self.producer % self.device.depth
        at = self.sq + slot * abi.CMD_BYTES - self.host.base
        self.host.memory[at:at + abi.CMD_BYTES] = command.pack()
        expected = expected if isinstance(expected, (set, frozenset)) else {expected}
        if abi.STATUS_OK in expected:
            self.host.expect(command.dst_addr, command.data_len)
        self.host.expect(self.cq + slot * abi.CMD_BYTES, abi.CMD_BYTES)
        self.flying[self.producer] = (command, expected)
        self.producer = (self.producer + 1) & 0xFFFF

    def doorbell(self):
        self.device.write(self.base + abi.REG_QUEUE_DOORBELL,
                          self.producer << abi.QUEUE_DOORBELL_SQ_PRODUCER_LSB
                          | self.consumer << abi.QUEUE_DOORBELL_CQ_CONSUMER_LSB)

    def reap(self):
        """Takes the completions that are there, checks each against its command, and returns them."""
        depth, reaped = self.device.depth, []
        while self.consumer != self.producer:
            slot = self.consumer % depth
            at = self.cq + slot * abi.CMD_BYTES - self.host.base
            entry = abi.Command.unpack(self.host.memory[at:at + abi.CMD_BYTES])
            phase = 1 - (self.consumer // depth & 1)
            if entry.reserved & 1 != phase or entry.request_type != abi.TYPE_GENERAL_COMPLETED:
                break
            command, expected = self.flying.pop(self.consumer)
            assert entry.status in expected, f"status {entry.status}, not one of {expected}: {vars(command)}"
            for name in ("cid", "data_len", "src_addr", "dst_addr", "conn_id", "table_id", "entry_seq"):
                assert getattr(entry, name) == getattr(command, name), name
            assert entry.reserved == phase
            if entry.status == abi.STATUS_OK:
                src, dst = command.src_addr - self.host.base, command.dst_addr - self.host.base
                assert self.host.memory[dst:dst + command.data_len] == self.host.memory[src:src + command.data_len], \
                    f"wrong bytes: {vars(command)}"
            elif abi.STATUS_OK in expected:
                self.host.forbid(command.dst_addr, command.data_len)
            reaped.append((command, entry.status))
            self.consumer = (self.consumer + 1) & 0xFFFF
        self.completed += reaped
        return reaped

    async def drain(self, cycles=STUCK_CYCLES):
        await self.device.until(lambda: self.reap() is not None and self.consumer == self.producer, cycles,
                                f"completions of queue {self.number} from {self.consumer} to {self.producer}")
