//! Summaries of a few rounds: median and spread, and ratios taken round by round.

use serde::Serialize;

/// Median and spread of a list of figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle figure, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The first quartile.
    pub quartile_low: f64,
    /// The third quartile.
    pub quartile_high: f64,
}

impl Summary {
    /// Summarises `figures`; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            median: quantile(&sorted, 0.5)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            quartile_low: quantile(&sorted, 0.25)?,
            quartile_high: quantile(&sorted, 0.75)?,
        })
    }

    /// Summarises the ratios of figures measured in the same round, so that what disturbs a whole
    /// round cancels out. Rounds that one of the two lacks are left out.
    pub fn of_ratios(above: &[f64], below: &[f64]) -> Option<Summary> {
        Summary::of(above.iter().zip(below).map(|(a, b)| a / b))
    }
}

/// The figure below which the fraction `at` of a sorted list lies, interpolated linearly.
fn quantile(sorted: &[f64], at: f64) -> Option<f64> {
    let position = at * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_quartiles() {
        let odd = Summary::of([5.0, 1.0, 3.0, 2.0, 4.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max), (3.0, 1.0, 5.0));
        assert_eq!((odd.quartile_low, odd.quartile_high), (2.0, 4.0));
        assert_eq!(Summary::of([1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of([7.0]).unwrap().quartile_high, 7.0);
        assert_eq!(Summary::of([]), None);
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The second round is slow for both; the ratio does not see it.
        let ratio = Summary::of_ratios(&[60.0, 30.0, 66.0], &[10.0, 5.0, 10.0]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (6.0, 6.0, 6.6));
    }
}
