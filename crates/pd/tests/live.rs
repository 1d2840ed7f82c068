//! `pd stats`, `pd top` and the metrics endpoint beside a driver with traffic: their figures equal the peers' sends.
//! A process has one client, and so this file one test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use pd_client::{Listener, SendBuffer, Stream};
use serde_json::Value;

const MESSAGE: usize = 10_000;
const MESSAGES: usize = 300;

fn pd() -> Command {
    Command::new(env!("CARGO_BIN_EXE_pd"))
}

/// A driver with an endpoint, in a folder of its own.
struct Driver {
    child: Child,
    metrics: SocketAddr,
}

impl Driver {
    fn start(folder: &Path) -> Driver {
        let config = folder.join("driver.toml");
        // Bytes on the direct path are counted by clients; here the driver has to count them.
        std::fs::write(folder.join("policy.toml"), "path = \"offloaded\"\n").unwrap();
        let text = format!(
            "socket = \"{0}/driver.sock\"\nadmin_socket = \"{0}/admin.sock\"\npolicy = \"{0}/policy.toml\"\n\
             [memory]\nbudget_bytes = \"256MiB\"\nhugepages = \"off\"\n[driver]\nmovers = 2\n[metrics]\nlisten = \"0\"\n",
            folder.display()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = pd();
        command.args(["driver", "--config"]).arg(&config).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut next = |what: &str| {
            let found = lines.by_ref().map(Result::unwrap).find(|line| line.contains(what));
            found.unwrap_or_else(|| panic!("the driver never said '{what}'"))
        };
        let address = next("metrics at /metrics");
        let metrics = address.rsplit_once("address=").unwrap().1.trim().parse().unwrap();
        next("driver ready");
        // Later output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Driver { child, metrics }
    }

    fn scrape(&self) -> String {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nAccept: application/openmetrics-text\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        body.to_owned()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn admin(folder: &Path) -> PathBuf {
    folder.join("admin.sock")
}

fn output(folder: &Path, args: &[&str]) -> Output {
    pd().args(args).arg("--admin-socket").arg(admin(folder)).stdin(Stdio::null()).output().unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    let output = output(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns the sum of a metric over all of its series.
fn metric(page: &str, name: &str) -> u64 {
    let of_it = page.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    of_it.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

/// Waits until `look` gives a wished result: counters lag behind the peers by a moment.
fn until<T: std::fmt::Debug>(wished: impl Fn(&T) -> bool, mut look: impl FnMut() -> T) -> T {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let seen = look();
        if wished(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "never came true: {seen:?}");
    }
}

fn transfer(from: &Stream, to: &Stream) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = SendBuffer::new(MESSAGE).unwrap();
            for turn in 0..MESSAGES {
                buffer.wait_mut().unwrap().fill(turn as u8);
                from.send(&buffer, ..).unwrap();
            }
            // The last one is done with, too.
            buffer.wait_mut().unwrap();
        });
        let mut left = MESSAGE * MESSAGES;
        while left > 0 {
            left -= to.recv(left).unwrap().len();
        }
    });
}

fn agrees_with_what_was_sent(folder: &Path, driver: &Driver) {
    let bytes = (MESSAGE * MESSAGES) as u64;
    let (stats, top) = (&["stats", "--json"], &["top", "--once", "--json", "--interval", "0.1"]);
    let seen = until(
        |seen: &Value| {
            seen["counters"]["bytes_delivered"] == bytes && seen["counters"]["messages_completed"] == MESSAGES
        },
        || json(folder, stats),
    );
    assert_eq!((&seen["connections"], &seen["clients"], &seen["movers"]), (&1.into(), &1.into(), &2.into()));
    assert_eq!(seen["pid"], driver.child.id());
    assert!(seen["memory_used_bytes"].as_u64().unwrap() > 0);

    let view = json(folder, top);
    let connection = &view["connections"][0];
    assert_eq!((&connection["bytes"][0], &connection["bytes"][1]), (&bytes.into(), &0.into()));
    assert_eq!((&connection["messages"][0], &connection["path"]), (&MESSAGES.into(), &"offloaded".into()));
    let own = &view["containers"][0];
    assert_eq!((&own["bytes_sent"], &own["bytes_received"]), (&bytes.into(), &bytes.into()));
    assert_eq!(own["name"], format!("pid {}", std::process::id()));
    assert_eq!(view["driver"]["counters"]["bytes_delivered"], bytes);
    assert!(view["interval_seconds"].as_f64().unwrap() >= 0.1);

    let page =
        until(|page: &String| metric(page, "pipedevice_delivered_bytes_total") == bytes, || driver.scrape());
    assert_eq!(metric(&page, "pipedevice_client_sent_bytes_total"), bytes);
    assert_eq!(metric(&page, "pipedevice_client_received_bytes_total"), bytes);
    assert_eq!(metric(&page, "pipedevice_messages_completed_total"), MESSAGES as u64);
    assert!(page.ends_with("# EOF\n"));

    let plain = String::from_utf8(output(folder, &["top", "--once", "--interval", "0.1"]).stdout).unwrap();
    assert!(plain.contains("CONTAINER") && plain.contains("offloaded"), "{plain}");
    let watched = output(folder, &["stats", "--watch", "0.1", "--count", "2"]);
    assert_eq!(String::from_utf8(watched.stdout).unwrap().matches("PER SECOND").count(), 2);
}

fn cannot_be_written(folder: &Path) {
    use pd_shm::{Mapping, Protection};
    let counters = pd_driver::admin::counters(&admin(folder)).unwrap();
    assert!(counters.is_live());
    // The passed descriptor is closed; the mapping's file can be opened again by its owner.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("pd-counters")).unwrap();
    assert_eq!(line.split_whitespace().nth(1), Some("r--s"));
    let range = line.split_whitespace().next().unwrap();
    let file = std::fs::File::options().read(true).write(true).open(format!("/proc/self/map_files/{range}"));
    let again = Mapping::new(file.unwrap(), 4096, Protection::ReadWrite);
    assert_eq!(again.unwrap_err(), rustix::io::Errno::PERM);
}

/// Killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `pd top --json`.
fn watch(folder: &Path) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut command = pd();
    command.args(["top", "--json", "--interval", "0.1", "--admin-socket"]).arg(admin(folder));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (Running(child), lines)
}

#[test]
fn everything_agrees_with_what_was_sent_and_a_restart_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for args in [&["stats"][..], &["top", "--once"], &["top", "--json"]] {
        let output = output(folder, args);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        for part in ["no driver answers at", "admin.sock", "pd driver"] {
            assert!(message.contains(part), "'{part}' is missing in: {message}");
        }
    }
    let mut driver = Driver::start(folder);
    std::env::set_var("PD_SOCKET", folder.join("driver.sock"));
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let from = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let to = listener.accept().unwrap();
    transfer(&from, &to);
    agrees_with_what_was_sent(folder, &driver);
    cannot_be_written(folder);

    let (_top, mut lines) = watch(folder);
    let mut next = || -> Value {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let first = next()["driver"]["started_ns"].clone();
    assert!(first.is_u64());
    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    until(
        |line: &Value| line["problem"].as_str().is_some_and(|p| p.contains("no driver answers")),
        &mut next,
    );
    driver = Driver::start(folder);
    let again = until(|line: &Value| line["driver"]["started_ns"].is_u64(), &mut next);
    assert_ne!(again["driver"]["started_ns"], first);
    assert_eq!(again["driver"]["pid"], driver.child.id());
}
