"""A server as inetd starts it to wait: accepts on its standard input, echoes, and ends when nobody comes for a second."""
import os
import socket

listener = socket.socket(fileno=os.dup(0))
listener.settimeout(1)
while True:
    try:
        connection, _ = listener.accept()
    except socket.timeout:
        break
    with connection:
        connection.settimeout(20)
        while part := connection.recv(1 << 16):
            connection.sendall(part)
