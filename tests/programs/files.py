"""Files sent by `sendfile`. `files.py server PORT FILE` sends the file in the way that each connection names;
`files.py client IP PORT all|alone` prints what came of each (without those of several processes), which does not depend on
what carries the bytes."""
import hashlib
import os
import select
import socket
import sys
import time

HEADER = b"header" * 100


def all_of(sock, file, begin, end):
    while begin < end:
        sent = os.sendfile(sock.fileno(), file, begin, end - begin)
        assert sent > 0
        begin += sent


def whole(sock, path, file, size):
    all_of(sock, file, 0, size)


def in_between(sock, path, file, size):
    sock.sendall(HEADER)
    all_of(sock, file, 12_345, size - 54_321)
    sock.sendall(HEADER)
    all_of(sock, file, 1, 200_000)


def by_position(sock, path, file, size):
    os.lseek(file, 70_000, os.SEEK_SET)
    sent, at = 0, []
    while part := os.sendfile(sock.fileno(), file, None, 1 << 20):
        sent += part
        at.append(os.lseek(file, 0, os.SEEK_CUR) - sent)
    sock.sendall(f"{sent} {set(at)}".encode())


def non_blocking(sock, path, file, size):
    sock.setblocking(False)
    at, poll = 0, select.poll()
    poll.register(sock, select.POLLOUT)
    while at < size:
        try:
            at += os.sendfile(sock.fileno(), file, at, size - at)
        except BlockingIOError:
            assert poll.poll(20_000)


def more_than_there_is(sock, path, file, size):
    sent = [os.sendfile(sock.fileno(), file, begin, 1 << 20) for begin in (size - 100_000, size, size + 1)]
    sock.sendall(str(sent).encode())


def removed(sock, path, file, size):
    copy = path + ".copy"
    with open(path, "rb") as source, open(copy, "wb") as to:
        to.write(source.read())
    with open(copy, "rb") as to:
        os.remove(copy)
        all_of(sock, to.fileno(), 0, size)


def grown(sock, path, file, size):
    copy = path + ".grown"
    with open(copy, "w+b") as to:
        os.remove(copy)
        for part in range(8):
            to.write(bytes([part]) * 100_000)
            to.flush()
            all_of(sock, to.fileno(), part * 100_000, (part + 1) * 100_000)


def written_anew(sock, path, file, size):
    with open(path + ".scratch", "w+b") as scratch:
        os.remove(scratch.name)
        for part in range(8):
            scratch.write(bytes([part]) * 100_000)
            scratch.flush()
            all_of(sock, scratch.fileno(), 0, 100_000)
            scratch.seek(0)
            scratch.truncate()


def by_a_child(sock, path, file, size):
    all_of(sock, file, 0, size // 2)
    if (pid := os.fork()) == 0:
        all_of(sock, file, size // 2, size)
        os._exit(0)
    os.waitpid(pid, 0)
    all_of(sock, file, 0, 100_000)


def by_one_that_ends(sock, path, file, size):
    if (pid := os.fork()) == 0:
        all_of(sock, file, 0, 1 << 20)
        os._exit(0)
    sock.close()
    os.waitpid(pid, 0)


def by_another_program(sock, path, file, size):
    all_of(sock, file, 0, 1 << 20)
    if (pid := os.fork()) == 0:
        all_of(sock, file, 1 << 20, 3 << 19)
        sock.set_inheritable(True)
        os.execlp("sh", "sh", "-c", f"printf end >&{sock.fileno()}")
    sock.close()
    os.waitpid(pid, 0)


ALONE = [whole, in_between, by_position, non_blocking, more_than_there_is, removed, grown, written_anew]
ALL = [*ALONE, by_a_child, by_one_that_ends, by_another_program]


def server(port, path):
    file = os.open(path, os.O_RDONLY)
    listener = socket.create_server(("0.0.0.0", int(port)))
    print("ready", flush=True)
    while True:
        sock = listener.accept()[0]
        with sock:
            way = ALL[sock.recv(1)[0]]
            way(sock, path, file, os.fstat(file).st_size)


def client(ip, port, ways):
    for number, way in enumerate(ALL if ways == "all" else ALONE):
        with socket.create_connection((ip, int(port)), 20) as sock:
            sock.sendall(bytes([number]))
            time.sleep(0.1)
            digest, count, last = hashlib.sha256(), 0, b""
            while part := sock.recv(100_000):
                digest.update(part)
                count, last = count + len(part), (last + part)[-20:]
            end = last if way in (by_position, more_than_there_is, by_another_program) else ""
            print(way.__name__, count, digest.hexdigest(), end)


{"server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
