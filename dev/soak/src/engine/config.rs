//! Draws a store (limit, reserve, backing with its failures, further codecs) and its load.

use super::recompress::Recompression;
use crate::backing::BackingConfig;
use crate::load::mixed::Mixed;
use crate::model::{FRAME, RAW_PERIOD};
use crate::random::{Random, derive};
use crate::recompression::Codec;
use crate::verdict::{Fault, OrFault};
use pagefold_store::writeback::WritebackConfig;
use pagefold_store::{MemLimit, Store, StoreConfig};

/// The smallest reserve, frames: writes of eight threads can take two each from it at once.
const RESERVE_MIN: u64 = 16;

/// A drawn store with its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The compressor, at its default level.
    pub codec: Codec,
    /// Most frames for objects, if there is a limit.
    pub limit_frames: Option<u64>,
    /// Frames of the reserve, if there is one.
    pub reserve_frames: Option<u64>,
    /// Whether same-filled pages are recognised.
    pub same_filled: bool,
    /// The backing, if there is one.
    pub backing: Option<BackingConfig>,
    /// Whether the writeback thread runs; otherwise pages are written back on request only.
    pub is_writing_back: bool,
    /// Whether passes on request, compaction and changes of settings disturb the load.
    pub is_disturbed: bool,
    /// Further codecs, and what runs with them.
    pub recompression: Recompression,
    /// Whether the clock of access times leaps by hours, as after the process was stopped.
    pub leaps: bool,
    /// Seed of the disturbances, and of delays and failures of the backing.
    pub disturb_seed: u64,
    /// The load.
    pub load: Mixed,
}

impl Config {
    /// Draws the store of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 0));
        let random = &mut random;
        let limit_frames = limit(random);
        let backing = random.percent(65).then(|| BackingConfig::draw(random));
        let is_at_limit = random.percent(10);
        let limit_frames = if is_at_limit { Some(random.doubling(24, 2048)) } else { limit_frames };
        let backing = backing.filter(|_| !is_at_limit);
        let pages = match limit_frames {
            // As many raw pages as fit, or a few more or fewer.
            Some(frames) if is_at_limit => frames - frames / RAW_PERIOD + 2 - random.below(12),
            // From half the limit to three times the limit.
            Some(frames) => random.between(frames / 2 + 1, frames * 3 + 16).min(32_768),
            None => random.doubling(1, 8192),
        };
        let name = random
            .pick(&["lz4", "lz4", "lz4", "lz4hc", "zstd", "deflate", "lzo", "lzo-rle", "842", "numbers"]);
        let codec = Codec { name, level: None, window_bits: Codec::draw_window_bits(name, random) };
        let mut load = Mixed::draw(random, pages as usize);
        if is_at_limit {
            load.threads = 2;
            load.mix.raw = random.pick(&[90, 100]);
            (load.mix.zero, load.mix.same) = (0, 0);
            load.fills = true;
        }
        Config {
            codec,
            limit_frames,
            reserve_frames: random.percent(40).then(|| random.doubling(RESERVE_MIN, 4096)),
            same_filled: random.percent(80),
            backing,
            is_writing_back: random.percent(90),
            is_disturbed: random.percent(50),
            recompression: Recompression::draw(random),
            disturb_seed: random.next(),
            leaps: random.percent(30),
            load,
        }
    }

    /// Creates the store and attaches the backing.
    pub fn store(&self, medium: Option<WritebackConfig>) -> Result<Store, Fault> {
        let config = StoreConfig {
            codec: self.codec.spec(),
            further_codecs: self.recompression.specs(),
            access_times: self.recompression.access_times,
            mem_limit: self.limit_frames.map_or(MemLimit::Off, |frames| MemLimit::Bytes(frames * FRAME)),
            same_filled: self.same_filled,
            reserve_bytes: self.reserve_frames.map(|frames| frames * FRAME),
            ..StoreConfig::new(self.load.pages as u64 * FRAME)
        };
        let mut store = Store::new(config).or_fault("making the store")?;
        medium.map(|medium| store.attach(medium)).transpose().or_fault("attaching the backing")?;
        Ok(store)
    }
}

/// Draws a limit. Limits of a few frames, and limits at which the last raw page needs two frames, are common.
fn limit(random: &mut Random) -> Option<u64> {
    match random.below(10) {
        0 => None,
        1..=3 => Some(random.between(1, 48)),
        4..=6 => Some(RAW_PERIOD * random.between(1, 6) + random.pick(&[0, 1, 1, 1, 2])),
        _ => Some(random.doubling(32, 8192)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_store_and_corner_cases_are_common() {
        let drawn: Vec<_> = (0..1000).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        assert!(share(&|c| c.limit_frames.is_some_and(|f| f % RAW_PERIOD == 1)) > 100);
        assert!(share(&|c| c.limit_frames.is_some_and(|f| f <= 48)) > 200);
        assert!(share(&|c| c.backing.as_ref().is_some_and(|b| b.len_bytes < 8 << 20)) > 100);
        assert!(share(&|c| c.load.threads > 1) > 300);
        assert!(share(&|c| c.load.mix.raw == 100) > 250);
        assert!(share(&|c| c.recompression.workers() > 1) > 300);
        assert!(share(&|c| c.recompression.priorities().count() == 3) > 200);
        assert!(share(&|c| c.recompression.priorities().count() == 0) > 200);
        let is_at_limit = |c: &Config| c.load.threads == 2 && c.backing.is_none() && c.load.fills;
        assert!(share(&is_at_limit) > 80 && share(&|c| c.leaps) > 200);
        assert!(share(&|c| c.backing.as_ref().is_some_and(|b| b.discard_ms > 10)) > 100);
        assert!(share(&|c| c.limit_frames.is_none()) > 50 && share(&|c| c.backing.is_none()) > 200);
    }
}
