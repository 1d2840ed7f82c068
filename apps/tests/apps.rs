//! The applications as processes, on ports of a driver of their own.

use pd_driver::admin::{ask, Answer, Ask, PipesReport, PortSpec};
use pd_driver::{Driver, Namespaces, Settings, SystemClock};
use pd_pipe::Pcap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A driver in this process, on sockets in a folder of its own.
struct Stand {
    settings: Settings,
    folder: tempfile::TempDir,
    _driver: Driver,
}

/// An application; killed when dropped.
struct App(Child);

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Stand {
    fn new(ports: &[(&str, PortSpec)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            socket: folder.path().join("s"),
            admin_socket: folder.path().join("a"),
            budget_bytes: 64 << 20,
            namespaces: Namespaces::Own,
            ..Settings::default()
        };
        let clock = Arc::new(SystemClock::default());
        let engine = pd_engine::by_name("cpu").unwrap();
        let driver = Driver::start(settings.clone(), clock, &*engine).unwrap();
        let this = Self { settings, folder, _driver: driver };
        ports.iter().for_each(|(name, port)| this.add(name, port));
        this
    }

    fn add(&self, name: &str, port: &PortSpec) {
        let ask = Ask::PortAdd { name: name.to_owned(), port: port.clone() };
        assert!(matches!(self.tell(&ask), Answer::Done), "{name}");
    }

    fn tell(&self, what: &Ask) -> Answer {
        ask(&self.settings.admin_socket, what).unwrap()
    }

    fn start(&self, app: &str, words: &[&str]) -> App {
        let mut command = Command::new(app);
        command.args(words).env("PD_SOCKET", &self.settings.socket).stdout(Stdio::piped());
        App(command.spawn().unwrap())
    }

    fn wait_for(&self, what: &str, wished: impl Fn(&PipesReport) -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let Answer::Pipes(report) = self.tell(&Ask::Pipes) else { panic!("no report") };
            if wished(&report) {
                return;
            }
            assert!(Instant::now() < until, "{what}: {report:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn gen(frames: u64) -> PortSpec {
    PortSpec::Gen { sizes: vec![64, 300, 1500], flows: 3, frames }
}

#[test]
fn echo_sends_every_frame_back_and_l2_forward_every_frame_on() {
    let stand = Stand::new(&[("wan", gen(5000)), ("left", gen(5000)), ("right", PortSpec::Link)]);
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
    let stand = Stand::new(&[]);
    let file = stand.folder.path().join("played.pcap");
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
