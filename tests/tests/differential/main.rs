//! Programs from a seed, under the preload library: two processes each, on the loopback address or a file. [`calls`] makes calls of all
//! kinds, whose results have to be the kernel's. [`restless`] only makes calls that do not wait, and all sent bytes have to arrive.
//! [`tides`] has connections that leave the fabric and come back, [`family`] connections that go from process to process. Needs gcc.
//!
//! A seed that fails is printed with the command that runs it alone. `PD_SEEDS=FIRST+COUNT` says which are run.

mod calls;
mod family;
mod restless;
mod tides;

use pd_driver::policy::Path as BytesPath;
use pd_tests::{compiled, program_path, TestDriver};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Transport of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Kernel,
    Offloaded,
    Direct,
    ShortOffloaded,
    ShortDirect,
}

impl Way {
    fn is_short(self) -> bool {
        matches!(self, Self::ShortOffloaded | Self::ShortDirect)
    }

    fn driver(self) -> TestDriver {
        let path = match self {
            Self::Direct | Self::ShortDirect => BytesPath::Direct,
            _ => BytesPath::Offloaded,
        };
        TestDriver::with("cpu", |settings| {
            settings.hugepages = pd_driver::HugepageUse::Off;
            settings.policy.path = Some(path);
        })
    }

    /// Makes a driver whose policy asks for no path: connections may leave by choice.
    fn driver_of_choice(self) -> TestDriver {
        TestDriver::with("cpu", |settings| {
            settings.hugepages = pd_driver::HugepageUse::Off;
            settings.path = if self == Self::Offloaded { BytesPath::Offloaded } else { BytesPath::Direct };
            settings.policy.path = None;
        })
    }

    /// Starts a process of a program.
    fn spawn(self, driver: &TestDriver, program: &Path, arguments: &[String]) -> Child {
        let log = std::env::var_os("PD_PRELOAD_LOG").map(PathBuf::from);
        self.spawn_with_log(driver, program, arguments, log.as_deref())
    }

    /// Starts a process of a program, with a log of the library's decisions.
    fn spawn_with_log(
        self,
        driver: &TestDriver,
        program: &Path,
        arguments: &[String],
        log: Option<&Path>,
    ) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        if self != Self::Kernel {
            let mode = if self.is_short() { "short" } else { "all" };
            command.env("LD_PRELOAD", library()).env("PD_PRELOAD", mode).env("PD_SOCKET", driver.socket());
            if let Some(log) = log {
                command.env("PD_PRELOAD_LOG", log);
            }
        }
        command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }
}

fn library() -> PathBuf {
    let path = program_path("libpd_preload.so");
    assert!(path.exists(), "not built: cargo build --package pd-preload");
    path
}

/// Builds a program of this folder.
fn compile(name: &str, folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential").join(format!("{name}.c"));
    compiled(&source, folder, &[])
}

/// Runs both sides of `program`, and calls `meanwhile` again and again. Arguments are the shared file, `family`, `seed`, the side, and
/// `more`. Each side has to print that it is done. Returns the library's decisions. `name`: the test's.
fn run_both(
    way: Way,
    driver: &TestDriver,
    program: &Path,
    (family, seed): (&str, u64),
    more: &[&dyn Display],
    name: &str,
    meanwhile: Option<&dyn Fn(&TestDriver)>,
) -> String {
    let file = shared_file(driver.folder(), &format!("{name}-{seed}"), 4096);
    let log = driver.folder().join(format!("log-{seed}"));
    let mut sides: Vec<Child> = (0..2)
        .map(|side| {
            let words = [&file.display() as &dyn Display, &family, &seed, &side];
            let words: Vec<_> = words.iter().chain(more).map(ToString::to_string).collect();
            way.spawn_with_log(driver, program, &words, Some(&log))
        })
        .collect();
    while sides.iter_mut().any(|side| side.try_wait().unwrap().is_none()) {
        meanwhile.into_iter().for_each(|change| change(driver));
        std::thread::sleep(Duration::from_millis(2));
    }
    let said =
        sides.into_iter().map(|side| String::from_utf8(side.wait_with_output().unwrap().stdout).unwrap());
    let said: Vec<_> = said.collect();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        said.iter().all(|said| said == "done\n"),
        "{way:?} {family}: {said:?}\n{log}\nPD_SEEDS={seed} cargo test -p pd-tests --test differential {name}"
    );
    std::fs::remove_file(file).unwrap();
    log
}

/// Makes an empty file for two processes to map.
fn shared_file(folder: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = folder.join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// Returns the seeds to run: `count` from 0, unless the environment names others.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(wanted) = std::env::var("PD_SEEDS") else { return 0..count };
    let (first, count) = wanted.split_once('+').unwrap_or((&wanted, "1"));
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("PD_SEEDS={wanted}"));
    number(first)..number(first) + number(count)
}
