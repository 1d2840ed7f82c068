"""pd_data_buffer against a bytearray: beats written at any byte, rows read."""

import cocotb
from cocotb.triggers import FallingEdge

from common import coverage
from common.module import start
from common.settings import LONG, parameter, rng as rng_of

coverage.declare("beat in one row", "beat over two rows", "beat over the end", "part of a beat", "read and write at once")


@cocotb.test()
async def beats(dut):
    rng = rng_of("beats")
    width, rows = parameter("BYTES", 64), parameter("ROWS", 2048)
    await start(dut, wr_valid_i=0, rd_valid_i=0)
    size = width * rows
    model = bytearray(size)
    settled = [0] * rows
    expected = []
    for cycle in range((6000 if LONG else 1500) + rows):
        # The first pass fills the memory.
        write = cycle < rows or rng.random() < 0.7
        start_at = cycle * width if cycle < rows else rng.choice([rng.randrange(size), rng.randrange(rows) * width, size - rng.randrange(width)])
        start_at %= size
        first = 0 if cycle < rows or rng.random() < 0.5 else rng.randrange(width)
        last = width if cycle < rows or rng.random() < 0.5 else rng.randint(first, width)
        dut.wr_valid_i.value = write
        if write:
            data, row, rot = rng.randbytes(width), start_at // width, start_at % width
            lanes, mask = [0] * width, 0
            for i in range(width):
                lanes[(i + rot) % width] = data[i]
                mask |= (first <= i < last) << (i + rot) % width
            dut.wr_row_i.value, dut.wr_rot_i.value, dut.wr_mask_i.value = row, rot, mask
            dut.wr_data_i.value = int.from_bytes(bytes(lanes), "little")
            for i in range(first, last):
                model[(start_at + i) % size] = data[i]
            for touched in (row, (row + 1) % rows):
                settled[touched] = cycle + 3
            coverage.hit("beat over two rows" if rot else "beat in one row")
            if rot and row == rows - 1:
                coverage.hit("beat over the end")
            if last - first < width:
                coverage.hit("part of a beat")
        # Rows that no write is on its way to.
        row = rng.randrange(rows)
        read = cycle >= rows and settled[row] <= cycle and rng.random() < 0.8
        dut.rd_valid_i.value, dut.rd_row_i.value = read, row
        if read:
            expected.append((cycle + 2, bytes(model[row * width:(row + 1) * width])))
            if write:
                coverage.hit("read and write at once")
        await FallingEdge(dut.clk_i)
        if expected and expected[0][0] == cycle + 1:
            assert int(dut.rd_data_o.value).to_bytes(width, "little") == expected.pop(0)[1], f"cycle {cycle}"
    coverage.report()
