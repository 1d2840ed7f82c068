//! TCP by smoltcp over pipes: against itself over a link, and against the kernel's TCP over a TAP device.

mod stand;

use pd_apps::random::Random;
use pd_driver::admin::{add_port, PortSpec};
use pd_driver::openers::namespace_file;
use procfs::process::Process;
use rustix::thread::{move_into_link_name_space, LinkNameSpaceType};
use stand::{Program, Stand};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

impl Stand {
    fn add(&self, name: &str, port: PortSpec, namespace: Option<&str>) {
        let namespace = namespace.map(namespace_file);
        add_port(&self.settings.admin_socket, name, port, namespace.as_deref()).unwrap();
    }

    fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).env("PD_SOCKET", &self.settings.socket);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts a server, and returns when it has its pipes.
    fn echo(&self, words: &[&str]) -> Program {
        let server = self.command(env!("CARGO_BIN_EXE_tcp_echo"), words).spawn().unwrap();
        self.wait_for("the server has its pipes", |report| report.pipes.len() == 2);
        Program(server)
    }

    fn load(&self, connections: &str, bytes: &str) -> Command {
        let words = ["wire.1", "10.79.0.2/24", "10.79.0.1:7", connections, bytes];
        self.command(env!("CARGO_BIN_EXE_tcp_load"), &words)
    }
}

fn said(output: &Output) -> (bool, String) {
    (output.status.success(), String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into())
}

/// Ticks of processor time that a process has used.
fn ticks(process: &Child) -> u64 {
    let stat = Process::new(process.id() as i32).unwrap().stat().unwrap();
    stat.utime + stat.stime
}

#[test]
fn two_programs_without_a_kernel_network_speak_tcp_over_a_link() {
    let stand = Stand::new();
    stand.add("wire", PortSpec::Link, None);
    let server = stand.echo(&["wire.0", "10.79.0.1/24"]);
    // A byte, many connections at once, and more bytes than buffers hold.
    for (connections, bytes) in [("1", "1"), ("20", "100001"), ("2", "3000000")] {
        let done = stand.load(connections, bytes).output().unwrap();
        let wanted = format!("{connections} connections, {bytes} bytes each, all back\n");
        assert_eq!(said(&done), (true, wanted));
    }
    let kill_one = || {
        let before = stand.report().ports[0].frames_sent;
        let killed = Program(stand.load("20", "50000000").spawn().unwrap());
        stand.wait_for("bytes are on their way", |report| report.ports[0].frames_sent > before + 2000);
        drop(killed);
    };
    // A client that is killed amid its bytes, and another at the same address.
    kill_one();
    let done = stand.load("20", "100001").output().unwrap();
    assert!(said(&done).0, "{:?}", said(&done));
    // The server sleeps, although it has connections of a dead client.
    kill_one();
    let (before, since) = (ticks(&server.0), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (used, passed) = (ticks(&server.0) - before, since.elapsed().as_millis() as u64 / 10);
    assert!(used * 4 < passed, "{used} ticks of {passed}");
}

#[test]
fn a_client_is_told_that_nobody_listens() {
    let stand = Stand::new();
    stand.add("wire", PortSpec::Link, None);
    let _server = stand.echo(&["wire.0", "10.79.0.1/24", "8"]);
    let (done, why) = said(&stand.load("1", "1").output().unwrap());
    assert!(!done && why.contains("connection 0 has ended after 0 bytes"), "{why}");
}

/// A network namespace, which goes when dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split_whitespace()).stderr(Stdio::null()).status().unwrap().success()
}

/// Sends bytes to the server, closes this half, and reads until the server has closed its own.
fn exchange(seed: u64, length: usize) {
    let mut stream = TcpStream::connect("10.79.0.1:7").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut random = Random::new(seed);
    let bytes: Vec<u8> = (0..length).map(|_| random.word() as u8).collect();
    std::thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let bytes = &bytes;
        scope.spawn(move || {
            writer.write_all(bytes).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back).unwrap();
        assert!(back == *bytes, "{} of {length} bytes came back", back.len());
    });
}

#[test]
fn programs_of_the_kernels_tcp_reach_one_behind_a_tap() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIPPED: making network namespaces needs root");
    }
    let namespace = Namespace(format!("pdt{}tcp", std::process::id()));
    let stand = Stand::new();
    if let Err(why) = pd_driver::openers::check("tap") {
        return println!("SKIPPED: {why}");
    }
    assert!(ip(&format!("netns add {}", namespace.0)));
    stand.add("up", PortSpec::Tap { interface: "tap0".to_owned() }, Some(&namespace.0));
    assert!(ip(&format!("-n {} addr add 10.79.0.2/24 dev tap0", namespace.0)));
    assert!(ip(&format!("-n {} link set tap0 up", namespace.0)));
    let _server = stand.echo(&["up", "10.79.0.1/24"]);
    let file = std::fs::File::open(namespace_file(&namespace.0)).unwrap();
    let inside = || move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    std::thread::scope(|scope| {
        let all: Vec<_> = [1, 1459, 65_537, 2_000_000, 300_000, 300_000]
            .into_iter()
            .enumerate()
            .map(|(seed, length)| {
                scope.spawn(move || {
                    inside();
                    exchange(seed as u64, length);
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
        scope.spawn(|| {
            inside();
            // A peer that ends with bytes unread: the kernel resets its connection.
            for _ in 0..100 {
                let mut stream = TcpStream::connect("10.79.0.1:7").unwrap();
                stream.write_all(&[7; 5000]).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            }
            // A peer that says nothing and stays, beside others.
            let _idle = TcpStream::connect("10.79.0.1:7").unwrap();
            exchange(9, 100_000);
        });
    });
}
