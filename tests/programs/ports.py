"""Few local ports. `ports.py IP PORT OTHER` opens more connections at a time than it has ports, to each of the two fewer, and
prints what came back."""
import socket
import sys

PORTS = 16
CONNECTIONS = (12, 8)


def main(ip, *ports):
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w") as file:
        file.write(f"40000 {40000 + PORTS - 1}")
    socks = []
    for port, count in zip(map(int, ports), CONNECTIONS):
        socks += [socket.create_connection((ip, port), 20) for _ in range(count)]
    for number, sock in enumerate(socks):
        sock.sendall(b"%d" % number)
        print(sock.recv(100), sock.getsockname()[1] - 40000 in range(PORTS), sock.getpeername()[1])


main(*sys.argv[1:])
