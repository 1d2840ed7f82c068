//! Shared parts of the tests: a driver of their own, peers as real processes, a byte pattern.
use pd_driver::policy::{Cap, Caps, Path as BytesPath, Tenant, DEFAULT_TENANT};
use pd_driver::{Driver, Namespaces, Policy, Settings, SystemClock};
use procfs::process::{Process, Task};
use rustix::net;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

mod bystander;
mod compiled;
mod control_group;
mod manager;
mod network;
mod puppet;
mod streaming;
pub mod talker;
mod twin;
mod watchers;
mod withheld;

pub use bystander::Bystander;
pub use compiled::{compiled, compiled_program};
pub use control_group::ControlGroup;
pub use manager::Manager;
pub use network::{ip, Network};
pub use pd_raw::{cookie_of, send as send_frame, Raw, SentRegion};
pub use puppet::Puppet;
pub use streaming::send_until;
pub use twin::TwinSide;
pub use watchers::watch;
pub use withheld::{withhold, Withheld, MINOR, MISSING};

/// Makes a kernel socket that has a port of the loopback interface and is not connected. Returns it with its address.
///
/// # Panics
/// Without sockets.
pub fn bound() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).expect("socket");
    net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind");
    let local = net::getsockname(&socket).expect("name").try_into().expect("address");
    (socket, local)
}

/// Converts to the attach socket.
impl AsRef<Path> for TestDriver {
    fn as_ref(&self) -> &Path {
        self.socket()
    }
}

/// A driver in this process, on sockets in a folder of its own.
pub struct TestDriver {
    driver: Option<Driver>,
    settings: Settings,
    engine: String,
    folder: tempfile::TempDir,
}

impl TestDriver {
    /// Starts a driver with `change`d settings and the engine called `engine`.
    pub fn with(engine: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let _ = tracing_subscriber::fmt().with_writer(std::io::stderr).try_init();
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut settings = Settings {
            socket: folder.path().join("driver.sock"),
            admin_socket: folder.path().join("admin.sock"),
            budget_bytes: 1 << 30,
            movers: movers(),
            movers_shuffled: (movers() > 1).then_some(std::time::Duration::from_millis(2)),
            namespaces: if rustix::process::geteuid().is_root() { Namespaces::All } else { Namespaces::Own },
            policy: Policy { path: Some(path()), tenants: vec![everything()], ..Policy::default() },
            ..Settings::default()
        };
        change(&mut settings);
        let mut this = Self { driver: None, settings, engine: engine.to_owned(), folder };
        this.start();
        this
    }

    /// Starts a driver with default settings.
    pub fn new() -> Self {
        Self::with("cpu", |_| {})
    }

    /// Makes this process's own client attach here. Once, before its first call.
    pub fn attach_here(&self) {
        std::env::set_var("PD_SOCKET", self.socket());
    }

    /// Waits until the driver's report is as wished, and returns it.
    pub fn wait_for(
        &self,
        what: &str,
        wished: impl Fn(&pd_driver::admin::Report) -> bool,
    ) -> pd_driver::admin::Report {
        await_report(what, || self.report(), wished)
    }

    /// Waits until its report of ports and pipes is as wished, and returns it.
    pub fn wait_for_pipes(
        &self,
        what: &str,
        wished: impl Fn(&pd_driver::admin::PipesReport) -> bool,
    ) -> pd_driver::admin::PipesReport {
        await_report(what, || self.pipes(), wished)
    }

    /// Starts it again after [`Self::stop`].
    pub fn start(&mut self) {
        let engine = pd_engine::by_name(&self.engine).expect("engine");
        let clock = Arc::new(SystemClock::default());
        self.driver = Some(Driver::start(self.settings.clone(), clock, &*engine).expect("driver"));
    }

    /// Starts another driver in this one's place.
    ///
    /// # Errors
    /// The error of a failed take-over: the driver then goes on.
    pub fn take_over(&mut self) -> Result<(), pd_driver::StartError> {
        let engine = pd_engine::by_name(&self.engine).expect("engine");
        let clock = Arc::new(SystemClock::default());
        let successor = Driver::take_over(self.settings.clone(), clock, &*engine)?;
        let previous = self.driver.replace(successor).expect("running");
        let until = Instant::now() + Duration::from_secs(10);
        while !previous.is_handed_over() {
            assert!(Instant::now() < until, "the previous driver goes on");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(())
    }

    /// Stops it.
    pub fn stop(&mut self) {
        self.driver = None;
    }

    /// Returns the driver's settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the socket for clients.
    pub fn socket(&self) -> &Path {
        &self.settings.socket
    }

    /// Returns the socket for administrators.
    pub fn admin_socket(&self) -> &Path {
        &self.settings.admin_socket
    }

    /// Returns the driver's counters.
    pub fn metrics(&self) -> pd_abi::counters::AgentCounters {
        self.driver.as_ref().expect("running").metrics()
    }

    /// Returns the driver's report of itself.
    pub fn report(&self) -> pd_driver::admin::Report {
        use pd_driver::admin::{ask, Answer, Ask};
        match ask(&self.settings.admin_socket, &Ask::List).expect("report") {
            Answer::Report(report) => *report,
            other => panic!("no report but {other:?}"),
        }
    }

    /// Returns the driver's report of ports and pipes.
    pub fn pipes(&self) -> pd_driver::admin::PipesReport {
        use pd_driver::admin::{Answer, Ask};
        match self.tell(&Ask::Pipes) {
            Answer::Pipes(report) => *report,
            other => panic!("no report but {other:?}"),
        }
    }

    /// Puts a policy in force. Returns the number of connections that it ended.
    pub fn apply(&self, text: &str) -> u64 {
        use pd_driver::admin::Answer;
        match self.tell(&pd_driver::admin::Ask::Apply { text: text.to_owned() }) {
            Answer::Applied { cut, .. } => cut,
            other => panic!("no policy applied but {other:?}"),
        }
    }

    /// Returns the driver's report of its policy.
    pub fn policy(&self) -> pd_driver::admin::PolicyReport {
        use pd_driver::admin::Answer;
        match self.tell(&pd_driver::admin::Ask::Policy) {
            Answer::Policy(report) => *report,
            other => panic!("no policy but {other:?}"),
        }
    }

    /// Asks the driver on its admin socket.
    pub fn tell(&self, ask: &pd_driver::admin::Ask) -> pd_driver::admin::Answer {
        pd_driver::admin::ask(&self.settings.admin_socket, ask).expect("answer")
    }

    /// Returns a folder for the test's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a peer process, attached to this driver. See `bin/peer.rs`.
    pub fn peer(&self, args: &[&str]) -> Child {
        self.spawn(Command::new(peer_path()).args(args))
    }

    /// Starts a peer process in the network namespace called `namespace`.
    pub fn peer_in(&self, namespace: &str, args: &[&str]) -> Child {
        self.spawn(Command::new("ip").args(["netns", "exec", namespace]).arg(peer_path()).args(args))
    }

    /// Starts a process that attaches to this driver, with pipes for its input and output.
    pub fn spawn(&self, command: &mut Command) -> Child {
        let command = command.env("PD_SOCKET", self.socket()).env("PD_TEST_PATH", path().to_string());
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Starts a peer that carries out commands.
    pub fn puppet(&self) -> Puppet {
        Puppet::new(self.peer(&["puppet"]))
    }

    /// Tells whether all of the driver's threads run.
    pub fn is_running(&self) -> bool {
        self.driver.as_ref().is_some_and(Driver::is_running)
    }
}

impl Default for TestDriver {
    fn default() -> Self {
        Self::new()
    }
}

/// Asks for reports until one is as wished, and returns it.
fn await_report<T: std::fmt::Debug>(what: &str, report: impl Fn() -> T, wished: impl Fn(&T) -> bool) -> T {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let report = report();
        if wished(&report) {
            return report;
        }
        assert!(Instant::now() < until, "{what} never came true: {report:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Returns the path of connections: that of `PD_TEST_PATH`, offloaded without.
pub fn path() -> BytesPath {
    match std::env::var("PD_TEST_PATH").as_deref() {
        Ok("direct") => BytesPath::Direct,
        Ok("offloaded") | Err(_) => BytesPath::Offloaded,
        Ok(other) => panic!("PD_TEST_PATH={other}: offloaded or direct"),
    }
}

/// Makes the default tenant without caps, until another policy is applied.
fn everything() -> Tenant {
    let all = Cap { most: Some(u64::MAX), reserved: 0 };
    let caps = Caps { clients: all, descriptors: all, memory_bytes: all };
    Tenant { name: DEFAULT_TENANT.to_owned(), caps, ..Tenant::default() }
}

/// Returns the movers of drivers: those of `PD_TEST_MOVERS`, or the default.
fn movers() -> usize {
    let wanted = std::env::var("PD_TEST_MOVERS").ok();
    wanted.map_or(Settings::default().movers, |number| number.parse().expect("PD_TEST_MOVERS is a number"))
}

/// Returns the peer program, which cargo builds with the tests.
pub fn peer_path() -> PathBuf {
    program_path("peer")
}

/// Returns a program of this crate.
pub fn program_path(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().expect("path of the test");
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join(name)
}

/// Locks out the other tests of this binary that call it: those that count the process's resources.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the processor time of threads of this process with name `thread`. The time of one that has ended is not in it.
pub fn processor_time(thread: &str) -> Duration {
    let times = of_threads(thread, |task| Some(task.schedstat().ok()?.sum_exec_runtime));
    times.into_iter().map(Duration::from_nanos).sum()
}

/// Waits until all threads with a name are asleep. The kernel accounts for the time of a thread that runs only now and then.
///
/// # Panics
///
/// Panics where there is no such thread, or one does not rest within twenty seconds.
pub fn wait_for_rest(thread: &str) {
    let states = || of_threads(thread, |task| Some(task.stat().ok()?.state));
    let all_asleep = |states: &Vec<char>| !states.is_empty() && states.iter().all(|state| *state == 'S');
    await_report(&format!("the rest of {thread}"), states, all_asleep);
}

/// Reads something of each of this process's threads with a name.
fn of_threads<T>(thread: &str, read: impl Fn(&Task) -> Option<T>) -> Vec<T> {
    let tasks = Process::myself().and_then(|own| own.tasks()).expect("proc").flatten();
    let named = tasks.filter(|task| task.stat().is_ok_and(|stat| stat.comm == thread));
    named.filter_map(|task| read(&task)).collect()
}

/// Returns the files of this process's descriptors, in order.
pub fn own_files() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("own descriptors").flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|file| file.display().to_string())
        .collect();
    files.sort();
    files
}

/// Fails, with the remedy, unless this process is root's. `what` needs root.
pub fn needs_root(what: &str) {
    assert!(rustix::process::geteuid().is_root(), "{what} needs root: run the tests as root (sudo)");
}

/// Returns the word of the stream called `seed` that holds byte number `position`.
fn word_at(seed: u64, position: u64) -> [u8; 8] {
    let word = (position / 8).wrapping_add(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word ^ word >> 29).to_le_bytes()
}

/// Returns byte number `position` of the stream called `seed`.
pub fn pattern(seed: u64, position: u64) -> u8 {
    word_at(seed, position)[(position % 8) as usize]
}

/// Returns the ranges of `len` bytes from `position` on that lie in one word each, with their bytes of the stream called `seed`. This package is built
/// without optimisation, and its bytes are most of what tests compute: words take an eighth of the time of bytes.
fn words(
    seed: u64,
    position: u64,
    len: usize,
) -> impl Iterator<Item = (std::ops::Range<usize>, [u8; 8], usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = position + at as u64;
        let first = (here % 8) as usize;
        let range = at..len.min(at + 8 - first);
        at = range.end;
        (!range.is_empty()).then(|| (range, word_at(seed, here), first))
    })
}

/// Fills `bytes` with the stream called `seed` from `position` on.
pub fn fill(seed: u64, position: u64, bytes: &mut [u8]) {
    for (range, word, first) in words(seed, position, bytes.len()) {
        let count = range.len();
        bytes[range].copy_from_slice(&word[first..first + count]);
    }
}

/// Panics where `bytes` are not the stream called `seed` from `position` on.
pub fn verify(seed: u64, position: u64, bytes: &[u8]) {
    for (range, word, first) in words(seed, position, bytes.len()) {
        let (count, begin) = (range.len(), range.start);
        let differs =
            bytes[range].iter().zip(&word[first..first + count]).position(|(is, wanted)| is != wanted);
        assert!(
            differs.is_none(),
            "byte {} of stream {seed}",
            position + (begin + differs.unwrap_or(0)) as u64
        );
    }
}

/// A small generator for tests (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound.max(1)
    }
}
