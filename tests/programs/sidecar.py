"""Both ends of connections that a proxy may stand between. All bytes are checked.

`sidecar.py server PORT PORT_WITH_HEADER PORT_OF_HTTP...` serves plain ports up to the one that expects the PROXY protocol, and HTTP on the others.
`sidecar.py talk NAME PORT` talks to a plain port, both ways at once, ends its own half first, and prints the names that the other end saw.
`sidecar.py talk4 NAME PORT` does so over IPv4 alone.
`sidecar.py http NAME PORT` does the same by requests on one connection. `sidecar.py hold NAME PORT` talks until the connection breaks.
All else goes over IPv4 and IPv6."""
import errno
import http.client
import http.server
import random
import socket
import sys
import threading

FAMILIES = (socket.AF_INET, socket.AF_INET6)
BYTES = 3_000_000
# Not a multiple of anything that a transport may cut bytes into.
BLOCK = 65_521


def pattern(seed, count):
    """A stream of this many bytes, in pieces."""
    block = random.Random(seed).randbytes(BLOCK)
    for at in range(0, count, BLOCK):
        yield block[:count - at]


def send(sock, seed, count):
    for piece in pattern(seed, count):
        sock.sendall(piece)


def expect(stream, seed, count):
    for piece in pattern(seed, count):
        assert stream.read(len(piece)) == piece, "other bytes than were sent"


def name_of(address):
    """The name that /etc/hosts has for an address, of which a program may see the mapped form."""
    address = address.removeprefix("::ffff:")
    with open("/etc/hosts") as lines:
        for line in lines:
            words = line.split("#")[0].split()
            if words and words[0] == address:
                return words[1]
    return address


def address_of(name, port, family):
    return socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)[0][4]


def header(stream):
    """The source that a header of the PROXY protocol names, version 1."""
    words = stream.readline().decode().split()
    assert words[0] == "PROXY" and words[1] in ("TCP4", "TCP6"), words
    return name_of(words[2])


def answer(sock, peer, port, has_header):
    with sock, sock.makefile("rb") as stream:
        about = f"for {header(stream)}" if has_header else ""
        seed, count = map(int, stream.readline().split())
        sender = threading.Thread(target=send, args=(sock, seed + 1, count))
        sender.start()
        expect(stream, seed, count)
        # The other half is open still: what follows is sent after the client has ended its own.
        assert stream.read() == b""
        sender.join()
        sock.sendall(f"port {port} from {name_of(peer[0])} {about}\n".encode())


def accept(listener, has_header):
    port = listener.getsockname()[1]
    while True:
        sock, peer = listener.accept()
        threading.Thread(target=answer, args=(sock, peer, port, has_header), daemon=True).start()


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Seen", f"port {self.server.server_port} from {name_of(self.client_address[0])}"
                                   f" for {name_of(self.headers.get('X-Forwarded-For', ''))}")
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True


def listen(port):
    return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)


def server(plain, with_header, *of_http):
    servers = [(accept, (listen(int(plain)), False)), (accept, (listen(int(plain) + 1), False)),
               (accept, (listen(int(with_header)), True))]
    servers += [(Server(("::", int(port)), Web).serve_forever, ()) for port in of_http]
    threads = [threading.Thread(target=work, args=arguments) for work, arguments in servers]
    for thread in threads:
        thread.start()


def talk4(name, port):
    talk(name, port, FAMILIES[:1])


def talk(name, port, families=FAMILIES):
    for family in families:
        with socket.create_connection(address_of(name, port, family)[:2], timeout=30) as sock, sock.makefile("rb") as stream:
            def say():
                sock.sendall(f"{port} {BYTES}\n".encode())
                send(sock, int(port), BYTES)
                sock.shutdown(socket.SHUT_WR)

            sender = threading.Thread(target=say)
            sender.start()
            expect(stream, int(port) + 1, BYTES)
            print(f"IPv{4 if family == socket.AF_INET else 6}", stream.readline().decode().strip(), stream.read())
            sender.join()


def over_http(name, port):
    for family in FAMILIES:
        connection = http.client.HTTPConnection(address_of(name, port, family)[0], int(port), timeout=30)
        for count in (1, 1000, BYTES, 70_000):
            body = b"".join(pattern(count, count))
            connection.request("POST", "/", body)
            answered = connection.getresponse()
            assert answered.status == 200, answered.status
            assert answered.read() == body[::-1], "other bytes than were sent"
            print(f"IPv{4 if family == socket.AF_INET else 6}", count, answered.headers["X-Seen"])


def hold(name, port):
    """Goes on until the connection breaks. An end without an error is one, too."""
    with socket.create_connection(address_of(name, port, socket.AF_INET)[:2], timeout=60) as sock:
        count = 1 << 40
        sock.sendall(f"{port} {count}\n".encode())
        threading.Thread(target=send, args=(sock, int(port), count), daemon=True).start()
        print("holds", flush=True)
        try:
            with sock.makefile("rb") as stream:
                expect(stream, int(port) + 1, count)
        except (AssertionError, ConnectionResetError, BrokenPipeError):
            print("broken", flush=True)


def refused(name, port):
    """Each connect fails with the errno of a port without a listener."""
    for family in FAMILIES:
        with socket.socket(family) as sock:
            print(errno.errorcode[sock.connect_ex(address_of(name, port, family))])


globals()[{"http": "over_http"}.get(sys.argv[1], sys.argv[1])](*sys.argv[2:])
