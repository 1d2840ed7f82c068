//! `pd port`, `pd pipe`, and a program with a pipe of a driver in a process of its own.

use pd_client::pipe::{Direction, Options, Pipe};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

/// A driver in a folder of its own; killed when dropped.
struct Driver {
    child: Child,
    folder: tempfile::TempDir,
}

impl Driver {
    fn start() -> Driver {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\n[memory]\nbudget_bytes = \"16MiB\"\nring_bytes_default = \"1MiB\"\n",
            at("s"),
            at("a")
        );
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.arg("driver").arg("--config").arg(at("driver.toml")).stderr(Stdio::null());
        let this = Driver { child: command.spawn().unwrap(), folder };
        let end = Instant::now() + Duration::from_secs(20);
        while !this.pd(&["pipe", "ls"]).status.success() {
            assert!(Instant::now() < end, "no driver");
            std::thread::sleep(Duration::from_millis(20));
        }
        this
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    fn pd(&self, args: &[&str]) -> Output {
        let admin = self.folder.path().join("a");
        let args = [args, &["--admin-socket", admin.to_str().unwrap()]].concat();
        Command::new(env!("CARGO_BIN_EXE_pd")).args(args).output().unwrap()
    }

    fn done(&self, args: &[&str]) {
        let output = self.pd(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn refused(&self, args: &[&str], why: &str) {
        let output = self.pd(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_slice(&self.pd(args).stdout).unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A capture of `frames` frames of 60 bytes, each of its number.
fn capture(frames: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        bytes.extend(word.to_le_bytes());
    }
    for number in 0..frames {
        for word in [0u32, 0, 60, 60] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([number; 60]);
    }
    bytes
}

#[test]
fn ports_come_and_go_and_a_pipe_has_their_packets() {
    let mut driver = Driver::start();
    let file = driver.folder.path().join("capture.pcap");
    std::fs::write(&file, capture(100)).unwrap();
    driver.done(&["port", "add", "old", "pcap", file.to_str().unwrap()]);
    driver.done(&["port", "add", "wan", "gen", "--sizes", "64,1500", "--frames", "1000"]);
    driver.done(&["port", "add", "wire", "link"]);
    driver.done(&["port", "add", "drain", "sink"]);
    driver.refused(&["port", "add", "wan", "sink"], "already");
    driver.refused(&["port", "add", "a b", "sink"], "no name");
    driver.refused(&["port", "add", "odd", "gen", "--sizes", "9"], "50 to 9216");
    driver.refused(&["port", "add", "none", "pcap", "/nowhere"], "/nowhere");
    driver.refused(&["port", "rm", "none"], "no port none");
    driver.done(&["port", "rm", "drain"]);
    let ports = driver.json(&["port", "ls", "--json"]);
    let names: Vec<_> = ports.as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["old", "wan", "wire.0", "wire.1"]);

    std::env::set_var("PD_SOCKET", driver.socket());
    let open = |direction, port| Pipe::open(&Options::new(direction, port).ring_bytes(64 << 10)).unwrap();
    let mut played = open(Direction::Receive, "old");
    let mut number = 0;
    while number < 100 {
        played.wait(PATIENCE).unwrap();
        let mut frames = played.frames().unwrap();
        while let Some(frame) = frames.next() {
            assert_eq!(frame.bytes(), [number; 60]);
            number += 1;
        }
    }
    let mut echo = open(Direction::Forward, "wan");
    let mut count = 0;
    while count < 1000 {
        echo.wait(PATIENCE).unwrap();
        let mut frames = echo.frames().unwrap();
        while frames.next().is_some() {
            count += 1;
        }
    }
    let end = Instant::now() + Duration::from_secs(20);
    let wan = loop {
        let ports = driver.json(&["port", "ls", "--json"]);
        let wan = ports.as_array().unwrap().iter().find(|port| port["name"] == "wan").unwrap().clone();
        if wan["frames_sent"] == 1000 {
            break wan;
        }
        assert!(Instant::now() < end, "{wan}");
    };
    assert_eq!(
        (&wan["frames_wrong"], &wan["frames_missing"], &wan["pipes"]),
        (&0.into(), &0.into(), &1.into())
    );
    let report = driver.json(&["pipe", "ls", "--json"]);
    assert_eq!(report["pipes"].as_array().unwrap().len(), 2);
    assert_eq!(report["tenants"][0]["frames_received"], 1100);
    let table = String::from_utf8(driver.pd(&["pipe", "ls"]).stdout).unwrap();
    assert!(table.contains("forward") && table.contains("wan"), "{table}");

    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    assert_eq!(echo.wait(PATIENCE).unwrap_err().errno(), 104);
}
