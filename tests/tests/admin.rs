//! The admin socket hears nobody from inside a container, root or not.
use pd_tests::{is_root, program_path, TestDriver};
use std::process::Command;

#[test]
fn a_containers_root_is_no_administrator() {
    if !is_root("a namespace of process ids") {
        return;
    }
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
