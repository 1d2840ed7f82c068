//! `pd driver` as a program.
use super::PATIENCE;
use pd_tests::program_path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// `pd driver` with its files in a folder; killed when dropped.
pub struct Program {
    child: Child,
    pub folder: tempfile::TempDir,
}

impl Program {
    pub fn start() -> Self {
        let program = program_path("pd");
        assert!(program.exists(), "build it first: cargo build -p pd");
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let config = format!(
            "socket = {:?}\nadmin_socket = {:?}\n[memory]\nbudget_bytes = \"64MiB\"\n",
            at("s"),
            at("a")
        );
        std::fs::write(at("driver.toml"), config).unwrap();
        let mut command = Command::new(program);
        command.arg("driver").arg("--config").arg(at("driver.toml")).stderr(Stdio::null());
        let this = Self { child: command.spawn().unwrap(), folder };
        let end = Instant::now() + PATIENCE;
        while !this.pd(&["port", "ls"]).status.success() {
            assert!(Instant::now() < end, "no driver");
            std::thread::sleep(Duration::from_millis(20));
        }
        this
    }

    pub fn pd(&self, args: &[&str]) -> Output {
        let admin = self.folder.path().join("a");
        let args = [args, &["--admin-socket", admin.to_str().unwrap()]].concat();
        Command::new(program_path("pd")).args(args).output().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
