"""Fetches files by HTTP. `fetch.py ADDRESS:PORT NAME...`: prints a line of checksums for each way; they depend on
the files alone."""
import concurrent.futures
import hashlib
import http.client
import socket
import sys
import time

ADDRESS, NAMES = sys.argv[1], sys.argv[2:]


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def get(connection, name, **headers):
    connection.request("GET", "/" + name, headers=headers)
    answer = connection.getresponse()
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


for way in (kept, one_each, parts, slowly, pipelined):
    print(way.__name__, *way())
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    for found in pool.map(lambda _: kept(), range(8)):
        print("together", *found)
