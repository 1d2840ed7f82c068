"""Talks to a server that echoes: `bulk.py ADDRESS PORT BYTES`. Lines first, then bytes, while they come back, and the end."""
import hashlib
import socket
import sys
import threading

address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = socket.create_connection((address, port), 20)
connection.settimeout(60)
for line in (b"hello\n", b"again\n", b"and again\n"):
    connection.sendall(line)
    heard = b""
    while len(heard) < len(line):
        part = connection.recv(len(line) - len(heard))
        assert part, "an early end"
        heard += part
    assert heard == line, heard
content = bytes((at * 7 + (at >> 8)) & 255 for at in range(1 << 16)) * (count >> 16)


def send():
    connection.sendall(content)
    connection.shutdown(socket.SHUT_WR)


sender = threading.Thread(target=send)
sender.start()
heard = hashlib.sha256()
total = 0
while part := connection.recv(1 << 16):
    heard.update(part)
    total += len(part)
sender.join()
print(total, heard.hexdigest() == hashlib.sha256(content).hexdigest())
