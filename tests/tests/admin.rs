//! The admin socket hears nobody from inside a container, root or not.
use pd_driver::mounts::unified_hierarchy;
use pd_tests::{needs_root, program_path, ControlGroup, TestDriver};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn strangers_at_the_admin_socket_wait_for_their_turn() {
    needs_root("a namespace of process ids");
    let driver = TestDriver::new();
    let since = Instant::now();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--"]).arg(program_path("attacker")).arg(driver.socket());
    // As root: others cannot open the socket.
    let mut attacker = command.args(["administers", "600", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = 0;
    while attacker.try_wait().unwrap().is_none() {
        assert!(driver.report().clients.is_empty());
        heard += 1;
    }
    let output = attacker.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "done 0 600\n");
    // 64 at once, then 500 in a second.
    assert!(since.elapsed() >= Duration::from_millis(1000) && heard > 1, "{:?}", since.elapsed());
}

#[test]
fn a_containers_root_is_no_administrator() {
    needs_root("a namespace of process ids");
    let driver = TestDriver::new();
    let admin = driver.socket().with_file_name("admin.sock");
    let ask = |command: &mut Command| {
        command.arg(program_path("pd")).args(["policy", "show", "--json", "--admin-socket"]).arg(&admin);
        command.output().unwrap()
    };
    let outside = ask(&mut Command::new("env"));
    assert!(outside.status.success(), "{outside:?}");
    let inside = ask(Command::new("unshare").args(["--pid", "--fork", "--"]));
    let why = String::from_utf8_lossy(&inside.stderr).into_owned();
    assert!(!inside.status.success() && why.contains("containers"), "{inside:?}");
}

/// Engines make containers that share the host's process ids (`--pid host`).
#[test]
fn a_containers_root_among_the_hosts_processes_is_no_administrator() {
    needs_root("a control group");
    let driver = TestDriver::new();
    let name = format!("docker-{:064x}.scope", std::process::id());
    let Some(group) = unified_hierarchy().and_then(|root| ControlGroup::new(root.join(name))) else {
        println!("SKIPPED: no cgroup2 that can be written");
        return;
    };
    let mut inside = Command::new("sh");
    inside.args(["-c", &group.enter(), "sh"]).arg(program_path("pd"));
    let inside = inside.args(["ls", "--admin-socket"]).arg(driver.admin_socket()).output().unwrap();
    let why = String::from_utf8_lossy(&inside.stderr).into_owned();
    assert!(!inside.status.success() && why.contains("containers"), "{inside:?}");
}
