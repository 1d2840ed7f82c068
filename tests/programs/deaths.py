"""A server whose children end in every way a process can, and a client that prints what it learns of each: `deaths.py server PORT`,
`deaths.py client ADDRESS PORT`."""
import errno
import os
import select
import signal
import socket
import sys
import time

ENDS = ["close", "exit", "kill", "shutdown and exit", "in a child"]
# r: receive, s: send, e: SO_ERROR, p: poll, w: wait for the answer to a send
ACTS = ["rrr", "swswsrr", "epsrr", "prprsws", "rswprr"]
READ, UNREAD = 5, 500


def receive_all(peer, count):
    while count > 0:
        count -= len(peer.recv(count))


def end(peer, how):
    if how == "close":
        peer.close()
        time.sleep(1)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "shutdown and exit":
        peer.shutdown(socket.SHUT_WR)
    if how == "in a child" and os.fork() == 0:
        # The process that has used the socket ends first.
        time.sleep(0.05)
    os._exit(0)


def serve(port):
    listener = socket.create_server(("0.0.0.0", port))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        peer, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            how = ENDS[peer.recv(1)[0]]
            peer.send(b"ab")
            receive_all(peer, READ)
            end(peer, how)
        peer.close()


def act(peer, what):
    try:
        if what == "r":
            return f"received {len(peer.recv(10))}"
        if what == "s":
            return f"sent {peer.send(bytes(1000))}"
        if what == "e":
            return f"error {peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)}"
        if what == "p":
            poll = select.poll()
            poll.register(peer, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
            return f"events {poll.poll(0)[0][1]:x}"
        time.sleep(0.02)
        return "waited"
    except OSError as error:
        return f"{what}: {errno.errorcode[error.errno]}"


def connect(address, port, how, count):
    peer = socket.create_connection((address, port))
    peer.send(bytes([ENDS.index(how)]) + bytes(count))
    return peer


def main():
    if sys.argv[1] == "server":
        return serve(int(sys.argv[2]))
    address, port = sys.argv[2], int(sys.argv[3])
    rows = [(how, count, acts) for how in ENDS for count in (READ, UNREAD) for acts in ACTS]
    peers = [connect(address, port, how, count) for how, count, _ in rows]
    time.sleep(0.7)
    for (how, count, acts), peer in zip(rows, peers):
        peer.setblocking(False)
        print(how, count - READ, "unread:", "; ".join(act(peer, what) for what in acts))


main()
