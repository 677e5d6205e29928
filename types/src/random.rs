//! Seeded random numbers that mean the same on every machine and whatever a library does next.

/// SplitMix64 (Steele, Lea, Flood: *Fast Splittable Pseudorandom Number Generators*, 2014): small, and
/// good enough for loads, delays and jitter. Not for secrets.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Same seed, same numbers.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`, but for a bias of `bound` in 2⁶⁴.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Scatters the bits of a number: neighbours end up far apart.
    pub const fn mix(number: u64) -> u64 {
        let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut random = SplitMix64::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973];
        assert_eq!(expected.map(|_| random.next_u64()), expected);
    }

    #[test]
    fn units_and_bounds_are_kept() {
        let mut random = SplitMix64::new(1);
        for _ in 0..1_000 {
            assert!((0.0..1.0).contains(&random.unit()));
        }
        let mut seen = [0; 7];
        (0..7_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|&times| (900..1_100).contains(&times)), "{seen:?}");
    }
}
