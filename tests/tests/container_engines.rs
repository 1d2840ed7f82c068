//! Containers of podman and docker on the fabric: with the device that `pd cdi` describes, and with one folder
//! mounted. Needs root, and podman, docker.io and iptables: `make test-engines` installs them.
use pd_tests::{is_root, peer_path, program_path, TestDriver};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const BYTES: &str = "300000000";
const LIMITS: [&str; 4] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];

/// A container engine with all its state in a folder.
struct Engine {
    command: Vec<String>,
    daemon: Option<Child>,
    folder: tempfile::TempDir,
    bridge: &'static str,
    had_bridge: bool,
}

fn output(command: &mut Command) -> String {
    let output =
        command.stderr(Stdio::inherit()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn has_interface(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

impl Engine {
    fn podman() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (root, run) = (at("root"), at("run"));
        let mut command = vec!["podman", "--root", &root, "--runroot", &run, "--cgroup-manager", "cgroupfs"];
        command.extend(["--storage-driver", "vfs", "--runtime", "runc"]);
        let command = command.into_iter().map(str::to_owned).collect();
        let bridge = "cni-podman0";
        Self { command, daemon: None, folder, bridge, had_bridge: has_interface(bridge) }
    }

    fn docker() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let host = format!("unix://{}", at("docker.sock").display());
        let (bridge, had_bridge) = ("docker0", has_interface("docker0"));
        let log = std::fs::File::create(at("log")).unwrap();
        let mut daemon = Command::new("dockerd");
        daemon.args([
            "--host",
            &host,
            "--storage-driver",
            "vfs",
            "--iptables=false",
            "--bip",
            "10.99.7.1/24",
        ]);
        daemon.arg("--data-root").arg(at("data")).arg("--exec-root").arg(at("run"));
        daemon.arg("--pidfile").arg(at("pid")).stdout(log.try_clone().unwrap()).stderr(log);
        let daemon = daemon.spawn().expect("dockerd");
        let command = ["docker", "--host", &host].map(str::to_owned).to_vec();
        let this = Self { command, daemon: Some(daemon), folder, bridge, had_bridge };
        let until = Instant::now() + Duration::from_secs(60);
        while !this.tell().arg("info").output().unwrap().status.success() {
            let log = || std::fs::read_to_string(this.folder.path().join("log")).unwrap();
            assert!(Instant::now() < until, "docker does not start: {}", log());
            std::thread::sleep(Duration::from_millis(100));
        }
        this
    }

    fn tell(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    /// An image with the peer program and what it is linked with.
    fn import(&self) {
        let root = self.folder.path().join("image");
        let copy = |from: &Path, to: PathBuf| {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        };
        copy(&peer_path(), root.join("peer"));
        let linked = output(Command::new("ldd").arg(peer_path()));
        for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
            copy(Path::new(library), root.join(&library[1..]));
        }
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(&root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let archive = tar.stdout.take().unwrap();
        output(self.tell().args(["import", "-", "pd-test"]).stdin(archive));
        assert!(tar.wait().unwrap().success());
    }

    /// A connection between two containers, each started with `options`.
    fn exchange(&self, options: &[String]) {
        let run = |extra: &[&str], command: &[&str]| {
            let mut tell = self.tell();
            tell.arg("run").args(extra).args(LIMITS).args(options).arg("pd-test").args(command);
            tell
        };
        let receiver = run(&["--name", "pd-receiver"], &["/peer", "recv", "0.0.0.0:7000", "65536"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        let address = loop {
            let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
            let asked = self.tell().args(["inspect", "--format", format, "pd-receiver"]).output().unwrap();
            let address = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
            if asked.status.success() && !address.is_empty() {
                break address;
            }
            assert!(Instant::now() < until, "the container has no address");
            std::thread::sleep(Duration::from_millis(50));
        };
        let to = format!("{address}:7000");
        // It is refused until the receiver listens.
        let sent = loop {
            let tried = run(&["--rm"], &["/peer", "send", &to, BYTES, "65536", "8"]).output().unwrap();
            if tried.status.success() {
                break String::from_utf8(tried.stdout).unwrap();
            }
            assert!(Instant::now() < until, "{tried:?}");
        };
        let received = receiver.wait_with_output().unwrap();
        let received = String::from_utf8(received.stdout).unwrap();
        let sum = |text: &str| text.split_whitespace().last().map(str::to_owned);
        assert_eq!(sum(&sent), sum(&received), "{sent} / {received}");
        output(self.tell().args(["rm", "-f", "pd-receiver"]));
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.tell().args(["rm", "-f", "--all"]).output();
        if let Some(daemon) = &mut self.daemon {
            let pid = rustix::process::Pid::from_child(daemon);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = daemon.wait();
        } else {
            let _ = self.tell().args(["rmi", "-f", "pd-test"]).output();
        }
        if !self.had_bridge {
            let _ = Command::new("ip").args(["link", "delete", self.bridge]).output();
        }
    }
}

#[test]
#[ignore = "needs podman, docker.io and iptables: make test-engines"]
fn containers_of_podman_and_docker_reach_each_other() {
    assert!(is_root("container engines"), "run as root");
    let driver = TestDriver::new();
    let socket = driver.socket().display().to_string();

    let podman = Engine::podman();
    podman.import();
    let described = Path::new("/var/run/cdi");
    let cdi = |extra: &str| {
        let mut pd = Command::new(program_path("pd"));
        pd.args(["cdi", "--output", "/var/run/cdi", "--socket", &socket]).args(extra.split_whitespace());
        output(&mut pd)
    };
    cdi("");
    podman.exchange(&["--device".to_owned(), "pipedevice/fabric=native".to_owned()]);
    cdi("--remove");
    assert!(!described.join("pipedevice.json").exists());
    drop(podman);

    let docker = Engine::docker();
    docker.import();
    let folder = driver.socket().parent().unwrap().display().to_string();
    let mount =
        ["-v".to_owned(), format!("{folder}:{folder}:ro"), "-e".to_owned(), format!("PD_SOCKET={socket}")];
    docker.exchange(&mount);
    drop(docker);
    driver.wait_for("no client is left", |report| report.clients.is_empty());
}
