//! Local ports of connections with twins.

use super::{programs, Site, With, PORT};

/// A twin's port is unique, whatever its peer. Connections beyond the number of ports get theirs from the kernel, which
/// shares ports between peers.
#[test]
fn connections_that_find_no_port_of_their_own_are_the_kernels() {
    const OTHER: &str = "7301";
    let mut site = Site::new(86);
    // To have few ports.
    site.privileged = true;
    let [server, client] =
        ["echo.py", "ports.py"].map(|name| programs().join(name).to_str().unwrap().to_owned());
    let _server = site.serve(With::Library, &["python3", &server, "server", PORT, OTHER]);
    let client = ["python3", &client, "10.97.86.2", PORT, OTHER];
    let kernel = site.answer(With::Nothing, &client);
    assert_eq!((kernel.lines().count(), site.connections()), (20, 0));
    assert_eq!(site.answer(With::Library, &client), kernel);
    // Half of the ports; the others are left to the kernel's connections.
    assert_eq!(site.connections(), 8);
}

/// Half of the ports, side by side, are taken, as those of connections that ended a moment ago. `python3 -c AMONG IP PORT`
const AMONG: &str = "
import socket, sys
with open('/proc/sys/net/ipv4/ip_local_port_range', 'w') as file:
    file.write('40000 40400')
taken = [socket.socket() for _ in range(100)]
for number, sock in enumerate(taken):
    sock.bind(('', 40001 + 2 * number))
made = [socket.create_connection((sys.argv[1], int(sys.argv[2])), 20) for _ in range(90)]
for number, sock in enumerate(made):
    sock.sendall(b'%d' % number)
    print(sock.recv(100))
";

#[test]
fn connections_get_ports_though_many_side_by_side_are_taken() {
    let mut site = Site::new(201);
    site.privileged = true;
    let server = programs().join("echo.py").to_str().unwrap().to_owned();
    let _server = site.serve(With::Library, &["python3", &server, "server", PORT]);
    let ip = site.address(2);
    let answers = site.answer(With::Library, &["python3", "-c", AMONG, &ip, PORT]);
    assert_eq!((answers.lines().count(), site.connections()), (90, 90));
}

/// Two processes of one port (`SO_REUSEPORT`), each of which says by which it has accepted.
const SHARED_PORT: &str = "
import os, socket, sys
def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(('', int(sys.argv[1])))
    listener.listen(64)
    return listener
first = listen()
child = os.fork() == 0
if child: first.close()
else: os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
listener = listen() if child else first
if child: os.write(os.open(sys.argv[2], os.O_WRONLY), b'x')
else: print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    connection.sendall(connection.recv(10) + (b'child' if child else b'parent'))
    connection.close()
";

const MANY: &str = "
import socket, sys
answers = set()
for number in range(64):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as made:
        made.sendall(b'by ')
        answers.add(b''.join(iter(lambda: made.recv(100), b'')).decode())
print(sorted(answers))
";

#[test]
fn processes_that_share_a_port_accept_what_the_kernel_gives_them() {
    let site = Site::new(133);
    let pipe = site.folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    let server = ["python3", "-c", SHARED_PORT, PORT, pipe.to_str().unwrap()];
    let ip = site.address(2);
    site.compare(&server, &["python3", "-c", MANY, &ip, PORT]);
}
