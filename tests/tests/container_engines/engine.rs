//! Container engines, each with all its state in a folder, and containers of theirs.
use pd_tests::program_path;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

const LIMITS: [&str; 4] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];
const IMAGE: &str = "pd-test";
const DESCRIBED: &str = "/var/run/cdi";

/// A container engine.
pub struct Engine {
    command: Vec<String>,
    daemon: Option<Child>,
    folder: tempfile::TempDir,
    bridge: &'static str,
    had_bridge: bool,
}

/// A container that runs until it is dropped.
pub struct Container<'a> {
    engine: &'a Engine,
    name: &'a str,
    child: Child,
}

/// The description of `pd cdi`, there until dropped.
pub struct Description;

/// Returns the output of a command that has to succeed.
pub fn output(command: &mut Command) -> String {
    let output =
        command.stderr(Stdio::inherit()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn has_interface(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

fn copy(from: &Path, to: PathBuf) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap();
}

impl Engine {
    /// Starts podman, which needs no daemon.
    pub fn podman() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (root, run) = (at("root"), at("run"));
        let mut command = vec!["podman", "--root", &root, "--runroot", &run, "--cgroup-manager", "cgroupfs"];
        command.extend(["--storage-driver", "vfs", "--runtime", "runc"]);
        let command = command.into_iter().map(str::to_owned).collect();
        let bridge = "cni-podman0";
        Self { command, daemon: None, folder, bridge, had_bridge: has_interface(bridge) }
    }

    /// Starts docker, with a daemon of its own.
    pub fn docker() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let host = format!("unix://{}", at("docker.sock").display());
        let (bridge, had_bridge) = ("docker0", has_interface("docker0"));
        let log = std::fs::File::create(at("log")).unwrap();
        // Docker 28.2 reads descriptions of devices by itself, older ones if told to, 20.10 never.
        std::fs::write(at("daemon.json"), r#"{"features": {"cdi": true}}"#).unwrap();
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
        daemon.arg("--config-file").arg(at("daemon.json"));
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

    /// Tells whether this docker's `--device` takes devices that `pd cdi` has described.
    pub fn knows_devices(&self) -> bool {
        let info = output(self.tell().args(["info", "--format", "{{json .}}"]));
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["CDISpecDirs"].as_array().is_some_and(|folders| !folders.is_empty())
    }

    fn tell(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    /// Makes an image with `programs` in its root, `true`, and their libraries.
    pub fn import(&self, programs: &[&Path]) {
        let root = self.folder.path().join("image");
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        let places = programs.iter().map(|program| (*program, root.join(program.file_name().unwrap())));
        for (program, place) in places.chain([(Path::new("/bin/true"), root.join("bin/true"))]) {
            copy(program, place);
            let linked = output(Command::new("ldd").arg(program));
            for library in linked.split_whitespace().filter(|word| word.starts_with('/')) {
                copy(Path::new(library), root.join(&library[1..]));
            }
        }
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(&root)
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let archive = tar.stdout.take().unwrap();
        output(self.tell().args(["import", "-", IMAGE]).stdin(archive));
        assert!(tar.wait().unwrap().success());
    }

    fn container(&self, extra: &[&str], options: &[String], command: &[&str]) -> Command {
        let mut tell = self.tell();
        tell.arg("run").args(extra).args(LIMITS).args(options).arg(IMAGE).args(command).stdin(Stdio::null());
        tell
    }

    /// Starts a container called `name` with `options`, and returns its output.
    pub fn start<'a>(
        &'a self,
        name: &'a str,
        options: &[String],
        command: &[&str],
    ) -> (Container<'a>, BufReader<ChildStdout>) {
        let mut container = self.container(&["--name", name], options, command);
        let mut child = container.stdout(Stdio::piped()).spawn().unwrap();
        let printed = BufReader::new(child.stdout.take().unwrap());
        (Container { engine: self, name, child }, printed)
    }

    /// Starts a container that serves, and waits until it is ready.
    pub fn serve<'a>(&'a self, name: &'a str, options: &[String], command: &[&str]) -> Container<'a> {
        let (container, mut printed) = self.start(name, options, command);
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        container
    }

    /// Runs a container to its end.
    pub fn run(&self, options: &[String], command: &[&str]) -> Output {
        self.container(&["--rm"], options, command).output().unwrap()
    }
}

impl Container<'_> {
    /// Returns the container's address on the engine's network.
    pub fn address(&self) -> String {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let format = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
            let asked = self.engine.tell().args(["inspect", "--format", format, self.name]).output().unwrap();
            let address = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
            if asked.status.success() && !address.is_empty() {
                return address;
            }
            assert!(Instant::now() < until, "the container has no address");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // Not by the signal that asks: a container's first process ignores it.
        let _ = self.engine.tell().args(["kill", self.name]).output();
        let _ = self.engine.tell().args(["rm", "-f", self.name]).output();
        let _ = self.child.wait();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let pid = rustix::process::Pid::from_child(daemon);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = daemon.wait();
        } else {
            let _ = self.tell().args(["rm", "-f", "--all"]).output();
            let _ = self.tell().args(["rmi", "-f", IMAGE]).output();
        }
        if !self.had_bridge {
            let _ = Command::new("ip").args(["link", "delete", self.bridge]).output();
        }
    }
}

fn cdi() -> Command {
    let mut command = Command::new(program_path("pd"));
    command.args(["cdi", "--output", DESCRIBED]);
    command
}

impl Description {
    /// Describes the driver on `socket`.
    pub fn new(socket: &Path) -> Self {
        output(cdi().arg("--socket").arg(socket));
        Self
    }

    /// Removes it.
    pub fn remove(self) {
        output(cdi().arg("--remove"));
        assert!(!Path::new(DESCRIBED).join("pipedevice.json").exists());
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        let _ = cdi().arg("--remove").output();
    }
}
