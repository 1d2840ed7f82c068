//! `pd policy` and a driver of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn pd(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pd")).args(args).output().unwrap()
}

/// A driver in a folder of its own, with a policy file; stopped when dropped.
struct Driver {
    child: Child,
    folder: tempfile::TempDir,
}

impl Driver {
    fn start(policy: &str) -> Driver {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("policy.toml"), policy).unwrap();
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\npolicy = {:?}\n[memory]\nbudget_bytes = \"16MiB\"\nring_bytes_default = \"1MiB\"\n",
            at("s"), at("a"), at("policy.toml")
        );
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_pd"));
        command.arg("driver").arg("--config").arg(at("driver.toml")).stderr(Stdio::null());
        let this = Driver { child: command.spawn().unwrap(), folder };
        this.until("it answers", |driver| driver.rules().is_some());
        this
    }

    fn policy(&self) -> PathBuf {
        self.folder.path().join("policy.toml")
    }

    fn ask(&self, args: &[&str]) -> Output {
        let admin = self.folder.path().join("a");
        pd(&[&["policy"], args, &["--admin-socket", admin.to_str().unwrap()]].concat())
    }

    /// Returns the rules in force, the default last.
    fn rules(&self) -> Option<Vec<String>> {
        let output = self.ask(&["show", "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_eq!(report["tenants"][0]["name"], "default");
        assert_eq!(report["tenants"][0]["connections_denied"], 0);
        let rules = report["rules"].as_array()?.iter();
        Some(rules.map(|rule| rule["rule"].as_str().unwrap().to_owned()).collect())
    }

    fn until(&self, what: &str, wished: impl Fn(&Driver) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !wished(self) {
            assert!(Instant::now() < end, "timed out: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_explains_a_policy_or_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    let path = write(&file, "[[rule]]\nport = 80\naction = \"deny\"\n");
    let output = pd(&["policy", "check", &path]);
    assert!(output.status.success());
    let explained = "rule 1: deny anyone to anyone, port 80\notherwise: allow\n\
                     path without rates: direct, offloaded with another engine than cpu\n\
                     attach, otherwise: containers, root, and the driver's user and group\n";
    assert_eq!(text(&output.stdout), explained);
    // Parts that the kernel cannot hold are reported.
    write(&file, "[[tenant]]\nname = \"red\"\nrate = { messages_per_second = 5 }\n");
    let output = text(&pd(&["policy", "check", &path]).stdout);
    assert!(output.contains("not on the kernel: tenant red: messages_per_second"), "{output}");
    write(&file, "\n[[rule]]\nfrom = \"nobody\"\naction = \"deny\"\n");
    let output = pd(&["policy", "check", &path]);
    assert!(!output.status.success());
    for part in [&*path, "line 2", "nobody", "add [[tenant]]"] {
        assert!(text(&output.stderr).contains(part), "'{part}' is missing in: {}", text(&output.stderr));
    }
    // A driver with a faulty policy does not start.
    let config = write(&folder.path().join("driver.toml"), &format!("policy = {path:?}\n"));
    let output = pd(&["driver", "--config", &config, "--check"]);
    assert!(!output.status.success() && text(&output.stderr).contains("nobody"));
}

#[test]
fn a_policy_is_shown_applied_and_reloaded() {
    let driver = Driver::start("default = \"deny\"\n");
    assert_eq!(driver.rules().unwrap(), ["otherwise: deny"]);
    // Another file.
    let other = write(&driver.folder.path().join("other.toml"), "[[rule]]\nport = 1\naction = \"deny\"\n");
    let output = driver.ask(&["apply", &other]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(driver.rules().unwrap(), ["deny anyone to anyone, port 1", "otherwise: allow"]);
    // The driver's own file again, changed.
    write(&driver.policy(), "[[rule]]\nport = 2\naction = \"deny\"\n");
    assert!(driver.ask(&["apply"]).status.success());
    assert_eq!(driver.rules().unwrap()[0], "deny anyone to anyone, port 2");
    write(&driver.policy(), "[[tenant]]\nname = \"red\"\nconnections_max = 7\n");
    driver.signal(rustix::process::Signal::HUP);
    driver.until("it has read it again", |driver| driver.rules().unwrap() == ["otherwise: allow"]);
    let shown = text(&driver.ask(&["show"]).stdout);
    assert!(shown.contains("otherwise: allow") && shown.contains("at most 7 connections"), "{shown}");
    // A faulty policy changes nothing.
    write(&driver.policy(), "nonsense");
    assert!(!driver.ask(&["apply"]).status.success());
    driver.signal(rustix::process::Signal::HUP);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(driver.rules().unwrap(), ["otherwise: allow"]);
}

#[test]
fn without_a_driver_it_says_so() {
    let output = pd(&["policy", "show", "--admin-socket", "/no/such/socket"]);
    assert!(!output.status.success() && text(&output.stderr).contains("/no/such/socket"));
}
