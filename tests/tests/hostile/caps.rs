//! Caps of one user on the driver's resources, and the rest for others.
use super::{stage_of, Scene};
use pd_driver::admin::{HoldingReport, TenantReport};
use pd_driver::HugepageUse;
use pd_tests::{needs_root, program_path, Puppet, Raw};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const NOBODY: u32 = 65_534;
const MIB: u64 = 1 << 20;

fn stage(clients_max: usize, budget_bytes: u64) -> Scene {
    let scene = stage_of(HugepageUse::Off, |settings| {
        settings.clients_max = clients_max;
        settings.budget_bytes = budget_bytes;
    });
    let everybody = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(scene.driver.folder(), everybody).expect("own folder");
    // The policy names no user.
    scene.driver.apply("path = \"offloaded\"\n[attach]\ndefault = \"anyone\"");
    scene
}

/// Starts a process of user `nobody` that takes all it can get: clients, and their send regions of a MiB each.
fn greedy(scene: &Scene, count: u64) -> (Puppet, u64, u64) {
    let mut command = Command::new(program_path("attacker"));
    command.arg(scene.driver.socket()).args(["holds", &count.to_string()]);
    let mut greedy = Puppet::new(scene.driver.spawn(&mut command));
    let line = greedy.line();
    let mut numbers =
        line.strip_prefix("holds ").expect("numbers").split(' ').map(|word| word.parse().unwrap());
    let (clients, regions) = (numbers.next().unwrap(), numbers.next().unwrap());
    (greedy, clients, regions)
}

fn holding(scene: &Scene, user: u32) -> HoldingReport {
    let default = |tenant: &TenantReport| tenant.name == "default";
    let tenant = scene.driver.policy().tenants.into_iter().find(default).expect("there is always one");
    tenant.holdings.into_iter().find(|holding| holding.user == Some(user)).expect("a user with clients")
}

#[test]
fn a_user_has_half_of_the_clients_that_others_leave() {
    needs_root("another user's process");
    let scene = stage(42, 1 << 30);
    // Two are the bystanders'.
    let (greedy, clients, _) = greedy(&scene, 60);
    assert_eq!(clients, 20);
    let held = holding(&scene, NOBODY);
    assert_eq!((held.clients.used, held.clients.refused), (20, 40), "{held:?}");
    // Each takes four descriptors, and two for its channel.
    assert!(held.descriptors.used >= 20 * 6 && held.memory_bytes.used > 20 * (MIB + 2 * 36_864), "{held:?}");
    assert_eq!(scene.driver.metrics().caps_reached, 40);
    // Others are let in.
    drop(Raw::attach(&scene.driver, 1));
    drop(greedy);
    scene.end();
}

#[test]
fn a_user_has_half_of_the_memory_that_others_leave() {
    needs_root("another user's process");
    let scene = stage(1000, 64 * MIB);
    let (greedy, clients, regions) = greedy(&scene, 60);
    assert_eq!(clients, 60);
    let held = holding(&scene, NOBODY);
    let most = 32 * MIB;
    assert!(held.memory_bytes.used <= most && held.memory_bytes.refused >= 60 - regions, "{held:?}");
    assert!((20..32).contains(&regions), "{regions} regions of a MiB in half of 64");
    let mut other = Raw::attach(&scene.driver, 1);
    other.send_region(8 * MIB);
    drop((greedy, other));
    scene.end();
}

#[test]
fn memory_that_another_process_holds_stays_on_the_account() {
    let scene = stage(1000, 1 << 30);
    let user = rustix::process::geteuid().as_raw();
    let before = holding(&scene, user).memory_bytes.used;
    let mut client = Raw::attach(&scene.driver, 1);
    let (region, map) = client.send_region(8 * MIB);
    drop((client, region));
    scene.driver.wait_for("the client is gone", |r| r.clients.len() == 2);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let held = holding(&scene, user).memory_bytes.used;
    assert!(held >= before + 8 * MIB, "{held} bytes, {before} before");
    drop(map);
    scene.end();
}

#[test]
fn lines_that_another_process_holds_stay_on_the_account() {
    let scene = stage(1000, 1 << 30);
    let user = rustix::process::geteuid().as_raw();
    let before = holding(&scene, user);
    let mut client = Raw::attach(&scene.driver, 8);
    let sockets: Vec<_> = (0..1000).map(|_| client.open(0)).collect();
    let made = holding(&scene, user).memory_bytes.used - before.memory_bytes.used;
    let (status, status_fd) = (client.status, client.status_fd);
    drop((client.socket, client.control, client.control_fd, client.channels));
    scene.driver.wait_for("the client is gone", |r| r.clients.len() == 2);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let held = holding(&scene, user);
    assert_eq!(held.memory_bytes.used, before.memory_bytes.used + made, "{} sockets", sockets.len());
    assert_eq!(held.descriptors.used, before.descriptors.used + 2);
    drop(status_fd);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(holding(&scene, user).memory_bytes.used > before.memory_bytes.used, "it is mapped");
    drop(status);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while holding(&scene, user).memory_bytes.used > before.memory_bytes.used {
        assert!(std::time::Instant::now() < until, "it is not given back");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    scene.end();
}
