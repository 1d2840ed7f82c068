"""How connections end whose sockets have SO_LINGER. `linger.py server PORT` prints "ready"; `linger.py client IP PORT`
prints lines that do not depend on what carries the bytes."""
import errno
import os
import select
import socket
import struct
import sys


def linger(made, on, seconds):
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, seconds))


def line(made):
    text = b""
    while not text.endswith(b"\n"):
        part = made.recv(1)
        if not part:
            break
        text += part
    return text.decode().strip()


def end(made):
    """What comes after the last byte."""
    try:
        return "orderly" if made.recv(1) == b"" else "more"
    except OSError as error:
        return errno.errorcode[error.errno]


def server(port):
    listener = socket.create_server(("0.0.0.0", port))
    print("ready", flush=True)
    seen = ""
    while True:
        made = listener.accept()[0]
        command = line(made)
        if command == "tell":
            made.sendall(seen.encode() + b"\n")
        elif command == "wait":
            made.sendall(b"go\n")
            seen = end(made)
        else:
            made.sendall(b"last words\n")
            linger(made, *map(int, command.split()))
        made.close()


def client(ip, port):
    def connect(command, *options):
        made = socket.socket()
        if options:
            linger(made, *options)
        made.connect((ip, port))
        made.sendall(command.encode() + b"\n")
        return made

    for options in [(1, 0), (1, 5), (0, 0)]:
        made = connect("%d %d" % options)
        words = line(made)
        poll = select.poll()
        poll.register(made, select.POLLIN)
        poll.poll()
        print("the peer lingers", options, words, end(made), flush=True)
        made.close()
    for options in [(1, 0), (1, 5), (0, 0)]:
        for before in [True, False]:
            made = connect("wait", *options) if before else connect("wait")
            words = line(made)
            if not before:
                linger(made, *options)
            made.close()
            print("lingers", options, before, words, line(connect("tell")), flush=True)
    # Only the last number ends it.
    made = connect("wait", 1, 0)
    other = os.dup(made.fileno())
    made.close()
    made = socket.socket(fileno=other)
    print("by another number", line(made), flush=True)
    made.close()
    print("by another number", line(connect("tell")), flush=True)


if sys.argv[1] == "server":
    server(int(sys.argv[2]))
else:
    client(sys.argv[2], int(sys.argv[3]))
