//! A drawn backing of a store in this process: memory or a file, slow or failing.
//!
//! The suites `engine` and `memory` draw from it. `disk` has backings of the `pagefold` program instead.

use crate::case::Context;
use crate::random::Random;
use crate::verdict::Fault;
use pagefold_backing::layer::{
    Action, DelayLayer, DelayOptions, ErrorControl, ErrorLayer, FaultRule, SystemClock, When,
};
use pagefold_backing::{
    Backing, BackingError, Buffers, ByteSource, FileBacking, FileOptions, MemoryBacking, Queue,
};
use pagefold_page::PageIndex;
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the smallest backing that can hold a log.
const BACKING_MIN: u64 = (1 << 20) + 6 * (256 << 10);
/// Bytes of the largest backing that is drawn.
const BACKING_MAX: u64 = 96 << 20;

/// A drawn backing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingConfig {
    /// Length in bytes.
    pub len_bytes: u64,
    /// Whether it is a file, not memory.
    pub is_file: bool,
    /// Whether the layout is one page per block, not the log.
    pub blocks: bool,
    /// Delay of each request in microseconds; the actual delay is up to twice as long.
    pub delay_us: u64,
    /// How long each discard blocks its caller, milliseconds.
    pub discard_ms: u64,
    /// Requests that fail, if any.
    pub failing: Option<Failing>,
}

/// A medium whose discards take long, as those of some flash do.
struct SlowDiscards<B> {
    inner: B,
    time: Duration,
}

impl<B: Backing> ByteSource for SlowDiscards<B> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        self.inner.read_at(offset, buf)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl<B: Backing> Backing for SlowDiscards<B> {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BackingError> {
        self.inner.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), BackingError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), BackingError> {
        std::thread::sleep(self.time);
        self.inner.discard(offset, len_bytes)
    }

    fn queue<'a>(&'a self, depth: usize, buffers: &'a Buffers) -> Result<Box<dyn Queue + 'a>, BackingError> {
        self.inner.queue(depth, buffers)
    }
}

/// Requests that fail on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// Some writes.
    SomeWrites,
    /// All writes, for a time.
    AllWrites,
    /// All writes, for a time, with ENOSPC.
    Full,
    /// Some reads and writes.
    Some,
}

/// An open backing.
pub struct Medium {
    backing: Arc<dyn Backing>,
    blocks: bool,
    /// Controls failures, if there are any.
    pub control: Option<Arc<ErrorControl>>,
}

impl Medium {
    /// The backing and its layout, as a store takes them.
    pub fn writeback_config(self) -> WritebackConfig {
        let layout = if self.blocks { LayoutKind::Blocks } else { LayoutKind::Log };
        WritebackConfig { backing: self.backing, layout }
    }
}

impl BackingConfig {
    /// Draws a backing.
    pub fn draw(random: &mut Random) -> Self {
        let failing = [Failing::SomeWrites, Failing::AllWrites, Failing::Full, Failing::Some];
        BackingConfig {
            len_bytes: random.doubling(BACKING_MIN, BACKING_MAX),
            is_file: random.percent(20),
            blocks: random.percent(15),
            delay_us: random.pick(&[0, 0, 0, 50, 200, 1000, 5000]),
            discard_ms: random.pick(&[0, 0, 0, 1, 20, 200]),
            failing: random.percent(20).then(|| random.pick(&failing)),
        }
    }

    /// Opens the backing; a file lies in the case's folder.
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
        // Attaching the backing must succeed, so `disturb` adds all other rules when the load runs.
        if let Some(rule) = failing.rule(seed) {
            control.fail(rule);
        }
        Medium { backing: self.delayed(layer, seed), blocks: self.blocks, control: Some(control) }
    }

    fn delayed(&self, inner: impl Backing + 'static, seed: u64) -> Arc<dyn Backing> {
        let inner = SlowDiscards { inner, time: Duration::from_millis(self.discard_ms) };
        if self.delay_us == 0 {
            return Arc::new(inner);
        }
        let delay = Duration::from_micros(self.delay_us);
        let options = DelayOptions { delay, jitter: delay, seed, ..DelayOptions::default() };
        Arc::new(DelayLayer::new(inner, options, Arc::new(SystemClock::new())))
    }
}

impl Failing {
    /// The rule that applies from the beginning on, if there is one.
    fn rule(self, seed: u64) -> Option<FaultRule> {
        let chance = When::Chance { per_million: 20_000, seed };
        let some = |actions: &[Action]| FaultRule {
            actions: actions.to_vec(),
            // Not the superblock, without which no backing can be attached.
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

    /// The error number with which all writes fail for a time, if they do so.
    pub fn all_writes(self) -> Option<i32> {
        match self {
            Failing::AllWrites => Some(rustix::io::Errno::IO.raw_os_error()),
            Failing::Full => Some(rustix::io::Errno::NOSPC.raw_os_error()),
            Failing::SomeWrites | Failing::Some => None,
        }
    }
}

/// Draws a range of pages for writeback on request.
pub fn draw_selection(random: &mut Random, pages: u64) -> Selection {
    let first = random.below(pages);
    let last = random.between(first, pages - 1);
    let selection = Selection::pages(PageIndex(first), PageIndex(last));
    selection.unwrap_or_else(|_| Selection::of(Which::All))
}
