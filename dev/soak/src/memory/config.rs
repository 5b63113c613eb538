//! Draws a region (fault service, eviction, limits, backing), its load, the disturbances, and how the case ends.

use crate::backing::{BackingConfig, Failing};
use crate::case::Context;
use crate::load::mixed::Mixed;
use crate::model::RAW_PERIOD;
use crate::random::{Random, derive};
use crate::verdict::Fault;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Eviction, RegionConfig, Service};

/// Bytes of a page and of a frame.
pub const PAGE: u64 = pagefold_page::PAGE_SIZE as u64;
/// The smallest limit, pages.
const LIMIT_MIN: u64 = RegionConfig::LIMIT_MIN_BYTES / PAGE;
/// Pages that signal handlers use; they follow those of the load.
pub const HANDLER_PAGES: u64 = 48;
/// Pages that are dropped by `madvise`; they follow those of the handlers.
pub const MADVISE_PAGES: u64 = 64;

/// A drawn region with its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Which threads serve faults.
    pub service: Service,
    /// How pages are evicted.
    pub eviction: Eviction,
    /// The compressor.
    pub codec: &'static str,
    /// Whether same-filled pages are recognised.
    pub same_filled: bool,
    /// Whether a fault also loads neighbours.
    pub neighbours: bool,
    /// Threads that evict pages.
    pub fold_threads: usize,
    /// Threads that serve faults.
    pub handler_threads: usize,
    /// The initial limit of resident pages.
    pub limit_pages: u64,
    /// Limits that are set during the load.
    pub other_limits: Vec<u64>,
    /// Most frames of the pool; `None` is a share of the machine's memory.
    pub pool_frames: Option<u64>,
    /// Fill level of a full pool below which it accepts pages again, percent.
    pub accept_percent: u8,
    /// The backing, if there is one.
    pub backing: Option<BackingConfig>,
    /// Disturbances of the load.
    pub disturbances: Disturbances,
    /// Seed of the disturbances, and of delays and failures of the backing.
    pub disturb_seed: u64,
    /// Whether the region is dropped while threads use it, which must end the process.
    pub drops_under_load: bool,
    /// The load.
    pub load: Mixed,
}

/// Disturbances of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disturbances {
    /// Signals to all threads, with a handler that touches the region.
    pub signals: bool,
    /// Forked children.
    pub forks: bool,
    /// Pages that are dropped by `madvise`.
    pub madvise: bool,
    /// Statistics, compaction, settings, writeback on request.
    pub calls: bool,
}

impl Config {
    /// Draws the region of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 2));
        let random = &mut random;
        let limit_pages = limit(random);
        let backing = random.percent(55).then(|| draw_backing(random));
        let pages = random.between(limit_pages / 2 + 1, limit_pages * 4 + 64).min(16_384);
        let service =
            random.pick(&[Service::FaultingThread, Service::FaultingThread, Service::HandlerThreads]);
        let evictions = [Eviction::Auto, Eviction::Auto, Eviction::Mixed, Eviction::Protect];
        Config {
            service,
            eviction: random.pick(&evictions),
            codec: random
                .pick(&["lz4", "lz4", "lz4", "lz4hc", "zstd", "deflate", "lzo", "lzo-rle", "842", "numbers"]),
            same_filled: random.percent(80),
            neighbours: random.percent(75),
            fold_threads: random.between(1, 4) as usize,
            handler_threads: random.between(1, 4) as usize,
            limit_pages,
            other_limits: match random.percent(40) {
                true => (0..random.between(1, 3)).map(|_| limit(random)).collect(),
                false => Vec::new(),
            },
            pool_frames: pool(random, pages, backing.is_some()),
            accept_percent: random.pick(&[1, 50, 90, 90, 90, 99, 100]),
            backing,
            disturbances: Disturbances {
                signals: random.percent(50),
                forks: random.percent(30),
                madvise: random.percent(50),
                calls: random.percent(50),
            },
            disturb_seed: random.next(),
            drops_under_load: random.percent(10),
            load: Mixed::draw(random, pages as usize),
        }
    }

    /// Pages of the region.
    pub fn range_pages(&self) -> u64 {
        self.load.pages as u64 + HANDLER_PAGES + MADVISE_PAGES
    }

    /// The smallest and the largest limit that is ever set, pages.
    pub fn limits(&self) -> [u64; 2] {
        [u64::min, u64::max].map(|pick| self.other_limits.iter().copied().fold(self.limit_pages, pick))
    }

    /// Opens the backing and returns the region's configuration; a backing file lies in the case's folder.
    pub fn region(&self, context: &Context) -> Result<RegionConfig, Fault> {
        let medium = self.backing.as_ref().map(|b| b.open(context, self.disturb_seed)).transpose()?;
        Ok(RegionConfig {
            service: self.service,
            eviction: self.eviction,
            codec: CodecSpec::named(self.codec),
            same_filled: self.same_filled,
            accept_threshold_percent: self.accept_percent,
            max_pool_bytes: self.pool_frames.map(|frames| frames * PAGE),
            backing: medium.map(|(attached, _)| attached),
            fold_threads: self.fold_threads,
            handler_threads: self.handler_threads,
            neighbours: self.neighbours,
            ..RegionConfig::new(self.range_pages() * PAGE, self.limit_pages * PAGE)
        })
    }
}

/// Draws a limit in pages; the smallest one is common.
fn limit(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => LIMIT_MIN,
        1 => random.between(LIMIT_MIN, 160),
        _ => random.doubling(LIMIT_MIN, 4096),
    }
}

/// Draws the frames of the pool. Pools of a few frames, those at which the last raw page needs two frames, and ample
/// ones are common.
fn pool(random: &mut Random, pages: u64, has_backing: bool) -> Option<u64> {
    match random.below(if has_backing { 10 } else { 6 }) {
        0 | 1 => None,
        2 | 3 => Some(pages * 9 / 8 + 64),
        4 => Some(random.doubling(1, 4096)),
        5 => Some(RAW_PERIOD * random.between(1, 4) + 1),
        _ => Some(random.between(pages / 16 + 1, pages)),
    }
}

/// Draws a backing whose reads do not fail: an access to a page that cannot be read back ends the process, as
/// documented.
fn draw_backing(random: &mut Random) -> BackingConfig {
    let mut backing = BackingConfig::draw(random);
    if backing.failing == Some(Failing::Some) {
        backing.failing = Some(Failing::SomeWrites);
    }
    // Each fault waits for the medium.
    backing.delay_us = backing.delay_us.min(200);
    backing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_region_and_corner_cases_are_common() {
        let drawn: Vec<_> = (0..1000).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        assert!(share(&|c| c.limit_pages == LIMIT_MIN) > 250);
        assert!(share(&|c| c.pool_frames.is_some_and(|f| f % RAW_PERIOD == 1)) > 50);
        assert!(share(&|c| c.backing.is_some() && c.pool_frames.is_some()) > 300);
        assert!(share(&|c| c.service == Service::HandlerThreads) > 200);
        assert!(share(&|c| c.drops_under_load) > 50 && share(&|c| c.disturbances.signals) > 400);
        assert!(share(&|c| c.load.mix.raw == 100) > 250 && share(&|c| c.load.threads > 1) > 300);
    }
}
