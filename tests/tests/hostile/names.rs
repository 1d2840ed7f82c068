//! Names that a process chooses, in lists of administrators: its own, its arguments, and those of control groups.
use pd_driver::mounts::unified_hierarchy;
use pd_tests::{needs_root, program_path, ControlGroup, Puppet, TestDriver};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

/// Bytes that are no text, and what a terminal obeys.
const NAME: &[u8] = b"\xff\x1b[2J";
/// Longest part of a path of control groups here, and the bytes from which on the path is too long for a call.
const PART: [u8; 200] = [b'd'; 200];
const LONG: usize = 3700;

/// Lists what there is on the kernel. Fails if the list moves a terminal's cursor, or is no text.
fn list(driver: &TestDriver, more: &[&str]) -> String {
    let mut command = Command::new(program_path("pd"));
    command.args(["ls", "--all", "--admin-socket"]).arg(driver.admin_socket()).args(more);
    let Output { stdout, stderr, status } = command.output().expect("pd");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let text = String::from_utf8(stdout).expect("text");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    text
}

/// Starts a process that listens in a network namespace of its own, under a name that is no text.
fn listener(driver: &TestDriver, port: u16) -> Puppet {
    let script = "import ctypes, socket, sys\n\
        ctypes.CDLL(None).prctl(15, b'\\xff\\n\\x1b[2J')\n\
        s = socket.socket(); s.bind(('', int(sys.argv[1]))); s.listen()\n\
        print('ready', flush=True); sys.stdin.read()";
    let mut command = Command::new("unshare");
    command.args(["--net", "python3", "-c", script, &port.to_string()]).arg(OsStr::from_bytes(NAME));
    let mut puppet = Puppet::new(driver.spawn(&mut command));
    assert_eq!(puppet.line(), "ready");
    puppet
}

fn below(group: &ControlGroup, part: &[u8]) -> ControlGroup {
    ControlGroup::new(group.path().join(OsStr::from_bytes(part))).expect("a group")
}

#[test]
fn no_name_hides_a_process_from_lists_or_forges_a_line() {
    needs_root("control groups and a network namespace");
    let driver = TestDriver::new();
    let id = format!("{:08x}{}", std::process::id(), "0".repeat(56));
    let made =
        unified_hierarchy().and_then(|root| ControlGroup::new(root.join(format!("docker-{id}.scope"))));
    let Some(group) = made else {
        println!("SKIPPED: no cgroup2 that can be written");
        return;
    };
    let unreadable = below(&group, NAME);
    let mut deep = vec![below(&group, &PART)];
    while deep.last().is_some_and(|last| last.path().as_os_str().len() < LONG) {
        deep.push(below(&deep[deep.len() - 1], &PART));
    }
    // By a link, for the path is longer than one of a call.
    let link = driver.folder().join("deep");
    std::os::unix::fs::symlink(deep[deep.len() - 1].path(), &link).expect("a link");
    let mut deeper = vec![ControlGroup::new(link.join(OsStr::from_bytes(&PART))).expect("a group")];
    for _ in 0..2 {
        deeper.push(below(&deeper[deeper.len() - 1], &PART));
    }
    let (first, second) = (listener(&driver, 7411), listener(&driver, 7412));
    for (group, process) in [(&unreadable, &first), (&deeper[2], &second)] {
        group.set("cgroup.procs", process.pid()).expect("a group");
    }
    let text = list(&driver, &[]);
    let line = |at: &str| text.lines().find(|line| line.contains(at)).map(str::to_owned);
    let json: Result<serde_json::Value, _> = serde_json::from_str(&list(&driver, &["--json"]));
    drop((first, second));
    // Each is removed before the one above.
    while deeper.pop().is_some() {}
    while deep.pop().is_some() {}
    drop((unreadable, group));
    let named = line("listens on 0.0.0.0:7411").unwrap_or_else(|| panic!("{text}"));
    assert!(named.contains(&format!("docker:{}", &id[..12])), "{named}");
    assert!(line("listens on 0.0.0.0:7412").is_some(), "{text}");
    let json = json.expect("JSON");
    let processes = json["kernel"]["processes"].as_array().expect("a list");
    for at in ["0.0.0.0:7411", "0.0.0.0:7412"] {
        assert!(processes.iter().any(|process| process["listening"][0] == at), "{at}: {processes:?}");
    }
}

/// The driver finds the hierarchy of control groups in the list of mounts, in which users who may mount have names of theirs.
#[test]
fn a_mount_whose_name_is_no_text_takes_no_policy_off_the_kernel() {
    const INSIDE: &str = "PD_TEST_INSIDE";
    needs_root("a mount");
    if std::env::var_os(INSIDE).is_some() {
        let driver = TestDriver::new();
        driver.apply("[[rule]]\naddress = \"192.0.2.1\"\naction = \"deny\"");
        let kernel = driver.policy().kernel;
        assert!(kernel.in_force, "{kernel:?}");
        return;
    }
    if unified_hierarchy().is_none() {
        println!("SKIPPED: no cgroup2");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let place = folder.path().join(OsStr::from_bytes(NAME));
    std::fs::create_dir(&place).expect("own folder");
    // This test once more, in a mount namespace of its own.
    let script = "mount -t tmpfs none \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(&place);
    command.arg(std::env::current_exe().expect("path of the test")).args(["--exact", "--nocapture"]);
    command.arg("names::a_mount_whose_name_is_no_text_takes_no_policy_off_the_kernel").env(INSIDE, "1");
    let Output { stdout, stderr, status } = command.output().expect("unshare");
    let said = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success() && said[0].contains("1 passed"), "{said:?}");
}
