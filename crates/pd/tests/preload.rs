//! Unmodified programs with `libpd_preload.so`, between containers. Needs root, iproute2, gcc and python3. A
//! program's output must not depend on the transport of its bytes. Every program runs over kernel TCP without
//! the library first, and has to give the same output in every other way.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[path = "preload/aside.rs"]
mod aside;
#[path = "preload/at_once.rs"]
mod at_once;
#[path = "preload/begins_late.rs"]
mod begins_late;
#[path = "preload/calls.rs"]
mod calls;
#[path = "preload/cancel.rs"]
mod cancel;
#[path = "preload/claim.rs"]
mod claim;
#[path = "../../../tests/src/compiled.rs"]
mod compiled;
#[path = "preload/crash.rs"]
mod crash;
#[path = "preload/endings.rs"]
mod endings;
#[path = "preload/epoll.rs"]
mod epoll;
#[path = "preload/files.rs"]
mod files;
#[path = "preload/limits.rs"]
mod limits;
#[path = "preload/narrow.rs"]
mod narrow;
#[path = "preload/next_owners.rs"]
mod next_owners;
#[path = "preload/pointers.rs"]
mod pointers;
#[path = "preload/ports.rs"]
mod ports;
#[path = "preload/reasons.rs"]
mod reasons;
#[path = "preload/requests.rs"]
mod requests;
#[path = "preload/scarce.rs"]
mod scarce;
#[path = "preload/short.rs"]
mod short;
#[path = "preload/short_lived.rs"]
mod short_lived;
#[path = "preload/signals.rs"]
mod signals;
#[path = "preload/takeover.rs"]
mod takeover;
#[path = "preload/tools.rs"]
mod tools;
#[path = "preload/unix.rs"]
mod unix;

const PORT: &str = "7300";

/// No client takes a tenth of this.
const HANGS_AFTER: Duration = Duration::from_secs(180);

/// Runs of a program until one gets as far as it does on an idle machine.
const TRIES: u32 = 5;

/// Equipment of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Nothing,
    /// The preload library.
    Library,
    /// The preload library, in a tenant whose bytes the driver moves by policy.
    Mediated,
    /// The library, in a tenant with a rate that is never reached.
    Rated,
    /// The library, as one of a tenant's that has hardly any memory.
    Scarce,
    /// Both.
    ScarceMediated,
    /// The library, as one of a tenant's that may have three processes attached.
    Few,
}

impl With {
    fn tenant(self) -> Option<&'static str> {
        match self {
            With::Nothing | With::Library => None,
            With::Mediated => Some("mediated"),
            With::Rated => Some("rated"),
            With::Scarce => Some("scarce"),
            With::ScarceMediated => Some("scarce_mediated"),
            With::Few => Some("few"),
        }
    }
}

/// A driver, a bridge and the names of one test.
struct Site {
    folder: tempfile::TempDir,
    driver: Child,
    third: u8,
    /// Option of `pd run`. The tests have short connections.
    preload: &'static str,
    /// Tells whether containers keep all capabilities.
    privileged: bool,
}

impl Site {
    fn new(third: u8) -> Site {
        Site::with_movers(third, 1)
    }

    fn with_movers(third: u8, movers: usize) -> Site {
        Site::with_engine(third, movers, "cpu")
    }

    fn with_engine(third: u8, movers: usize, engine: &str) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\npolicy = {:?}\n[memory]\nbudget_bytes = \"256MiB\"\nhugepages = \"off\"\n\
             [driver]\nmovers = {movers}\nengine = {engine:?}\n",
            at("s"),
            at("admin.sock"),
            at("policy.toml")
        );
        let policy = "[[tenant]]\nname = \"mediated\"\n\
                      [[tenant]]\nname = \"rated\"\nrate = { bytes_per_second = \"100GB\" }\n\
                      [[tenant]]\nname = \"few\"\nclients_max = 3\n\
                      [[tenant]]\nname = \"scarce\"\nmemory_bytes_max = \"8MiB\"\n\
                      [[tenant]]\nname = \"scarce_mediated\"\nmemory_bytes_max = \"8MiB\"\n\
                      [[rule]]\nfrom = [\"mediated\", \"scarce_mediated\"]\nto = [\"mediated\", \"scarce_mediated\"]\n\
                      action = \"allow\"\npath = \"offloaded\"\n";
        std::fs::write(at("policy.toml"), policy).unwrap();
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.arg("driver").arg("--config").arg(at("driver.toml"));
        let site = Site {
            driver: command.spawn().unwrap(),
            folder,
            third,
            preload: "--preload=all",
            privileged: false,
        };
        let end = Instant::now() + Duration::from_secs(20);
        // There is a file before anybody listens.
        while UnixStream::connect(site.folder.path().join("admin.sock")).is_err() {
            assert!(Instant::now() < end, "the driver does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        site
    }

    /// Returns the address of the container with this host number.
    fn address(&self, host: u8) -> String {
        format!("10.97.{}.{host}", self.third)
    }

    /// Returns the path of the library's log.
    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// Returns a command in a container with this host number.
    fn run(&self, host: u8, with: With, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_pd"));
        run.args(["run", "--bridge", &format!("pdt{}", self.third)])
            .args(["--name", &format!("t{}-{host}", self.third)])
            .args(["--ip", &format!("{}/24", self.address(host))])
            .arg("--socket")
            .arg(self.folder.path().join("s"));
        if with != With::Nothing {
            run.arg(self.preload).env("PD_PRELOAD_LOG", self.log());
        }
        if self.privileged {
            run.arg("--privileged");
        }
        if let Some(tenant) = with.tenant() {
            run.args(["--tenant", tenant]);
        }
        run.arg("--").args(command).stdin(Stdio::null());
        run
    }

    /// Connections that the driver has made so far.
    fn connections(&self) -> u64 {
        self.counter("connections_made")
    }

    /// Returns a counter of the driver.
    fn counter(&self, name: &str) -> u64 {
        self.stats()["counters"][name].as_u64().unwrap()
    }

    fn stats(&self) -> serde_json::Value {
        self.json(&["stats", "--json"])
    }

    /// Returns the JSON output of a command about the driver.
    fn json(&self, command: &[&str]) -> serde_json::Value {
        let output = Command::new(env!("CARGO_BIN_EXE_pd"))
            .args(command)
            .arg("--admin-socket")
            .arg(self.folder.path().join("admin.sock"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Starts a server and waits until it says "ready".
    fn serve(&self, with: With, command: &[&str]) -> Server {
        self.serve_at(2, with, command)
    }

    /// Starts a server in the container with this host number.
    fn serve_at(&self, host: u8, with: With, command: &[&str]) -> Server {
        let mut child = self.run(host, with, command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        Server(child)
    }

    fn answer(&self, with: With, command: &[&str]) -> String {
        answer_of(&mut self.run(3, with, command))
    }

    /// Compiles the C program of this name, with `options`, and returns its path.
    fn compiled(&self, name: &str, options: &[&str]) -> String {
        let program = compiled::compiled_program(name, self.folder.path(), options);
        program.to_str().unwrap().to_owned()
    }

    /// Compares server and client with and without the library, in all ways. The output is the same, connections are
    /// on the fabric when both have it, and direct unless the policy has the driver move the bytes.
    fn compare(&self, server: &[&str], client: &[&str]) {
        self.compare_paths(server, client, true);
    }

    /// Compares programs whose connections go from process to process, perhaps before they are direct.
    fn compare_moving(&self, server: &[&str], client: &[&str]) {
        self.compare_paths(server, client, false);
    }

    fn compare_paths(&self, server: &[&str], client: &[&str], is_direct: bool) {
        use With::{Library, Mediated, Nothing};
        let mut expected = None;
        let ways = [
            (Nothing, Nothing),
            (Library, Library),
            (Mediated, Mediated),
            (Library, Nothing),
            (Nothing, Library),
        ];
        for (server_has, client_has) in ways {
            // A connection of a brief program ends before it is direct if the driver gets no core meanwhile.
            for tries_left in (0..TRIES).rev() {
                let before = [self.connections(), self.counter("connections_direct")];
                let running = self.serve(server_has, server);
                let answer = self.answer(client_has, client);
                drop(running);
                let expected = expected.get_or_insert_with(|| answer.clone());
                assert!(
                    &answer == expected,
                    "server: {server_has:?}, client: {client_has:?}\n{}{:#}\n{}",
                    differing(&answer, expected),
                    self.stats()["counters"],
                    std::fs::read_to_string(self.log()).unwrap_or_default()
                );
                let made = self.connections() - before[0];
                assert_eq!(
                    made > 0,
                    server_has == client_has && client_has != Nothing,
                    "{made} on the fabric"
                );
                let direct = self.counter("connections_direct") - before[1];
                let may_be = made > 0 && client_has == Library;
                assert!(direct == 0 || may_be, "{direct} of {made} direct");
                if direct > 0 || !(may_be && is_direct) {
                    break;
                }
                assert!(tries_left > 0, "none of {made} direct");
            }
        }
        assert!(expected.is_some_and(|text| !text.is_empty()));
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        terminate(&mut self.driver);
    }
}

/// A running server, ended when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        terminate(&mut self.0);
    }
}

/// Returns the lines of an answer that differ from the expected ones.
fn differing(answer: &str, expected: &str) -> String {
    let (mut answer, mut expected) = (answer.lines(), expected.lines());
    let mut all = String::new();
    for number in 1.. {
        match (answer.next(), expected.next()) {
            (None, None) => break,
            (is, should_be) if is == should_be => {}
            (is, should_be) => all += &format!("line {number}: {is:?}, expected {should_be:?}\n"),
        }
    }
    all
}

/// Returns a client's output.
fn answer_of(run: &mut Command) -> String {
    let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || tell.send(child.wait_with_output()));
    let output = ended.recv_timeout(HANGS_AFTER).unwrap_or_else(|_| {
        let stacks = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/stacks")).output();
        let stacks = stacks.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        eprintln!("{}", stacks.unwrap_or_else(|error| format!("no stacks: {error}")));
        signal(id, rustix::process::Signal::TERM);
        let output = ended.recv_timeout(Duration::from_secs(10)).expect("the client ends when told to");
        panic!("{run:?}: the client hangs after {output:?}");
    });
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{:?}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn terminate(child: &mut Child) {
    signal(child.id(), rustix::process::Signal::TERM);
    let _ = child.wait();
}

fn signal(id: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(id as i32).unwrap();
    let _ = rustix::process::kill_process(pid, signal);
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

fn compare_calls(site: &Site) {
    let program = site.compiled("calls", &["-D_FORTIFY_SOURCE=2"]);
    let program = program.as_str();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}

fn compare_python(site: &Site) {
    let program = programs().join("echo.py");
    let program = program.to_str().unwrap();
    site.compare(
        &["python3", program, "server", PORT],
        &["python3", program, "client", &site.address(2), PORT],
    );
}

#[test]
fn calls_answer_the_same_whatever_carries_the_bytes() {
    compare_calls(&Site::new(71));
}

#[test]
fn python_answers_the_same_whatever_carries_the_bytes() {
    compare_python(&Site::new(72));
}

/// Extensions of PHP are such objects.
#[test]
fn objects_that_are_bound_deeply_use_connections_whatever_carries_the_bytes() {
    let site = Site::new(200);
    let made = site.compiled("deep", &["-shared", "-fPIC", "-DPLUGIN", "-Wl,-z,lazy"]);
    let plugin = format!("{made}.so");
    std::fs::rename(made, &plugin).unwrap();
    let program = site.compiled("deep", &[]);
    let (program, plugin, ip) = (program.as_str(), plugin.as_str(), site.address(2));
    site.compare(&[program, "server", PORT, plugin], &[program, "client", &ip, PORT, plugin]);
}

/// Compares a server and a client of a program in Python, also with short connections.
fn compare_both_modes(site: &Site, program: &str, compare: impl Fn(&Site, &[&str], &[&str])) {
    let program = programs().join(program);
    let program = program.to_str().unwrap();
    let (server, ip) = (["python3", program, "server", PORT], site.address(2));
    let client = ["python3", program, "client", &ip, PORT];
    compare(site, &server, &client);
    let short = ["env", "PD_PRELOAD=short"];
    compare(site, &[&short[..], &server].concat(), &[&short[..], &client].concat());
}

#[test]
fn who_lingers_for_no_time_resets_whatever_carries_the_bytes() {
    compare_both_modes(&Site::new(94), "linger.py", Site::compare);
}

#[test]
fn peers_of_processes_that_die_learn_the_same_whatever_carries_the_bytes() {
    compare_both_modes(&Site::new(88), "deaths.py", Site::compare_moving);
}

/// Containers have movers of their own, and connections ends of two.
#[test]
fn several_movers_make_no_difference() {
    let site = Site::with_movers(83, 3);
    compare_calls(&site);
    compare_python(&site);
    unix::compare(&site);
}

/// A child has only the thread that forked, and none that would let go of a lock of another thread of its parent's.
#[test]
fn children_of_a_busy_process_use_connections_whatever_carries_the_bytes() {
    let site = Site::new(202);
    let program = site.compiled("forking", &[]);
    site.compare_moving(&[&program, "server", PORT], &[&program, "client", &site.address(2), PORT]);
}

/// An acceptor asks the driver only while there is a twin towards its listener.
#[test]
fn who_has_no_library_is_accepted_while_the_driver_stands_still() {
    let site = Site::new(90);
    let program = programs().join("echo.py");
    let program = program.to_str().unwrap();
    let _server = site.serve(With::Library, &["python3", program, "server", PORT]);
    let ip = site.address(2);
    let client = ["python3", program, "client", &ip, PORT];
    let expected = site.answer(With::Library, &client);
    signal(site.driver.id(), rustix::process::Signal::STOP);
    let answer = answer_of(Command::new("env").args(client));
    signal(site.driver.id(), rustix::process::Signal::CONT);
    assert_eq!(answer, expected);
}

fn library() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_pd")).parent().unwrap().join("libpd_preload.so")
}

/// The kernel takes long to register a process with several threads.
#[test]
fn a_program_is_registered_for_barriers_before_it_has_threads() {
    const PRIVATE_EXPEDITED: u32 = 1 << 3;
    let ask = format!(
        "import ctypes; print(ctypes.CDLL(None).syscall({}, {PRIVATE_EXPEDITED}, 0, 0))",
        libc::SYS_membarrier
    );
    let answer = |preload: &Path| {
        let mut program = Command::new("python3");
        answer_of(program.args(["-c", &ask]).env("LD_PRELOAD", preload).env("PD_SOCKET", "/nonexistent"))
    };
    assert_eq!(answer(Path::new("")).trim(), "-1");
    assert_eq!(answer(&library()).trim(), "0");
}

#[test]
fn without_a_driver_programs_run_as_ever() {
    let library = library();
    let program = programs().join("echo.py");
    let mut server = Command::new("python3")
        .arg(&program)
        .args(["server", "7399"])
        .env("LD_PRELOAD", &library)
        .env("PD_SOCKET", "/nonexistent")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = Command::new("python3")
        .arg(&program)
        .args(["client", "127.0.0.1", "7399"])
        .env("LD_PRELOAD", &library)
        .env("PD_SOCKET", "/nonexistent")
        .output()
        .unwrap();
    terminate(&mut server);
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// A server of one message a connection.
const ECHO: &str = "
import socket
listener = socket.create_server(('0.0.0.0', 7300))
print('ready', flush=True)
while True:
    connection = listener.accept()[0]
    connection.sendall(connection.recv(100).upper())
    connection.close()
";

/// Connections whose sockets ask for functions of the kernel's TCP alone: `SO_TIMESTAMPING`, `O_ASYNC` in two
/// ways; or for none.
const ASKING: &str = "
import array, fcntl, os, socket, sys
def option(level, name): return lambda made: made.setsockopt(level, name, 1)
def flag(made): fcntl.fcntl(made, fcntl.F_SETFL, fcntl.fcntl(made, fcntl.F_GETFL) | os.O_ASYNC)
def ioctl(made): fcntl.ioctl(made, 0x5452, array.array('i', [1]))
ways = [option(1, 37), flag, ioctl]
for way in ways if sys.argv[1] == 'asking' else [lambda made: None]:
    made = socket.socket()
    way(made)
    made.connect((sys.argv[2], 7300))
    made.sendall(b'right')
    print(made.recv(100).decode())
";

#[test]
fn sockets_that_ask_for_what_the_fabric_has_not_stay_on_the_kernel() {
    let site = Site::new(77);
    let _server = site.serve(With::Library, &["python3", "-c", ECHO]);
    for (way, answers) in [("asking", "RIGHT\n".repeat(3)), ("plain", "RIGHT\n".to_owned())] {
        let before = site.connections();
        assert_eq!(site.answer(With::Library, &["python3", "-c", ASKING, way, "10.97.77.2"]), answers);
        assert_eq!(site.connections() - before, u64::from(way == "plain"), "{way}");
    }
}
