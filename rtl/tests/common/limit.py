"""What copies can move at most, and need at least: the model that tests hold the device to.

Four limits, the lowest counts; all of the very commands given, at the addresses that they have:

- The link. 101.5 Gbit/s is what PCI Express lets copies take on two gen3 x8 links, which 512 bits at 250 MHz are for: derived, and
  checked against published figures, in crates/engine-rtl/src/limit.rs. Twice the width is for twice the rate.
- The request stream. One TLP a beat at most: a read request takes a beat, a write as many as its DWs fill.
- Slots of the Data Buffer. A copy holds one from its dispatch until its last row is read to be written. So (Little's law) copies
  per cycle are at most slots / cycles of that stay.
- Tags, the same way: each read holds one until its last completion is in.

Commands, completion entries and interrupts are not counted, as they are not in the 101.5: the shares that tests ask for leave room
for them.
"""

from common.settings import CLOCK_NS, parameter

LINK_GBIT_PER_S = 101.5
# Cycles that the device itself takes, as the headers of the modules say. With a read: header FIFO 1, pd_dma_out 1, pd_dma_rx 5,
# pd_ids 2. With a copy: pd_dma_front 4, pd_dma_split 2, header FIFO 1, pd_dma_out 1, pd_dma_rx 5, pd_dma_track 1, back through
# pd_dma_front 2, pd_dma_split 2, pd_dma_write 3 to the last row, pd_ids 2.
READ_CYCLES, COPY_CYCLES = 9, 23


def slots():
    """Copies that the Data Buffer holds: a row more for each than its bytes fill, as pd_stack has it."""
    beat = parameter("TLP_WIDTH", 512) // 8
    return min(64, parameter("BUFFER_BYTES", 131072) // beat // (parameter("COPY_BYTES_MAX", 4096) // beat + 1))


def cut(start, length, limit):
    """Pieces (start, length) between multiples of `limit`."""
    while length:
        piece = min(length, limit - start % limit)
        yield start, piece
        start, length = start + piece, length - piece


def beats(device, start, length):
    """Of a TLP with these bytes: whole DWs, from bit 0 of its first beat."""
    return -(-(-(-(start + length) // 4) * 4 - start // 4 * 4) // device.bus.bytes)


def reads(device, command):
    """Read requests of a copy: two segments, cut where the destination is first aligned, see pd_dma_front."""
    src, dst, length = command.src_addr, command.dst_addr, command.data_len
    head = min(length, -dst % device.host.max_payload)
    for start, piece in ((src, head), (src + head, length - head)):
        yield from cut(start, piece, device.host.max_read)


class Work:
    """What commands come to: beats of the request stream and of answers, and cycles that they hold slots and tags in all."""

    def __init__(self, device, commands, latency):
        host = device.host
        self.bytes = self.stream = self.answers = self.slot_cycles = self.tag_cycles = 0
        for command in commands:
            write = sum(beats(device, *piece) for piece in cut(command.dst_addr, command.data_len, host.max_payload))
            reading = 0
            for start, length in reads(device, command):
                answer = sum(beats(device, *piece) for piece in cut(start, length, host.max_payload))
                self.tag_cycles += latency + READ_CYCLES + answer
                self.stream += 1
                # At most: pieces of the completion boundary.
                self.answers += length // min(host.rcb, device.bus.bytes) + 2
                reading += answer
            self.bytes += command.data_len
            self.stream += write
            # Written only when all of it is read.
            self.slot_cycles += latency + COPY_CYCLES + reading + write


def gbit_per_s(device, commands, latency):
    """The most that these commands can move in steady state, with a host that answers after `latency` cycles."""
    work = Work(device, commands, latency)
    link = LINK_GBIT_PER_S * device.width / 512
    cycles = max(work.stream, work.slot_cycles / slots(), work.tag_cycles / device.host.tags)
    return min(link, work.bytes * 8 / (cycles * CLOCK_NS))


def cycles(device, commands, lost):
    """Within how many cycles these commands are through that aren't among the `lost` ones.

    Each resource has all its work in that time, even if none of it were done at the same time as another's: both streams, and the
    slots and tags that the lost ones leave, those of the turn before too.
    """
    latency = device.host.latency[1]
    work = Work(device, commands, latency)
    serial = work.stream + work.answers + work.slot_cycles / (slots() - lost) + work.tag_cycles / (device.host.tags - 2 * lost)
    return int(latency + serial)
