//! Epoll instances: whatever happens to one, and to its numbers.

use super::{programs, Site, PORT};
use std::process::Command;

#[test]
fn epoll_instances_answer_the_same_whatever_happens_to_their_numbers() {
    let site = Site::new(91);
    let program = site.folder.path().join("instances");
    let compiled = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join("instances.c"))
        .status()
        .unwrap();
    assert!(compiled.success());
    let program = program.to_str().unwrap();
    site.compare(&[program, "server", PORT], &[program, "client", &site.address(2), PORT]);
}
