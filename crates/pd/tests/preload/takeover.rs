//! A driver takes another's place while unmodified programs talk.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Site, With, HANGS_AFTER, PORT};

/// A server that sends back what it gets.
pub(super) const SERVER: &str = r"
import socket, sys, threading
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])))
def echo(peer):
    while data := peer.recv(65536):
        peer.sendall(data)
    peer.close()
print('ready', flush=True)
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
";

/// A connection that is always used, one that sleeps until the end, and short ones, until the input ends.
const CLIENT: &str = r"
import socket, sys, threading, time, hashlib
def connect():
    return socket.create_connection((sys.argv[1], int(sys.argv[2])))
def turn(peer, data):
    peer.sendall(data)
    left = len(data)
    back = b''
    while len(back) < left:
        more = peer.recv(65536)
        assert more, 'the end'
        back += more
    assert back == data, 'other bytes'
busy, sleeper = connect(), connect()
over = threading.Event()
def listen():
    sys.stdin.read()
    over.set()
threading.Thread(target=listen).start()
turns = 0
while not over.is_set():
    turn(busy, hashlib.sha256(str(turns).encode()).digest() * (1 + turns % 2000))
    turns += 1
    time.sleep(0.001)
    if turns % 20 == 0:
        with connect() as brief:
            turn(brief, b'brief')
turn(sleeper, b'awake')
print('all came back')
";

impl Site {
    /// Starts another driver in the place of this one, which ends.
    fn take_over(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.args(["driver", "--take-over", "--config"]).arg(self.folder.path().join("driver.toml"));
        let mut previous = std::mem::replace(&mut self.driver, command.spawn().unwrap());
        let status = previous.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Waits until this driver has made `count` more connections.
    fn wait_for_connections(&self, count: u64) {
        let (wanted, until) = (self.connections() + count, Instant::now() + HANGS_AFTER);
        while self.connections() < wanted {
            assert!(Instant::now() < until, "no connection is made");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn unmodified_programs_go_on_while_a_driver_takes_over() {
    let mut site = Site::new(198);
    for with in [With::Library, With::Mediated] {
        let server = site.serve(with, &["python3", "-c", SERVER, PORT]);
        let mut client = site.run(3, with, &["python3", "-c", CLIENT, &site.address(2), PORT]);
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = client.stdin.take();
        // Two that stay, and short ones.
        site.wait_for_connections(4);
        for _ in 0..2 {
            site.take_over();
            site.wait_for_connections(4);
        }
        drop(input);
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "all came back\n");
        drop(server);
    }
}
