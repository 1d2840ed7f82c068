//! A driver, a bridge, and containers that run programs on it.
use pd_abi::counters::AgentCounters;
use pd_driver::policy::{Path as BytesPath, Rate};
use pd_tests::{needs_root, path, program_path, TestDriver};
use procfs::net::TcpState;
use procfs::process::{all_processes, Namespace, Process};
use rustix::process::{kill_process, Pid, Signal};
use std::ffi::OsStr;
use std::fs::{read_to_string, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time of any step of a program.
const PATIENCE: Duration = Duration::from_secs(120);

/// The host part of the server's address.
pub const SERVER: u8 = 2;
/// The host part of the client's.
pub const CLIENT: u8 = 3;

/// A driver and a bridge of one test.
pub struct Site {
    pub driver: TestDriver,
    third: u8,
}

/// A program in a container, killed when dropped.
pub struct Running {
    child: Child,
    log: PathBuf,
}

fn until(what: &str, mut wished: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !wished() {
        assert!(Instant::now() < end, "{what} never came true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The preload library of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// No library: connections are the kernel's.
    Absent,
    /// In the mode that leaves short-lived connections to the kernel.
    Default,
    /// In the mode that keeps them on the fabric, too.
    All,
}

impl Library {
    /// Returns the option of `pd run`.
    fn option(self) -> Option<&'static str> {
        match self {
            Self::Absent => None,
            Self::Default => Some("--preload"),
            Self::All => Some("--preload=all"),
        }
    }
}

impl From<bool> for Library {
    fn from(library: bool) -> Self {
        if library {
            Self::All
        } else {
            Self::Absent
        }
    }
}

/// Bytes that went over the fabric, on whichever path.
fn on_fabric(counted: &AgentCounters) -> u64 {
    counted.bytes_delivered + counted.bytes_reported
}

impl Site {
    /// Makes a site with addresses 10.98.`third`.0/24.
    pub fn new(third: u8) -> Self {
        needs_root("containers");
        let driver = TestDriver::with("cpu", |settings| {
            if path() == BytesPath::Offloaded {
                // One that is never reached: the driver keeps connections that are better off in the kernel.
                let rate = Rate { per_second: 100 << 30, burst: 1 << 30, least: 64 << 10 };
                settings.policy.tenants[0].limits.tenant.bytes = Some(rate);
            }
        });
        // Servers drop their privileges, and have to reach the driver then.
        std::fs::set_permissions(driver.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { driver, third }
    }

    /// Returns the address of a container.
    pub fn address(&self, host: u8) -> String {
        format!("10.98.{}.{host}", self.third)
    }

    /// Returns the address of the server's container.
    pub fn server(&self) -> String {
        self.address(SERVER)
    }

    /// Makes a folder for a program's files, which every user may write.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.driver.folder().join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        folder
    }

    /// Returns the name of a container.
    pub fn name(&self, host: u8) -> String {
        format!("p{}-{host}", self.third)
    }

    fn command(&self, host: u8, library: impl Into<Library>, command: &[&str]) -> Command {
        let mut run = Command::new(program_path("pd"));
        run.args(["run", "--bridge", &format!("pdp{}", self.third)])
            .args(["--name", &self.name(host)])
            .args(["--ip", &format!("{}/24", self.address(host))])
            .arg("--socket")
            .arg(self.driver.socket())
            .args(library.into().option());
        if path() == BytesPath::Direct {
            run.args(["--tenant", "one"]);
        }
        run.arg("--").args(command).stdin(Stdio::null());
        run
    }

    /// Starts a program.
    pub fn start(&self, host: u8, library: impl Into<Library>, command: &[&str]) -> Running {
        let log = self.driver.folder().join(format!("log-{host}"));
        let file = File::create(&log).unwrap();
        let mut run = self.command(host, library, command);
        let child = run.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Running { child, log }
    }

    /// Starts a server and waits until it listens on `port`.
    pub fn serve(&self, host: u8, library: impl Into<Library>, port: u16, command: &[&str]) -> Running {
        let mut running = self.start(host, library, command);
        until(&format!("{command:?} listens"), || {
            assert!(running.child.try_wait().unwrap().is_none(), "{command:?}: {}", running.log());
            running.listens(port)
        });
        running
    }

    /// Runs a program to its end, which has to succeed. Returns its output.
    pub fn run(&self, host: u8, library: impl Into<Library>, command: &[&str]) -> String {
        let output = self.try_run(host, library, command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {:?}\n{text}{errors}", output.status);
        text
    }

    /// Runs a program to its end.
    pub fn try_run(&self, host: u8, library: impl Into<Library>, command: &[&str]) -> Output {
        let limited = [&["timeout", "-k", "1", "110"], command].concat();
        self.command(host, library, &limited).output().unwrap()
    }

    /// Bytes that went over the fabric so far.
    pub fn delivered(&self) -> u64 {
        on_fabric(&self.driver.metrics())
    }

    /// Waits until `bytes` bytes more than `before` have gone over the fabric.
    pub fn wait_for_bytes(&self, before: u64, bytes: u64) {
        let wanted = before + bytes;
        // A request for a report makes the driver read clients' words on direct connections.
        let flown = ["bytes_delivered", "bytes_reported"];
        self.driver.wait_for("bytes flow", |report| {
            flown.iter().map(|&name| report.metrics[name]).sum::<u64>() > wanted
        });
    }

    /// Waits until no connection is left.
    pub fn wait_for_ends(&self) {
        self.driver.wait_for("the connections end", |report| report.connections.is_empty());
    }

    /// Waits until the driver has forgotten everybody.
    pub fn expect_nothing_left(&self) {
        self.driver.wait_for("nothing is left", |report| {
            report.clients.is_empty() && report.connections.is_empty() && report.memory_used_bytes == 0
        });
    }

    /// Runs an exchange without and with the library, and compares the answers. With the library at least
    /// `bytes` bytes have to go over the fabric, without it none may. Afterwards nothing is left.
    pub fn compare(&self, bytes: u64, mut exchange: impl FnMut(&Self, bool) -> String) {
        let mut expected = None;
        for library in [false, true] {
            let before = self.driver.metrics();
            let answer = exchange(self, library);
            let since = self.driver.metrics().since(&before);
            assert!(!answer.is_empty());
            let expected = expected.get_or_insert_with(|| answer.clone());
            assert_eq!(&answer, expected, "with the library: {library}");
            if library {
                assert!(since.connections_made > 0, "no connection on the fabric");
                assert!(on_fabric(&since) >= bytes, "{} bytes on the fabric", on_fabric(&since));
                assert_eq!(since.connections_direct > 0, path() == BytesPath::Direct);
            } else {
                assert_eq!(since.connections_made, 0);
            }
            self.expect_nothing_left();
        }
    }
}

/// Returns the network namespace of a process.
fn network(process: &Process) -> Option<Namespace> {
    process.namespaces().ok()?.0.remove(OsStr::new("net"))
}

impl Running {
    /// Returns the output so far.
    pub fn log(&self) -> String {
        read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has printed a line.
    pub fn wait_for_line(&self, line: &str) {
        until(line, || self.log().lines().any(|own| own == line));
    }

    /// Returns a process that is in the container's network namespace, but is not the program.
    fn helper(&self) -> Option<Process> {
        let children = Process::new(self.child.id() as i32).ok()?.task_main_thread().ok()?.children().ok()?;
        Process::new(*children.first()? as i32).ok()
    }

    fn listens(&self, port: u16) -> bool {
        let Some(helper) = self.helper() else { return false };
        let sockets = [helper.tcp(), helper.tcp6()].into_iter().flatten().flatten();
        sockets
            .into_iter()
            .any(|socket| socket.local_address.port() == port && socket.state == TcpState::Listen)
    }

    /// Returns the processes of the container with this name, as the host sees them.
    pub fn processes(&self, name: &str) -> Vec<i32> {
        let Some(own) = self.helper().and_then(|helper| network(&helper)) else { return Vec::new() };
        let named = |process: &Process| process.stat().is_ok_and(|stat| stat.comm == name);
        let all = all_processes().unwrap().flatten();
        let mut found: Vec<i32> = all
            .filter(|process| network(process).as_ref() == Some(&own))
            .filter(named)
            .map(|process| process.pid())
            .collect();
        found.sort_unstable();
        found
    }

    /// Kills, by SIGKILL, the processes that are called so; there have to be some.
    pub fn kill(&self, name: &str) {
        let found = self.processes(name);
        assert!(!found.is_empty(), "no {name} to kill: {}", self.log());
        for pid in found {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    /// Tells whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; whether that was a good one.
    pub fn wait(&mut self) -> bool {
        let mut status = None;
        until("the program ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().success()
    }

    /// Ends it by SIGTERM.
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        self.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::TERM);
            let end = Instant::now() + Duration::from_secs(5);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a file of the tests' programs.
pub fn program(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    path.to_str().unwrap().to_owned()
}
