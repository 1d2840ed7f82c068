"""Fetches files by HTTP. `fetch.py [--reloading] ADDRESS:PORT NAME...`: prints a line of checksums for each way; they
depend on the files alone.

With `--reloading` the server may be told to reload meanwhile. Workers that end close connections that wait for a
request, and cannot know that one is on its way (RFC 9112, 9.3.1): with kernel TCP too. So a request is made once more
if a connection that had served one before ends without a byte of the answer. An answer that has begun is whole, and a
new connection serves its request, whatever happens."""
import argparse
import concurrent.futures
import hashlib
import http.client
import socket
import time

parser = argparse.ArgumentParser()
parser.add_argument("--reloading", action="store_true")
parser.add_argument("address")
parser.add_argument("names", nargs="+")
arguments = parser.parse_args()
ADDRESS, NAMES, RELOADING = arguments.address, arguments.names, arguments.reloading


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def ask(connection, name, headers):
    served = connection.sock is not None
    try:
        connection.request("GET", "/" + name, headers=headers)
        return connection.getresponse()
    except (ConnectionResetError, BrokenPipeError):
        if not (RELOADING and served):
            raise
    connection.close()
    connection.request("GET", "/" + name, headers=headers)
    return connection.getresponse()


def get(connection, name, **headers):
    answer = ask(connection, name, headers)
    body = answer.read()
    assert answer.status in (200, 206), answer.status
    return body


def kept():
    """All on one connection, three times."""
    connection = http.client.HTTPConnection(ADDRESS, timeout=60)
    return [digest(get(connection, name)) for _ in range(3) for name in NAMES]


def one_each():
    found = []
    for name in NAMES:
        connection = http.client.HTTPConnection(ADDRESS, timeout=60)
        found.append(digest(get(connection, name, Connection="close")))
        connection.close()
    return found


def parts():
    connection = http.client.HTTPConnection(ADDRESS, timeout=60)
    return [digest(get(connection, NAMES[-1], Range=f"bytes={first}-{first + 99_999}")) for first in (0, 7, 4_000_000)]


def slowly():
    """The client reads little by little: the server's buffers fill."""
    host, port = ADDRESS.split(":")
    with socket.create_connection((host, port)) as sock:
        sock.sendall(f"GET /{NAMES[-1]} HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        time.sleep(0.3)
        data = b""
        while part := sock.recv(10_000):
            data += part
            if len(data) < 100_000:
                time.sleep(0.005)
    return [digest(data.split(b"\r\n\r\n", 1)[1])]


def pipelined():
    """Ten requests in one segment."""
    host, port = ADDRESS.split(":")
    request = "".join(f"GET /{NAMES[2]} HTTP/1.1\r\nHost: x\r\n\r\n" for _ in range(9))
    last = f"GET /{NAMES[2]} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with socket.create_connection((host, port)) as sock:
        sock.sendall((request + last).encode())
        bodies, stream = [], sock.makefile("rb")
        while line := stream.readline():
            length, chunked = 0, False
            while line.strip():
                name, _, content = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(content)
                line = stream.readline()
            bodies.append(digest(stream.read(length)))
    assert len(bodies) == 10
    return bodies


# A worker that ends answers no more than the request it is at: not what was sent behind it.
WAYS = (kept, one_each, parts, slowly) if RELOADING else (kept, one_each, parts, slowly, pipelined)
for way in WAYS:
    print(way.__name__, *way())
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for found in pool.map(lambda _: kept(), range(8)):
        print("together", *found)
