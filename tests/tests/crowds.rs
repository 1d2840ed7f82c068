//! Take-overs of `pd driver` in a row, while crowds of connections go on and have each byte checked. Alone: `make test-long` has a
//! thousand connections and 200 take-overs (`PD_CONNECTIONS`, `PD_TAKE_OVERS`).
use pd_driver::admin::{ask, Answer, Ask, Report};
use pd_tests::{alone, program_path, Puppet, Random};
use procfs::process::Process;
use std::fs::{read_to_string, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes with connections, each to the next one.
const CROWDS: usize = 8;
/// Connections and take-overs of the normal suite.
const CONNECTIONS: usize = 96;
const TAKE_OVERS: usize = 5;
/// Longest time of a take-over, and of anything that is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes by which the driver's own memory may differ from one take-over to another. A leak of a hundred bytes for each of a thousand
/// connections exceeds it in 200 of them.
const SLACK_BYTES: u64 = 8 << 20;

/// Descriptors by which one may differ from another: those of administrators, of jobs under way.
const SLACK_DESCRIPTORS: u64 = 16;

fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |value| value.parse().expect("a number"))
}

fn until<T>(what: &str, mut wished: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(is) = wished() {
            return is;
        }
        assert!(Instant::now() < end, "{what} never came true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A driver that is a process, and its successors.
struct Site {
    folder: tempfile::TempDir,
    driver: Child,
}

/// Things that a driver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    /// Memory that no other process shares.
    own_bytes: u64,
    /// Bytes of regions and rings, as the driver counts them.
    counted_bytes: u64,
}

impl Site {
    fn new(policy: &str, movers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\npolicy = {:?}\n[memory]\nbudget_bytes = \"2GiB\"\nhugepages = \"off\"\n\
             [driver]\nmovers = {movers}\nnamespaces = \"own\"\n",
            at("s"),
            at("admin.sock"),
            at("policy.toml")
        );
        let all = "connections_max = 100000\ndescriptors_max = 1000000\nmemory_bytes_max = \"2GiB\"\nclients_max = 100\n";
        let policy = format!("{policy}[[tenant]]\nname = \"default\"\n{all}[attach]\ndefault = \"anyone\"\n");
        std::fs::write(at("policy.toml"), policy).unwrap();
        std::fs::write(at("driver.toml"), config).unwrap();
        let driver = Self::start(&folder, &[]);
        let site = Self { folder, driver };
        until("the driver answers", || site.try_report());
        site
    }

    fn start(folder: &tempfile::TempDir, options: &[&str]) -> Child {
        let log = File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        let mut command = Command::new(program_path("pd"));
        command.arg("driver").args(options).arg("--config").arg(folder.path().join("driver.toml"));
        command.stdin(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn admin_socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn try_report(&self) -> Option<Report> {
        match ask(&self.admin_socket(), &Ask::List) {
            Ok(Answer::Report(report)) => Some(*report),
            Ok(other) => panic!("no report but {other:?}"),
            Err(_) => None,
        }
    }

    fn log(&self) -> String {
        read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn crowd(&self, seed: usize) -> (Puppet, String) {
        let mut command = Command::new(program_path("crowd"));
        command.arg(seed.to_string()).env("PD_SOCKET", self.folder.path().join("s"));
        let mut puppet = Puppet::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let address = puppet.answer().unwrap();
        (puppet, address)
    }

    /// Starts another driver in the place of this one, which ends. Returns the new one's report.
    fn take_over(&mut self) -> Report {
        let successor = Self::start(&self.folder, &["--take-over"]);
        let mut previous = std::mem::replace(&mut self.driver, successor);
        let ended = until("the previous driver ends", || match self.driver.try_wait().unwrap() {
            None => previous.try_wait().unwrap(),
            Some(status) => panic!("the successor ends, {status}:\n{}", self.log()),
        });
        assert!(ended.success(), "{ended}:\n{}", self.log());
        self.try_report().unwrap_or_else(|| panic!("no answer of the successor:\n{}", self.log()))
    }

    fn held(&self, report: &Report) -> Held {
        let process = Process::new(self.driver.id() as i32).unwrap();
        let own_kib = process.status().unwrap().rssanon.unwrap();
        Held {
            descriptors: process.fd_count().unwrap(),
            own_bytes: own_kib << 10,
            counted_bytes: report.memory_used_bytes,
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Returns the number below which `percent` of the sorted numbers are.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Crowds of connections, and take-overs in a row.
fn crowds_go_on(policy: &str, movers: usize) {
    let _turn = alone();
    let connections = setting("PD_CONNECTIONS", CONNECTIONS).next_multiple_of(CROWDS);
    let times = setting("PD_TAKE_OVERS", TAKE_OVERS);
    let mut site = Site::new(policy, movers);
    let (mut crowds, addresses): (Vec<_>, Vec<_>) = (1..=CROWDS).map(|seed| site.crowd(seed)).unzip();
    for (index, crowd) in crowds.iter_mut().enumerate() {
        let next = &addresses[(index + 1) % CROWDS];
        crowd.tell(&format!("connect {} {next}", connections / CROWDS));
    }
    crowds.iter_mut().for_each(|crowd| assert_eq!(crowd.answer().unwrap(), ""));
    crowds.iter_mut().for_each(|crowd| crowd.tell("ready"));
    let direct: usize =
        crowds.iter_mut().map(|crowd| crowd.answer().unwrap().parse::<usize>().unwrap()).sum();

    let (mut random, mut pauses, mut attempts, mut held) = (Random(1), Vec::new(), 0, Vec::new());
    let mut last = None;
    for _ in 0..times {
        std::thread::sleep(Duration::from_millis(random.below(150)));
        let report = site.take_over();
        let taken = report.taken_over.clone().expect("a take-over");
        assert_eq!((taken.clients, taken.connections), (CROWDS, connections), "{}", site.log());
        assert_eq!((report.clients.len(), report.connections.len()), (CROWDS, connections));
        pauses.push(taken.pause_us);
        attempts += taken.attempts;
        held.push(site.held(&report));
        last = Some(taken);
    }
    crowds.iter_mut().for_each(|crowd| crowd.tell("end"));
    let (mut sent, mut received, mut longest) = (0, 0, 0);
    for crowd in &mut crowds {
        let answer = crowd.answer().unwrap();
        let numbers: Vec<u64> = answer.split(' ').map(|number| number.parse().unwrap()).collect();
        (sent, received, longest) = (sent + numbers[0], received + numbers[1], longest.max(numbers[2]));
    }
    // No stream has a byte that is not its pattern's, so that equal sums are equal streams.
    assert_eq!(sent, received);
    pauses.sort_unstable();
    println!(
        "{connections} connections, {} of {} ends direct, {sent} bytes; {times} take-overs in {attempts} attempts; pause: \
         P50 {} us, P99 {} us, longest {} us; longest silence of a process {longest} us; last: {last:?}; first {:?}, last {:?}",
        direct,
        2 * connections,
        percentile(&pauses, 50),
        percentile(&pauses, 99),
        pauses.last().unwrap(),
        held[0],
        held[times - 1]
    );
    assert_steady(&held);
    crowds.into_iter().for_each(Puppet::finish);
    until("nothing is left", || {
        site.try_report().filter(|report| report.clients.is_empty() && report.memory_used_bytes == 0)
    });
}

/// Checks that the last drivers hold what the first ones held.
fn assert_steady(held: &[Held]) {
    let (first, last) = held.split_at(held.len().div_ceil(2));
    let most = |held: &[Held], of: fn(&Held) -> u64| held.iter().map(of).max().unwrap_or(0);
    for (of, slack) in [
        ((|held| held.descriptors as u64) as fn(&Held) -> u64, SLACK_DESCRIPTORS),
        (|held| held.own_bytes, SLACK_BYTES),
        (|held| held.counted_bytes, 0),
    ] {
        assert!(most(last, of) <= most(first, of) + slack, "{held:#?}");
    }
}

#[test]
fn crowds_go_on_by_the_driver() {
    crowds_go_on("path = \"offloaded\"\n", 1);
}

#[test]
fn crowds_go_on_by_direct_rings() {
    crowds_go_on("path = \"direct\"\n", 1);
}

#[test]
fn crowds_go_on_by_several_movers() {
    crowds_go_on("path = \"offloaded\"\n", 3);
}
