"""Python's ways to use sockets. `echo.py server PORT...` serves with asyncio; `echo.py client IP PORT`
prints a line for each way, which does not depend on what carries the bytes."""
import asyncio
import hashlib
import multiprocessing
import os
import select
import selectors
import socket
import subprocess
import sys
import threading
import time

BULK = bytes(range(256)) * 8192


async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def server(*ports):
    listeners = [await asyncio.start_server(serve, "0.0.0.0", port) for port in ports]
    print("ready", flush=True)
    await asyncio.gather(*(listener.serve_forever() for listener in listeners))


def received(sock, count):
    data = b""
    while len(data) < count and (part := sock.recv(65536)):
        data += part
    return data


def blocking(address):
    with socket.create_connection(address) as sock:
        feeder = threading.Thread(target=sock.sendall, args=(BULK,))
        feeder.start()
        digest = hashlib.sha256(received(sock, len(BULK))).hexdigest()
        feeder.join()
        sock.shutdown(socket.SHUT_WR)
        print("blocking", digest, sock.recv(1))


def with_file(address):
    with socket.create_connection(address) as sock, sock.makefile("rw") as stream:
        stream.write("one\ntwo\n")
        stream.flush()
        print("makefile", stream.readline(), stream.readline())


def with_selectors(address):
    for kind in (selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector):
        with kind() as selector:
            socks = []
            for _ in range(8):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(address)
                selector.register(sock, selectors.EVENT_WRITE, 0)
                socks.append(sock)
            done = 0
            while done < 8:
                for key, events in selector.select(5):
                    if events & selectors.EVENT_WRITE:
                        assert key.fileobj.send(b"x" * 100) == 100
                        selector.modify(key.fileobj, selectors.EVENT_READ, 0)
                        continue
                    got = key.data + len(key.fileobj.recv(64))
                    if got == 100:
                        selector.unregister(key.fileobj)
                        done += 1
                    else:
                        selector.modify(key.fileobj, selectors.EVENT_READ, got)
            for sock in socks:
                sock.close()
            print(kind.__name__, done)


def with_waiter(address):
    """One thread waits for what another adds, while there is nothing else to wait for."""
    echoed, total = threading.Semaphore(0), 0
    with select.epoll() as epoll:
        socks = {}

        def wait():
            nonlocal total
            while total < 12_000:
                for fd, _ in epoll.poll():
                    total += len(socks[fd].recv(2000))
                    if total % 1000 == 0:
                        epoll.unregister(fd)
                        echoed.release()

        waiter = threading.Thread(target=wait)
        waiter.start()
        for _ in range(12):
            time.sleep(0.02)
            with socket.create_connection(address) as sock:
                socks[sock.fileno()] = sock
                epoll.register(sock, select.EPOLLIN)
                for _ in range(10):
                    sock.sendall(b"x" * 100)
                echoed.acquire()
        waiter.join()
    print("waiter", total)


async def with_asyncio(address):
    async def one(number):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(BULK[: 1000 * number])
        writer.write_eof()
        data = await reader.read(-1)
        writer.close()
        return len(data)

    print("asyncio", await asyncio.gather(*(one(number) for number in range(20))))


def before_connecting(address):
    with socket.socket() as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with sock.dup() as other:
            sock.setblocking(False)
            sock.setblocking(True)
            sock.connect(address)
            other.sendall(b"by the other")
            nodelay = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            print("connected after dup", received(sock, 12), nodelay != 0)
    with socket.socket() as sock:
        pid = os.fork()
        if pid == 0:
            sock.connect(address)
            sock.sendall(b"from the child")
            print("connected after fork", received(sock, 14), flush=True)
            os._exit(0)
        print(os.waitpid(pid, 0)[1])


def child(sock):
    sock.sendall(b"from the child")
    sock.close()


def with_processes(address):
    for method in ("fork", "spawn"):
        with socket.create_connection(address) as sock:
            process = multiprocessing.get_context(method).Process(target=child, args=(sock,))
            process.start()
            process.join()
            print(method, received(sock, 14))


def with_subprocess(address):
    with socket.create_connection(address) as sock:
        subprocess.run(["sh", "-c", "echo hello"], stdout=sock, check=True)
        print("stdout of a shell", received(sock, 6))
        subprocess.run(["/bin/echo", "stdio"], stdout=sock, check=True)
        print("stdout of a program", received(sock, 6))
        subprocess.run(["true"], close_fds=True, check=True)
        sock.settimeout(0.05)
        try:
            sock.recv(1)
        except TimeoutError:
            print("time-out")


if sys.argv[1] == "server":
    asyncio.run(server(*map(int, sys.argv[2:])))
elif __name__ == "__main__":
    where = (sys.argv[2], int(sys.argv[3]))
    blocking(where)
    with_file(where)
    with_selectors(where)
    with_waiter(where)
    asyncio.run(with_asyncio(where))
    before_connecting(where)
    with_processes(where)
    with_subprocess(where)
