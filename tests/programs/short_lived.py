"""Connections that are opened, used once and closed. `short_lived.py server PORT` sends as many bytes as it is asked for;
`short_lived.py client IP PORT COUNT BYTES [SECONDS]` makes so many connections, one after the other, once, or again and again for so
many seconds, and prints what came in all."""
import socket
import sys
import time


def server(port):
    listener = socket.create_server(("0.0.0.0", int(port)), backlog=100)
    print("ready", flush=True)
    while True:
        with listener.accept()[0] as sock:
            sock.sendall(b"x" * int(sock.recv(20)))


def ask(ip, port, asked):
    total = 0
    with socket.create_connection((ip, int(port))) as sock:
        sock.sendall(asked.encode())
        while part := sock.recv(1 << 20):
            total += len(part)
    return total


def client(ip, port, count, asked, seconds="0"):
    end = time.monotonic() + float(seconds)
    total = 0
    while True:
        total += sum(ask(ip, port, asked) for _ in range(int(count)))
        if time.monotonic() >= end:
            break
        time.sleep(0.1)
    print(total)


{"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
