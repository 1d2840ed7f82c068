//! Connections whose descriptors are passed from process to process.

use super::{Site, With, PORT};

/// In all ways, with either process sending, receiving, setting options and ending first.
#[test]
fn next_owners_of_a_connection_go_on_with_it() {
    let mut site = Site::new(177);
    // Some get namespaces of their own.
    site.privileged = true;
    let program = site.compiled("next_owners", &[]);
    let file = site.folder.path().join("next_owners.sock");
    let (program, address, file) = (program.as_str(), site.address(2), file.to_str().unwrap());
    let answer = |site: &Site, with: With| {
        let _server = site.serve(with, &[program, "server", PORT, file]);
        site.answer(with, &[program, "client", &address, PORT, file])
    };
    let expected = answer(&site, With::Nothing);
    for preload in ["--preload=all", "--preload"] {
        site.preload = preload;
        let before = site.connections();
        assert_eq!(answer(&site, With::Library), expected, "{preload}");
        assert!(site.connections() > before, "{preload}: none on the fabric");
    }
}

/// A server that starts an image with a listener, in an environment without the library, as mail servers do. In one way the image
/// changes its root before it accepts.
const GIVES_LISTENER: &str = "
import os, socket, sys
listener = socket.create_server(('', int(sys.argv[1])))
image = \"\"\"
import os, socket, sys, tempfile
listener = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == 'hides':
    folder = tempfile.mkdtemp()
    os.chroot(folder)
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    connection.sendall(connection.recv(100).upper())
    connection.close()
\"\"\"
if os.fork() == 0:
    listener.set_inheritable(True)
    os.execve(sys.executable, [sys.executable, '-c', image, str(listener.fileno()), sys.argv[2]], {})
os.wait()
";

/// A client finds the listener of the process that made it, and would wait half a second for an image that accepts without the library.
#[test]
fn an_image_that_gets_a_listener_takes_its_connections() {
    const CLIENT: &str = "
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(b'right')
print(connection.recv(100).decode(), flush=True)
";
    let site = Site::new(188);
    for way in ["stays", "hides"] {
        let _ = std::fs::remove_file(site.log());
        let server = site.serve(With::Library, &["python3", "-c", GIVES_LISTENER, PORT, way]);
        let before = site.connections();
        let answer = site.answer(With::Library, &["python3", "-c", CLIENT, &site.address(2), PORT]);
        drop(server);
        assert_eq!(answer, "RIGHT\n", "{way}");
        let said = std::fs::read_to_string(site.log()).unwrap();
        assert!(!said.contains("nobody took the connection"), "{way}: {said}");
        assert_eq!(site.connections() - before, 1, "{way}: {said}");
    }
}

/// A connection that is sent to a process of another network namespace before its peer has accepted it, as FTP servers do with data connections.
#[test]
fn a_connection_goes_to_another_network_namespace_before_it_is_accepted() {
    const SERVER: &str = "
import socket, sys
listener, told = [socket.create_server(('', int(sys.argv[1]) + more)) for more in (0, 1)]
print('ready', flush=True)
while True:
    told.accept()[0].recv(1)
    connection = listener.accept()[0]
    while got := connection.recv(100): connection.sendall(got.upper())
    connection.close()
";
    const CLIENT: &str = "
import ctypes, os, socket, sys
CLONE_NEWNET = 0x40000000
address, port = sys.argv[1], int(sys.argv[2])
here, there = socket.socketpair()
there_pipe, here_pipe = os.pipe()
if os.fork() == 0:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET): raise OSError(ctypes.get_errno(), 'unshare')
    fd = socket.recv_fds(there, 1, 1)[1][0]
    connection = socket.socket(fileno=fd)
    connection.sendall(b'by the next owner')
    os.write(here_pipe, b'x')
    print(connection.recv(100), flush=True)
    connection.shutdown(socket.SHUT_WR)
    print(connection.recv(100), flush=True)
    os._exit(0)
os.close(here_pipe)
connection = socket.create_connection((address, port))
socket.send_fds(here, [b'x'], [connection.fileno()])
connection.close()
assert os.read(there_pipe, 1) == b'x'
socket.create_connection((address, port + 1)).sendall(b'x')
os.wait()
";
    let mut site = Site::new(190);
    site.privileged = true;
    let ip = site.address(2);
    let server = ["python3", "-c", SERVER, PORT];
    let client = ["python3", "-c", CLIENT, &ip, PORT];
    for with in [With::Nothing, With::Library, With::Mediated] {
        let before = site.connections();
        let running = site.serve(with, &server);
        assert_eq!(site.answer(with, &client), "b'BY THE NEXT OWNER'\nb''\n", "{with:?}");
        drop(running);
        assert_eq!(site.connections() > before, with != With::Nothing, "{with:?}");
    }
}

/// Streams of the C library read and write behind the hooks. Also those whose numbers become connections while the program runs, as with a
/// shell's redirections, and those of an image that gets a connection to a file.
#[test]
fn standard_streams_lead_where_their_numbers_do() {
    let mut site = Site::new(189);
    let program = site.compiled("streams", &[]);
    let file = site.folder.path().join("streams.sock");
    let (program, address, file) = (program.as_str(), site.address(2), file.to_str().unwrap());
    let answer = |site: &Site, with: With| {
        let _server = site.serve(with, &[program, "server", PORT, file]);
        site.answer(with, &[program, "client", &address, PORT, file])
    };
    let expected = answer(&site, With::Nothing);
    for preload in ["--preload=all", "--preload", "--preload=short"] {
        site.preload = preload;
        for with in [With::Library, With::Mediated] {
            let before = site.connections();
            assert_eq!(answer(&site, with), expected, "{preload} {with:?}");
            assert!(site.connections() > before, "{preload}: none on the fabric");
        }
    }
}

/// Echoes bytes in capitals, by two processes in turn; a process that ends serves the last part of some.
const IN_TURN: &str = "
import os, socket, sys
turns = int(sys.argv[2])
listener = socket.create_server(('', int(sys.argv[1])))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    there, back = os.pipe(), os.pipe()
    child = os.fork()
    mine, other = (there[0], back[1]) if child == 0 else (back[0], there[1])
    for turn in range(turns):
        if child == 0 or turn > 0: os.read(mine, 1)
        connection.sendall(connection.recv(100).upper())
        os.write(other, b'x')
    if child == 0: os._exit(0)
    os.waitpid(child, 0)
    connection.close()
    for end in there + back: os.close(end)
";

const ASKS_IN_TURN: &str = "
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for turn in range(2 * int(sys.argv[3])):
    connection.sendall(b'turn %d' % turn)
    assert connection.recv(100) == b'TURN %d' % turn, turn
assert connection.recv(100) == b''
print('all turns', flush=True)
";

/// Each move is a request to the driver, so that the kernel is faster. In a tenant with a rate the connection stays.
#[test]
fn a_connection_that_processes_use_in_turn_goes_on_in_the_kernel() {
    let site = Site::new(179);
    let ip = site.address(2);
    for (with, is_left) in [(With::Library, true), (With::Mediated, true), (With::Rated, false)] {
        let _ = std::fs::remove_file(site.log());
        let running = site.serve(with, &["python3", "-c", IN_TURN, PORT, "40"]);
        let answer = site.answer(with, &["python3", "-c", ASKS_IN_TURN, &ip, PORT, "40"]);
        drop(running);
        assert_eq!(answer, "all turns\n");
        let said = std::fs::read_to_string(site.log()).unwrap();
        let moves = said.matches("took the connection over").count();
        assert_eq!(
            said.matches("leaves the fabric: several processes use it in turn").count() > 0,
            is_left,
            "{said}"
        );
        assert_eq!(moves < 20, is_left, "{moves} moves\n{said}");
    }
}

/// Few turns are no reason to leave the fabric.
#[test]
fn a_connection_that_a_child_takes_over_stays_on_the_fabric() {
    let site = Site::new(180);
    let running = site.serve(With::Library, &["python3", "-c", IN_TURN, PORT, "2"]);
    let answer = site.answer(With::Library, &["python3", "-c", ASKS_IN_TURN, &site.address(2), PORT, "2"]);
    drop(running);
    assert_eq!(answer, "all turns\n");
    let said = std::fs::read_to_string(site.log()).unwrap();
    assert!(said.contains("took the connection over") && !said.contains("leaves the fabric"), "{said}");
}

/// The byte behind the mark is the program's, whichever process takes the mark off.
#[test]
fn two_processes_that_receive_at_once_get_every_byte() {
    let site = Site::new(182);
    let program = site.compiled("marks", &[]);
    let _server = site.serve(With::Library, &[&program, "server", PORT]);
    let answer = site.answer(With::Library, &[&program, "client", &site.address(2), PORT, "150"]);
    assert_eq!(answer, "150 whole\n");
    let said = std::fs::read_to_string(site.log()).unwrap();
    assert!(said.matches("leaves the fabric: an option").count() > 100, "{said}");
}

/// A process may register 1,024 listeners. On a further one, which another process registered, it still claims connections at once.
#[test]
fn who_may_not_speak_for_a_listener_takes_its_connections_at_once() {
    const SERVER: &str = "
import os, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
listener = socket.create_server(('', int(sys.argv[1])))
if os.fork(): os.wait()
more = [socket.create_server(('', 0), backlog=1) for number in range(1030)]
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    connection.sendall(connection.recv(100).upper())
    connection.close()
";
    const CLIENT: &str = "
import socket, sys
for number in range(5):
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.sendall(b'right')
    print(connection.recv(100).decode(), flush=True)
";
    let site = Site::new(183);
    let _server = site.serve(With::Library, &["python3", "-c", SERVER, PORT]);
    let answer = site.answer(With::Library, &["python3", "-c", CLIENT, &site.address(2), PORT]);
    assert_eq!(answer, "RIGHT\n".repeat(5));
    let said = std::fs::read_to_string(site.log()).unwrap();
    assert!(said.contains("listens on kernel TCP only"), "{said}");
    assert!(!said.contains("nobody took the connection"), "{said}");
    assert_eq!(said.matches("accepted on the fabric").count(), 5, "{said}");
}

/// Echoes what comes in capitals, by another image, for each of the ways in which that waits. In the way "full" it has used up its
/// descriptors before. Otherwise there is no room for it at the driver until it has tried.
const LEAVES_TO_IMAGES: &str = "
import os, resource, select, socket, subprocess, sys, time
if sys.argv[1] == 'fills':
    listener = socket.create_server(('', 0))
    print('fills', flush=True)
    sys.stdin.read()
elif sys.argv[1] == 'next_owner':
    way, fd = sys.argv[2], int(sys.argv[3])
    if way == 'full':
        try:
            while True: os.dup(0)
        except OSError: pass
    os.write(2, b'begins\\n')
    if way in ('read', 'full'): got = os.read(fd, 100)
    else:
        os.set_blocking(fd, False)
        if way == 'epoll':
            epoll = select.epoll()
            epoll.register(fd, select.EPOLLIN)
        got = None
        while got is None:
            if way == 'poll': select.select([fd], [], [], 1)
            if way == 'epoll': epoll.poll(1)
            try: got = os.read(fd, 100)
            except BlockingIOError: pass
    os.write(fd, got.upper())
    os.set_blocking(fd, True)
    while os.read(fd, 1): pass
else:
    listener = socket.create_server(('', int(sys.argv[1])))
    print('ready', flush=True)
    def refusals():
        log = os.environ.get('PD_PRELOAD_LOG')
        return open(log).read().count('are attached: raise its clients_max') if log else None
    while True:
        connection = listener.accept()[0]
        way = connection.recv(100).decode()
        connection.sendall(b'sent')
        assert connection.recv(6, socket.MSG_PEEK | socket.MSG_WAITALL) == b'hello!'
        if way != 'full':
            filler = subprocess.Popen([sys.executable, '-c', os.environ['IMAGE'], 'fills'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            filler.stdout.readline()
        before = refusals()
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))) if way == 'full' else None
        next_owner = subprocess.Popen([sys.executable, '-c', os.environ['IMAGE'], 'next_owner', way, str(connection.fileno())],
                                pass_fds=[connection.fileno()], preexec_fn=limit, stderr=subprocess.PIPE)
        connection.close()
        next_owner.stderr.readline()
        if way != 'full':
            while before is not None and refusals() == before: time.sleep(0.01)
            filler.communicate()
        next_owner.wait()
";

const ASKS_IMAGES: &str = "
import socket, sys
for way in sys.argv[3:]:
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    connection.sendall(way.encode())
    assert connection.recv(4, socket.MSG_WAITALL) == b'sent'
    connection.sendall(b'hello!')
    print(way, connection.recv(100), flush=True)
    connection.close()
";

/// An image that gets a connection and has no room to take it over, at the driver or for descriptors, waits for room. It does not take the
/// connection for the kernel's, where its peer's bytes would never come.
#[test]
fn an_image_without_room_waits_for_its_connection() {
    let site = Site::new(186);
    let ways = ["read", "busy", "poll", "epoll", "full"];
    let ip = site.address(2);
    let server = ["env", &format!("IMAGE={LEAVES_TO_IMAGES}"), "python3", "-c", LEAVES_TO_IMAGES, PORT];
    let client = [&["python3", "-c", ASKS_IMAGES, &ip, PORT][..], &ways].concat();
    let expected: String = ways.iter().map(|way| format!("{way} b'HELLO!'\n")).collect();
    for has in [With::Nothing, With::Few] {
        let running = site.serve(has, &server);
        assert_eq!(site.answer(has, &client), expected, "{has:?}");
        drop(running);
    }
    let said = std::fs::read_to_string(site.log()).unwrap();
    assert_eq!(said.matches("accepted on the fabric").count(), ways.len(), "{said}");
    assert_eq!(said.matches("are attached: raise its clients_max").count(), ways.len() - 1, "{said}");
}

/// Bytes that an image has left unread are there for the next one's first call, as in the kernel.
#[test]
fn a_process_that_replaces_itself_finds_what_it_has_left() {
    let site = Site::new(187);
    let program = site.compiled("replaces", &[]);
    let mut expected = None;
    for has in [With::Nothing, With::Library, With::Mediated] {
        let before = site.connections();
        let running = site.serve(has, &[&program, "server", PORT]);
        let answer = site.answer(has, &[&program, "client", &site.address(2), PORT]);
        drop(running);
        let expected = expected.get_or_insert_with(|| answer.clone());
        assert_eq!(&answer, expected, "{has:?}");
        assert_eq!(site.connections() - before, if has == With::Nothing { 0 } else { 4 }, "{has:?}");
    }
    assert_eq!(expected.unwrap().matches(": all\n").count(), 4);
}
