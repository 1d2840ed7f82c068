//! `talker` in network namespaces: one program, controlled by lines, in each of the ways that a program can be connected.
use crate::{compiled_program, needs_root, program_path, Network, Puppet, TestDriver};
use pd_driver::Settings;
use std::path::PathBuf;
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

/// Each way, the library in each of its modes.
pub const WAYS: [Way; 6] = [
    Way::Native,
    Way::Library("default"),
    Way::Library("all"),
    Way::Library("short"),
    Way::Static,
    Way::Plain,
];

/// A driver and namespaces, with programs of each kind to run in them.
pub struct Scene {
    /// The driver.
    pub driver: TestDriver,
    /// The namespaces.
    pub network: Network,
    talkers: Talkers,
}

impl Scene {
    /// Makes a scene with a namespace of each letter. Fails unless the process is root's.
    pub fn of(letters: &'static [&'static str]) -> Self {
        Self::with(letters, |_| {})
    }

    /// Makes a scene with a driver of changed settings.
    pub fn with(letters: &'static [&'static str], change: impl FnOnce(&mut Settings)) -> Self {
        needs_root("making network namespaces");
        let driver = TestDriver::with("cpu", |settings| {
            settings.hugepages = pd_driver::HugepageUse::Off;
            change(settings);
        });
        Self { driver, network: Network::of(letters), talkers: Talkers::build() }
    }

    /// Starts a program in the namespace of this letter.
    pub fn start(&self, letter: &str, way: Way) -> Puppet {
        self.talkers.start(&self.driver, &self.network, letter, way)
    }
}

impl Scene {
    /// Starts a program in the namespace of this letter of another network.
    pub fn start_in(&self, network: &Network, letter: &str, way: Way) -> Puppet {
        self.talkers.start(&self.driver, network, letter, way)
    }
}

/// `talker`, dynamic and static.
struct Talkers {
    dynamic: PathBuf,
    fixed: PathBuf,
    _folder: tempfile::TempDir,
}

impl Talkers {
    /// Compiles both.
    ///
    /// # Panics
    /// Without gcc and a static C library.
    fn build() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fixed = folder.path().join("static");
        std::fs::create_dir(&fixed).expect("a folder");
        Self {
            dynamic: compiled_program("talker", folder.path(), &[]),
            fixed: compiled_program("talker", &fixed, &["-static"]),
            _folder: folder,
        }
    }

    /// Starts a program in the namespace of this letter.
    fn start(&self, driver: &TestDriver, network: &Network, letter: &str, way: Way) -> Puppet {
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

/// Connects under the name `name`. Returns 0, or the errno.
pub fn connect(from: &mut Puppet, way: Way, name: u32, ip: &str, port: u16) -> i32 {
    let asked = match way {
        Way::Native if ip.contains(':') => from.ask(&format!("connect c{name} [{ip}]:{port}")),
        Way::Native => from.ask(&format!("connect c{name} {ip}:{port}")),
        _ => from.ask(&format!("connect {name} {ip} {port}")),
    };
    asked.map_or_else(|(errno, _)| errno, |_| 0)
}

/// Returns the policy's lines of a tenant with the processes in the namespaces of these letters.
pub fn tenant(network: &Network, name: &str, letters: &[&str], more: &str) -> String {
    let namespaces: Vec<_> =
        letters.iter().map(|letter| format!("/run/netns/{}", network.namespace(letter))).collect();
    format!("[[tenant]]\nname = \"{name}\"\nnamespaces = {namespaces:?}\n{more}")
}
