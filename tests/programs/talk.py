"""Small requests and answers, a pause before each: talk.py server|client SOCKET|ADDRESS:PORT [BYTES]. The server sleeps between them."""
import selectors
import socket
import sys
import time

ROUNDS = 1500


def place(name):
    host, colon, port = name.partition(":")
    return (socket.AF_INET, (host, int(port))) if colon else (socket.AF_UNIX, name)


def answer(name):
    family, address = place(name)
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection = listener.accept()[0]
        connection.setblocking(False)
        selector = selectors.DefaultSelector()
        selector.register(connection, selectors.EVENT_READ)
        while True:
            try:
                part = connection.recv(1 << 16)
            except BlockingIOError:
                selector.select()
                continue
            if not part:
                break
            connection.setblocking(True)
            connection.sendall(part)
            connection.setblocking(False)
        connection.close()


def ask(name, size):
    family, address = place(name)
    connection = socket.socket(family)
    connection.connect(address)
    for number in range(ROUNDS):
        time.sleep(0.0003)
        wanted = number.to_bytes(4, "big") * (size // 4)
        connection.sendall(wanted)
        got = b""
        while len(got) < size:
            got += connection.recv(size - len(got))
        assert got == wanted, f"round {number}"
    print(f"{ROUNDS} rounds")


if sys.argv[1] == "server":
    answer(sys.argv[2])
else:
    ask(sys.argv[2], int(sys.argv[3]))
