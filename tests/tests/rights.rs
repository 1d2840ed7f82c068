//! The program `pd driver` and its rights: it has those of the guide, starts with no more, and names missing ones.
use pd_driver::admin::{ask, Answer, Ask};
use pd_tests::{ip, needs_root, peer_path, program_path, Network, Puppet};
use procfs::process::{Process, StatFlags, Status};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guides/container.md");
/// Bit numbers of linux/capability.h.
const NUMBERS: [(&str, u32); 5] =
    [("CHOWN", 0), ("DAC_READ_SEARCH", 2), ("NET_ADMIN", 12), ("SYS_PTRACE", 19), ("SYS_ADMIN", 21)];
/// Right that the driver can start without, and that only one thread keeps.
const OPTIONAL: &str = "NET_ADMIN";
const KEEPER: &str = "pd-gate";

/// Returns the capabilities that the guide adds, for docker and for Kubernetes.
fn documented() -> Vec<String> {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let words: Vec<_> = guide.lines().filter(|line| line.contains("--cap-drop ALL --")).collect();
    let docker: Vec<_> = words[0].split("--cap-add ").skip(1).map(|w| w.split(' ').next().unwrap()).collect();
    let pod = guide.lines().find_map(|line| line.trim().strip_prefix("add: [")?.strip_suffix(']')).unwrap();
    assert_eq!(docker, pod.split(", ").collect::<Vec<_>>());
    docker.into_iter().map(str::to_owned).collect()
}

fn mask(names: &[String]) -> u64 {
    let number = |name: &String| NUMBERS.iter().find(|(known, _)| known == name).unwrap().1;
    names.iter().fold(0, |all, name| all | 1 << number(name))
}

/// Makes the command `pd driver` with a configuration in `folder`, and no other capabilities than `rights`.
fn driver(folder: &Path, rights: &[String]) -> Command {
    let program = program_path("pd");
    assert!(program.exists(), "build it first: cargo build -p pd");
    let config = folder.join("driver.toml");
    let text = format!(
        "socket = \"{0}/s\"\nadmin_socket = \"{0}/a\"\nsocket_mode = \"0666\"\n[memory]\nbudget_bytes = \"64MiB\"\nhugepages = \"off\"\n",
        folder.display()
    );
    std::fs::write(&config, text).unwrap();
    let set = rights.iter().fold("-all".to_owned(), |set, right| set + ",+" + &right.to_lowercase());
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", &set, "--inh-caps", &set, "--no-new-privs"]).arg(program);
    command.args(["driver", "--config"]).arg(config).stderr(Stdio::piped());
    command
}

/// A running driver; killed when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let ready = lines.by_ref().find(|line| line.contains("driver ready"));
        assert!(ready.is_some(), "the driver does not start");
        std::thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

/// Returns the status of each thread of a process, except of those that are ending. Such a one has been waited for already, may
/// be listed for a while, and gets no filter any more.
fn threads(pid: u32) -> Vec<Status> {
    let tasks = Process::new(pid as i32).unwrap().tasks().unwrap().flatten();
    let statuses = tasks.filter_map(|task| {
        let status = task.status().ok()?;
        // Read after the status: a thread that ends does not go on.
        let flags = StatFlags::from_bits_retain(task.stat().ok()?.flags);
        (!flags.contains(StatFlags::PF_EXITING)).then_some(status)
    });
    statuses.collect()
}

#[test]
fn a_running_driver_has_the_rights_that_it_needs_and_no_others() {
    needs_root("a driver of all namespaces");
    let folder = folder();
    let rights = documented();
    // As root starts it, with whatever there is.
    let mut command = driver(folder.path(), &rights);
    let args: Vec<PathBuf> = command.get_args().map(PathBuf::from).collect();
    let from = args.iter().position(|arg| arg.is_absolute()).unwrap();
    command = Command::new(&args[from]);
    command.args(&args[from + 1..]).stderr(Stdio::piped());
    let running = Running::start(command);
    let all = threads(running.0.id());
    assert!(all.len() >= 4, "{all:?}");
    let usual: Vec<_> = rights.iter().filter(|right| *right != OPTIONAL).cloned().collect();
    let [kept, more] = [&usual, &rights].map(|rights| mask(rights));
    assert_eq!(all.iter().filter(|status| status.name == KEEPER).count(), 1, "{all:?}");
    for status in all {
        let kept = if status.name == KEEPER { more } else { kept };
        let capabilities = [status.capinh, status.capprm, status.capeff];
        assert_eq!(
            capabilities,
            [0, kept, kept],
            "inheritable, permitted and effective ones of {}",
            status.name
        );
        assert_eq!((status.capbnd, status.capamb), (Some(kept), Some(0)), "of {}", status.name);
        assert_eq!((status.nonewprivs, status.seccomp), (Some(1), Some(2)), "of {}", status.name);
    }
}

#[test]
fn a_driver_without_a_right_says_which_and_does_not_start() {
    needs_root("a driver of all namespaces");
    let folder = folder();
    let rights = documented();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    for right in rights.iter().filter(|right| *right != OPTIONAL) {
        let others: Vec<_> = rights.iter().filter(|other| *other != right).cloned().collect();
        let output = driver(folder.path(), &others).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let lines: Vec<_> =
            said(&output).lines().filter(|line| line.contains("is missing to")).map(str::to_owned).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with(&format!("CAP_{right} is missing to ")), "{lines:?}");
        assert!(lines[0].contains(&format!("--cap-add {right}")), "{lines:?}");
    }
    let config = folder.path().join("driver.toml");
    let with_group = std::fs::read_to_string(&config).unwrap();
    let mut command = driver(folder.path(), &rights);
    std::fs::write(&config, format!("socket_group = \"54321\"\n{with_group}")).unwrap();
    let output = command.output().unwrap();
    assert!(said(&output).contains("CAP_CHOWN is missing to"), "{output:?}");
    // In a namespace of process ids of its own nobody could attach.
    let command = driver(folder.path(), &rights);
    let mut alone = Command::new("unshare");
    alone.args(["--pid", "--fork", "--mount-proc"]).arg(command.get_program()).args(command.get_args());
    let output = alone.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("--pid=host"), "{output:?}");
}

#[test]
fn who_serves_its_own_namespace_needs_no_rights() {
    needs_root("to give all rights up");
    let folder = folder();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let command = driver(folder.path(), &[]);
    let config = folder.path().join("driver.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[driver]\nnamespaces = \"own\"\n")).unwrap();
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let mut of_user = Command::new("setpriv");
    of_user.args(nobody).arg(command.get_program()).args(command.get_args()).stderr(Stdio::piped());
    let running = Running::start(of_user);
    let all = threads(running.0.id());
    assert!(all.iter().all(|status| status.capprm == 0), "{all:?}");
    let puppet = || {
        let mut command = Command::new("setpriv");
        command.args(nobody).arg(peer_path()).arg("puppet").env("PD_SOCKET", folder.path().join("s"));
        Puppet::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    };
    exchange(&mut puppet(), &mut puppet(), "127.0.0.1");
}

/// Moves a stream from `a` to `b`, which has the address.
fn exchange(a: &mut Puppet, b: &mut Puppet, address: &str) {
    let at = b.ok(&format!("listen l {address}:0 8"));
    a.ok(&format!("connect c {at}"));
    b.ok("accept s l");
    a.tell("send c 1 0 3000000 50000");
    b.ok("recv s 1 0 3000000");
    a.answer().unwrap();
}

#[test]
fn the_documented_rights_are_enough_for_containers_of_other_users() {
    needs_root("making network namespaces");
    let folder = folder();
    let _running = Running::start(driver(folder.path(), &documented()));
    let network = Network::new();
    let nobody = |letter: &str| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.namespace(letter)]);
        command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.env("PD_SOCKET", folder.path().join("s"));
        command
    };
    let puppet = |letter: &str| {
        let mut command = nobody(letter);
        command.arg(peer_path()).arg("puppet").stdin(Stdio::piped()).stdout(Stdio::piped());
        Puppet::new(command.spawn().unwrap())
    };
    let (mut a, mut b) = (puppet("a"), puppet("b"));
    exchange(&mut a, &mut b, "10.77.0.2");
    // Descriptors of an unmodified program are looked up in /proc.
    let made = || match ask(&folder.path().join("a"), &Ask::List).unwrap() {
        Answer::Report(report) => report.metrics["connections_made"],
        other => panic!("no report but {other:?}"),
    };
    let before = made();
    let python = |letter: &str, program: &str| {
        let mut command = nobody(letter);
        command.args(["env", &format!("LD_PRELOAD={}", program_path("libpd_preload.so").display())]);
        command.args(["PD_PRELOAD=all", "python3", "-c", program]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let serve = "import socket as s\nl = s.create_server(('10.77.0.2', 7001))\nprint('ready', flush=True)\nc = l.accept()[0]\n\
                 n = 0\nwhile p := c.recv(1 << 16): n += len(p)\nprint(n)";
    let send = "import socket as s\ns.create_connection(('10.77.0.2', 7001)).sendall(bytes(1 << 22))";
    let mut server = Puppet::new(python("b", serve));
    assert_eq!(server.line(), "ready");
    assert!(python("a", send).wait().unwrap().success());
    assert_eq!(server.line(), (1 << 22).to_string());
    assert_eq!(made() - before, 1, "it was left to the kernel");
    // An address that comes later is read when it is asked for.
    assert!(ip(&format!("-n {} addr add 10.77.1.2/24 dev eth0", network.namespace("b"))));
    std::thread::sleep(std::time::Duration::from_millis(100));
    b.ok("listen later 10.77.1.2:0 8");
}
