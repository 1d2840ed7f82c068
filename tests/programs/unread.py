"""Bytes that a connection of AF_UNIX takes before anybody reads: unread.py server|client SOCKET. The client prints how many those are at
first, and how many after the server has read much. The server checks each byte."""
import socket
import sys
import time

MUCH = 16 << 20
PATTERN = bytes(range(251)) * 600


def piece(position, size):
    return PATTERN[position % 251:][:size]


def answer(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen()
    print("ready", flush=True)
    while True:
        stream, orders = listener.accept()[0], listener.accept()[0]
        position = 0
        while order := orders.recv(8):
            until = position + int.from_bytes(order, "big")
            while position < until:
                part = stream.recv(min(1 << 16, until - position))
                if part != piece(position, len(part)) or not part:
                    sys.exit(f"wrong bytes at {position}")
                position += len(part)
            orders.sendall(b"k")


def ask(name):
    stream, orders = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    stream.connect(name)
    orders.connect(name)
    sent = 0
    unread = []
    for _ in range(2):
        before, refused = sent, 0
        stream.setblocking(False)
        # The bytes may go from one place to the next, so that more are taken a moment later.
        while refused < 30:
            try:
                sent += stream.send(piece(sent, 1 << 14))
                refused = 0
            except BlockingIOError:
                refused += 1
                time.sleep(0.01)
        unread.append(sent - before)
        stream.setblocking(True)
        orders.sendall((sent + MUCH - before).to_bytes(8, "big"))
        until = sent + MUCH
        while sent < until:
            sent += stream.send(piece(sent, min(1 << 16, until - sent)))
        assert orders.recv(1) == b"k"
    print(*unread)


if sys.argv[1] == "server":
    answer(sys.argv[2])
else:
    ask(sys.argv[2])
