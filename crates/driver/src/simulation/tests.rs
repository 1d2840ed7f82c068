//! Runs.
use super::*;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

/// Seeds that once found bugs of the driver or of the simulation, while the simulation does not change.
const FOUND: [u64; 19] = [
    5236, 5318, 100774, 103501, 40007707, 80009864, 160000896, 300011295, 600003868, 1046701340, 2580200810,
    3100000164, 5200001956, 6400000272, 7100000711, 7100001675, 7100001758, 8100000441, 9950001646,
];
/// Runs of `cargo test`, and threads that share them. `long` has others.
const SEEDS: u64 = 200;
const THREADS: u64 = 4;
/// Runs in which a deliberate fault has to be found.
const MUTATED_SEEDS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Runs of `make simulate`: the seed `SEED` alone; or for `MINUTES` those from `FROM` on, by default from a seed of the time.
#[test]
#[ignore = "as long as one likes"]
fn long() {
    if let Some(seed) = number("SEED") {
        println!("seed {seed}: {:?}", run(seed));
        return;
    }
    let begun = Instant::now();
    let until = Duration::from_secs(60 * number("MINUTES").unwrap_or(1));
    let since_epoch = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let first = number("FROM").unwrap_or(since_epoch.as_secs() << 24);
    let mut all = Outcome::default();
    let mut runs = 0;
    while begun.elapsed() < until {
        let outcome = run(first + runs);
        (all.steps, all.arrived) = (all.steps + outcome.steps, all.arrived + outcome.arrived);
        (all.finished, all.failed) = (all.finished + outcome.finished, all.failed + outcome.failed);
        runs += 1;
    }
    println!(
        "{runs} runs from seed {first} on: {} steps, {} bytes arrived, {} streams ended in order, {} calls failed",
        all.steps, all.arrived, all.finished, all.failed
    );
}

#[test]
fn seeds_hold() {
    let run_some = |first: u64| {
        (first..SEEDS).step_by(THREADS as usize).map(run).fold((0, 0, 0), |sum, outcome| {
            (sum.0 + outcome.finished, sum.1 + outcome.failed, sum.2 + outcome.taken_over)
        })
    };
    let (finished, failed, taken_over) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || run_some(first))).collect();
        let sums = threads.into_iter().map(|thread| thread.join().expect("a seed fails"));
        sums.fold((0, 0, 0), |sum, some| (sum.0 + some.0, sum.1 + some.1, sum.2 + some.2))
    });
    // The runs cover something.
    assert!(finished > SEEDS && failed > SEEDS, "{finished} streams ended in order, {failed} calls failed");
    // Without a file system of its own no driver can be taken over.
    let has_shelf = pd_shm::shelf::Shelf::new(pd_shm::memfd::Pages::Ordinary).is_ok();
    assert!(taken_over > SEEDS / 4 || !has_shelf, "{taken_over} take-overs");
}

/// A state that nobody changes is taken. One with a changed field is refused, or its driver keeps the invariants.
#[test]
fn changed_fields_are_refused_or_harmless() {
    let (mut taken, mut refused) = (0, 0);
    for seed in 0..12u8 {
        for steps in [20, 60, 140] {
            let Some(goes_on) = shaken::run(&[seed, steps]) else { continue };
            assert!(goes_on, "seed {seed}, {steps} steps");
            let mut random = random::Random::new(u64::from(seed) << 8 | u64::from(steps));
            for _ in 0..20 {
                let [a, b] = [random.next() as u16, random.next() as u16].map(u16::to_le_bytes);
                let program = [seed, steps, 7, a[0], a[1], b[0], b[1]];
                match shaken::run(&program) {
                    Some(true) => taken += 1,
                    Some(false) => refused += 1,
                    None => {}
                }
            }
        }
    }
    let has_shelf = pd_shm::shelf::Shelf::new(pd_shm::memfd::Pages::Ordinary).is_ok();
    assert!(taken > 20 && refused > 5 || !has_shelf, "{taken} taken, {refused} refused");
}

#[test]
fn seeds_that_found_bugs_hold() {
    for seed in FOUND {
        run(seed);
    }
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

fn is_found(mutation: Mutation) {
    let found = (0..MUTATED_SEEDS).find(|&seed| catch_unwind(|| run_with(seed, Some(mutation))).is_err());
    assert!(found.is_some(), "{mutation:?} is not found in {MUTATED_SEEDS} seeds");
}

#[test]
fn a_lost_wake_is_found() {
    is_found(Mutation::LostWake);
}

#[test]
fn a_lost_answer_is_found() {
    is_found(Mutation::LostAnswer);
}

#[test]
fn a_ring_that_is_given_back_twice_is_found() {
    is_found(Mutation::RingGivenTwice);
}

#[test]
fn a_byte_that_is_taken_back_is_found() {
    is_found(Mutation::ByteTakenBack);
}

#[test]
fn a_leak_is_found() {
    is_found(Mutation::Leak);
}

#[test]
fn a_byte_that_does_not_move_is_found() {
    is_found(Mutation::ByteNotMoved);
}

#[test]
fn a_departure_that_is_said_early_is_found() {
    is_found(Mutation::ElsewhereTooEarly);
}

#[test]
fn bytes_that_are_claimed_and_not_counted_are_found() {
    is_found(Mutation::ClaimIgnored);
}

#[test]
fn an_end_of_a_ring_that_is_not_fixed_is_found() {
    is_found(Mutation::EndsUnfixed);
}

#[test]
fn received_bytes_that_count_twice_are_found() {
    is_found(Mutation::ReceivedUnfixed);
}

#[test]
fn a_rate_that_is_not_kept_is_found() {
    is_found(Mutation::RateForgotten);
}

#[test]
fn an_end_of_a_ring_that_is_not_said_is_found() {
    is_found(Mutation::LastUnsaid);
}

#[test]
fn a_lost_read_of_a_disk_is_found() {
    is_found(Mutation::ReadLost);
}

#[test]
fn what_is_held_and_not_sent_is_found() {
    is_found(Mutation::HeldForgotten);
}
