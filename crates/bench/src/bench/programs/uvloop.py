"""Echoes on uvloop. `serve`; or `ADDRESS SECONDS`: 30 connections that each send and read back 2 MB at a time."""
import asyncio
import sys
import time

import uvloop

PORT = 5006
CONNECTIONS, ROUND, PIECE = 30, 2 << 20, 64 << 10


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def serve():
    server = await asyncio.get_running_loop().create_server(Echo, "0.0.0.0", PORT)
    await server.serve_forever()


async def one(address, until):
    reader, writer = await asyncio.open_connection(address, PORT)
    count = 0
    while time.monotonic() < until:
        reading = asyncio.create_task(reader.readexactly(ROUND))
        for _ in range(ROUND // PIECE):
            writer.write(bytes(PIECE))
            await writer.drain()
        count += len(await reading)
    writer.close()
    return count


async def load(address, seconds):
    begin = time.monotonic()
    counts = await asyncio.gather(*(one(address, begin + seconds) for _ in range(CONNECTIONS)))
    print("bytes", sum(counts), time.monotonic() - begin)


uvloop.install()
asyncio.run(serve() if sys.argv[1] == "serve" else load(sys.argv[1], float(sys.argv[2])))
