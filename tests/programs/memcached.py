"""Clients of memcached, each a thread with a connection. `memcached.py ADDRESS [forever]`: prints what they have got,
which depends on the keys alone."""
import hashlib
import random
import socket
import sys
from concurrent.futures import ThreadPoolExecutor


def client(number):
    generator = random.Random(number)
    sock = socket.create_connection((sys.argv[1], 11211))
    stream = sock.makefile("rb")
    keys = {}
    sum = hashlib.sha256()
    while True:
        for turn in range(200):
            key = f"c{number}k{turn}"
            keys[key] = generator.randbytes(generator.choice([1, 100, 5000, 100_000]))
            sock.sendall(b"set %b 0 0 %d\r\n%b\r\n" % (key.encode(), len(keys[key]), keys[key]))
            assert stream.readline() == b"STORED\r\n"
        for key, expected in keys.items():
            sock.sendall(b"get %b\r\n" % key.encode())
            head = stream.readline().split()
            assert head[0] == b"VALUE" and int(head[3]) == len(expected), head
            found = stream.read(len(expected) + 2)[:-2]
            assert found == expected and stream.readline() == b"END\r\n"
            sum.update(found)
        if len(sys.argv) < 3:
            return sum.hexdigest()


with ThreadPoolExecutor(6) as pool:
    for found in pool.map(client, range(6)):
        print(found)
