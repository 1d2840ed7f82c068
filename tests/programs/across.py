"""Connects as it is told in lines, and says how that ended. Its peer sends back what it gets, and ends the stream after that."""
import errno
import os
import select
import socket
import sys
import threading

BYTES = 300_000


def opened(ip):
    return socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM)


def wait(one, how, registered):
    """Waits until the connection is made or has failed."""
    if how == "epoll":
        [(fd, events)] = registered.poll(10)
        assert fd == one.fileno() and events & select.EPOLLOUT, events
    elif how == "poll":
        waits = select.poll()
        waits.register(one, select.POLLOUT)
        [(fd, events)] = waits.poll(10_000)
        assert fd == one.fileno() and events & select.POLLOUT, events
    else:
        _, [ready], _ = select.select([], [one], [], 10)
        assert ready is one


def dial(ip, port, how, source=None):
    """`how`: blocking, or what is waited with."""
    one = opened(ip)
    if source:
        one.bind((source, 0))
        bound = one.getsockname()[:2]
    if how == "blocking":
        one.connect((ip, port))
    else:
        registered = select.epoll()
        # Before it is connected, as event loops do.
        registered.register(one, select.EPOLLIN | select.EPOLLOUT)
        one.setblocking(False)
        result = one.connect_ex((ip, port))
        if result not in (0, errno.EINPROGRESS):
            raise OSError(result, "connect")
        wait(one, how, registered)
        result = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result:
            raise OSError(result, "later")
        assert one.connect_ex((ip, port)) in (0, errno.EISCONN)
        assert one.connect_ex((ip, port)) == errno.EISCONN
        # Nothing has come, and there is room.
        assert [events & ~select.EPOLLOUT for _, events in registered.poll(0)] == [0]
        registered.close()
        one.setblocking(True)
    assert one.getpeername()[:2] == (ip, port), one.getpeername()
    if source:
        assert one.getsockname()[:2] == bound, (one.getsockname(), bound)
    return one


def echo(one):
    data = os.urandom(BYTES)

    def send():
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = bytearray()
    while part := one.recv(1 << 16):
        got += part
    sender.join()
    assert got == data, f"{len(got)} bytes came back"


def serve(listener):
    def answer(one):
        while part := one.recv(1 << 16):
            one.sendall(part)
        one.close()

    while True:
        one, _ = listener.accept()
        threading.Thread(target=answer, args=(one,), daemon=True).start()


def apply(words):
    name, ip, port = words[0], words[1], int(words[2])
    if name == "serve":
        listener = opened(ip)
        listener.bind((ip, port))
        listener.listen(16)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        return ""
    if name == "bound":
        echo(dial(ip, port, "blocking", words[3]))
        return ""
    one = dial(ip, port, words[3])
    local = one.getsockname()[0]
    if name == "connect":
        return ""
    if name == "echo":
        echo(one)
        return local
    if name == "dup":
        other = one.dup()
        one.close()
        echo(other)
    elif name == "fork":
        child = os.fork()
        if child == 0:
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        echo(one)
        # The next one, too.
        echo(dial(ip, port, words[3]))
    elif name == "pass":
        ours, theirs = socket.socketpair()
        try:
            socket.send_fds(ours, [b"x"], [one.fileno()])
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, error
        else:
            raise AssertionError("the peer could not use it")
        echo(one)
    else:
        raise AssertionError(name)
    return ""


for line in sys.stdin:
    try:
        print("ok", apply(line.split()), flush=True)
    except OSError as failed:
        print("error", failed.errno or 0, failed, flush=True)
    except Exception as failed:
        print("error", 0, repr(failed), flush=True)
