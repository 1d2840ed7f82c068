"""A program that opens and closes sockets again and again: nothing of one is to be found at the next. It connects to itself and
prints lines that do not depend on what carries the bytes."""
import fcntl
import os
import socket
import struct
import subprocess
import sys

KERNEL_PEER = """import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(20)
print(listener.getsockname()[1], flush=True)
for number in range(int(sys.stdin.readline())):
    sock, _ = listener.accept()
    sock.settimeout(20)
    data = b""
    while part := sock.recv(4096):
        data += part
    print(data.decode(), "and the end", flush=True)"""


class Pairs:
    """Connected pairs of a listener that takes short connections."""

    def __init__(self, family, host):
        self.family = family
        self.listener = socket.create_server((host, 0), family=family)
        # The first is the kernel's as well; the next call that accepts listens for others.
        for sock in self.pair():
            sock.close()
        self.listener.setblocking(False)
        try:
            self.listener.accept()
        except BlockingIOError:
            self.listener.settimeout(10)

    def pair(self):
        sock = socket.socket(self.family)
        sock.connect(self.listener.getsockname())
        return sock, self.listener.accept()[0]


def state(sock):
    flags = fcntl.fcntl(sock, fcntl.F_GETFL) & (os.O_NONBLOCK | os.O_ASYNC | os.O_APPEND)
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
               (socket.SOL_SOCKET, socket.SO_KEEPALIVE), (socket.SOL_SOCKET, socket.SO_DOMAIN),
               (socket.SOL_SOCKET, socket.SO_PROTOCOL), (socket.SOL_SOCKET, socket.SO_ERROR)]
    timeout = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16)
    owned = fcntl.fcntl(sock, fcntl.F_GETOWN) == os.getpid()
    return [flags, fcntl.fcntl(sock, fcntl.F_GETFD), owned, struct.unpack("ll", timeout),
            *(sock.getsockopt(*option) for option in options)]


CHANGES = [
    lambda sock: None,
    lambda sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    lambda sock: sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77),
    lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    lambda sock: sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 9, 0)),
    lambda sock: sock.setblocking(False),
    lambda sock: fcntl.fcntl(sock, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND),
    lambda sock: fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid()),
    lambda sock: sock.set_inheritable(True),
]


def options():
    for pairs in (Pairs(socket.AF_INET, "127.0.0.1"), Pairs(socket.AF_INET6, "::1"), Pairs(socket.AF_INET, "127.0.0.1")):
        for change in CHANGES:
            socks = pairs.pair()
            for sock in socks:
                change(sock)
            print([state(sock) for sock in socks])
            for sock in socks:
                sock.close()
            with socket.socket(pairs.family) as fresh:
                print("fresh", state(fresh))
            # Two pairs and two that are not connected at a time: all that was closed is in use.
            kept = [pairs.pair(), pairs.pair()]
            spare = [socket.socket(pairs.family) for _ in range(2)]
            print("next", *(state(sock) for sock in (*kept[0], *kept[1], *spare)))
            for one, other in kept:
                one.sendall(b"x")
                print(other.recv(2), end=" ")
                one.close()
                print(other.recv(2))
                other.close()
            for sock in spare:
                sock.close()


def numbers(pairs):
    """A number is free when it is closed."""
    first = [sock.fileno() for sock in pairs.pair()]
    with open("/dev/null") as file:
        print("lowest", file.fileno() == first[0], [sock.fileno() for sock in pairs.pair()] == [first[1], first[1] + 1])
    one, other = pairs.pair()
    copy = os.dup(one.fileno())
    one.close()
    os.write(copy, b"by another name")
    print(other.recv(100))
    os.close(copy)
    print("closed", other.recv(1))


def kernel(pairs):
    """What the kernel connects and binds is this process's alone, though a child has older sockets."""
    socks = [sock for _ in range(4) for sock in pairs.pair()]
    for sock in socks:
        sock.set_inheritable(True)
    # By `posix_spawn`, of which the library hears nothing.
    sleeper = subprocess.Popen(["/bin/sleep", "60"], close_fds=False)
    for sock in socks:
        sock.close()
    pipe = subprocess.PIPE
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    peer = subprocess.Popen([sys.executable, "-c", KERNEL_PEER], env=plain, stdin=pipe, stdout=pipe, text=True)
    address = ("127.0.0.1", int(peer.stdout.readline()))
    count = 6
    print(count + 1, file=peer.stdin, flush=True)
    for number in range(count):
        with socket.socket() as sock:
            sock.setblocking(number % 2 == 0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, number % 3 == 0)
            sock.connect_ex(address)
            sock.setblocking(True)
            print("nodelay", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            while True:
                try:
                    sock.sendall(b"number %d" % number)
                    break
                except BlockingIOError:
                    pass
        print(peer.stdout.readline().strip())
    bound = [bind(0) for _ in range(8)]
    ports = [sock.getsockname()[1] for sock in bound]
    del bound
    print("bound again", all(bind(port).getsockname()[1] == port for port in ports))
    with socket.socket() as sock:
        if os.fork() == 0:
            sock.connect(address)
            os._exit(0)
        os.wait()
        sock.sendall(b"connected by a child")
    print(peer.stdout.readline().strip())
    peer.wait()
    sleeper.kill()
    sleeper.wait()


def bind(port):
    sock = socket.socket()
    sock.bind(("127.0.0.1", port))
    return sock


def main():
    options()
    pairs = Pairs(socket.AF_INET, "127.0.0.1")
    numbers(pairs)
    kernel(pairs)


main()
