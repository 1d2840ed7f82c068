"""Short connections, as Python makes them. `short.py server PORT` serves on PORT (epoll), PORT+1 (threads that
accept), PORT+2 (HTTP) and PORT+3 (processes that accept); `short.py client IP PORT` prints a line for each way,
which does not depend on what carries the bytes, and says on standard error how many connections the kernel made;
`short.py hold IP PORT` connects, says "held" and then how the connection ended; `short.py fork IP PORT` forks with
a connection; `short.py crowd IP PORT` keeps the processes busy; `short.py own` connects to itself;
`short.py workers PORT` serves by processes that accept for others or serve one by one, and `short.py visit IP PORT` visits them."""
import asyncio
import errno
import fcntl
import hashlib
import http.server
import os
import select
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = hashlib.sha256(self.path.encode()).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def listener(port):
    listener = socket.create_server(("0.0.0.0", port), backlog=128)
    return listener


def answer(sock):
    with sock:
        data = b""
        while part := sock.recv(4096):
            data += part
            if data.endswith(b"\n"):
                sock.sendall(hashlib.sha256(data).hexdigest().encode())
                return


def accept_all(listener):
    while True:
        sock, _ = listener.accept()
        answer(sock)


def accept_several(listener):
    """Of a process that shares it: takes all that have come before it serves them."""
    listener.setblocking(False)
    while True:
        select.select([listener], [], [])
        socks = []
        try:
            while len(socks) < 8:
                socks.append(listener.accept()[0])
        except BlockingIOError:
            pass
        for sock in socks:
            sock.setblocking(True)
            answer(sock)


def serve_one_by_one(listener):
    """Each until its peer ends it, as workers do that serve one client at a time."""
    while True:
        with listener.accept()[0] as sock:
            while data := sock.recv(65536):
                sock.sendall(data)


def serve_for_parent(listener, wait):
    """The parent waits, and a child that it forks accepts one, as inetd has it."""
    while True:
        wait()
        child = os.fork()
        if child == 0:
            with listener.accept()[0] as sock:
                while data := sock.recv(65536):
                    sock.sendall(data)
            os._exit(0)
        os.waitpid(child, 0)


def workers(port):
    by_epoll, by_select, one_by_one = (listener(port + n) for n in range(3))
    epoll = select.epoll()
    epoll.register(by_epoll, select.EPOLLIN)
    if os.fork() == 0:
        serve_for_parent(by_epoll, epoll.poll)
    if os.fork() == 0:
        serve_for_parent(by_select, lambda: select.select([by_select], [], []))
    for _ in range(3):
        if os.fork() == 0:
            serve_one_by_one(one_by_one)
    print("ready", flush=True)
    os.wait()


def visit(ip, port):
    """Whoever has the connections, each is answered, also while others of the workers are busy."""

    def echo(sock):
        sock.settimeout(20)
        sock.sendall(b"visit" * 1000)
        return len(sock.recv(5000, socket.MSG_WAITALL))

    def visit_all(name, port, count):
        answers = []
        for _ in range(count):
            with socket.create_connection((ip, port)) as sock:
                answers.append(echo(sock))
        print(name, *answers)

    visit_all("epoll", port, 8)
    visit_all("select", port + 1, 8)
    visit_all("worker", port + 2, 8)
    long = [socket.create_connection((ip, port + 2)) for _ in range(2)]
    print("busy", *map(echo, long))
    visit_all("others", port + 2, 8)


def serve_epoll(listener):
    listener.setblocking(False)
    epoll = select.epoll()
    epoll.register(listener, select.EPOLLIN)
    socks = {}
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    continue
                sock.setblocking(False)
                epoll.register(sock, select.EPOLLIN)
                socks[sock.fileno()] = (sock, bytearray())
                continue
            sock, data = socks[fd]
            part = sock.recv(4096)
            data += part
            if not part or data.endswith(b"\n"):
                if part:
                    sock.sendall(hashlib.sha256(data).hexdigest().encode())
                epoll.unregister(sock)
                del socks[fd]
                sock.close()


def server(port):
    shared = listener(port + 3)
    for _ in range(3):
        if os.fork() == 0:
            accept_several(shared)
    shared.close()
    accepting = listener(port + 1)
    for _ in range(2):
        threading.Thread(target=accept_all, args=(accepting,), daemon=True).start()
    web = http.server.ThreadingHTTPServer(("0.0.0.0", port + 2), Hello)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    polled = listener(port)
    print("ready", flush=True)
    serve_epoll(polled)


def ask(address, text):
    with socket.create_connection(address) as sock:
        sock.sendall(text.encode() + b"\n")
        data = b""
        while part := sock.recv(4096):
            data += part
        return data


def many(name, address, count):
    digest = hashlib.sha256()
    for number in range(count):
        digest.update(ask(address, f"{name} {number}"))
    print(name, digest.hexdigest())


def threads(ip, port):
    answers = {}

    def work(number):
        for turn in range(20):
            path = f"/{number}/{turn}"
            with urllib.request.urlopen(f"http://{ip}:{port}{path}") as response:
                answers[path] = response.read()

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    digest = hashlib.sha256(b"".join(answers[path] for path in sorted(answers)))
    print("threads", len(answers), digest.hexdigest())


def failure(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def names(address):
    with socket.socket() as sock:
        sock.connect(address)
        own, peer = sock.getsockname(), sock.getpeername()
        print("names", own[0], own[1] > 0, peer == address)
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[0]
        print("state", state, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        print("again", failure(sock.connect, address), failure(sock.bind, ("0.0.0.0", 0)), failure(sock.listen))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print("nodelay", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        sock.settimeout(0.05)
        try:
            print("late", sock.recv(1))
        except TimeoutError:
            print("timed out")
        sock.settimeout(None)
        sock.sendall(b"x")
        sock.shutdown(socket.SHUT_WR)
        print("shut", failure(sock.send, b"y"), sock.recv(1))
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect((f"::ffff:{address[0]}", address[1]))
        print("mapped", sock.getpeername()[:2], sock.getsockname()[0])
    with socket.socket() as sock:
        sock.bind(("0.0.0.0", 0))
        port = sock.getsockname()[1]
        sock.connect(address)
        print("bound", sock.getsockname()[1] == port)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.connect(address)
        print("before", failure(sock.recv, 1), sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def nonblocking(address, closed):
    for to in (address, closed):
        with socket.socket() as sock, select.epoll() as epoll:
            sock.setblocking(False)
            epoll.register(sock, select.EPOLLOUT)
            print("begun", errno.errorcode.get(sock.connect_ex(to)))
            events = epoll.poll(5)
            print("told", bool(events[0][1] & select.EPOLLOUT), bool(events[0][1] & select.EPOLLERR))
            print("error", errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))
            if to == address:
                print("twice", sock.connect_ex(to), errno.errorcode.get(sock.connect_ex(to)))
                print("empty", failure(sock.recv, 1), fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK != 0)
    print("refused", failure(socket.create_connection, closed))
    with selectors.DefaultSelector() as selector:
        socks = []
        for number in range(16):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            selector.register(sock, selectors.EVENT_WRITE, number)
            socks.append((sock, bytearray()))
        done = 0
        while done < len(socks):
            for key, _ in selector.select(5):
                sock, data = socks[key.data]
                if key.events == selectors.EVENT_WRITE:
                    sock.send(f"many {key.data}\n".encode())
                    selector.modify(sock, selectors.EVENT_READ, key.data)
                elif part := sock.recv(4096):
                    data += part
                else:
                    selector.unregister(sock)
                    sock.close()
                    done += 1
        print("selected", hashlib.sha256(b"".join(data for _, data in socks)).hexdigest())


async def with_asyncio(ip, port):
    async def one(number):
        reader, writer = await asyncio.open_connection(ip, port)
        writer.write(f"asyncio {number}\n".encode())
        data = await reader.read()
        writer.close()
        return data

    answers = await asyncio.gather(*(one(number) for number in range(20)))
    print("asyncio", hashlib.sha256(b"".join(answers)).hexdigest())


def own_listener():
    """Listening, connecting and closing in one process; a listener that is closed is one no more."""
    first = listener(0)
    address = ("127.0.0.1", first.getsockname()[1])
    poll = select.poll()
    poll.register(first, select.POLLIN)
    print("nothing", poll.poll(0), select.select([first], [], [], 0)[0])
    sock = socket.create_connection(address)
    print("polled", [events for _, events in poll.poll(5000)], len(select.select([first], [], [], 5)[0]))
    accepted, peer = first.accept()
    print("peer", peer == sock.getsockname(), accepted.getpeername() == peer, accepted.getsockname() == address)
    first.settimeout(0.05)
    try:
        first.accept()
    except TimeoutError:
        print("nobody")
    first.close()
    print("closed", failure(socket.create_connection, address))
    sock.sendall(b"still")
    print("open", accepted.recv(5))
    sock.close()
    print("end", accepted.recv(5))
    accepted.close()


def outside(code):
    """A child that does not have the library."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], env=plain, stdin=pipe, stdout=pipe, text=True)


def kernel_first():
    """Whom the kernel has connected stays so, wherever it connects again."""
    code = """import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.stdin.read()"""
    with outside(code) as other:
        port = int(other.stdout.readline())
        with listener(0) as fabric, socket.socket() as sock:
            fabric.setblocking(False)
            try:
                fabric.accept()
            except BlockingIOError:
                pass
            sock.connect(("127.0.0.1", port))
            other_address = ("127.0.0.1", fabric.getsockname()[1])
            print("again", failure(sock.connect, other_address), sock.getpeername()[1] == port)
        other.stdin.close()


def begin(address):
    sock = socket.socket()
    sock.setblocking(False)
    assert sock.connect_ex(address) == errno.EINPROGRESS
    return sock


def begun():
    """A loop that begins connections and goes on: to who listens, to who is the kernel's alone, to nobody."""
    code = """import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.stdin.readline())))
print("ready", flush=True)
sock, _ = listener.accept()
sock.sendall(sock.recv(10))"""
    # Before there are connections: none could be begun after that.
    other = outside(code)
    first, second, epoll = listener(0), listener(0), select.epoll()
    addresses = [("127.0.0.1", one.getsockname()[1]) for one in (first, second)]
    for one, address in zip((first, second), addresses):
        one.setblocking(False)
        print("nobody yet", failure(one.accept))
        one.settimeout(5)
        sock = begin(address)
        epoll.register(sock, select.EPOLLOUT)
        print("first", epoll.poll(5) == [(sock.fileno(), select.EPOLLOUT)], one.accept()[1] == sock.getsockname())
        epoll.unregister(sock)
        sock.close()
    for address in addresses[:1] * 3:
        sock = begin(address)
        epoll.register(sock, select.EPOLLOUT)
        accepted, peer = first.accept()
        print("begun", epoll.poll(5) == [(sock.fileno(), select.EPOLLOUT)], peer == sock.getsockname())
        sock.send(b"x")
        print("sent", accepted.recv(5))
        epoll.modify(sock, select.EPOLLIN)
        accepted.close()
        print("ended", epoll.poll(5) == [(sock.fileno(), select.EPOLLIN)], sock.recv(5))
        sock.close()
    print("named", begin(addresses[0]).getsockname()[1] == first.accept()[1][1])
    begin(addresses[0]).close()
    print("closed", first.accept()[0].recv(5))
    socks = [begin(addresses[0]) for _ in range(100)]
    polled = select.poll()
    for sock in socks:
        polled.register(sock, select.POLLOUT)
    done = 0
    while done < len(socks):
        for fd, _ in polled.poll(5000):
            polled.unregister(fd)
            done += 1
    sent = sum(first.accept()[0].send(b"y") for _ in socks)
    print("many", sent, sum(sock.recv(1) == b"y" for sock in socks if select.select([sock], [], [], 5)[0]))
    found = []
    waiting = threading.Thread(target=lambda: found.extend(epoll.poll(5)))
    waiting.start()
    time.sleep(0.1)
    sock = begin(addresses[0])
    epoll.register(sock, select.EPOLLOUT)
    waiting.join()
    print("elsewhere", found == [(sock.fileno(), select.EPOLLOUT)], first.accept()[1] == sock.getsockname())
    epoll.close()
    epoll = select.epoll()
    epoll.poll(0)
    first.close()
    second.close()
    other.stdin.write(f"{addresses[0][1]}\n")
    other.stdin.close()
    other.stdout.readline()
    sock = begin(addresses[0])
    epoll.register(sock, select.EPOLLOUT)
    print("kernel's", epoll.poll(5) == [(sock.fileno(), select.EPOLLOUT)], sock.getpeername() == addresses[0])
    sock.send(b"z")
    epoll.modify(sock, select.EPOLLIN)
    print("echo", epoll.poll(5) == [(sock.fileno(), select.EPOLLIN)], sock.recv(5))
    other.wait()
    sock = begin(addresses[1])
    epoll.register(sock, select.EPOLLOUT)
    print("refused", epoll.poll(5)[0][1] & select.EPOLLERR != 0)
    print(errno.errorcode.get(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))


def kernel_connections():
    with open("/proc/net/snmp") as file:
        head, values = [line.split()[1:] for line in file if line.startswith("Tcp:")]
    return int(dict(zip(head, values))["ActiveOpens"])


def client(ip, port):
    # The server's processes begin to listen on the fabric when they accept.
    for place in range(4):
        if place != 2:
            ask((ip, port + place), "first")
    many("epoll", (ip, port), 100)
    many("accepting", (ip, port + 1), 100)
    many("processes", (ip, port + 3), 100)
    threads(ip, port + 2)
    names((ip, port))
    nonblocking((ip, port), (ip, port + 9))
    asyncio.run(with_asyncio(ip, port))
    print(kernel_connections(), file=sys.stderr)


def hold(ip, port):
    with socket.create_connection((ip, port)) as sock:
        sock.send(b"x")
        print("held", flush=True)
        print("ended", failure(sock.recv, 1), flush=True)


def fork(ip, port):
    # The first two are the kernel's as well.
    for _ in range(2):
        ask((ip, port), "before")
    with socket.create_connection((ip, port)) as sock:
        child = os.fork()
        if child == 0:
            print("child", failure(sock.send, b"x"), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        sock.sendall(b"fork\n")
        print("parent", len(sock.recv(4096)), flush=True)
    # From here on connections go from process to process.
    with socket.create_connection((ip, port)) as sock:
        if os.fork() == 0:
            sock.sendall(b"fork\n")
            print("child", len(sock.recv(4096)), flush=True)
            os._exit(0)
        os.wait()
        print("parent", sock.recv(1))


def crowd(ip, port):
    """Several of the kernel at once, for who accepts there to get in each other's way; then others, of which each of them
    gets some."""
    answers = []

    def ask_by_kernel():
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, 37, 1)  # SO_TIMESTAMPING, which only the kernel's have.
            sock.connect((ip, port + 3))
            sock.sendall(b"crowd\n")
            answers.append(sock.recv(4096))

    for _ in range(100):
        workers = [threading.Thread(target=ask_by_kernel) for _ in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        answers.extend(ask((ip, port + 3), "crowd") for _ in range(6))
    print(len(answers), len(set(answers)))


def main():
    what, *arguments = sys.argv[1:]
    if what == "server":
        server(int(arguments[0]))
    elif what == "workers":
        workers(int(arguments[0]))
    elif what == "visit":
        visit(arguments[0], int(arguments[1]))
    elif what == "own":
        own_listener()
        kernel_first()
        begun()
    else:
        {"client": client, "hold": hold, "fork": fork, "crowd": crowd}[what](arguments[0], int(arguments[1]))


main()
