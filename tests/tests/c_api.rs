//! The C programs, compiled against the header and the library as a stranger would, in pairs of processes.
use pd_driver::admin::{Answer, Ask, PortSpec, TapOf};
use pd_driver::policy::Path as BytesPath;
use pd_tests::{compiled, path, peer_path, TestDriver};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 13] = [
    "close_beside",
    "copying",
    "echo",
    "epoll",
    "errors",
    "file",
    "forward",
    "link",
    "listing1",
    "options",
    "pipe",
    "sleeper",
    "threads",
];
const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
const PATIENCE: Duration = Duration::from_secs(60);

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/capi")
}

/// Returns the folder with the programs, and `libpd.so.0` in their search path. Made once.
fn programs() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("temporary folder");
        let library = library();
        for name in ["libpd.so", "libpd.so.0"] {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).expect("symlink");
        }
        for program in PROGRAMS {
            let source = capi().join("tests/c").join(program).with_extension("c");
            compiled_with_library(&source, folder.path());
        }
        folder
    })
    .path()
}

/// Compiles a program into the folder of the library, in which the program looks for it.
fn compiled_with_library(source: &Path, folder: &Path) -> PathBuf {
    let [include, shown] = [capi().join("include"), folder.to_owned()].map(|path| path.display().to_string());
    compiled(source, folder, &["-I", &include, "-L", &shown, "-lpd", &format!("-Wl,-rpath,{shown}")])
}

/// Builds `libpd.so` with the profile and in the target folder of this test: fresh, whatever cargo built
/// before. `make test` sets `PD_LIBRARIES_BUILT` when it has built all.
fn library() -> PathBuf {
    let folder = peer_path().parent().expect("target folder").to_owned();
    let library = folder.join("libpd.so");
    if std::env::var_os("PD_LIBRARIES_BUILT").is_some() && library.exists() {
        return library;
    }
    let profile = match folder.file_name().and_then(|name| name.to_str()).expect("profile") {
        "debug" => "dev",
        profile => profile,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "-p", "pd-capi", "--profile", profile, "--target-dir"]);
    run(build.arg(folder.parent().expect("target folder")).current_dir(env!("CARGO_MANIFEST_DIR")));
    assert!(library.exists(), "{} is not there", library.display());
    library
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds a program that prints the library's message when it finds no driver.
fn complaining(name: &str) -> PathBuf {
    const TEXT: &str = "#include <pd.h>\n#include <stdio.h>\n#include <sys/socket.h>\n\
        int main(void) { if (pd_socket(AF_INET, SOCK_STREAM, 0) < 0) puts(pd_errmsg()); return 0; }";
    let source = programs().join(name).with_extension("c");
    std::fs::write(&source, TEXT).expect("the program's text");
    let program = compiled_with_library(&source, programs());
    run(Command::new("chmod").arg("755").arg(programs()));
    program
}

fn complaint(program: &mut Command) -> String {
    let output = program.output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The environment of a set-id program may come from other users than its owner.
#[test]
fn a_set_id_program_does_not_ask_the_driver_of_its_environment() {
    let program = complaining("set_id");
    run(Command::new("chown").arg("65534").arg(&program));
    let told = |mode: &str| {
        run(Command::new("chmod").arg(mode).arg(&program));
        let path = "/nonexistent/of-the-environment";
        complaint(Command::new(&program).env("PD_SOCKET", path)).contains(path)
    };
    assert_eq!([told("755"), told("4755")], [true, false]);
}

/// The message for a user without access to the driver's socket names the users with access, and does not advise to start another
/// driver.
#[test]
fn a_remedy_fits_what_is_wrong() {
    let program = complaining("whose");
    let closed = programs().join("closed");
    std::fs::create_dir(&closed).expect("a folder");
    run(Command::new("chmod").arg("700").arg(&closed));
    let mut command = Command::new(&program);
    command.env("PD_SOCKET", closed.join("driver.sock"));
    assert!(complaint(&mut command).contains("start it with"));
    let denied = complaint(command.uid(65534).gid(65534));
    assert!(denied.contains("socket_mode") && !denied.contains("start it"), "{denied}");
}

/// Calls that are missing from the linker's map would be missing from the installed library.
#[test]
fn the_map_of_symbols_has_each_call() {
    let read = |file: &str| std::fs::read_to_string(capi().join(file)).expect(file);
    let (header, map) = (read("include/pd.h"), read("libpd.map"));
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let calls = header.lines().filter(|line| !line.starts_with([' ', '/', '#', 't'])).filter_map(|line| {
        let name = line.split_once('(')?.0;
        Some(name.rsplit(|c| !word(c)).next()?.to_owned())
    });
    let mut calls: Vec<_> = calls.filter(|name| name.starts_with("pd_")).collect();
    let exported = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let mut exported: Vec<_> = exported.filter(|name| name.starts_with("pd_")).collect();
    calls.sort();
    exported.sort_unstable();
    assert!(calls.len() > 20 && calls == exported, "declared: {calls:?}, exported: {exported:?}");
}

fn start(driver: &TestDriver, program: &str, role: &str, addr: &str, port: u16) -> Child {
    let mut command = Command::new(programs().join(program));
    command.args([role, addr, &port.to_string()]).env("LD_LIBRARY_PATH", programs());
    driver.spawn(&mut command)
}

fn wait(mut child: Child, what: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            assert!(status.success(), "{what}: {status}");
            return;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{what} does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pair(program: &str, addr: &str) {
    pair_with(program, addr);
}

/// Runs the two sides of a program. Returns how often a mover slept.
fn pair_with(program: &str, addr: &str) -> u64 {
    let driver = TestDriver::with("cpu", |settings| settings.hugepages = pd_driver::HugepageUse::Off);
    // A port for each: all tests share the kernel's ports. The tests of the direct path may run at the same time.
    static USED: AtomicU16 = AtomicU16::new(0);
    let first = match path() {
        BytesPath::Offloaded => 7300,
        BytesPath::Direct => 7400,
    };
    let port = first + USED.fetch_add(1, Ordering::Relaxed);
    let server = start(&driver, program, "server", addr, port);
    // `listing1` is the paper's and does not wait for its server.
    driver.wait_for("the server listens", |r| r.clients.iter().any(|c| !c.listening.is_empty()));
    let client = start(&driver, program, "client", addr, port);
    wait(client, &format!("{program} client {addr}"));
    wait(server, &format!("{program} server {addr}"));
    driver.wait_for("nothing is left", |r| {
        r.clients.is_empty() && r.connections.is_empty() && r.memory_used_bytes == 0
    });
    driver.metrics().mover_sleeps
}

#[test]
fn file() {
    pair("file", "127.0.0.1");
}

#[test]
fn forward() {
    pair("forward", "127.0.0.1");
}

#[test]
fn echo() {
    pair("echo", "127.0.0.1");
    pair("echo", "::1");
}

#[test]
fn epoll() {
    pair("epoll", "127.0.0.1");
}

/// On the direct path the peer rings a doorbell, also of an instance with one channel. Each message that the driver forwarded would make
/// a mover sleep once more. 400 of the 800 messages are waited for on the instance's descriptor.
#[test]
fn a_sleeper_in_epoll_is_woken_whatever_the_path() {
    let sleeps = pair_with("sleeper", "127.0.0.1");
    println!("a mover slept {sleeps} times");
    if pd_tests::path() == BytesPath::Direct {
        assert!(sleeps < 700, "the driver was woken {sleeps} times for 800 messages");
    }
}

#[test]
fn errors() {
    pair("errors", "127.0.0.1");
    pair("errors", "::1");
}

#[test]
fn listing_1_of_the_paper() {
    pair("listing1", "127.0.0.1");
}

#[test]
fn calls_that_copy_wait_peek_and_mix_with_lending() {
    pair("copying", "127.0.0.1");
    pair("copying", "::1");
}

#[test]
fn options() {
    pair("options", "127.0.0.1");
    pair("options", "::1");
}

#[test]
fn threads() {
    pair("threads", "127.0.0.1");
}

#[test]
fn a_close_beside_a_send_loses_nothing_that_was_sent() {
    pair("close_beside", "127.0.0.1");
}

/// Makes a capture of `frames` frames of 60 bytes, each filled with its number.
fn captured(frames: u8) -> Vec<u8> {
    let packet = |number| [0u32, 0, 60, 60].map(u32::to_le_bytes).concat().into_iter().chain([number; 60]);
    let head = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes).concat();
    head.into_iter().chain((0..frames).flat_map(packet)).collect()
}

#[test]
fn pipe() {
    let driver = TestDriver::new();
    let file = tempfile::NamedTempFile::new().expect("a capture");
    std::fs::write(file.path(), captured(100)).expect("a capture");
    let gen = PortSpec::Gen { sizes: vec![64, 300, 1500], flows: 3, frames: 2000 };
    let old = PortSpec::Pcap { file: file.path().to_owned() };
    for (name, port) in [("old", old), ("wan", gen), ("wire", PortSpec::Link), ("tube", PortSpec::Link)] {
        driver.tell(&Ask::PortAdd { name: name.to_owned(), port });
    }
    let mut command = Command::new(programs().join("pipe"));
    command.env("LD_LIBRARY_PATH", programs()).stdin(std::process::Stdio::piped());
    let mut child = driver.spawn(&mut command);
    let until = Instant::now() + PATIENCE;
    loop {
        let Answer::Pipes(report) = driver.tell(&Ask::Pipes) else { panic!("no report") };
        let wan = report.ports.into_iter().find(|port| port.name == "wan").expect("the port");
        if wan.frames_sent == 2000 {
            assert_eq!((wan.frames_wrong, wan.frames_missing), (0, 0));
            break;
        }
        if child.try_wait().expect("wait").is_some() || Instant::now() > until {
            let _ = child.kill();
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
    wait(child, "pipe");
}

/// Two processes on a link, of which the receiver keeps frames while the path changes. One waits by its calls, the other in epoll.
#[test]
fn links() {
    links_of("receive");
    links_of("wait");
}

fn links_of(receiver: &str) {
    let driver = TestDriver::new();
    driver.tell(&Ask::PortAdd { name: "wire".to_owned(), port: PortSpec::Link });
    let start = |what: &str| {
        let mut command = Command::new(programs().join("link"));
        driver.spawn(command.env("LD_LIBRARY_PATH", programs()).arg(what))
    };
    let mut both = [start("send"), start(receiver)];
    let received = || {
        let Answer::Pipes(report) = driver.tell(&Ask::Pipes) else { panic!("no report") };
        let of = |path: &str| report.pipes.len() == 2 && report.pipes.iter().all(|pipe| pipe.path == path);
        let frames =
            report.ports.iter().find(|port| port.name == "wire.1").expect("the port").frames_received;
        (frames, of("direct"), of("agent"))
    };
    let mut goes = |direct: bool| {
        let (before, until) = (received().0, Instant::now() + PATIENCE);
        loop {
            let (frames, is_direct, is_agent) = received();
            if frames > before + 20_000 && if direct { is_direct } else { is_agent } {
                break;
            }
            let ended = both.iter_mut().find_map(|child| child.try_wait().expect("wait"));
            assert!(ended.is_none() && Instant::now() < until, "direct: {direct}, ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for _ in 0..10 {
        goes(true);
        let of = TapOf::Port { name: "wire.1".to_owned() };
        let tap = pd_driver::admin::tap(driver.admin_socket(), of, 64).expect("a tap");
        goes(false);
        drop(tap);
    }
    for child in &mut both {
        child.kill().and_then(|()| child.wait()).expect("an end");
    }
}

#[test]
fn the_header_is_cpp_and_strict_c_too() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let source = "#include <pd.h>\n\
                  int main() { struct sockaddr_in in = sockaddr_in(); (void)in;\n\
                  pd_epoll_event event = pd_epoll_event(); event.data.u64 = 1;\n\
                  pd_pipe_options options = pd_pipe_options(); pd_frame frame;\n\
                  if (pd_pipe_open(\"wan\", PD_PIPE_RECEIVE | PD_PIPE_NONBLOCK, &options) >= 0)\n\
                  return pd_pipe_recv(0, &frame, 1);\n\
                  return pd_connect(-1, reinterpret_cast<sockaddr *>(&in), sizeof in) +\n\
                  pd_epoll_ctl(-1, PD_EPOLL_CTL_ADD, -1, &event) == -2 ? 0 : 1; }\n";
    let path = folder.path().join("header.cc");
    std::fs::write(&path, source).expect("source");
    let compile = |compiler: &str, std: &str, path: &Path| {
        let mut command = Command::new(compiler);
        command.arg(format!("-std={std}")).args(WARNINGS).arg("-fsyntax-only");
        run(command.arg("-I").arg(capi().join("include")).arg(path));
    };
    let plain = folder.path().join("header.c");
    std::fs::write(&plain, "#include <pd.h>\nint main(void) { return pd_close(-1) == -1 ? 0 : 1; }\n")
        .expect("source");
    for std in ["gnu99", "gnu11", "gnu17"] {
        compile("gcc", std, &plain);
    }
    if Command::new("g++").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no g++ to compile the header as C++");
        return;
    }
    for std in ["c++11", "c++17", "gnu++20"] {
        compile("g++", std, &path);
    }
}
