//! Effect of one user's many connections on another's few.
use super::stage_for_anyone;
use pd_tests::{needs_root, program_path, Puppet, TestDriver};
use std::process::Command;
use std::time::Duration;

const MANY: u32 = 65_534;
const FEW: u32 = 65_533;

/// Starts a user's process that keeps `count` connections busy.
fn crowd(driver: &TestDriver, count: usize, uid: u32) -> Puppet {
    let mut command = Command::new(program_path("attacker"));
    command.arg(driver.socket()).args(["crowd", &count.to_string(), &uid.to_string()]);
    let mut crowd = Puppet::new(driver.spawn(&mut command));
    assert_eq!(crowd.line(), "ready");
    crowd
}

/// Bytes of the user's connections so far.
fn moved(driver: &TestDriver, uid: u32) -> u64 {
    let report = driver.report();
    let of_user = |id| report.clients.iter().any(|client| client.client == id && client.uid == uid);
    let connections = report.connections.iter().filter(|c| c.from.is_some_and(|(id, _)| of_user(id)));
    connections.map(|connection| connection.bytes[0]).sum()
}

#[test]
fn a_hundred_connections_of_one_user_leave_another_its_share() {
    needs_root("processes of other users");
    let scene = stage_for_anyone();
    let (many, few) = (crowd(&scene.driver, 100, MANY), crowd(&scene.driver, 1, FEW));
    let at = |uid| moved(&scene.driver, uid);
    std::thread::sleep(Duration::from_millis(500));
    let before = (at(MANY), at(FEW));
    std::thread::sleep(Duration::from_secs(2));
    let (many_moved, few_moved) = (at(MANY) - before.0, at(FEW) - before.1);
    let share = few_moved as f64 / (many_moved + few_moved) as f64;
    assert!(share >= 0.3, "{share:.3}: {few_moved} bytes beside {many_moved}");
    scene.bystander.check(&scene.driver);
    drop((many, few));
    scene.end();
}
