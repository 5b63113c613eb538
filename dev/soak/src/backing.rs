//! A drawn backing of a store in this process: memory or a file, slow or failing.
//!
//! The suites `engine` and `memory` draw from it. `disk` has backings of the `pagefold` program instead.

use crate::case::Context;
use crate::random::Random;
use crate::verdict::{Fault, OrFault};
use pagefold_backing::layer::{
    Access, Action, DelayLayer, DelayOptions, ErrorControl, ErrorLayer, FaultRule, Hook, Layered,
    SystemClock, When,
};
use pagefold_backing::{Backing, BackingError, FileBacking, FileOptions, MemoryBacking};
use pagefold_page::PageIndex;
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
use std::fs::File;
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

/// Makes discards take long, as those of some flash do.
struct SlowDiscards(Duration);

impl Hook for SlowDiscards {
    fn before(&self, _: &dyn Backing, access: Access, _: Option<&[u8]>) -> Option<Result<(), BackingError>> {
        if access.action == Action::Discard {
            std::thread::sleep(self.0);
        }
        None
    }

    fn describe(&self) -> String {
        "with slow discards".to_string()
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

/// An open backing, and the control of its failures, if there are any.
pub type Medium = (WritebackConfig, Option<Arc<ErrorControl>>);

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
        if !self.is_file {
            return Ok(self.layered(MemoryBacking::new(self.len_bytes as usize), seed));
        }
        let path = context.path("backing");
        let options = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = options.and_then(|file| file.set_len(self.len_bytes).map(|()| file));
        let backing = FileBacking::new(file.or_fault("making the backing")?, FileOptions::default());
        Ok(self.layered(backing.or_fault("opening the backing")?, seed))
    }

    fn layered(&self, inner: impl Backing + 'static, seed: u64) -> Medium {
        let slow = Layered::over(inner, Arc::new(SlowDiscards(Duration::from_millis(self.discard_ms))));
        let (backing, control) = match self.failing {
            None => (self.delayed(slow, seed), None),
            Some(failing) => {
                let layer = ErrorLayer::new(slow);
                let control = layer.control();
                // Attaching the backing must succeed, so `disturb` adds all other rules when the load runs.
                failing.rule(seed).into_iter().for_each(|rule| control.fail(rule));
                (self.delayed(layer, seed), Some(control))
            }
        };
        let layout = if self.blocks { LayoutKind::Blocks } else { LayoutKind::Log };
        (WritebackConfig { backing, layout }, control)
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
    /// The rule that applies from the beginning on, if there is one.
    fn rule(self, seed: u64) -> Option<FaultRule> {
        let actions = match self {
            Failing::SomeWrites => vec![Action::Write],
            Failing::Some => vec![Action::Write, Action::Read],
            Failing::AllWrites | Failing::Full => return None,
        };
        // Not the superblock, without which no backing can be attached.
        let range = Some(1 << 20..u64::MAX);
        let when = When::Chance { per_million: 20_000, seed };
        Some(FaultRule { actions, range, when, errno: rustix::io::Errno::IO.raw_os_error() })
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
