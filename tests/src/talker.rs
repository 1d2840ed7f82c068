//! `talker` in network namespaces: one program, told what to do in lines, in each of the ways that a program can be connected.
use crate::{program_path, Network, Puppet, TestDriver};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Ways to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Knows the driver.
    Native,
    /// With the library, in a mode.
    Library(&'static str),
    /// No library can be loaded.
    Static,
    /// Without the library.
    Plain,
}

/// `talker`, dynamic and static.
pub struct Talkers {
    dynamic: PathBuf,
    fixed: PathBuf,
    _folder: tempfile::TempDir,
}

impl Talkers {
    /// Compiles both.
    ///
    /// # Panics
    /// Without gcc and a static C library.
    pub fn build() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/talker.c");
        let build = |name: &str, options: &[&str]| {
            let program = folder.path().join(name);
            let mut command = Command::new("gcc");
            command.args(["-O2", "-pthread"]).args(options).arg("-o").args([&program, &source]);
            assert!(command.status().expect("gcc").success());
            program
        };
        Self { dynamic: build("talker", &[]), fixed: build("talker-static", &["-static"]), _folder: folder }
    }

    /// A program in the namespace of this letter.
    pub fn start(&self, driver: &TestDriver, network: &Network, letter: &str, way: Way) -> Puppet {
        if way == Way::Native {
            return network.puppet(driver, letter);
        }
        let program = if way == Way::Static { &self.fixed } else { &self.dynamic };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.namespace(letter)]);
        if let Way::Library(mode) = way {
            let library = program_path("libpd_preload.so");
            assert!(library.exists(), "build it first: cargo build -p pd-preload");
            command.arg("env").arg(format!("LD_PRELOAD={}", library.display()));
            command.arg(format!("PD_PRELOAD={mode}"));
        }
        Puppet::new(driver.spawn(command.arg(program).stderr(Stdio::null())))
    }
}

/// 0, or the errno of a connect. The connection is called `name`.
pub fn connect(from: &mut Puppet, way: Way, name: u32, ip: &str, port: u16) -> i32 {
    let asked = match way {
        Way::Native if ip.contains(':') => from.ask(&format!("connect c{name} [{ip}]:{port}")),
        Way::Native => from.ask(&format!("connect c{name} {ip}:{port}")),
        _ => from.ask(&format!("connect {name} {ip} {port}")),
    };
    asked.map_or_else(|(errno, _)| errno, |_| 0)
}

/// The policy's lines of a tenant whose processes are in the namespace of this letter.
pub fn tenant(network: &Network, name: &str, letter: &str, more: &str) -> String {
    let namespace = network.namespace(letter);
    format!("[[tenant]]\nname = \"{name}\"\nnamespaces = [\"/run/netns/{namespace}\"]\n{more}")
}
