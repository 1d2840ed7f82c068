//! `pd run` and `pd ls` in real namespaces. Needs root and iproute2; every test has a bridge and names
//! of its own and leaves nothing behind.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

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

    /// `pd run` on this bridge.
    fn run(&self, suffix: &str, ip: Option<&str>, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_pd"));
        run.args(["run", "--bridge", &self.bridge, "--name", &self.name(suffix)]);
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

    /// The first process of a container, from `pd ls`.
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
        let records = std::fs::read_dir("/run/pipedevice/containers").unwrap().flatten();
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
    let children: Vec<Child> = (0..6)
        .map(|n| {
            let mut run = net.run(&format!("c{n}"), None, &["sh", "-c", "echo $PD_ADDRESS; sleep 1"]);
            run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut addresses: Vec<String> = children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            stdout(&output)
        })
        .collect();
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
