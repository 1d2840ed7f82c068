//! Connections that carry small messages, then bulk, then small messages. They leave the fabric and come back to it, and no
//! byte is lost, doubled or misplaced.
use super::{compile, run_both, seeds, Way};
use pd_tests::TestDriver;
use std::path::Path;

const SEEDS: u64 = 6;
/// Talk and bulk in turns, from talk to talk.
const TIDES: u32 = 9;

/// Runs both sides. Returns how often an end has left by choice, and how often one has come back.
fn run(way: Way, driver: &TestDriver, program: &Path, family: &str, seed: u64) -> (usize, usize) {
    let log = run_both(way, driver, program, (family, seed), &[&TIDES], "tides", None);
    if std::env::var_os("PD_SAY").is_some() {
        eprintln!("{log}");
    }
    (
        log.matches("leaves the fabric: small messages").count(),
        log.matches("comes back to the fabric").count(),
    )
}

/// Runs each seed. Its connection leaves and comes back, at both ends. Every third one is disturbed later: by a fork, another
/// number, or an option that only the kernel has.
fn all(way: Way, family: &str) {
    let driver = way.driver_of_choice();
    let program = compile("tides", driver.folder());
    for seed in seeds(SEEDS) {
        let (left, came_back) = run(way, &driver, &program, family, seed);
        println!("{way:?} {family} seed {seed}: left {left}, came back {came_back}");
        assert!(
            way == Way::Kernel || left >= 1 && came_back >= 2 || seed % 3 == 2,
            "{way:?} {family} seed {seed}: {left} {came_back}"
        );
    }
    driver.wait_for("nothing is left", |report| report.clients.is_empty());
}

#[test]
fn talk_and_bulk_arrive_on_the_kernel() {
    all(Way::Kernel, "unix");
    all(Way::Kernel, "tcp");
}

#[test]
fn talk_and_bulk_arrive_on_the_direct_path() {
    all(Way::Direct, "unix");
}

#[test]
fn talk_and_bulk_arrive_offloaded() {
    all(Way::Offloaded, "unix");
    all(Way::Offloaded, "tcp");
}
