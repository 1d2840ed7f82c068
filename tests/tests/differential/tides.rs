//! Connections that talk, then carry bulk, then talk: they leave the fabric and come back to it, and no byte is lost, doubled
//! or out of its place.
use super::{compile, seeds, shared_file, Way};
use pd_tests::TestDriver;
use std::path::Path;
use std::process::Child;

const SEEDS: u64 = 6;
/// Talk and bulk in turns, from talk to talk.
const TIDES: u32 = 9;

/// Runs both sides. Returns how often an end has left by choice, and how often one has come back.
fn run(way: Way, driver: &TestDriver, program: &Path, family: &str, seed: u64) -> (usize, usize) {
    let file = shared_file(driver.folder(), &format!("tides-{seed}"), 4096);
    let log = driver.folder().join(format!("log-{seed}"));
    let sides: Vec<Child> = (0..2)
        .map(|side| {
            let words = [&file.display() as &dyn std::fmt::Display, &family, &seed, &side, &TIDES];
            way.spawn_with_log(driver, program, &words.map(ToString::to_string), Some(&log))
        })
        .collect();
    let said =
        sides.into_iter().map(|side| String::from_utf8(side.wait_with_output().unwrap().stdout).unwrap());
    let said: Vec<_> = said.collect();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        said.iter().all(|said| said == "done\n"),
        "{way:?} {family}: {said:?}\n{log}\nPD_SEEDS={seed} cargo test -p pd-tests --test differential tides"
    );
    std::fs::remove_file(file).unwrap();
    if std::env::var_os("PD_SAY").is_some() {
        eprintln!("{log}");
    }
    (
        log.matches("leaves the fabric: small messages").count(),
        log.matches("comes back to the fabric").count(),
    )
}

/// Each seed's connection leaves and comes back, at both ends, and every third one is disturbed later: by a fork, another number, or
/// something that only the kernel has.
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
