//! Connections whose sides only look, send and receive without waiting. At every hand-over (kernel to fabric, offloaded to
//! direct, ring to ring, process to process, fabric to kernel) the calls themselves have to make progress.
use super::{compile, run_both, seeds, Way};
use pd_tests::TestDriver;
use std::fmt::Display;
use std::time::Duration;

/// Each direction: past the first bytes, which are kept, and past the beginning of the direct path.
const BYTES: u64 = 1_000_000;
const SEEDS: u64 = 16;

fn all(way: Way, family: &str, meanwhile: Option<&dyn Fn(&TestDriver)>) {
    let driver = way.driver();
    let program = compile("restless", driver.folder());
    for seed in seeds(SEEDS) {
        let more = [&BYTES as &dyn Display, &u8::from(meanwhile.is_some())];
        run_both(way, &driver, &program, (family, seed), &more, "restless", meanwhile);
    }
    assert!(way == Way::Kernel || driver.metrics().connections_made > 0);
    driver.wait_for("nothing is left", |report| report.clients.is_empty());
}

#[test]
fn restless_programs_end_on_the_kernel() {
    all(Way::Kernel, "kernel", None);
}

#[test]
fn restless_programs_end_offloaded() {
    all(Way::Offloaded, "tcp", None);
    all(Way::Offloaded, "unix", None);
}

#[test]
fn restless_programs_end_on_the_direct_path() {
    all(Way::Direct, "tcp", None);
    all(Way::Direct, "unix", None);
}

#[test]
fn restless_programs_end_with_short_connections() {
    all(Way::ShortOffloaded, "short", None);
    all(Way::ShortDirect, "short", None);
}

/// The policy takes the direct path away and gives it back all the time.
#[test]
fn restless_programs_end_whatever_the_policy_does() {
    let change = |driver: &TestDriver| {
        for path in ["offloaded", "direct"] {
            driver.apply(&format!("path = \"{path}\""));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for (way, family) in [(Way::Direct, "tcp"), (Way::Direct, "unix"), (Way::ShortDirect, "short")] {
        all(way, family, Some(&change));
    }
}
