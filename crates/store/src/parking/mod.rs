//! Parking: moving pages out of memory to a backing, and reading them back.
//!
//! A pass walks the slots that a [`Selection`] names, copies each page as it is held,
//! and hands it to a layout that decides where it goes: the log, or one block per page
//! for comparison with the kernel. A control object has the write requests, idle and
//! in flight; the budget is charged before a page is submitted and refunded if it was
//! not written. A slot is locked to copy and to take the result, never across I/O, and
//! takes the result only if it was not rewritten meanwhile (its mark and its
//! generation say so). Whatever fails, the page stays where it was.
//!
//! | module | what |
//! |---|---|
//! | `selection` | which pages |
//! | `pass`, `settle` | from the slots to the medium, and what became of it |
//! | `control`, `request` | write requests, idle and in flight |
//! | `packer` | the seam between a pass and a layout |
//! | `log`, `clean` | the layout of compressed records in segments, and its cleaner |
//! | `blocks` | the layout of one page per block |
//! | `readback`, `fetch` | reading parked pages, and their neighbours |
//! | `upkeep` | what is due now and then: time, discards, a little cleaning |
//! | `policy` | when pages are parked without being asked for |
//! | `settings`, `stats`, `report`, `error` | what can be set, counted, told |
//!
//! Nothing here decides by itself that something is to be parked: that is `policy`.

mod blocks;
mod clean;
mod control;
mod error;
mod fetch;
mod log;
mod packer;
mod pass;
mod policy;
mod readback;
mod report;
mod request;
mod selection;
mod settings;
mod settle;
mod stats;
mod upkeep;

pub use error::{AttachError, ParkError, SelectionError};
pub use log::MAGIC;
pub use policy::{Condition, Parker, Policy, Throttled};
pub use report::{ParkReport, Progress};
pub use selection::{Selection, Which};
pub use settings::{BATCH_MAX, Settings};
pub use stats::{BdStat, ParkStats};

pub(crate) use fetch::{Reader, Wanted};

use crate::engine::{Clock, Store, StoreError};
use crate::slot::Parked;
use blocks::{BlockPacker, Blocks};
use control::Control;
use fetch::ReadAhead;
use log::{Head, Log, LogPacker};
use packer::Packer;
use pagefold_backing::{Backing, Buffer, Buffers};
use pagefold_page::{PAGE_SIZE, PageCount};
use parking_lot::Mutex;
use pass::{OnProgress, Pass, Wants};
use stats::{ParkCounters, add, take};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::{Arc, OnceLock};

/// How parked pages lie on the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutKind {
    /// Compressed records, written front to back in segments.
    #[default]
    Log,
    /// One uncompressed page per 4 KiB block, first fit: the kernel's layout.
    Blocks,
}

/// What a store parks on.
pub struct ParkConfig {
    /// The medium. What it holds is lost.
    pub backing: Arc<dyn Backing>,
    /// How pages lie on it.
    pub layout: LayoutKind,
}

/// Memory for the buffers of parking and read-back, bytes.
const BUFFERS_BYTES: usize = 4 << 20;

/// How pages lie, and where there is room.
enum Layout {
    Log(Log),
    Blocks(Blocks),
}

/// Where the log goes on; who has it has the pass.
#[derive(Default)]
struct Heads {
    /// Of pages that are parked.
    park: Option<Head>,
    /// Of pages that the cleaner moves.
    clean: Option<Head>,
}

/// The parking of one store.
pub struct Parking {
    backing: Arc<dyn Backing>,
    layout: Layout,
    buffers: Buffers,
    settings: Settings,
    policy: Policy,
    counters: ParkCounters,
    pub(crate) clock: Clock,
    /// One pass at a time.
    heads: Mutex<Heads>,
    ahead: Mutex<ReadAhead>,
    on_failure: OnceLock<Box<OnFailure>>,
}

/// Told of a parked page that could not be read back.
pub type OnFailure = dyn Fn(&StoreError) + Send + Sync;

impl Parking {
    /// Takes a backing into use: clears its first MiB and writes its superblock. What it held is lost.
    pub(crate) fn attach(config: ParkConfig, pages: PageCount) -> Result<Self, AttachError> {
        let ParkConfig { backing, layout } = config;
        let len_bytes = backing.len_bytes();
        if len_bytes < Log::LEN_MIN {
            return Err(AttachError::TooSmall { len_bytes, min_bytes: Log::LEN_MIN });
        }
        let id = new_id()?;
        let layout = match layout {
            LayoutKind::Log => Layout::Log(Log::new(id, len_bytes)),
            LayoutKind::Blocks => Layout::Blocks(Blocks::new(len_bytes)),
        };
        let parking = Parking {
            backing,
            layout,
            buffers: Buffers::new(BUFFERS_BYTES)?,
            settings: Settings::default(),
            policy: Policy::default(),
            counters: ParkCounters::default(),
            clock: Clock::new(),
            heads: Mutex::default(),
            ahead: Mutex::default(),
            on_failure: OnceLock::new(),
        };
        parking.write_superblock(id, pages)?;
        Ok(parking)
    }

    fn write_superblock(&self, id: log::StoreId, pages: PageCount) -> Result<(), AttachError> {
        let (is_log, segment_len) = match &self.layout {
            Layout::Log(log) => (true, log.segments.segment_len()),
            Layout::Blocks(_) => (false, PAGE_SIZE as u32),
        };
        let superblock = log::Superblock { id, is_log, segment_len, page_count: pages.0 };
        let mut head = Buffer::new(log::DATA_START as usize);
        head[..log::SUPERBLOCK_LEN].copy_from_slice(&superblock.encode());
        self.backing.write_at(0, &head)?;
        Ok(self.backing.flush()?)
    }

    /// What can be set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What can be set of automatic parking.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How automatic parking is.
    pub fn condition(&self) -> Condition {
        self.policy.condition()
    }

    /// Has every page that could not be read back told to `tell`, with its place on the medium: for a log. Set
    /// once; a second is ignored. Called by the thread that reads, with nothing locked.
    pub fn on_failure(&self, tell: impl Fn(&StoreError) + Send + Sync + 'static) {
        let _ = self.on_failure.set(Box::new(tell));
    }

    fn tell_failure(&self, error: &StoreError) {
        if let Some(tell) = self.on_failure.get() {
            tell(error);
        }
    }

    /// The medium, in a few words.
    pub fn describe(&self) -> String {
        self.backing.describe()
    }

    /// How pages lie on the backing.
    pub fn layout(&self) -> LayoutKind {
        match &self.layout {
            Layout::Log(_) => LayoutKind::Log,
            Layout::Blocks(_) => LayoutKind::Blocks,
        }
    }

    /// The counters, without waiting for anything.
    pub fn stats(&self) -> ParkStats {
        let (unit, count, free) = match &self.layout {
            Layout::Log(log) => {
                (u64::from(log.segments.segment_len()), log.segments.count(), log.segments.free_count())
            }
            Layout::Blocks(blocks) => (PAGE_SIZE as u64, blocks.count(), blocks.free_count()),
        };
        self.counters.snapshot(u64::from(count) * unit, u64::from(free) * unit)
    }

    /// Bytes of the backing that are free, or would be after cleaning. Looks at every segment.
    fn room_bytes(&self) -> u64 {
        match &self.layout {
            Layout::Log(log) => {
                let free = u64::from(log.segments.free_count()) * u64::from(log.segments.segment_len());
                free + log::gain_bytes(&log.segments)
            }
            Layout::Blocks(blocks) => PAGE_SIZE as u64 * u64::from(blocks.free_count()),
        }
    }

    fn log(&self) -> Option<&Log> {
        match &self.layout {
            Layout::Log(log) => Some(log),
            Layout::Blocks(_) => None,
        }
    }

    fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    fn counters(&self) -> &ParkCounters {
        &self.counters
    }

    /// Where a parked page is, bytes.
    fn offset(&self, parked: Parked) -> u64 {
        match &self.layout {
            Layout::Log(_) => Log::offset(parked),
            Layout::Blocks(_) => Blocks::offset(parked),
        }
    }

    /// Keeps the place of a parked page from being written anew. The slot that has it is locked.
    ///
    /// A block may be written anew while it is read; then its checksum does not fit and the slot has changed.
    fn pin(&self, parked: Parked) {
        if let Layout::Log(log) = &self.layout {
            log.segments.pin(log.segment_of(parked));
        }
    }

    fn unpin(&self, parked: Parked) {
        if let Layout::Log(log) = &self.layout {
            log.segments.unpin(log.segment_of(parked));
        }
    }

    /// A page has come to a place.
    fn count_parked(&self, parked: Parked) {
        add(&self.counters.parked, 1);
        add(&self.counters.parked_bytes, parked.len_bytes.into());
    }

    /// A page that was parked is so no more.
    pub(crate) fn release(&self, parked: Parked) {
        take(&self.counters.parked, 1);
        take(&self.counters.parked_bytes, parked.len_bytes.into());
        self.release_place(parked);
    }

    /// A place that was meant for a page, or was left by it, is free.
    fn release_place(&self, parked: Parked) {
        match &self.layout {
            Layout::Log(log) => log.release(parked),
            Layout::Blocks(blocks) => blocks.release(parked),
        }
    }

    fn new_control(&self) -> Result<Control<'_>, ParkError> {
        let buf_len = match &self.layout {
            Layout::Log(_) => log::WRITE_LEN_MAX,
            Layout::Blocks(_) => PAGE_SIZE,
        };
        let batch = self.settings.writeback_batch_size() as usize;
        Control::new(&*self.backing, &self.buffers, buf_len, batch).map_err(ParkError::Io)
    }
}

/// The intact records of a segment's bytes, each as where it begins, its slot, and its page's bytes: what the
/// cleaner finds. For fuzzing; not part of the interface.
#[doc(hidden)]
pub fn scan_segment(segment: &[u8], id: [u8; 16], sequence: u64) -> Vec<(usize, u64, &[u8])> {
    let found = log::scan(segment, id, log::Sequence(sequence));
    found.iter().map(|f| (f.at, f.header.slot, f.payload(segment))).collect()
}

fn new_id() -> Result<log::StoreId, AttachError> {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&pagefold_sys::entropy::random_u64()?.to_le_bytes());
    id[8..].copy_from_slice(&pagefold_sys::entropy::random_u64()?.to_le_bytes());
    Ok(id)
}

impl Store {
    /// Parks the pages of a selection; returns when all that was submitted is complete.
    ///
    /// One pass runs at a time; another waits for it, that of automatic parking too. `progress` is called now and then, in
    /// the middle of the pass, and ends it if it says so. It may read, write and discard, but must not wait for anything
    /// that needs another pass: parking would wait for ever, and a write that finds no room below the limit waits in
    /// vain. If it panics, the pass ends, and the panic goes on when all that was submitted is complete.
    /// An error is returned if the pass could not begin; one that ended it early, or the most recent one of a
    /// request, is in the report. No page is lost by any of them.
    pub fn park(
        &self,
        selection: &Selection,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<ParkReport, ParkError> {
        let parking = self.parking().ok_or(ParkError::NoBacking)?;
        let count = self.table.page_count();
        selection.check(count)?;
        let now = parking.clock.tick();
        let mut wants =
            |index, _: &_, seen: &crate::slot::Peek| selection.wants(index, seen, seen.stamp().age_s(now));
        self.park_where(parking, &selection.runs(count), &mut wants, progress)
    }

    /// Parks the pages in the runs that are wanted.
    fn park_where(
        &self,
        parking: &Parking,
        runs: &[RangeInclusive<u64>],
        wants: &mut Wants,
        on_progress: &mut OnProgress,
    ) -> Result<ParkReport, ParkError> {
        let mut heads = parking.heads.lock();
        let Heads { park, clean } = &mut *heads;
        if let Some(log) = parking.log() {
            log.segments.try_again();
        }
        let mut packer: Box<dyn Packer> = match &parking.layout {
            Layout::Log(log) => Box::new(LogPacker::new(&log.segments, log.id, park, log::CLEANER_SPARE)),
            Layout::Blocks(blocks) => Box::new(BlockPacker::new(blocks)),
        };
        let pass = Pass::new(self, parking, parking.new_control()?, clean);
        Ok(pass.run(&mut *packer, runs, wants, on_progress))
    }
}
