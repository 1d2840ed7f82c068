"""AF_UNIX stream sockets, as Python uses them. `unix.py server PATH` serves at PATH (threads), PATH.late (accepts late)
and PATH.async (asyncio); `unix.py client PATH` prints a line for each way, which does not depend on what carries the
bytes; `unix.py own -` connects to itself. The first byte of a connection says what the server does: 'E' echo, 'D' take and give descriptors, 'C' say who
sends."""
import array
import asyncio
import errno
import hashlib
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

BULK = bytes(range(256)) * 4096


def received(sock, count):
    data = b""
    while len(data) < count and (part := sock.recv(65536)):
        data += part
    return data


def file_with(text):
    file = tempfile.TemporaryFile()
    file.write(text)
    file.flush()
    return file


def content(fd):
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()


def answer(sock):
    try:
        answer_all(sock)
    except (BrokenPipeError, ConnectionResetError):
        pass  # The client has gone.


def answer_all(sock):
    with sock:
        first = sock.recv(1)
        if first == b"E":
            while part := sock.recv(65536):
                sock.sendall(part)
            sock.sendall(b"bye")
        elif first == b"D":
            # Every message comes back with what is in its files, and with a file that has the same in it.
            while True:
                data, fds, _, _ = socket.recv_fds(sock, 64, 4)
                if not data:
                    return
                for fd in fds:
                    data += content(fd)
                with file_with(data) as file:
                    socket.send_fds(sock, [data.ljust(32, b".")], [file.fileno()] if fds else [])
        elif first == b"C":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.sendall(b"go")
            data, control, _, _ = sock.recvmsg(16, socket.CMSG_SPACE(12))
            creds = [struct.unpack("3i", bytes) for _, kind, bytes in control if kind == socket.SCM_CREDENTIALS]
            sock.sendall(repr((data, [creds[1:] for creds in creds])).encode())


def listener(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(64)
    return sock


def accept_all(sock):
    while True:
        threading.Thread(target=answer, args=(sock.accept()[0],), daemon=True).start()


def accept_late(sock):
    while True:
        time.sleep(0.2)
        answer(sock.accept()[0])


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def server(path):
    threading.Thread(target=accept_all, args=(listener(path),), daemon=True).start()
    threading.Thread(target=accept_late, args=(listener(path + ".late"),), daemon=True).start()
    running = await asyncio.start_unix_server(echo, path + ".async")
    print("ready", flush=True)
    await running.serve_forever()


def connected(path, first):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.sendall(first)
    return sock


def plain(path):
    with connected(path, b"E") as sock:
        feeder = threading.Thread(target=sock.sendall, args=(BULK,))
        feeder.start()
        data = received(sock, len(BULK))
        feeder.join()
        print("echo", hashlib.sha256(data).hexdigest(), sock.getpeername() == path, repr(sock.getsockname()))
        sock.shutdown(socket.SHUT_WR)
        print("half", received(sock, 100))
    digest = hashlib.sha256()
    for number in range(50):
        with connected(path, b"E") as sock:
            sock.sendall(f"number {number}".encode())
            digest.update(received(sock, len(f"number {number}")))
    print("short", digest.hexdigest())


def descriptors(path):
    with connected(path, b"D") as sock, file_with(b"first") as file:
        socket.send_fds(sock, [b"at once "], [file.fileno()])
        data, fds, _, _ = socket.recv_fds(sock, 32, 4)
        print("first", data, [content(fd) for fd in fds])
    with connected(path, b"D") as sock, file_with(b"later") as file:
        for turn in range(5):
            sock.sendall(f"turn {turn}".encode())
            print("bytes", received(sock, 32))
        socket.send_fds(sock, [b"descriptor "], [file.fileno()])
        data, fds, _, _ = socket.recv_fds(sock, 32, 4)
        print("fds", data, [content(fd) for fd in fds])
        sock.sendall(b"and on")
        print("on", received(sock, 32))
    # Bytes that nobody has read yet are before the descriptors.
    with connected(path, b"E") as sock, file_with(b"between") as file:
        sock.sendall(BULK[:100000])
        socket.send_fds(sock, [b"|with|"], [file.fileno()])
        sock.sendall(b"after")
        sock.shutdown(socket.SHUT_WR)
        print("order", hashlib.sha256(received(sock, 1 << 20)).hexdigest())


def credentials(path):
    with connected(path, b"C") as sock:
        print("asked", received(sock, 2))
        sock.sendall(b"me")
        print("who", received(sock, 4096))


def late(path):
    """Said, and gone, before the other side accepts."""
    for number in range(3):
        with connected(path + ".late", b"E") as sock:
            sock.sendall(b"quick")
    with connected(path + ".late", b"E") as sock:
        sock.sendall(b"patient")
        sock.shutdown(socket.SHUT_WR)
        print("late", received(sock, 100))


def waits(path):
    with connected(path, b"E") as sock, select.epoll() as epoll:
        sock.setblocking(False)
        epoll.register(sock, select.EPOLLIN | select.EPOLLOUT)
        print("epoll", epoll.poll(5)[0][1] == select.EPOLLOUT)
        sock.send(b"ping")
        epoll.modify(sock, select.EPOLLIN)
        print("epoll", epoll.poll(5)[0][1] == select.EPOLLIN, sock.recv(10))
        try:
            sock.recv(1)
        except BlockingIOError as error:
            print("empty", errno.errorcode[error.errno])
        sock.shutdown(socket.SHUT_WR)
        data = b""
        while part := (epoll.poll(5), sock.recv(10))[1]:
            data += part
        print("end", data)


def processes(path):
    with connected(path, b"E") as sock:
        sock.sendall(b"parent")
        child = os.fork()
        if child == 0:
            sock.sendall(b" child")
            os._exit(received(sock, 12) != b"parent child")
        print("forked", os.waitpid(child, 0)[1])
        script = "import socket; s = socket.socket(fileno=0); s.sendall(b'exec'); print('ran', s.recv(4), flush=True)"
        subprocess.run([sys.executable, "-c", script], stdin=sock, check=True)
        sock.sendall(b"back")
        print("back", received(sock, 4))


def others(path):
    try:
        connected(path + ".nobody", b"E")
    except FileNotFoundError:
        print("nobody")
    with listener("\0pd-test") as abstract, connected("\0pd-test", b"x") as sock:
        print("abstract", abstract.accept()[0].recv(1), sock.getpeername())
    one, other = socket.socketpair()
    one.send(b"pair")
    print(other.recv(4))


def own():
    """Listening and connecting in one process."""
    with tempfile.TemporaryDirectory() as folder, listener(folder + "/own") as own:
        with connected(folder + "/own", b"self") as sock:
            accepted = own.accept()[0]
            print("own", accepted.recv(4), struct.calcsize("3i") == len(sock.getsockopt(1, socket.SO_PEERCRED, 12)))


async def with_asyncio(path):
    async def one(number):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(f"asyncio {number}".encode())
        writer.write_eof()
        data = await reader.read()
        writer.close()
        return data

    print("asyncio", await asyncio.gather(*(one(number) for number in range(8))))


def client(path):
    plain(path)
    descriptors(path)
    credentials(path)
    late(path)
    waits(path)
    processes(path)
    others(path)
    asyncio.run(with_asyncio(path + ".async"))


def main():
    what, path = sys.argv[1:]
    if what == "server":
        for file in (path, path + ".late", path + ".async"):
            if os.path.exists(file):
                os.unlink(file)
        asyncio.run(server(path))
    elif what == "own":
        own()
    else:
        client(path)


main()
