//! The applications as processes, on ports of a driver of their own.

mod stand;

use pd_apps::frame::{is_sound, Parts};
use pd_apps::traffic::{log_lines, syn_flood, zipf_flows};
use pd_driver::admin::{Answer, Ask, PipesReport, PortSpec};
use pd_pipe::Pcap;
use stand::{Program, Stand};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Makes a driver with these ports.
fn stand(ports: &[(&str, PortSpec)]) -> Stand {
    let stand = Stand::new();
    ports.iter().for_each(|(name, port)| stand.add(name, port));
    stand
}

impl Stand {
    fn folder(&self) -> &Path {
        self.settings.socket.parent().unwrap()
    }

    fn add(&self, name: &str, port: &PortSpec) {
        let ask = Ask::PortAdd { name: name.to_owned(), port: port.clone() };
        assert!(matches!(self.tell(&ask), Answer::Done), "{name}");
    }

    fn start(&self, app: &str, words: &[&str]) -> Program {
        let mut command = Command::new(app);
        command
            .args(words)
            .env("PD_SOCKET", &self.settings.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Program(command.spawn().unwrap())
    }

    /// Adds a port that plays `frames` once.
    fn play(&self, name: &str, frames: impl IntoIterator<Item = Vec<u8>>) {
        let file = self.folder().join(name);
        let to = std::fs::File::create(&file).unwrap();
        let mut played = Pcap::new(None::<&[u8]>, Some(Box::new(to))).unwrap();
        frames.into_iter().for_each(|frame| played.write(&frame));
        played.finish().unwrap();
        self.add(name, &PortSpec::Pcap { file });
    }

    /// Runs an application to its end.
    fn run(&self, app: &str, words: &[&str]) -> Output {
        let mut command = Command::new(app);
        command.args(words).env("PD_SOCKET", &self.settings.socket).output().unwrap()
    }
}

fn gen(frames: u64) -> PortSpec {
    PortSpec::Gen { sizes: vec![64, 300, 1500], flows: 3, frames }
}

#[test]
fn echo_sends_every_frame_back_and_l2_forward_every_frame_on() {
    let stand = stand(&[("wan", gen(5000)), ("left", gen(5000)), ("right", PortSpec::Link)]);
    let _echo = stand.start(env!("CARGO_BIN_EXE_echo"), &["wan"]);
    let _forward = stand.start(env!("CARGO_BIN_EXE_l2_forward"), &["left", "right.0"]);
    // Bytes that go out at the right come back there.
    let _other = stand.start(env!("CARGO_BIN_EXE_echo"), &["right.1"]);
    stand.wait_for("all comes back", |report| {
        let of = |name: &str| report.ports.iter().find(|port| port.name == name).unwrap();
        let whole =
            ["wan", "left"].map(of).map(|port| (port.frames_sent, port.frames_wrong, port.frames_missing));
        whole == [(5000, 0, 0); 2] && of("right.0").frames_sent == 5000
    });
}

#[test]
fn a_capture_has_the_frames_of_its_port() {
    let stand = stand(&[]);
    let file = stand.folder().join("played.pcap");
    let mut played = Pcap::new(None::<&[u8]>, Some(Box::new(std::fs::File::create(&file).unwrap()))).unwrap();
    (0..500u16).for_each(|number| played.write(&[number as u8; 100][..60 + usize::from(number % 40)]));
    played.finish().unwrap();
    stand.add("old", &PortSpec::Pcap { file: file.clone() });
    let mut app = stand.start(env!("CARGO_BIN_EXE_capture"), &["old", "500"]);
    let mut written = Vec::new();
    std::io::copy(app.0.stdout.as_mut().unwrap(), &mut written).unwrap();
    assert!(app.0.wait().unwrap().success());
    assert!(written == std::fs::read(&file).unwrap());
}

#[test]
fn a_balancer_leads_a_flood_to_its_backends_with_right_checksums() {
    let stand = stand(&[("right", PortSpec::Link)]);
    stand.play("flood", syn_flood(7).take(3000));
    let mut capture = stand.start(env!("CARGO_BIN_EXE_capture"), &["right.1", "3000"]);
    let backends = "10.1.0.0/02:01:00:00:00:00,10.1.0.1/02:01:00:00:00:01,10.1.0.2/02:01:00:00:00:02";
    let words = ["flood", "198.18.0.80:80", backends, "right.0"];
    let _maglev = stand.start(env!("CARGO_BIN_EXE_maglev"), &words);
    let mut written = Vec::new();
    std::io::copy(capture.0.stdout.as_mut().unwrap(), &mut written).unwrap();
    let mut written = Pcap::new(Some(std::io::Cursor::new(written)), None).unwrap();
    let mut hits = [0u32; 3];
    while let Some(frame) = written.peek() {
        assert!(is_sound(frame));
        hits[(Parts::of(frame).unwrap().destination - 0x0a01_0000) as usize] += 1;
        written.advance();
    }
    assert!(hits.iter().sum::<u32>() == 3000 && hits.iter().all(|&count| count > 800), "{hits:?}");
}

#[test]
fn a_sketch_tells_the_heavy_hitters_of_a_port() {
    let stand = stand(&[]);
    stand.play("flows", zipf_flows(3, 2000, 1.2).map(|(_, frame)| frame).take(30_000));
    let mut nitro = stand.start(env!("CARGO_BIN_EXE_nitro"), &["flows", "30000"]);
    let mut lines = BufReader::new(nitro.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.starts_with("30000 frames, "), "{first}");
    // The heaviest of these flows has a fifth of the frames.
    let heaviest = lines.next().unwrap();
    let (frames, flow) = heaviest.split_once(' ').unwrap();
    assert!((4000..9000).contains(&frames.parse().unwrap()), "{heaviest}");
    assert!(flow.starts_with("17 ") && flow.ends_with("198.18.0.80:80"), "{heaviest}");
}

#[test]
fn a_store_keeps_what_its_client_sets_in_each_partition() {
    let stand = stand(&[("wire", PortSpec::Link)]);
    let _kv = stand.start(env!("CARGO_BIN_EXE_kv"), &["wire.0", "2"]);
    let pipes = |report: &PipesReport| report.pipes.len() >= 6;
    stand.wait_for("the store has its pipes", pipes);
    let client = |words: &[&str]| {
        let done = stand.run(env!("CARGO_BIN_EXE_kv_client"), &[&["wire.1", "2"], words].concat());
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    assert!(!client(&["get", "colour"]).0);
    assert_eq!(client(&["set", "colour", "green"]), (true, "\n".to_owned()));
    assert_eq!(client(&["get", "colour"]), (true, "green\n".to_owned()));
    let (sound, text) = client(&["load", "500", "20000"]);
    assert!(sound && text.contains(" 0 wrong"), "{text}");
    assert!(client(&["delete", "colour"]).0 && !client(&["get", "colour"]).0);
}

/// A second store would take a part of the requests, and answer that it has none of the keys.
#[test]
fn a_second_server_of_a_port_is_refused() {
    let stand = stand(&[("wire", PortSpec::Link)]);
    let kv = stand.start(env!("CARGO_BIN_EXE_kv"), &["wire.0", "2"]);
    stand.wait_for("the store has its pipes", |report| report.pipes.len() == 6);
    let second = stand.run(env!("CARGO_BIN_EXE_kv"), &["wire.0"]);
    let why = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && why.contains("another process has these frames"), "{why}");
    assert_eq!(stand.report().pipes.len(), 6);
    // One that was killed is in nobody's way.
    drop(kv);
    let _kv = stand.start(env!("CARGO_BIN_EXE_kv"), &["wire.0"]);
    stand.wait_for("the next store has its pipes", |report| report.pipes.len() == 3);
}

#[test]
fn a_monitor_tells_addresses_that_break_rules() {
    let stand = stand(&[("logs", PortSpec::Link)]);
    let mut logmon = stand.start(env!("CARGO_BIN_EXE_logmon"), &["logs.0", "3", "600"]);
    let text: Vec<u8> = log_lines(2, 20).take(3000).flatten().collect();
    let mut tail = stand.start(env!("CARGO_BIN_EXE_send_lines"), &["logs.1"]);
    tail.0.stdin.take().unwrap().write_all(&text).unwrap();
    let mut lines = BufReader::new(logmon.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    assert!(first.starts_with("203.0.113.") && first.ends_with(" sshd 3 lines"), "{first}");
}
