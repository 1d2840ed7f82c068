"""asyncio on uvloop: streams that are written and read at once, and small requests. `server`; `client ADDRESS`: prints checksums that depend on
nothing but this file; `forever ADDRESS`."""
import asyncio
import hashlib
import sys

import uvloop

PORT = 8500
BYTES = 3_000_000


def pattern(seed, length=BYTES):
    row = bytes((place * 31 + seed * 17) & 255 for place in range(4096))
    return (row * (length // 4096 + 1))[:length]


class Echo(asyncio.Protocol):
    """Stops reading while the peer does not."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)

    def pause_writing(self):
        self.transport.pause_reading()

    def resume_writing(self):
        self.transport.resume_reading()


async def serve():
    server = await asyncio.get_running_loop().create_server(Echo, "0.0.0.0", PORT)
    await server.serve_forever()


async def stream(address, seed):
    """A stream that is written and read at once, and half closed."""
    reader, writer = await asyncio.open_connection(address, PORT)
    sent = pattern(seed)

    async def write():
        for first in range(0, BYTES, 77_777):
            writer.write(sent[first : first + 77_777])
            await writer.drain()
        writer.write_eof()

    _, found = await asyncio.gather(write(), reader.read(-1))
    writer.close()
    assert found == sent, (len(found), seed)
    return hashlib.sha256(found).hexdigest()[:12]


async def lines(address):
    """Small requests, one after the other."""
    reader, writer = await asyncio.open_connection(address, PORT)
    sums = hashlib.sha256()
    for number in range(1000):
        writer.write(b"line %d\n" % number)
        sums.update(await reader.readline())
    writer.close()
    return sums.hexdigest()[:12]


async def exchange(address):
    print("streams", *await asyncio.gather(*(stream(address, seed) for seed in range(5))))
    print("lines", *await asyncio.gather(*(lines(address) for _ in range(4))))
    try:
        await asyncio.wait_for((await asyncio.open_connection(address, PORT))[0].read(1), 0.3)
    except asyncio.TimeoutError:
        print("nothing comes")


async def main():
    if sys.argv[1] == "server":
        await serve()
    await exchange(sys.argv[2])
    while sys.argv[1] == "forever":
        await exchange(sys.argv[2])


uvloop.install()
asyncio.run(main())
