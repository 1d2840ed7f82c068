# Descriptors over AF_UNIX connections that began on the fabric. Each end is told only of what is: never of a hang-up while the
# other lives, and no descriptor is lost. `handles.py server PATH` prints "ready"; `handles.py client PATH` prints lines.
import array
import os
import select
import socket
import sys
import threading

ROUNDS = 300
BAD = select.EPOLLHUP | select.EPOLLRDHUP | select.EPOLLERR


class End:
    """One end, which waits in an epoll instance as libuv does."""

    def __init__(self, sock, edge):
        self.sock, self.seen, self.bytes, self.descriptors = sock, 0, b"", []
        sock.setblocking(False)
        self.epoll = select.epoll()
        self.edge = edge
        flags = select.EPOLLIN | select.EPOLLRDHUP | (select.EPOLLET | select.EPOLLOUT if edge else 0)
        self.epoll.register(sock.fileno(), flags)

    def receive(self):
        """What is there. False: nothing more comes."""
        while True:
            try:
                data, control, _, _ = self.sock.recvmsg(65536, socket.CMSG_SPACE(64))
            except BlockingIOError:
                return True
            for level, kind, what in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    numbers = array.array("i")
                    numbers.frombytes(what[: len(what) - len(what) % numbers.itemsize])
                    self.descriptors += numbers
            if not data:
                return False
            self.bytes += data

    def until(self, length, descriptors):
        """Waits until so much has come; collects flags that must not be."""
        lives = self.receive() if self.edge else True
        while len(self.bytes) < length or len(self.descriptors) < descriptors:
            if not lives:
                raise SystemExit(f"ended after {len(self.bytes)} bytes and {len(self.descriptors)} descriptors")
            found = self.epoll.poll(10)
            if not found:
                raise SystemExit(f"nothing comes after {len(self.bytes)} bytes, {len(self.descriptors)} descriptors")
            for _, flags in found:
                self.seen |= flags & BAD
            if lives:
                lives = self.receive()

    def send(self, data, descriptor=None):
        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))] if descriptor is not None else []
        while data:
            try:
                sent = self.sock.sendmsg([data], control)
            except BlockingIOError:
                select.select([], [self.sock], [], 10)
                continue
            data, control = data[sent:], []

    def close(self):
        self.epoll.close()
        self.sock.close()


def speak(descriptor, word):
    os.write(descriptor, word)
    os.close(descriptor)


def exchange(sock, number, first):
    """The same of both ends: bytes, descriptors, bytes. Returns what was wrong."""
    end = End(sock, number % 2 == 1)
    before = 1 + number * 977 % 40000
    end.send(b"a" * before)
    mine, theirs = os.pipe()
    if first or number % 3 == 0:
        end.send(b"b", theirs)
        end.send(b"c", theirs)
    else:
        end.send(b"bc")
    end.send(b"d" * 100)
    sends = lambda is_first: 2 if is_first or number % 3 == 0 else 0
    end.until(before + 102, sends(not first))
    wrong = [] if end.bytes[: before + 102] == b"a" * before + b"bc" + b"d" * 100 else ["bytes"]
    for descriptor in end.descriptors:
        speak(descriptor, b"w")
    os.close(theirs)
    words = b""
    while len(words) < sends(first):
        part = os.read(mine, 10)
        if not part:
            wrong.append("descriptors")
            break
        words += part
    os.close(mine)
    # The other closes when it has this, and not before.
    if end.seen:
        wrong.append(f"flags {end.seen:#x}")
    end.send(b"e")
    end.until(before + 103, 0)
    end.close()
    return wrong


def serve(path):
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(path):
        os.unlink(path)
    listener.bind(path)
    listener.listen(16)
    print("ready", flush=True)
    while True:
        sock, _ = listener.accept()
        number = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")

        def work(sock=sock, number=number):
            wrong = exchange(sock, number, False)
            if wrong:
                print(f"round {number}: server: {wrong}", file=sys.stderr, flush=True)
                os._exit(1)

        threading.Thread(target=work, daemon=True).start()


def ask(path):
    wrong = 0
    for number in range(ROUNDS):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.sendall(number.to_bytes(4, "big"))
        found = exchange(sock, number, True)
        if found:
            print(f"round {number}: {found}")
            wrong += 1
    print(f"{ROUNDS} rounds, {wrong} wrong")


if sys.argv[1] == "server":
    serve(sys.argv[2])
else:
    ask(sys.argv[2])
