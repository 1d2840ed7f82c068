//! Connections that are accepted without hooks: bytes sent meanwhile go over the kernel.

use super::{Server, Site, With, HANGS_AFTER};
use std::time::{Duration, Instant};

/// Listens at a port and at a file, and has both accepted by a program to which the library cannot be given.
const SERVER: &str = r#"
import socket, subprocess, sys
port = socket.create_server(("0.0.0.0", 7300))
file = socket.socket(socket.AF_UNIX)
file.bind(sys.argv[1])
file.listen()
fds = [port.fileno(), file.fileno()]
subprocess.run([*sys.argv[2:], *map(str, fds)], pass_fds=fds)
"#;

/// Starts it. The first bytes of each connection are appended to `into`. With "-" they are sent back.
fn serve_unhooked(site: &Site, path: &str, into: &str) -> Server {
    let taker = site.compiled("takes_words", &["-static"]);
    site.serve(With::Library, &["python3", "-c", SERVER, path, &taker, into])
}

/// Sends a line in each family and ends.
const LAST_WORDS: &str = r#"
import socket, sys
host, path, way = sys.argv[1:]
for family, address in [(socket.AF_INET, (host, 7300)), (socket.AF_UNIX, path)]:
    sock = socket.socket(family)
    sock.connect(address)
    sock.sendall(way.encode())
    if way == "closed":
        sock.close()
    else:
        sock.detach()
"#;

#[test]
fn last_words_arrive_where_nothing_is_hooked() {
    let site = Site::new(80);
    let [path, into] = ["file", "into"].map(|name| site.folder.path().join(name));
    let path = path.to_str().unwrap();
    let _server = serve_unhooked(&site, path, into.to_str().unwrap());
    for way in ["closed", "ended"] {
        assert_eq!(site.answer(With::Library, &["python3", "-c", LAST_WORDS, "10.97.80.2", path, way]), "");
    }
    assert!(site.connections() >= 4, "were made on the fabric first");
    let end = Instant::now() + HANGS_AFTER;
    loop {
        let mut lines = std::fs::read_to_string(&into).unwrap_or_default();
        lines = lines.lines().collect::<Vec<_>>().join(" ");
        if lines == "closed closed ended ended" {
            break;
        }
        assert!(Instant::now() < end, "only {lines:?} arrived");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Accepts on a file, and writes the first bytes to another one.
const FIRST_WORDS: &str = r#"
import os, socket, sys
path, into = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("ready", flush=True)
peer = listener.accept()[0]
got = peer.recv(100)
with open(into + ".new", "wb") as file:
    file.write(got)
os.rename(into + ".new", into)
peer.recv(1)
"#;

/// Holds sockets, connects to a file, sends a word and calls nothing more.
const CROWD: &str = r#"
import resource, socket, sys, threading
path, count = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * count, 2 * count))
crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
sock = socket.socket(socket.AF_UNIX)
sock.connect(path)
sock.sendall(b"word")
print("ready", flush=True)
threading.Event().wait()
"#;

/// The driver looks for no socket of AF_UNIX among so many, and the accepting process takes the kernel's connection.
#[test]
fn a_word_arrives_from_where_there_are_too_many_sockets_to_look_through() {
    let site = Site::new(231);
    for count in ["100", "8300"] {
        let [path, into] = ["file", "into"].map(|name| site.folder.path().join(format!("{name}-{count}")));
        let (path, into) = (path.to_str().unwrap(), into.to_str().unwrap());
        let _server = site.serve(With::Library, &["python3", "-c", FIRST_WORDS, path, into]);
        let before = site.connections();
        let _client = site.serve_at(3, With::Library, &["python3", "-c", CROWD, path, count]);
        let end = Instant::now() + HANGS_AFTER;
        while !std::path::Path::new(into).exists() {
            assert!(Instant::now() < end, "nothing has arrived from among {count} sockets");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(std::fs::read(into).unwrap(), b"word");
        assert_eq!(site.connections() - before, u64::from(count == "100"));
    }
}

/// A word that was sent before the peer has taken its end waits for no call of the sender's.
#[test]
fn a_word_arrives_whatever_its_sender_does_then() {
    const WAYS: [&str; 17] = [
        "sleep",
        "usleep",
        "nanosleep",
        "clock_nanosleep",
        "pause",
        "sigsuspend",
        "sigwait",
        "wait",
        "waitpid",
        "waitid",
        "read",
        "accept",
        "recv",
        "recvmsg",
        "join",
        "computes",
        "unshare",
    ];
    let mut site = Site::new(232);
    site.privileged = true;
    let [path, into] = ["file", "into"].map(|name| site.folder.path().join(name));
    let (path, program) = (path.to_str().unwrap(), site.compiled("falls_silent", &[]));
    let _server = serve_unhooked(&site, path, into.to_str().unwrap());
    let places = [&["10.97.232.2", "7300"][..], &[path]];
    for (way, to) in WAYS.into_iter().flat_map(|way| places.map(|to| (way, to))) {
        std::fs::write(&into, "").unwrap();
        let _client = site.serve_at(3, With::Library, &[&[&program, way], to].concat());
        let end = Instant::now() + HANGS_AFTER;
        while std::fs::read_to_string(&into).unwrap() != format!("{way}\n") {
            assert!(Instant::now() < end, "a word has not arrived: {way} {to:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(site.connections() >= 2 * WAYS.len() as u64, "were made on the fabric first");
}

/// Sends much at once, and receives it with the same thread or another one. The peer sends more than there is room for
/// while nobody receives.
const CLIENT: &str = r#"
import select, socket, sys, threading
BULK = bytes(range(251)) * 16384
def receive(sock):
    data = b""
    while part := sock.recv(65536):
        data += part
    return data == BULK
def with_threads(sock):
    def feed():
        sock.sendall(BULK)
        sock.shutdown(socket.SHUT_WR)
    feeder = threading.Thread(target=feed)
    feeder.start()
    right = receive(sock)
    feeder.join()
    return right
def with_poll(sock):
    sock.setblocking(False)
    sent, data = 0, b""
    while len(data) < len(BULK):
        _, out, _ = select.select([sock], [sock] if sent < len(BULK) else [], [])
        if out:
            sent += sock.send(BULK[sent:sent + (1 << 20)])
        try:
            data += sock.recv(65536)
        except BlockingIOError:
            pass
    return data == BULK
host, path, way = sys.argv[1:]
for family, address in [(socket.AF_INET, (host, 7300)), (socket.AF_UNIX, path)]:
    with socket.socket(family) as sock:
        sock.connect(address)
        print("threads" if way == "threads" else "poll", (with_threads if way == "threads" else with_poll)(sock))
"#;

/// Forks before the peer is learned of.
const FORKED: &str = r#"
import os, socket, sys
host, path = sys.argv[1:]
for family, address in [(socket.AF_INET, (host, 7300)), (socket.AF_UNIX, path)]:
    with socket.socket(family) as sock:
        sock.connect(address)
        sock.sendall(b"parent,")
        if os.fork() == 0:
            sock.sendall(b"child,")
            os._exit(0)
        os.wait()
        sock.sendall(b"parent")
        data = b""
        while len(data) < 19:
            data += sock.recv(100)
        print(data.decode())
"#;

#[test]
fn a_fork_before_the_peer_is_heard_of_loses_nothing() {
    let site = Site::new(81);
    let path = site.folder.path().join("file");
    let path = path.to_str().unwrap();
    let _server = serve_unhooked(&site, path, "-");
    let answer = site.answer(With::Library, &["python3", "-c", FORKED, "10.97.81.2", path]);
    assert_eq!(answer, "parent,child,parent\n".repeat(2));
    assert!(site.connections() >= 2, "were made on the fabric first");
}

#[test]
fn whoever_finds_out_does_not_wait_for_the_peer() {
    let site = Site::new(78);
    let path = site.folder.path().join("file");
    let path = path.to_str().unwrap();
    for way in ["threads", "poll"] {
        let server = serve_unhooked(&site, path, "-");
        // Of containers of their own, since addresses where nobody claims are remembered.
        let answer = site.answer(With::Library, &["python3", "-c", CLIENT, "10.97.78.2", path, way]);
        assert_eq!(answer, format!("{way} True\n").repeat(2));
        drop(server);
        std::fs::remove_file(path).unwrap();
    }
    assert!(site.connections() >= 2, "as many were made on the fabric first");
}

/// Accepts late, and says when it has got all.
const LATE: &str = r#"
import select, socket, sys, time
listener = socket.create_server(("0.0.0.0", 7300))
print("ready", flush=True)
while True:
    select.select([listener], [], [])
    time.sleep(0.03)
    sock, _ = listener.accept()
    got = b""
    while len(got) < int(sys.argv[1]):
        got += sock.recv(65536)
    sock.sendall(got)
    sock.close()
"#;

/// Sends as much as possible on each edge, before the peer has accepted, and after.
const EDGES: &str = r#"
import select, socket, sys
BULK = bytes(range(251)) * 4096
sock = socket.create_connection((sys.argv[1], 7300))
sock.setblocking(False)
epoll = select.epoll()
epoll.register(sock, select.EPOLLOUT | select.EPOLLIN | select.EPOLLET)
sent, vain, data = 0, 0, bytearray()
while len(data) < len(BULK):
    (_, events), = epoll.poll()
    before = sent
    try:
        while sent < len(BULK):
            sent += sock.send(BULK[sent:])
    except BlockingIOError:
        vain += events == select.EPOLLOUT and sent == before
    try:
        while part := sock.recv(65536):
            data += part
    except BlockingIOError:
        pass
print(data == BULK, vain)
"#;

#[test]
fn edges_tell_when_the_peer_has_come() {
    let site = Site::new(82);
    let _server = site.serve(With::Library, &["python3", "-c", LATE, &(251 * 4096).to_string()]);
    for _ in 0..5 {
        assert_eq!(site.answer(With::Library, &["python3", "-c", EDGES, "10.97.82.2"]), "True 0\n");
    }
    assert!(site.connections() >= 1, "was made on the fabric");
}

/// Answers whatever comes.
const ANSWERING: &str = "
import socket
listener = socket.create_server(('0.0.0.0', 7300))
print('ready', flush=True)
while True:
    with listener.accept()[0] as connection:
        while data := connection.recv(100):
            connection.sendall(data)
";

/// Makes connections one after the other, and says by how many KiB that has made it larger.
const MANY: &str = r#"
import socket, sys
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
def connect(times):
    for n in range(times):
        with socket.create_connection((sys.argv[1], 7300)) as sock:
            # Half of them send nothing. Some send often, or all would soon be the kernel's.
            for _ in range((0, 1, 0, 1, 0, 1, 0, 10)[n % 8]):
                sock.sendall(b"x")
                sock.recv(1)
connect(1000)
before = resident()
connect(6000)
print(resident() - before)
"#;

#[test]
fn connections_that_are_over_leave_nothing_behind() {
    let site = Site::new(84);
    let _server = site.serve(With::Library, &["python3", "-c", ANSWERING]);
    let grown = site.answer(With::Library, &["python3", "-c", MANY, "10.97.84.2"]);
    let grown: i64 = grown.trim().parse().unwrap();
    assert!(grown < 400, "{grown} KiB");
    assert!(site.connections() >= 1000, "were made on the fabric");
}
