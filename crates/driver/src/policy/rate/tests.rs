//! Tests of buckets and meters against a list of given tokens, with a clock of the tests.
use super::*;
use proptest::prelude::*;

fn rates() -> impl Strategy<Value = Rate> {
    (prop_oneof![1u64..50, 1_000u64..10_000_000, Just(1 << 40)], 10u64..2000, 1u64..100).prop_map(
        |(per_second, ms, least)| {
            let burst = (per_second * ms / 1000).max(least);
            Rate { per_second, burst, least }
        },
    )
}

/// Checks the tokens given between any two moments: never more than the burst and the tokens that came meanwhile.
fn keeps_to(rate: Rate, extra: u64, given: &[(u64, u64)]) {
    for first in 0..given.len() {
        let mut sum = 0u128;
        for &(at, count) in &given[first..] {
            sum += u128::from(count) * 1_000_000_000;
            let came = u128::from(at - given[first].0) * u128::from(rate.per_second);
            // The burst is rounded up to a nanosecond.
            let most = u128::from(rate.burst + extra) * 1_000_000_000 + came + u128::from(rate.per_second);
            assert!(sum <= most, "{rate:?} gave {sum} of {most} ns-tokens in {given:?}");
        }
    }
}

proptest! {
    #[test]
    fn a_bucket_gives_no_more_than_its_rate_and_no_less(
        rate in rates(),
        asks in prop::collection::vec((0u64..200_000_000, 0u64..1000), 1..60),
    ) {
        let bucket = Bucket::new(rate);
        // The exact bucket, in tokens times 1e9.
        let scale = 1_000_000_000u128;
        // The burst is rounded up to a nanosecond.
        let full = u128::from(rate.burst) * scale + u128::from(rate.per_second);
        let (mut tokens, mut now, mut takes, mut given) = (full, 0u64, 0u128, Vec::new());
        for (pause, share) in asks {
            now += pause;
            tokens = full.min(tokens + u128::from(pause) * u128::from(rate.per_second));
            let count = (u128::from(rate.burst) * u128::from(share) / 1000) as u64;
            let wanted = u128::from(count) * scale;
            match bucket.take(count, Duration::from_nanos(now)) {
                Ok(()) => {
                    prop_assert!(tokens >= wanted, "gave {count} of {tokens}");
                    tokens -= wanted;
                    takes += 1;
                    given.push((now, count));
                }
                Err(at) => {
                    // Each take rounds up to a nanosecond; no more is lost.
                    let lost = (takes + 2) * u128::from(rate.per_second);
                    prop_assert!(tokens < wanted + lost, "kept {tokens} back from {wanted}");
                    prop_assert!(at > Duration::from_nanos(now));
                    prop_assert_eq!(bucket.take(count, at), Ok(()));
                    let later = at.as_nanos() as u64;
                    tokens = full.min(tokens + u128::from(later - now) * u128::from(rate.per_second));
                    prop_assert!(tokens >= wanted);
                    tokens -= wanted;
                    takes += 1;
                    now = later;
                    given.push((now, count));
                }
            }
        }
        keeps_to(rate, 0, &given);
    }

    /// Several movers with one bucket spend no more than the rate and two leases each. A mover that has to
    /// wait is served at the promised time if it alone asks.
    #[test]
    fn meters_share_a_bucket(
        rate in rates(),
        turns in prop::collection::vec((0usize..4, 0u64..20_000_000, 1u64..300_000), 1..200),
    ) {
        let bucket = Bucket::new(rate);
        let mut meters: [Meter; 4] = Default::default();
        let (mut now, mut spent) = (0u64, Vec::new());
        for (who, pause, want) in turns {
            now += pause;
            let meter = &mut meters[who];
            match meter.ready(&bucket, want, Duration::from_nanos(now)) {
                Ok(ready) => {
                    prop_assert!(ready >= want.min(rate.lease()));
                    prop_assert!(ready <= rate.lease());
                    meter.spend(ready.min(want));
                    spent.push((now, ready.min(want)));
                }
                Err(at) => {
                    prop_assert!(at > Duration::from_nanos(now));
                    now = at.as_nanos() as u64;
                    let ready = meter.ready(&bucket, want, at);
                    prop_assert!(ready.is_ok_and(|ready| ready >= want.min(rate.lease())));
                }
            }
        }
        keeps_to(rate, 4 * rate.lease(), &spent);
    }
}

#[test]
fn threads_share_a_bucket() {
    let rate = Rate { per_second: 1_000_000, burst: 100_000, least: 1 };
    let bucket = Bucket::new(rate);
    let taken: u64 = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| (0..100_000).filter(|_| bucket.take(7, Duration::ZERO).is_ok()).count() as u64)
            })
            .collect();
        takers.into_iter().map(|taker| taker.join().unwrap()).sum()
    });
    assert_eq!(taken, 100_000 / 7);
}
