"""The whole PD Stack as a PCIe device on cocotbext-pcie's root complex: enumeration, BAR, MSI-X, copies in host memory."""

import cocotb
from cocotb.clock import Clock
from cocotb.queue import Queue as AsyncQueue
from cocotb.triggers import ClockCycles, First, Timer
from cocotbext.pcie.core import Device, Endpoint, RootComplex
from cocotbext.pcie.core.caps.msi import MsixCapability
from cocotbext.pcie.core.tlp import Tlp, TlpType

from common import abi, coverage, tlp
from common.settings import CLOCK_NS, LONG, parameter, rng as rng_of

coverage.declare("copy on a root complex", "refused by a root complex", "interrupt on a root complex")


class PdEndpoint(Endpoint):
    """Carries TLPs between the root complex and the streams of pd_stack."""

    def __init__(self, bus, vectors):
        super().__init__()
        self.vendor_id, self.device_id, self.class_code = 0x1234, 0x5044, 0x088000
        self.bus, self.out = bus, AsyncQueue()
        self.configure_bar(0, abi.BAR_BYTES)
        self.msix = MsixCapability()
        self.msix.msix_table_size = vectors - 1
        self.msix.msix_table_offset = abi.REG_MSIX_BASE
        self.msix.msix_pba_offset = abi.REG_MSIX_PBA_BASE
        self.register_capability(self.msix)
        for kind in (TlpType.MEM_READ, TlpType.MEM_READ_64, TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            self.register_rx_tlp_handler(kind, self.bar_request)
        # One queue: a completion doesn't pass the writes before it.
        bus.on_request = bus.on_bar_completion = lambda header, data: self.out.put_nowait((header, data))

    async def sender(self):
        while True:
            header, data = await self.out.get()
            dws = 4 if header >> 125 & 1 else 3
            await self.send(Tlp.unpack(header.to_bytes(16, "big")[:4 * dws] + data))

    @staticmethod
    def _header(packet):
        header = packet.pack_header()
        return int.from_bytes(header + bytes(16 - len(header)), "big")

    async def bar_request(self, packet):
        self.bus.send_bar(self._header(packet), bytes(packet.data))

    async def handle_tlp(self, packet):
        if packet.is_completion():
            self.bus.send_completion(self._header(packet), bytes(packet.data))
            packet.release_fc()
        else:
            await super().handle_tlp(packet)


async def start(dut, rng, mps, mrrs):
    cocotb.start_soon(Clock(dut.clk_i, CLOCK_NS, units="ns").start())
    bus = tlp.Bus(dut, rng, len(dut.req_data_o))
    for name in ("cpl_valid_i", "bar_valid_i", "req_ready_i", "bar_cpl_ready_i", "cfg_bus_master_i", "cfg_msix_enable_i"):
        getattr(dut, name).value = 0
    dut.rst_ni.value = 0
    await ClockCycles(dut.clk_i, 4)
    dut.rst_ni.value = 1
    cocotb.start_soon(bus.run())
    endpoint = PdEndpoint(bus, parameter("QUEUES", 256))
    device = Device(endpoint)
    cocotb.start_soon(endpoint.sender())
    root = RootComplex()
    root.max_payload_size, root.max_read_request_size = tlp.payload_code(mps, bus.bytes * 8), mrrs
    root.make_port().connect(device)
    dut.cfg_requester_id_i.value = 0
    await root.enumerate()
    handle = root.find_device(endpoint.pcie_id)
    await handle.enable_device()
    await handle.set_master()
    dut.cfg_requester_id_i.value = int(endpoint.pcie_id)
    dut.cfg_max_payload_i.value = endpoint.pcie_cap.max_payload_size
    dut.cfg_max_read_req_i.value = endpoint.pcie_cap.max_read_request_size
    dut.cfg_ext_tag_i.value = endpoint.pcie_cap.extended_tag_field_enable
    dut.cfg_bus_master_i.value = endpoint.bus_master_enable
    await handle.alloc_irq_vectors(8, 8)
    dut.cfg_msix_enable_i.value = endpoint.msix.msix_enable
    dut.cfg_msix_mask_i.value = endpoint.msix.msix_function_mask
    return root, handle, bus


async def copies(dut, name, mps, mrrs, commands):
    rng = rng_of(name)
    root, handle, bus = await start(dut, rng, mps, mrrs)
    bar = handle.bar_window[0]
    assert await bar.read_dword(abi.REG_ID) == abi.DEVICE_ID
    await bar.write_dword(abi.REG_CONTROL, 1)
    # A queue a cycle is disabled first.
    for _ in range(parameter("QUEUES", 256) + 8):
        if ready := await bar.read_dword(abi.REG_STATUS) >> abi.STATUS_READY_LSB & 1:
            break
    assert ready, "the device doesn't start"
    depth = 1 << parameter("LOG2_DEPTH", 10)
    memory = root.mem_pool.alloc_region(1 << 20)
    base = memory.get_absolute_address(0)
    sq, cq, floor = 0, 1 << 16, 2 << 16
    regs = handle.bar_window[0]
    queue = abi.REG_QUEUE_BASE + 3 * abi.REG_QUEUE_STRIDE
    for offset, value in ((abi.REG_QUEUE_SQ_BASE_LO, base + sq & 0xFFFFFFFF), (abi.REG_QUEUE_SQ_BASE_HI, base + sq >> 32),
                          (abi.REG_QUEUE_CQ_BASE_LO, base + cq & 0xFFFFFFFF), (abi.REG_QUEUE_CQ_BASE_HI, base + cq >> 32),
                          (abi.REG_QUEUE_CONFIG, 5 | 1 << abi.QUEUE_CONFIG_IRQ_ENABLE_LSB), (abi.REG_QUEUE_CONTROL, 1)):
        await regs.write_dword(queue + offset, value)
    producer = consumer = 0
    while consumer < commands:
        batch, at = [], floor
        for _ in range(min(rng.randint(1, depth), commands - producer)):
            length = rng.choice([1, rng.randint(1, 200), rng.randint(1, 4096), 4096])
            if at + 2 * length + 200 > len(memory):
                break
            src, dst = at + rng.randrange(64), at + 64 + length + rng.randrange(64)
            at = dst + length
            memory[src:src + length] = rng.randbytes(length)
            # One in eight has no such source: the root complex says so.
            nowhere = rng.random() < 0.125
            command = abi.Command(request_type=abi.TYPE_GENERAL_SEND, data_len=length, dst_addr=base + dst, conn_id=producer,
                                  src_addr=0x7_0000_0000_0000 if nowhere else base + src)
            memory[sq + 32 * (producer % depth):sq + 32 * (producer % depth) + 32] = command.pack()
            batch.append((command, src, dst, nowhere))
            producer += 1
        vector = handle.msi_vectors[5]
        vector.event.clear()
        await regs.write_dword(queue + abi.REG_QUEUE_DOORBELL, producer & 0xFFFF | (consumer & 0xFFFF) << 16)
        for command, src, dst, nowhere in batch:
            slot = cq + 32 * (consumer % depth)
            while True:
                entry = abi.Command.unpack(bytes(memory[slot:slot + 32]))
                if entry.reserved & 1 == 1 - (consumer // depth & 1) and entry.request_type == abi.TYPE_GENERAL_COMPLETED:
                    break
                # Sleeps until the interrupt, as a driver does.
                done = await First(vector.event.wait(), Timer(200, "us"))
                assert bus.error is None, bus.error
                assert vector.event.is_set(), f"no interrupt and no completion {consumer}"
                vector.event.clear()
                coverage.hit("interrupt on a root complex")
            coverage.hit("refused by a root complex" if nowhere else "copy on a root complex")
            assert entry.status == (abi.STATUS_BAD_ADDRESS if nowhere else abi.STATUS_OK), vars(entry)
            assert entry.conn_id == consumer
            if not nowhere:
                assert memory[dst:dst + command.data_len] == memory[src:src + command.data_len]
            consumer += 1
    assert await regs.read_dword(abi.REG_COUNT_COMMANDS) == commands
    assert await regs.read_dword(abi.REG_COUNT_UNEXPECTED) == 0


@cocotb.test()
async def on_a_root_complex(dut):
    """Random copies on a modelled PCIe link, woken by MSI-X; maximum payload 256, read requests 512."""
    await copies(dut, "pcie", 1, 2, 1500 if LONG else 100)


@cocotb.test(skip=not LONG)
async def on_a_root_complex_small(dut):
    """The same with the smallest TLPs that the width takes."""
    await copies(dut, "pcie small", 0, 0, 600)
