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

    /// Returns the summary in another unit.
    pub fn scaled(self, factor: f64) -> Summary {
        Summary {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
            quartile_low: self.quartile_low * factor,
            quartile_high: self.quartile_high * factor,
        }
    }

    /// Summarises the ratios of figures measured in the same round, so that disturbances of a whole round
    /// cancel out. Rounds that one of the two lacks are left out.
    pub fn of_ratios(above: &[f64], below: &[f64]) -> Option<Summary> {
        Summary::of(above.iter().zip(below).map(|(a, b)| a / b))
    }
}

/// Returns the standard deviation of a whole population; zero for none.
pub fn standard_deviation(figures: &[f64]) -> f64 {
    let n = figures.len().max(1) as f64;
    let mean = figures.iter().sum::<f64>() / n;
    (figures.iter().map(|f| (f - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Returns jain's index of fairness: 1 if all shares are equal, 1/n if one has everything.
pub fn jain_index(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    match squares > 0.0 {
        true => sum * sum / (shares.len() as f64 * squares),
        false => 1.0,
    }
}

/// Returns the probability that paired figures which do not differ would come out lower than these did. It is
/// the exact sign-flip test on the sum of the logarithms of `ratios`, against ratios below 1. With n pairs
/// the result is never below 1/2^n. At most 20 ratios are taken.
pub fn loss_probability(ratios: &[f64]) -> f64 {
    let logs: Vec<f64> = ratios.iter().take(20).map(|r| r.ln()).collect();
    let observed: f64 = logs.iter().sum();
    let flips = 1u32 << logs.len();
    let lower = (0..flips).filter(|flip| {
        let sum: f64 =
            logs.iter().enumerate().map(|(i, log)| if flip >> i & 1 == 1 { -log } else { *log }).sum();
        sum <= observed + 1e-12
    });
    lower.count() as f64 / f64::from(flips)
}

/// Returns the figure below which the fraction `at` of a sorted list lies, interpolated linearly.
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
    fn shares_are_judged() {
        assert_eq!(jain_index(&[3.0, 3.0, 3.0]), 1.0);
        assert!((jain_index(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert_eq!(jain_index(&[0.0, 0.0]), 1.0);
        assert_eq!(standard_deviation(&[2.0, 4.0]), 1.0);
        assert_eq!(standard_deviation(&[]), 0.0);
    }

    #[test]
    fn a_steady_loss_is_told_from_noise() {
        let loss = loss_probability(&[0.9, 0.92, 0.88, 0.91, 0.9, 0.93]);
        assert_eq!(loss, 1.0 / 64.0);
        assert!(loss_probability(&[0.9, 1.1, 0.95, 1.06, 1.0, 0.99]) > 0.2);
        assert_eq!(loss_probability(&[1.1; 6]), 1.0);
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // The second round is slow for both; the ratio does not see it.
        let ratio = Summary::of_ratios(&[60.0, 30.0, 66.0], &[10.0, 5.0, 10.0]).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (6.0, 6.0, 6.6));
    }
}
