//! The number of random cases, and their seeds.

pub use pagefold_testkit::Random;
use std::time::{SystemTime, UNIX_EPOCH};

/// The variable with the seed of a run.
const SEED: &str = "PAGEFOLD_ARCHIVE_SEED";

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
