//! The draw of a store: its limit, its reserve, its backing and what is wrong with it, and the load.

use crate::load::mixed::Mixed;
use crate::model::FRAME;
use crate::part::{Context, Fault};
use crate::random::{Random, derive};
use pagefold_backing::layer::{
    Action, DelayLayer, DelayOptions, ErrorControl, ErrorLayer, FaultRule, SystemClock, When,
};
use pagefold_backing::{Backing, FileBacking, FileOptions, MemoryBacking};
use pagefold_codec::CodecSpec;
use pagefold_store::parking::{LayoutKind, ParkConfig};
use pagefold_store::{MemLimit, Store, StoreConfig};
use std::sync::Arc;
use std::time::Duration;

/// The smallest backing that a log can be on, and a bit more than the largest that is drawn, bytes.
const BACKING_MIN: u64 = (1 << 20) + 6 * (256 << 10);
const BACKING_MAX: u64 = 96 << 20;
/// Frames after which a chain of raw objects of 4104 bytes ends at a frame's end.
const RAW_PERIOD: u64 = 513;

/// The smallest reserve, frames: writes of eight threads can take two each from it at once.
const RESERVE_MIN: u64 = 16;

/// A drawn store with its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The compressor.
    pub codec: &'static str,
    /// Most frames for objects, if there is a limit.
    pub limit_frames: Option<u64>,
    /// Frames kept ready.
    pub reserve_frames: Option<u64>,
    /// Whether same-filled pages are recognised.
    pub same_filled: bool,
    /// Where pages are parked.
    pub backing: Option<BackingConfig>,
    /// Whether pages are parked without being asked for.
    pub is_parking: bool,
    /// Whether passes, compaction and changes of settings run beside the load.
    pub is_disturbed: bool,
    /// Draws what runs beside the load.
    pub beside_seed: u64,
    /// The load.
    pub load: Mixed,
}

/// A drawn backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingConfig {
    /// Its length.
    pub len_bytes: u64,
    /// A file, or memory.
    pub is_file: bool,
    /// One page per block, instead of the log.
    pub blocks: bool,
    /// What each request takes, microseconds, and up to how much more.
    pub delay_us: u64,
    /// Requests that fail.
    pub failing: Option<Failing>,
}

/// Requests that fail on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// Some writes.
    SomeWrites,
    /// All writes, for a time.
    AllWrites,
    /// Writes for want of room in the file system below, for a time.
    Full,
    /// Some reads and writes.
    Some,
}

/// A backing that is open.
pub struct Medium {
    backing: Arc<dyn Backing>,
    blocks: bool,
    /// For what fails.
    pub control: Option<Arc<ErrorControl>>,
}

impl Medium {
    /// What a store is given to park on.
    pub fn park_config(self) -> ParkConfig {
        let layout = if self.blocks { LayoutKind::Blocks } else { LayoutKind::Log };
        ParkConfig { backing: self.backing, layout }
    }
}

impl Config {
    /// Draws the store of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(derive(seed, 0));
        let random = &mut random;
        let limit_frames = limit(random);
        let backing = random.percent(65).then(|| BackingConfig::draw(random));
        let pages = match limit_frames {
            // From a little less than fits to several times as much.
            Some(frames) => random.between(frames / 2 + 1, frames * 3 + 16).min(32_768),
            None => random.doubling(1, 8192),
        };
        Config {
            codec: random.pick(&["lz4", "lz4", "lz4", "lz4hc", "zstd", "deflate", "lzo", "lzo-rle"]),
            limit_frames,
            reserve_frames: random.percent(40).then(|| random.doubling(RESERVE_MIN, 4096)),
            same_filled: random.percent(80),
            backing,
            is_parking: random.percent(90),
            is_disturbed: random.percent(50),
            beside_seed: random.next(),
            load: Mixed::draw(random, pages as usize),
        }
    }

    /// Whether reads fail on purpose.
    pub fn reads_may_fail(&self) -> bool {
        self.backing.as_ref().is_some_and(|b| b.failing == Some(Failing::Some))
    }

    /// Opens the backing, in the case's folder if it is a file.
    pub fn medium(&self, context: &Context) -> Result<Option<Medium>, Fault> {
        self.backing.as_ref().map(|b| b.open(context, self.beside_seed)).transpose()
    }

    /// Makes the store.
    pub fn store(&self, medium: Option<Medium>) -> Result<Store, Fault> {
        let config = StoreConfig {
            codec: CodecSpec::named(self.codec),
            mem_limit: self.limit_frames.map_or(MemLimit::Off, |frames| MemLimit::Bytes(frames * FRAME)),
            same_filled: self.same_filled,
            reserve_bytes: self.reserve_frames.map(|frames| frames * FRAME),
            ..StoreConfig::new(self.load.pages as u64 * FRAME)
        };
        let failed = |e| Fault::failed("making the store", e);
        let mut store = Store::new(config).map_err(failed)?;
        if let Some(medium) = medium {
            store.attach(medium.park_config()).map_err(failed)?;
        }
        Ok(store)
    }
}

/// Limits of a few frames and those at which a raw page needs two are common.
fn limit(random: &mut Random) -> Option<u64> {
    match random.below(10) {
        0 => None,
        1..=3 => Some(random.between(1, 48)),
        4..=6 => Some(RAW_PERIOD * random.between(1, 6) + random.pick(&[0, 1, 1, 1, 2])),
        _ => Some(random.doubling(32, 8192)),
    }
}

impl BackingConfig {
    /// Draws one.
    pub fn draw(random: &mut Random) -> Self {
        let failing = [Failing::SomeWrites, Failing::AllWrites, Failing::Full, Failing::Some];
        BackingConfig {
            len_bytes: random.doubling(BACKING_MIN, BACKING_MAX),
            is_file: random.percent(20),
            blocks: random.percent(15),
            delay_us: random.pick(&[0, 0, 0, 50, 200, 1000, 5000]),
            failing: random.percent(20).then(|| random.pick(&failing)),
        }
    }

    /// Opens it, in the case's folder if it is a file.
    pub fn open(&self, context: &Context, seed: u64) -> Result<Medium, Fault> {
        let (blocks, control) = (self.blocks, None);
        let medium = |backing| Ok(Medium { backing, blocks, control });
        match (self.is_file, self.failing) {
            (false, None) => medium(self.delayed(MemoryBacking::new(self.len_bytes as usize), seed)),
            (true, None) => medium(self.delayed(self.file(context)?, seed)),
            (false, Some(failing)) => {
                Ok(self.layered(MemoryBacking::new(self.len_bytes as usize), failing, seed))
            }
            (true, Some(failing)) => Ok(self.layered(self.file(context)?, failing, seed)),
        }
    }

    fn file(&self, context: &Context) -> Result<FileBacking, Fault> {
        let failed = |e: &dyn std::fmt::Display| Fault::failed("opening the backing", e);
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(context.path("backing"));
        let file = file.map_err(|e| failed(&e))?;
        file.set_len(self.len_bytes).map_err(|e| failed(&e))?;
        FileBacking::new(file, FileOptions::default()).map_err(|e| failed(&e))
    }

    fn layered(&self, inner: impl Backing + 'static, failing: Failing, seed: u64) -> Medium {
        let layer = ErrorLayer::new(inner);
        let control = layer.control();
        // Taking the backing into use is to succeed: rules come when the load runs, but for those by chance.
        if let Some(rule) = failing.rule(seed) {
            control.fail(rule);
        }
        Medium { backing: self.delayed(layer, seed), blocks: self.blocks, control: Some(control) }
    }

    fn delayed(&self, inner: impl Backing + 'static, seed: u64) -> Arc<dyn Backing> {
        if self.delay_us == 0 {
            return Arc::new(inner);
        }
        let delay = Duration::from_micros(self.delay_us);
        let options = DelayOptions { delay, jitter: delay, seed, ..DelayOptions::default() };
        Arc::new(DelayLayer::new(inner, options, Arc::new(SystemClock::new())))
    }
}

impl Failing {
    /// What fails from the beginning on, after the first requests.
    fn rule(self, seed: u64) -> Option<FaultRule> {
        let chance = When::Chance { per_million: 20_000, seed };
        let some = |actions: &[Action]| FaultRule {
            actions: actions.to_vec(),
            // Not the superblock, without which there is no store.
            range: Some(1 << 20..u64::MAX),
            when: chance,
            errno: rustix::io::Errno::IO.raw_os_error(),
        };
        match self {
            Failing::SomeWrites => Some(some(&[Action::Write])),
            Failing::Some => Some(some(&[Action::Write, Action::Read])),
            Failing::AllWrites | Failing::Full => None,
        }
    }

    /// The error number with which all writes fail for a time, if they do.
    pub fn all_writes(self) -> Option<i32> {
        match self {
            Failing::AllWrites => Some(rustix::io::Errno::IO.raw_os_error()),
            Failing::Full => Some(rustix::io::Errno::NOSPC.raw_os_error()),
            Failing::SomeWrites | Failing::Some => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_one_store_and_corners_are_common() {
        let drawn: Vec<_> = (0..1000).map(Config::draw).collect();
        assert!(drawn.iter().enumerate().all(|(seed, config)| *config == Config::draw(seed as u64)));
        let share = |is: &dyn Fn(&Config) -> bool| drawn.iter().filter(|c| is(c)).count();
        assert!(share(&|c| c.limit_frames.is_some_and(|f| f % RAW_PERIOD == 1)) > 100);
        assert!(share(&|c| c.limit_frames.is_some_and(|f| f <= 48)) > 200);
        assert!(share(&|c| c.backing.as_ref().is_some_and(|b| b.len_bytes < 8 << 20)) > 100);
        assert!(share(&|c| c.load.threads > 1) > 300);
        assert!(share(&|c| c.load.mix.raw == 100) > 250);
        assert!(share(&|c| c.limit_frames.is_none()) > 50 && share(&|c| c.backing.is_none()) > 200);
    }
}
