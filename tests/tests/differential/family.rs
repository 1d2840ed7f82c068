//! Connections that processes hand to each other: by fork, in another image, in messages. Members of a family take turns, at random,
//! and some of their connections leave the fabric meanwhile. Half of the families have hardly any memory.
use super::{compile, run_both, seeds, Way};
use pd_driver::policy::Path as BytesPath;
use pd_tests::TestDriver;
use std::fmt::Display;

/// Each direction. `PD_SEEDS=0+1000` is the long form.
const BYTES: u64 = 300_000;
const SEEDS: u64 = 3;
/// Memory of all, for seeds that are odd.
const SCARCE_BYTES: u64 = 14 << 20;

fn all(way: Way, kinds: &[&str]) {
    let drivers = [u64::MAX, SCARCE_BYTES].map(|most| {
        TestDriver::with("cpu", |settings| {
            settings.hugepages = pd_driver::HugepageUse::Off;
            settings.budget_bytes = settings.budget_bytes.min(most);
            settings.policy.path =
                Some(if way == Way::Direct { BytesPath::Direct } else { BytesPath::Offloaded });
        })
    });
    let program = compile("family", drivers[0].folder());
    for seed in seeds(SEEDS) {
        for kind in kinds {
            let more = [&BYTES as &dyn Display, &0, &-1];
            run_both(way, &drivers[seed as usize % 2], &program, (kind, seed), &more, "families", None);
        }
    }
    for driver in drivers {
        assert!(
            way == Way::Kernel
                || std::env::var_os("PD_SEEDS").is_some()
                || driver.metrics().connections_made > 0
        );
        driver.wait_for("nothing is left", |report| report.clients.is_empty());
    }
}

#[test]
fn families_share_connections_on_the_kernel() {
    all(Way::Kernel, &["tcp", "unix"]);
}

#[test]
fn families_share_connections_offloaded() {
    all(Way::Offloaded, &["tcp", "unix"]);
}

#[test]
fn families_share_connections_on_the_direct_path() {
    all(Way::Direct, &["tcp", "unix"]);
}
