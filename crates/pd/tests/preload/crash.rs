//! A driver is killed while unmodified programs talk, and the service manager starts the next one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::takeover::SERVER;
use super::{Site, With, PORT};

#[allow(dead_code)] // tests of other crates use all of it
#[path = "../../../../tests/src/manager.rs"]
mod manager;

use manager::Manager;

/// Connections that are always used, and one that sleeps until the end. Another one is made when the test says so.
const CLIENT: &str = r"
import socket, sys, threading, hashlib
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
over = threading.Event()
counts = []
def use(peer, index):
    while not over.is_set():
        turn(peer, hashlib.sha256(str(counts[index]).encode()).digest() * (1 + counts[index] % 2000))
        counts[index] += 1
    peer.close()
sleeper = connect()
threads = []
for index in range(3):
    counts.append(0)
    threads.append(threading.Thread(target=use, args=(connect(), index)))
    threads[-1].start()
for line in sys.stdin:
    if line == 'counts\n':
        print(min(counts), flush=True)
    elif line == 'connect\n':
        with connect() as brief:
            turn(brief, b'brief')
        print('connected', flush=True)
over.set()
for thread in threads:
    thread.join()
turn(sleeper, b'awake')
print('all came back', flush=True)
";

impl Site {
    /// Waits until an answer comes from the admin socket.
    fn wait_for_driver(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
            command.args(["ls", "--json", "--admin-socket"]).arg(self.folder.path().join("admin.sock"));
            if command.output().unwrap().status.success() {
                return;
            }
            assert!(Instant::now() < until, "the driver does not answer");
        }
    }
}

#[test]
fn unmodified_programs_go_on_when_the_driver_is_killed() {
    let mut site = Site::new(197);
    let mut manager = Manager::new(site.folder.path());
    // Its place has a program that ends by itself.
    let mut first = std::mem::replace(&mut site.driver, Command::new("true").spawn().unwrap());
    first.kill().unwrap();
    first.wait().unwrap();
    let config = site.folder.path().join("driver.toml").display().to_string();
    let start = |manager: &mut Manager| {
        manager.start(&[env!("CARGO_BIN_EXE_pd"), "driver", "--config", &config]);
    };
    start(&mut manager);
    site.wait_for_driver();
    let server = site.serve(With::Library, &["python3", "-c", SERVER, PORT]);
    let mut client = site.run(3, With::Library, &["python3", "-c", CLIENT, &site.address(2), PORT]);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) =
        (client.stdin.take().unwrap(), BufReader::new(client.stdout.take().unwrap()));
    let mut tell = |command: &str| {
        writeln!(input, "{command}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    let mut go_on = || {
        let count = |said: String| said.parse::<u64>().unwrap();
        let before = count(tell("counts"));
        while count(tell("counts")) < before + 50 {}
    };
    go_on();
    for _ in 0..5 {
        manager.wait_for_snapshot();
        manager.kill();
        // No driver has a part in it.
        go_on();
        start(&mut manager);
        site.wait_for_driver();
        go_on();
    }
    assert_eq!(tell("connect"), "connected");
    drop(input);
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "all came back\n");
    assert!(client.wait().unwrap().success());
    assert!(site.connections() >= 1);
    drop(server);
}
