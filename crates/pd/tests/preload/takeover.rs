//! A driver takes another's place while unmodified programs talk.

use std::process::Command;
use std::time::Duration;

use super::{answer_of, Site, With, PORT};

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

/// A connection that is always used, one that sleeps until the end, and short ones.
const CLIENT: &str = r"
import socket, sys, time, hashlib
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
end = time.monotonic() + float(sys.argv[3])
turns = 0
while time.monotonic() < end:
    turn(busy, hashlib.sha256(str(turns).encode()).digest() * (1 + turns % 2000))
    turns += 1
    time.sleep(0.001)
    if turns % 20 == 0:
        with connect() as brief:
            turn(brief, b'brief')
turn(sleeper, b'awake')
assert turns > 20
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
}

#[test]
fn unmodified_programs_go_on_while_a_driver_takes_over() {
    let mut site = Site::new(198);
    for with in [With::Library, With::Mediated] {
        let before = site.connections();
        let server = site.serve(with, &["python3", "-c", SERVER, PORT]);
        let ip = site.address(2);
        let mut client = site.run(3, with, &["python3", "-c", CLIENT, &ip, PORT, "6"]);
        let answer = std::thread::spawn(move || answer_of(&mut client));
        while site.connections() < before + 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
        site.take_over();
        std::thread::sleep(Duration::from_millis(200));
        site.take_over();
        assert_eq!(answer.join().unwrap(), "all came back\n");
        // The later drivers have made connections, too.
        assert!(site.connections() > 2);
        drop(server);
    }
}
