//! Programs of socket calls, on the kernel and on the fabric: the result of each call has to be the same.
use super::{compile, seeds, shared_file, Way};
use pd_tests::TestDriver;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

/// Programs of a test; `PD_SEEDS=0+100000` is the long form.
const SEEDS: u64 = 200;
/// Further ones, with departures, sendfile, splice and dup2 over a number in use; `PD_SEEDS=1000000+100000` is the long form.
const FURTHER: std::ops::Range<u64> = 1_000_000..1_000_100;
/// Programs that found a difference once.
const FOUND: [u64; 27] = [
    110_020, 110_061, 120_171, 130_045, 140_203, 150_153, 150_204, 160_041, 300_004, 320_756, 1_000_202,
    1_000_244, 1_000_777, 1_004_274, 1_004_901, 1_005_408, 1_005_624, 1_005_963, 1_006_985, 1_007_095,
    1_011_111, 1_016_999, 1_020_634, 1_038_799, 1_043_546, 1_049_928, 1_068_897,
];
/// Programs of a test of splicing.
const PIPES_SEEDS: u64 = 25;
/// Programs that one pair of processes runs.
const BATCH: u64 = 50;

/// Runs programs, and returns the output of both processes.
fn run(way: Way, driver: &TestDriver, program: &Path, first: u64, count: u64, forks: bool) -> [String; 2] {
    let file = shared_file(driver.folder(), "shared", 4096);
    let sides: Vec<_> = (0..2)
        .map(|side| {
            let words = [&file.display() as &dyn std::fmt::Display, &side, &first, &count, &u8::from(forks)];
            way.spawn(driver, program, &words.map(ToString::to_string))
        })
        .collect();
    let printed = sides.into_iter().map(|side| {
        let output = side.wait_with_output().unwrap();
        format!("{}{}\n", String::from_utf8_lossy(&output.stdout), output.status)
    });
    printed.collect::<Vec<_>>().try_into().unwrap()
}

/// The kernel's answers by program, first number, count and whether it forks. All tests share them.
type Expected = HashMap<(String, u64, u64, bool), Arc<OnceLock<[String; 2]>>>;

/// Returns the output of both processes on the kernel. The first test that asks runs the programs.
fn expected(
    driver: &TestDriver,
    name: &str,
    program: &Path,
    first: u64,
    count: u64,
    forks: bool,
) -> [String; 2] {
    static EXPECTED: Mutex<Option<Expected>> = Mutex::new(None);
    let answers = {
        let mut all = EXPECTED.lock().unwrap();
        all.get_or_insert_with(HashMap::new)
            .entry((name.to_owned(), first, count, forks))
            .or_default()
            .clone()
    };
    let made = || {
        let printed = run(Way::Kernel, driver, program, first, count, forks);
        for side in &printed {
            let stray = ["unsettled", "not ", "wrong", "missing"].iter().any(|word| side.contains(word));
            assert!(!stray && side.ends_with("exit status: 0\n"), "the kernel itself: {side}");
        }
        printed
    };
    answers.get_or_init(made).clone()
}

/// Returns the lines up to the first difference from the kernel, of the program that it belongs to.
fn difference(found: &str, expected: &str) -> String {
    let (mut found, mut expected, mut before) = (found.lines(), expected.lines(), Vec::new());
    loop {
        match (found.next(), expected.next()) {
            (None, None) => return String::new(),
            (is, should_be) if is == should_be => before.extend(is),
            (is, should_be) => {
                let from = before.len().saturating_sub(60);
                let before = before[from..].join("\n");
                return format!("{before}\nfound:    {is:?}\nexpected: {should_be:?}\n");
            }
        }
    }
}

fn compare(way: Way, name: &str, count: u64) {
    // A short connection stays with its process.
    let forks = !way.is_short();
    let driver = way.driver();
    let program = compile(name, driver.folder());
    let batches = |all: std::ops::Range<u64>| {
        all.clone().step_by(BATCH as usize).map(move |first| (first, BATCH.min(all.end - first)))
    };
    let all = seeds(count);
    let mut runs: Vec<_> = batches(all.clone()).collect();
    if name == "calls" && all.start == 0 {
        runs.extend(batches(FURTHER).chain(FOUND.map(|seed| (seed, 1))));
    }
    for (first, count) in runs {
        let expected = expected(&driver, name, &program, first, count, forks);
        let found = run(way, &driver, &program, first, count, forks);
        for side in 0..2 {
            let differs = difference(&found[side], &expected[side]);
            assert!(
                differs.is_empty(),
                "{way:?}, process {side}:\n{differs}\nPD_SEEDS={first}+{count} cargo test -p pd-tests --test differential \
                 calls or pipes (and with the program's number alone)"
            );
        }
    }
    assert!(driver.metrics().connections_made > 0);
    driver.wait_for("nothing is left", |report| report.clients.is_empty());
}

#[test]
fn calls_come_to_the_same_offloaded() {
    compare(Way::Offloaded, "calls", SEEDS);
}

#[test]
fn calls_come_to_the_same_on_the_direct_path() {
    compare(Way::Direct, "calls", SEEDS);
}

#[test]
fn calls_come_to_the_same_with_short_connections() {
    compare(Way::ShortOffloaded, "calls", SEEDS);
}

#[test]
fn calls_come_to_the_same_with_short_connections_on_the_direct_path() {
    compare(Way::ShortDirect, "calls", SEEDS);
}

#[test]
fn pipes_come_to_the_same_offloaded() {
    compare(Way::Offloaded, "pipes", PIPES_SEEDS);
}

#[test]
fn pipes_come_to_the_same_on_the_direct_path() {
    compare(Way::Direct, "pipes", PIPES_SEEDS);
}

#[test]
fn pipes_come_to_the_same_with_short_connections() {
    compare(Way::ShortDirect, "pipes", PIPES_SEEDS);
}
