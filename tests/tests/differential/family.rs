//! Connections that processes hand to each other: by fork, in another image, in messages. Members of a family take turns, at random,
//! and some of their connections leave the fabric meanwhile. Half of the families have hardly any memory.
use super::{compile, seeds, shared_file, Way};
use pd_driver::policy::Path as BytesPath;
use pd_tests::TestDriver;
use std::path::Path;
use std::process::Child;

/// Each direction. `PD_SEEDS=0+1000` is the long form.
const BYTES: u64 = 300_000;
const SEEDS: u64 = 3;
/// Memory of all, for seeds that are odd.
const SCARCE_BYTES: u64 = 14 << 20;

fn run(way: Way, driver: &TestDriver, program: &Path, family: &str, seed: u64) {
    let file = shared_file(driver.folder(), &format!("family-{seed}"), 4096);
    let log = driver.folder().join(format!("log-{seed}"));
    let sides: Vec<Child> = (0..2)
        .map(|side| {
            let words = [&file.display() as &dyn std::fmt::Display, &family, &seed, &side, &BYTES, &0, &-1];
            way.spawn_with_log(driver, program, &words.map(ToString::to_string), Some(&log))
        })
        .collect();
    let said =
        sides.into_iter().map(|side| String::from_utf8(side.wait_with_output().unwrap().stdout).unwrap());
    let said: Vec<_> = said.collect();
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(
        said.iter().all(|said| said == "done\n"),
        "{way:?} {family}: {said:?}\n{log}\nPD_SEEDS={seed} cargo test -p pd-tests --test differential families"
    );
    std::fs::remove_file(file).unwrap();
}

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
            run(way, &drivers[seed as usize % 2], &program, kind, seed);
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
#[ignore = "seed 7 fails now and then"]
fn families_share_connections_on_the_direct_path() {
    all(Way::Direct, &["tcp", "unix"]);
}
