//! Random choices from a seed, and the number of cases.

use std::time::{SystemTime, UNIX_EPOCH};

/// The variable with the seed of a run.
const SEED: &str = "PAGEFOLD_ARCHIVE_SEED";

/// A generator of numbers: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `count` times.
    pub fn once_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of some choices.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Runs `cases` cases, ten times as many with `PAGEFOLD_LONG`: each with its seed, and with the words that replay it, for
/// messages. The first seed is that of the environment, which runs one case, or the clock's.
pub fn run(test: &str, cases: u64, mut case: impl FnMut(u64, &str)) {
    if let Ok(text) = std::env::var(SEED) {
        let seed = text.parse().unwrap_or_else(|_| panic!("{SEED} is '{text}', no number"));
        return case(seed, &format!("{SEED}={seed}"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let is_long = std::env::var_os("PAGEFOLD_LONG").is_some();
    let replayed = |seed| format!("{SEED}={seed} cargo test -p pagefold-image-build --test all {test}");
    for number in 0..if is_long { 10 * cases } else { cases } {
        let seed = Random(now.wrapping_add(number)).next();
        case(seed, &replayed(seed));
    }
}
