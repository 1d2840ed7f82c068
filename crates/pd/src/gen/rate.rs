//! Rates of `pd gen`: their notation, due times of frames, and the search for the largest rate without loss.

use std::time::Duration;

/// Frames or bits in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Frames in a second.
    Frames(f64),
    /// Bits of frames in a second, without preamble, checksum and gap.
    Bits(f64),
}

impl Rate {
    /// Reads `1.5Mpps`, `200kpps`, `10Gbit`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no rate, such as 200kpps, 1.5Mpps or 10Gbit");
        let (number, make): (_, fn(f64) -> Self) = if let Some(number) = text.strip_suffix("pps") {
            (number, Self::Frames)
        } else {
            let number = text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bit")).ok_or_else(wrong)?;
            (number, Self::Bits)
        };
        let (number, factor) = match number.char_indices().last() {
            Some((at, 'k')) => (&number[..at], 1e3),
            Some((at, 'M')) => (&number[..at], 1e6),
            Some((at, 'G')) => (&number[..at], 1e9),
            _ => (number, 1.0),
        };
        let value = number.parse::<f64>().map_err(|_| wrong())? * factor;
        if value.is_finite() && value >= 1e-3 {
            Ok(make(value))
        } else {
            Err(wrong())
        }
    }

    /// Frames in a second of frames of `mean_bytes`.
    pub fn frames(self, mean_bytes: f64) -> f64 {
        match self {
            Self::Frames(frames) => frames,
            Self::Bits(bits) => bits / (8.0 * mean_bytes),
        }
    }
}

/// When frames are due at a steady rate. Without one they always are.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    frames_per_second: Option<f64>,
}

impl Pace {
    /// Makes a schedule of `frames_per_second` frames in a second; none: no limit.
    pub fn new(frames_per_second: Option<f64>) -> Self {
        Self { frames_per_second }
    }

    /// Tells whether there is a rate.
    pub fn is_limited(&self) -> bool {
        self.frames_per_second.is_some()
    }

    /// Frames due `elapsed` after the start.
    pub fn due(&self, elapsed: Duration) -> u64 {
        // The first is due at once.
        self.frames_per_second
            .map_or(u64::MAX, |rate| ((elapsed.as_secs_f64() * rate) as u64).saturating_add(1))
    }

    /// Returns the time at which frame `number`, from 0, is due.
    pub fn at(&self, number: u64) -> Duration {
        let seconds = self.frames_per_second.map_or(0.0, |rate| number as f64 / rate);
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// Result of a trial at a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Frames in a second that were to be sent.
    pub rate: f64,
    /// Share of them that did not come back.
    pub loss: f64,
}

/// Finds the largest rate whose share of lost frames is at most `allowed`, by the method of RFC 2544 (26.1). From `most` on, the interval
/// between the largest rate that passed and the smallest that failed is halved, until it is at most `resolution` of `most`. Returns the
/// trials in order, and the rate; none if every trial failed.
///
/// # Errors
/// Errors of `trial`.
pub fn search<E>(
    most: f64,
    allowed: f64,
    resolution: f64,
    mut trial: impl FnMut(f64) -> Result<f64, E>,
) -> Result<(Vec<Trial>, Option<f64>), E> {
    let (mut passed, mut failed, mut trials) = (0.0, most, Vec::new());
    let mut rate = most;
    loop {
        let loss = trial(rate)?;
        trials.push(Trial { rate, loss });
        if loss <= allowed {
            passed = rate;
        } else {
            failed = rate;
        }
        if failed - passed <= resolution * most || rate >= most && passed >= most {
            return Ok((trials, (passed > 0.0).then_some(passed)));
        }
        rate = (passed + failed) / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        assert_eq!(Rate::parse("1.5Mpps"), Ok(Rate::Frames(1.5e6)));
        assert_eq!(Rate::parse("200pps"), Ok(Rate::Frames(200.0)));
        assert_eq!(Rate::parse("10Gbit"), Ok(Rate::Bits(1e10)));
        assert_eq!(Rate::parse("10Gbit/s").unwrap().frames(125.0), 1e7);
        for wrong in ["", "pps", "10", "-1pps", "0pps", "NaNpps", "infpps", "10Gb", "1Tpps", "kpps"] {
            assert!(Rate::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn frames_are_due_when_their_time_comes() {
        let pace = Pace::new(Some(1000.0));
        assert_eq!((pace.due(Duration::ZERO), pace.due(Duration::from_secs(2))), (1, 2001));
        for number in [0, 1, 999, 123_456] {
            let at = pace.at(number) + Duration::from_nanos(2);
            assert!(pace.due(at) > number, "{number}");
        }
        assert_eq!(Pace::new(None).due(Duration::ZERO), u64::MAX);
        assert_eq!(Pace::new(Some(1e30)).due(Duration::from_secs(1)), u64::MAX);
        assert_eq!(Pace::new(Some(1e-300)).at(u64::MAX), Duration::MAX);
    }

    #[test]
    fn a_search_finds_the_threshold_from_below() {
        for threshold in [0.0, 1.0, 3.0, 250_000.0, 777_777.7, 999_999.0, 1e6, 2e6] {
            let model =
                |rate: f64| Ok::<_, ()>(if rate <= threshold { 0.0 } else { (rate - threshold) / rate });
            let (trials, found) = search(1e6, 0.0, 0.01, model).unwrap();
            assert!(trials.len() <= 9, "{threshold}: {trials:?}");
            match found {
                Some(found) => {
                    assert!(found <= threshold && threshold.min(1e6) - found <= 1e4, "{threshold}: {found}")
                }
                None => assert!(threshold < 1e4, "{threshold}"),
            }
        }
        let always = search(8.0, 0.1, 0.01, |_| Ok::<_, ()>(0.1)).unwrap();
        assert_eq!((always.0.len(), always.1), (1, Some(8.0)));
        assert_eq!(search(8.0, 0.0, 0.01, |_| Err::<f64, _>("gone")), Err("gone"));
    }
}
