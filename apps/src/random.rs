//! Numbers that are the same for the same seed.

/// A generator of 64-bit numbers: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Makes a generator by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    #[inline]
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number above 0 and up to 1.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        ((self.word() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks by Zipf's law: rank n is drawn with a weight of 1 / n^s.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sum of the weights up to each rank, of all.
    sums: Vec<f64>,
}

impl Zipf {
    /// Draws from `ranks` ranks with exponent `s`.
    pub fn new(ranks: usize, s: f64) -> Self {
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (1..=ranks)
            .map(|rank| {
                sum += (rank as f64).powf(-s);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        Self { sums }
    }

    /// Returns a rank, from 0.
    pub fn draw(&self, random: &mut Random) -> usize {
        let at = random.unit();
        self.sums.partition_point(|&sum| sum < at).min(self.sums.len() - 1)
    }
}
