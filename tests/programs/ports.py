"""Few local ports. `ports.py server PORT` echoes on PORT and PORT+1; `ports.py client IP PORT` opens more connections at a time
than it has ports, to each of the two fewer, and prints what came back."""
import asyncio
import socket
import sys

PORTS = 16
CONNECTIONS = (12, 8)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def server(port):
    listeners = [await asyncio.start_server(echo, "0.0.0.0", port + number) for number in range(2)]
    print("ready", flush=True)
    await asyncio.gather(*(listener.serve_forever() for listener in listeners))


def client(ip, port):
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
        file.write(f"40000 {40000 + PORTS - 1}")
    socks = []
    for place, count in enumerate(CONNECTIONS):
        socks += [socket.create_connection((ip, port + place), 20) for _ in range(count)]
    for number, sock in enumerate(socks):
        sock.sendall(b"%d" % number)
        print(sock.recv(100), sock.getsockname()[1] - 40000 in range(PORTS), sock.getpeername()[1] - port)


def main():
    what, *arguments = sys.argv[1:]
    if what == "server":
        asyncio.run(server(int(arguments[0])))
    else:
        client(arguments[0], int(arguments[1]))


main()
