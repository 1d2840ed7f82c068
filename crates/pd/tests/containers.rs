//! `pd run` and `pd ls` in real namespaces. Needs root and iproute2; every test has a bridge and names
//! of its own and leaves nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

#[path = "../../../tests/src/compiled.rs"]
mod compiled;
#[path = "containers/jobs.rs"]
mod jobs;
#[path = "containers/names.rs"]
mod names;
mod pty;
#[path = "containers/silent.rs"]
mod silent;

/// A bridge of one test, with the third number of its subnet.
struct Net {
    bridge: String,
    third: u8,
}

impl Net {
    fn new(third: u8) -> Net {
        Net { bridge: format!("pdt{third}"), third }
    }

    fn ip(&self, host: u8) -> String {
        format!("10.97.{}.{host}/24", self.third)
    }

    fn name(&self, suffix: &str) -> String {
        format!("t{}-{suffix}", self.third)
    }

    /// Returns the command of `pd run` on this bridge.
    fn run(&self, suffix: &str, ip: Option<&str>, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_pd"));
        run.args(["run", "--no-driver", "--bridge", &self.bridge, "--name", &self.name(suffix)]);
        if let Some(ip) = ip {
            run.args(["--ip", ip]);
        }
        run.arg("--").args(command).stdin(Stdio::null());
        run
    }

    fn output(&self, suffix: &str, ip: Option<&str>, command: &[&str]) -> Output {
        self.run(suffix, ip, command).output().unwrap()
    }

    /// Starts a container that sleeps and waits until it runs.
    fn sleeper(&self, suffix: &str, ip: Option<&str>) -> Running {
        let child = self.run(suffix, ip, &["sleep", "60"]).spawn().unwrap();
        let running = Running(child);
        await_true("the container runs", || self.record(suffix).is_some_and(|pid| pid > 0));
        running
    }

    /// Returns the first process of a container, from `pd ls`.
    fn record(&self, suffix: &str) -> Option<u64> {
        let output = Command::new(env!("CARGO_BIN_EXE_pd")).args(["ls", "--json"]).output().unwrap();
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let name = self.name(suffix);
        let found = list["containers"].as_array().unwrap().iter().find(|c| c["name"] == *name)?.clone();
        found["init"]["pid"].as_u64()
    }

    fn assert_clean(&self) {
        assert!(!Path::new("/sys/class/net").join(&self.bridge).exists(), "bridge {} is left", self.bridge);
        let prefix = format!("t{}-", self.third);
        let records = std::fs::read_dir("/run/pd/containers").unwrap().flatten();
        let groups = std::fs::read_dir("/sys/fs/cgroup/unified/pipedevice").into_iter().flatten().flatten();
        let left: Vec<_> = records
            .chain(groups)
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&prefix))
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// A `pd run` that is ended with the test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

fn await_true(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < end, "timed out: {what}");
        sleep(Duration::from_millis(20));
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_container_has_namespaces_name_and_address_of_its_own() {
    let net = Net::new(1);
    let script = "hostname; echo $$; echo $PD_ADDRESS; cat /proc/1/comm; ls /sys/class/net >/dev/null; \
                  for n in net pid mnt uts ipc; do readlink /proc/self/ns/$n; done; ip -o -6 addr show dev eth0";
    let output = net.output("own", Some(&net.ip(9)), &["sh", "-c", script]);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], [net.name("own").as_str(), "2", "10.97.1.9", "pd"], "{text}{}", stderr(&output));
    for (line, kind) in lines[4..9].iter().zip(["net", "pid", "mnt", "uts", "ipc"]) {
        let host = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        assert!(line.starts_with(kind) && *line != host.to_str().unwrap(), "{line}");
    }
    assert!(text.contains("fd88:0:a61:100::9/64"), "{text}");
    net.assert_clean();
}

#[test]
fn the_exit_status_is_passed_on() {
    let net = Net::new(2);
    assert_eq!(net.output("a", Some(&net.ip(2)), &["sh", "-c", "exit 42"]).status.code(), Some(42));
    assert_eq!(net.output("a", Some(&net.ip(2)), &["sh", "-c", "kill -USR1 $$"]).status.code(), Some(138));
    let missing = net.output("a", Some(&net.ip(2)), &["/no/such/program"]);
    assert_eq!(missing.status.code(), Some(125));
    assert!(stderr(&missing).contains("cannot run '/no/such/program'"), "{}", stderr(&missing));
    net.assert_clean();
}

#[test]
fn two_containers_reach_each_other_over_tcp() {
    let net = Net::new(3);
    let serve = "import socket,os; s=socket.create_server((os.environ['PD_ADDRESS'], 7000)); print('up', flush=True); \
                 c,_=s.accept(); c.sendall(c.recv(100).upper())";
    let ask = "import socket; c=socket.create_connection(('10.97.3.2', 7000), 5); c.sendall(b'hello'); print(c.recv(100))";
    let mut server =
        net.run("a", Some(&net.ip(2)), &["python3", "-c", serve]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let out = server.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert_eq!(line, "up\n");
    // The second one's address is chosen: the bridge has a subnet already.
    let client = net.output("b", None, &["python3", "-c", ask]);
    assert_eq!(stdout(&client), "b'HELLO'\n", "{}", stderr(&client));
    assert!(server.wait().unwrap().success());
    net.assert_clean();
}

#[test]
fn what_is_taken_is_refused_by_name() {
    let net = Net::new(4);
    let first = net.sleeper("a", Some(&net.ip(5)));
    for (suffix, ip, parts) in [
        ("a", None, ["t4-a", "choose another --name"]),
        ("b", Some(net.ip(5)), ["10.97.4.5", "taken by container 't4-a'"]),
        ("b", Some(net.ip(1)), ["10.97.4.1", "gateway"]),
        ("b", Some("10.96.0.2/24".to_owned()), ["10.96.0.2/24", "not in subnet 10.97.4.0/24"]),
    ] {
        let output = net.output(suffix, ip.as_deref(), &["true"]);
        assert_eq!(output.status.code(), Some(125));
        for part in parts {
            assert!(stderr(&output).contains(part), "'{part}' is missing in: {}", stderr(&output));
        }
    }
    drop(first);
    net.assert_clean();
}

#[test]
fn containers_started_at_once_get_different_addresses() {
    let net = Net::new(5);
    let first = net.sleeper("first", Some(&net.ip(200)));
    let mut children: Vec<Child> = (0..6)
        .map(|n| {
            let mut run = net.run(&format!("c{n}"), None, &["sh", "-c", "echo $PD_ADDRESS; read x"]);
            run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    // All run until the last one has its address.
    let mut addresses: Vec<String> = children
        .iter_mut()
        .map(|child| {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            line
        })
        .collect();
    for child in &mut children {
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 6, "{addresses:?}");
    drop(first);
    net.assert_clean();
}

#[test]
fn signals_reach_the_command() {
    let net = Net::new(6);
    let script = "trap 'exit 33' TERM; trap 'exit 34' INT; echo up; while :; do sleep 0.05; done";
    for (signal, status) in [(rustix::process::Signal::TERM, 33), (rustix::process::Signal::INT, 34)] {
        // A signal that was ignored when a shell started cannot be trapped by it.
        let command = ["env", "--default-signal", "sh", "-c", script];
        let mut child = net.run("a", Some(&net.ip(2)), &command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
        let mut running = Running(child);
        running.signal(signal);
        assert_eq!(running.0.wait().unwrap().code(), Some(status));
    }
    net.assert_clean();
}

#[test]
fn a_killed_run_takes_its_container_along_and_the_next_run_cleans_up() {
    let net = Net::new(7);
    let mut victim = net.sleeper("a", Some(&net.ip(2)));
    let init = net.record("a").unwrap();
    assert!(Path::new(&format!("/proc/{init}")).exists());
    victim.signal(rustix::process::Signal::KILL);
    victim.0.wait().unwrap();
    await_true("the container's processes are gone", || !Path::new(&format!("/proc/{init}")).exists());
    assert_eq!(net.record("a"), None, "pd ls lists a dead container");
    // Name and address are free again, and the end of this one leaves nothing.
    let next = net.output("a", Some(&net.ip(2)), &["true"]);
    assert!(next.status.success(), "{}", stderr(&next));
    net.assert_clean();
}

/// Returns a `pd` command, without `--no-driver`, or with a driver.
fn pd(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
    command.args(args).stdin(Stdio::null());
    command
}

#[test]
fn a_container_needs_a_driver_unless_told_otherwise() {
    let net = Net::new(9);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("driver.sock");
    let name = net.name("a");
    let words = ["run", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2), "--socket"];
    let run =
        |more: &[&str]| pd(&words).arg(&socket).args(more).args(["--", "echo", "ran"]).output().unwrap();
    let refused = run(&[]);
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(stdout(&refused), "");
    assert_eq!(stderr(&refused).lines().count(), 1, "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("no driver at") && stderr(&refused).contains("--no-driver"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(stdout(&run(&["--no-driver"])), "ran\n");
    // The list tells that no driver answers, and has no containers of other drivers.
    let other = net.sleeper("b", Some(&net.ip(3)));
    let admin = folder.path().join("admin.sock");
    let list = pd(&["ls", "--json", "--admin-socket"]).arg(&admin).output().unwrap();
    assert_eq!(list.status.code(), Some(1));
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list, serde_json::json!({ "containers": [], "driver": null }));
    drop(other);
    net.assert_clean();
}

#[test]
fn the_environment_is_set_by_options() {
    let net = Net::new(11);
    let name = net.name("a");
    let words = ["run", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2)];
    let mut run = pd(&words);
    run.args(["-e", "FIRST=a=b", "--env", "SECOND", "-e", "NOT_HERE", "--", "sh", "-c"]);
    let output =
        run.arg("echo $FIRST $SECOND ${NOT_HERE-none}").env("SECOND", "two").env_remove("NOT_HERE").output();
    assert_eq!(stdout(&output.unwrap()), "a=b two none\n");
    let refused = pd(&words).args(["-e", "=x", "--", "true"]).output().unwrap();
    assert!(!refused.status.success() && stderr(&refused).contains("NAME=VALUE"), "{}", stderr(&refused));
    net.assert_clean();
}

#[test]
fn a_detached_container_is_entered_and_stopped_by_name() {
    let net = Net::new(12);
    let name = net.name("a");
    let detach = |command: &[&str]| {
        let words =
            ["run", "-d", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2), "--"];
        pd(&words).args(command).output().unwrap()
    };
    let script = "echo begun; trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done";
    let begun = detach(&["sh", "-c", script]);
    assert_eq!((begun.status.code(), stdout(&begun)), (Some(0), format!("{name}\n")), "{}", stderr(&begun));
    // A second of the name is refused, as in the foreground.
    let twice = detach(&["true"]);
    assert_eq!(twice.status.code(), Some(125));
    assert!(stderr(&twice).contains("choose another --name"), "{}", stderr(&twice));

    let exec = |words: &[&str]| pd(&["exec", "-e", "MORE=yes", &name, "--"]).args(words).output().unwrap();
    let seen =
        exec(&["sh", "-c", "hostname; echo $PD_CONTAINER $PD_ADDRESS $MORE; cat /proc/1/comm; pwd; exit 7"]);
    let here = std::env::current_dir().unwrap();
    assert_eq!(stdout(&seen), format!("{name}\n{name} 10.97.12.2 yes\npd\n{}\n", here.display()));
    assert_eq!(seen.status.code(), Some(7));
    assert_eq!(exec(&["sh", "-c", "kill -USR1 $$"]).status.code(), Some(138));
    assert_eq!(exec(&["/no/such/program"]).status.code(), Some(125));
    assert_eq!(pd(&["exec", "t12-none", "--", "true"]).output().unwrap().status.code(), Some(125));
    // The command is in the container's control group and has the container's rights only.
    let status = stdout(&exec(&["grep", "CapBnd", "/proc/self/status"]));
    assert_eq!(status, stdout(&exec(&["grep", "CapBnd", "/proc/2/status"])));
    assert!(stdout(&exec(&["cat", "/proc/self/cgroup"])).contains(&format!("/pipedevice/{name}")));

    let stop = |time: &str| pd(&["stop", "--time", time, &name]).output().unwrap();
    assert_eq!(stdout(&stop("30")), format!("{name}\n"));
    let log = std::fs::read_to_string(Path::new("/run/pd/logs").join(&name)).unwrap();
    assert_eq!(log, "begun\nasked\n");
    assert_eq!(net.record("a"), None);
    assert_eq!(stop("1").status.code(), Some(1));
    // A command that ignores SIGTERM is killed.
    let stubborn = "trap '' TERM; while :; do sleep 0.05; done";
    assert!(detach(&["sh", "-c", stubborn]).status.success());
    assert!(stop("0").status.success());
    assert_eq!(net.record("a"), None);
    std::fs::remove_file(Path::new("/run/pd/logs").join(&name)).unwrap();
    net.assert_clean();
}

#[test]
fn limits_hold() {
    let net = Net::new(13);
    let name = net.name("a");
    let words = ["run", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2)];
    let run = |more: &[&str]| pd(&words).args(more).output().unwrap();
    let greedy = "import sys; room = bytearray(int(sys.argv[1]) << 20); print('had it')";
    let much = run(&["--memory", "64MiB", "--", "python3", "-c", greedy, "300"]);
    assert_eq!((much.status.code(), stdout(&much)), (Some(137), String::new()), "{}", stderr(&much));
    assert_eq!(stdout(&run(&["--memory", "64MiB", "--", "python3", "-c", greedy, "8"])), "had it\n");
    // Half a core: the process's share of the elapsed time.
    let busy = "import time\n\
                t, c = time.monotonic(), time.process_time()\n\
                while time.process_time() - c < 0.5: pass\n\
                print(time.monotonic() - t > 0.8)";
    assert_eq!(stdout(&run(&["--cpus", "0.5", "--", "python3", "-c", busy])), "True\n");
    for (option, value) in [("--cpus", "0"), ("--cpus", "many"), ("--memory", "1k"), ("--memory", "x")] {
        let refused = run(&[option, value, "--", "true"]);
        assert!(!refused.status.success() && stderr(&refused).contains(option), "{}", stderr(&refused));
    }
    net.assert_clean();
}

/// Actions of root in a container on the host: refused by default, and allowed to privileged containers.
#[test]
fn a_container_is_confined_unless_told_otherwise() {
    let net = Net::new(14);
    let name = net.name("a");
    let node = std::env::temp_dir().join("pd-test-node");
    let tries = [
        ("a device node", format!("mknod {} b 8 0 && rm {0}", node.display())),
        ("the disks", "ls /dev/[sv]d* /dev/mem /dev/kmsg".to_owned()),
        ("the kernel's switches", "echo 60 >/proc/sys/vm/swappiness".to_owned()),
        (
            "another control group",
            "echo $$ >\"$(grep -m1 cgroup2 /proc/mounts | cut -d' ' -f2)/cgroup.procs\"".to_owned(),
        ),
        ("a mount", "mount -t tmpfs none /mnt".to_owned()),
        ("its network", "ip link set eth0 down".to_owned()),
        ("a user namespace", "unshare --user true".to_owned()),
        ("another's records", format!("ls /run/pd/containers/{name}.json")),
        ("an end of its own first process", "cat /proc/1/environ".to_owned()),
    ];
    let before = std::fs::read_to_string("/proc/sys/vm/swappiness").unwrap();
    for (what, script) in &tries {
        let run = |more: &[&str]| {
            let words = ["run", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2)];
            pd(&words).args(more).args(["--", "sh", "-c", script]).output().unwrap()
        };
        assert!(!run(&[]).status.success(), "{what}");
        if *what != "the disks" {
            let output = run(&["--privileged"]);
            assert!(output.status.success(), "{what}: {}", stderr(&output));
        }
    }
    std::fs::write("/proc/sys/vm/swappiness", before).unwrap();
    // A later command is confined as well, and a set-id program has its rights.
    let holder = net.sleeper("s", Some(&net.ip(3)));
    let exec = |script: &str| pd(&["exec", &net.name("s"), "--", "sh", "-c", script]).output().unwrap();
    assert!(!exec("unshare --user true").status.success());
    assert_eq!(
        stdout(&exec("grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status")),
        "NoNewPrivs:\t0\nSeccomp:\t2\n"
    );
    drop(holder);
    // Devices that programs need exist.
    let needs =
        "echo x >/dev/null && head -c 1 /dev/urandom >/dev/null && : >/dev/shm/x && test -c /dev/ptmx && \
                 python3 -c 'import os; os.openpty()' && echo fine";
    assert_eq!(stdout(&net.output("a", Some(&net.ip(2)), &["sh", "-c", needs])), "fine\n");
    net.assert_clean();
}

/// A mount of the test's on the host, which goes with this.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn new(kind: &str, at: std::path::PathBuf) -> Mounted {
        std::fs::create_dir(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", kind, kind]).arg(&at).status().unwrap();
        assert!(mounted.success(), "{kind}");
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Where a chroot of the host's has a `/proc` or `/sys`, a container's root could write the kernel's switches there.
#[test]
fn mounts_of_the_kernels_elsewhere_are_hidden() {
    let net = Net::new(18);
    let folder = tempfile::tempdir().unwrap();
    let places = ["proc", "sysfs", "devtmpfs"].map(|kind| Mounted::new(kind, folder.path().join(kind)));
    let files = ["proc/sys/kernel/core_pattern", "sysfs/kernel/uevent_seqnum", "devtmpfs/kmsg"];
    for file in files {
        let file = folder.path().join(file);
        assert!(file.exists(), "{}", file.display());
        let script = format!("test ! -e {}", file.display());
        let output = net.output("a", Some(&net.ip(2)), &["sh", "-c", &script]);
        assert!(output.status.success(), "{script}: {}", stderr(&output));
    }
    // The container's own are there.
    let script = "test -e /proc/sys/kernel/core_pattern && test -e /sys/kernel && echo >/dev/null";
    assert!(net.output("a", Some(&net.ip(2)), &["sh", "-c", script]).status.success());
    drop(places);
    net.assert_clean();
}

/// Gifts of its caller that a container must not have: the working directory, where that is a folder of the host that the container has another
/// one of, and descriptors. Each led to the host's `/proc`, and so to code run by the host's root.
#[test]
fn a_container_begins_with_nothing_of_its_callers() {
    let net = Net::new(19);
    let name = net.name("a");
    let run = |folder: &str, script: &str| {
        let words = ["run", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2)];
        let pd = pd(&words);
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$@\" 8</", "sh"]).arg(pd.get_program()).args(pd.get_args());
        command.args(["--", "sh", "-c", script]).current_dir(folder).output().unwrap()
    };
    for (folder, file) in [
        ("/proc", "sys/kernel/core_pattern"),
        ("/proc/sys/kernel", "core_pattern"),
        ("/dev", "kmsg"),
        ("/run/pd/containers", "*.json"),
        ("/", "/proc/self/fd/8/proc/sys/kernel/core_pattern"),
    ] {
        let output = run(folder, &format!("pwd >&2; for file in {file}; do [ -w $file ] || exit 1; done"));
        assert!(!output.status.success(), "{folder}");
        assert_eq!(stderr(&output).lines().next(), Some(folder));
    }
    // One is the shell's list of them.
    assert_eq!(stdout(&run("/", "ls /proc/self/fd | wc -l")), "4\n");
    let holder = net.sleeper("s", Some(&net.ip(3)));
    let words = ["exec", &net.name("s"), "--", "sh", "-c", "ls /proc/self/fd | wc -l"];
    let exec = pd(&words);
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 8</", "sh"]).arg(exec.get_program()).args(exec.get_args());
    assert_eq!(stdout(&command.output().unwrap()), "4\n");
    drop(holder);
    net.assert_clean();
}

#[test]
fn a_program_that_the_library_cannot_serve_is_named() {
    let net = Net::new(15);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.c"), "int main(void) { return 0; }").unwrap();
    let says = |compiler: &[&str]| {
        let program = folder.path().join("x");
        let mut cc = Command::new(compiler[0]);
        match cc.args(&compiler[1..]).arg("-o").arg(&program).arg(folder.path().join("x.c")).status() {
            Ok(status) if status.success() => {}
            other => {
                eprintln!("SKIPPED: {compiler:?}: {other:?}");
                return None;
            }
        }
        let name = net.name("a");
        let words = [
            "run",
            "--no-driver",
            "--bridge",
            &net.bridge,
            "--name",
            &name,
            "--ip",
            &net.ip(2),
            "--preload",
            "--",
        ];
        let output = pd(&words).arg(&program).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        Some(stderr(&output))
    };
    assert_eq!(says(&["gcc"]).unwrap(), "");
    assert!(says(&["gcc", "-static"])
        .unwrap()
        .contains("is a static program: its connections stay on the kernel"));
    if let Some(text) = says(&["musl-gcc"]) {
        assert!(text.contains("is linked with musl"), "{text}");
    }
    net.assert_clean();
}

#[test]
fn cpu_time_is_counted_for_the_container() {
    let net = Net::new(8);
    let script =
        "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; cat \"$(grep -m1 cgroup2 /proc/mounts | \
                  cut -d' ' -f2)$(grep '^0::' /proc/self/cgroup | cut -d: -f3)/cpu.stat\"";
    let output = net.output("a", Some(&net.ip(2)), &["sh", "-c", script]);
    let usage = stdout(&output).lines().find_map(|l| l.strip_prefix("usage_usec ")?.parse::<u64>().ok());
    assert!(usage.is_some_and(|us| us > 50_000), "{usage:?} {}", stderr(&output));
    net.assert_clean();
}

/// Containers of other engines get the folder of the driver's sockets, and root there sees all that is in it.
#[test]
fn nothing_of_a_container_is_where_the_sockets_are() {
    let net = Net::new(18);
    let name = net.name("a");
    let words = ["run", "-d", "--no-driver", "--bridge", &net.bridge, "--name", &name, "--ip", &net.ip(2)];
    let output = pd(&words).args(["--", "sleep", "60"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let find = |folder: &str, what: &str| {
        let output = Command::new("find").args([folder, "-name", what]).output().unwrap();
        stdout(&output).lines().count()
    };
    let named = format!("*{name}*");
    assert_eq!((find("/run/pipedevice", &named), find("/run/pd", &named)), (0, 2), "a record and a log");
    let nobody = "import fcntl, os; os.setuid(65534); fcntl.flock(open('/run/pd/lock'), fcntl.LOCK_SH)";
    let refused = Command::new("python3").args(["-c", nobody]).output().unwrap();
    assert!(stderr(&refused).contains("PermissionError"), "{}", stderr(&refused));
    assert!(pd(&["stop", &name]).status().unwrap().success());
    std::fs::remove_file(Path::new("/run/pd/logs").join(&name)).unwrap();
    net.assert_clean();
}
