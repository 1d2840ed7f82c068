//! Test suites of others, on the loopback address: libuv's and Tokio's. Each test has to come to the same with the library as
//! without it. `make test-programs` brings and builds them.
use pd_driver::policy::Path as BytesPath;
use pd_tests::{program_path, TestDriver};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test that differs is run so often again, with and without the library: some come to this or that on the kernel, too.
const TRIES: usize = 4;

/// Verdicts by the tests' names.
type Verdicts = BTreeMap<String, String>;

/// Returns the folder in which `make` has built the suites; none, with a printed note, if it has not.
fn built(name: &str) -> Option<PathBuf> {
    let path = program_path("").parent().unwrap().join("suites").join(name);
    if !path.exists() {
        println!("SKIPPED: {} is not built: make test-programs", path.display());
        return None;
    }
    Some(path)
}

fn driver(path: BytesPath) -> TestDriver {
    TestDriver::with("cpu", |settings| settings.policy.path = Some(path))
}

/// Makes a command with the library, if there is a driver for it.
fn command(program: &Path, library: Option<&TestDriver>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "60"]).arg(program).stdin(Stdio::null());
    if let Some(driver) = library {
        command.env("LD_PRELOAD", program_path("libpd_preload.so"));
        command.env("PD_SOCKET", driver.socket()).env("PD_PRELOAD", "all");
    }
    command
}

/// Runs a suite without and with the library. Tests named in `others` are known to differ.
fn compare(
    all: impl Fn(Option<&TestDriver>) -> Verdicts,
    one: impl Fn(&str, Option<&TestDriver>) -> String,
    others: &[&str],
) {
    let expected = all(None);
    assert!(expected.values().filter(|verdict| *verdict == "ok").count() > 100, "{expected:?}");
    for path in [BytesPath::Direct, BytesPath::Offloaded] {
        let driver = driver(path);
        let found = all(Some(&driver));
        let same = |name: &String| expected[name] == found.get(name).map_or("", String::as_str);
        for name in expected.keys().filter(|&name| !same(name) && !others.contains(&name.as_str())) {
            let again = (0..TRIES).any(|_| one(name, Some(&driver)) == one(name, None));
            assert!(again, "{path:?}: {name}: {:?}, not {}", found.get(name), expected[name]);
        }
        println!("{path:?}: {} tests, {} connections", found.len(), driver.metrics().connections_made);
        assert!(driver.metrics().connections_made > 0);
        driver.wait_for("nothing is left", |report| report.clients.is_empty());
    }
}

fn uv(program: &Path, name: &str, library: Option<&TestDriver>) -> String {
    let mut run = command(program, library);
    run.arg(name).env("UV_RUN_AS_ROOT", "1").current_dir(program.parent().unwrap());
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let verdict = text.lines().find(|line| line.starts_with("ok") || line.starts_with("not ok"));
    match verdict {
        Some(line) if line.contains("# SKIP") => "skipped".to_owned(),
        Some(line) => line.split(" 1").next().unwrap_or(line).to_owned(),
        None => format!("{:?}", output.status.code()),
    }
}

/// One test asks for an io_uring, which the library refuses.
#[test]
#[ignore = "needs the suites: make test-programs"]
fn libuvs_own_tests_come_to_the_same() {
    let Some(program) = built("libuv/uv_run_tests") else { return };
    let list = command(&program, None).arg("--list").env("UV_RUN_AS_ROOT", "1").output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    // Helpers of a test stand below it, indented.
    let names: Vec<_> = list.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
    let all = |library: Option<&TestDriver>| {
        names.iter().map(|&name| (name.to_owned(), uv(&program, name, library))).collect()
    };
    let others = ["threadpool_cancel_fs_iouring_sync_cancel"];
    compare(all, |name, library| uv(&program, name, library), &others);
}

/// Returns the programs that `cargo test --no-run` has made, but not the library's unit tests.
fn tokio_programs(folder: &Path) -> Vec<PathBuf> {
    let is_test = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.contains('.')
            && ["tcp_", "uds_", "io_async_fd", "unix_", "rt_", "process_", "net_"]
                .iter()
                .any(|of| name.starts_with(of))
    };
    let mut found: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_test).collect();
    found.sort();
    found
}

fn tokio(program: &Path, only: Option<&str>, library: Option<&TestDriver>) -> Verdicts {
    let mut run = command(program, library);
    run.args(["--test-threads", "2"]).current_dir(program.parent().unwrap());
    if let Some(only) = only {
        run.args(["--exact", only]);
    }
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let of = program.file_name().unwrap().to_string_lossy().into_owned();
    let verdict = |line: &str| {
        let (name, verdict) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((format!("{of} {name}"), verdict.to_owned()))
    };
    text.lines().filter_map(verdict).collect()
}

#[test]
#[ignore = "needs the suites: make test-programs"]
fn tokios_own_tests_come_to_the_same() {
    let Some(folder) = built("tokio/target/debug/deps") else { return };
    let programs = tokio_programs(&folder);
    let all = |library: Option<&TestDriver>| {
        programs.iter().flat_map(|program| tokio(program, None, library)).collect()
    };
    let one = |name: &str, library: Option<&TestDriver>| {
        let (program, test) = name.split_once(' ').unwrap();
        tokio(&folder.join(program), Some(test), library).remove(name).unwrap_or_default()
    };
    compare(all, one, &[]);
}
