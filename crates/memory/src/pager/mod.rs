//! The pager: the state that all threads of a region share, and the path that makes a page resident.
//!
//! | module | what is in it |
//! |---|---|
//! | `serve` | serving a fault, by the state of its page |
//! | `claims` | the pages that come in at once: the one that faulted and its neighbours |
//! | `page_in` | bringing a page and its neighbours from the store into the range |
//! | `file` | reading a page from the file of the region |
//! | `unregistered`, `kernel_filled` | the parts of the range that the kernel fills by itself; the state of these |
//! | `install` | the system calls that put pages into the range |
//! | `scratch` | working memory for `page_in`, allocated beforehand, and for `copy` |
//! | `range` | pinning and dropping parts of the range |
//! | `copy` | copying parts of the range to buffers and from them, while pages stay where they are |
//! | `advise` | advice of the program |
//!
//! A fault goes `serve` -> `page_in` -> `install`; a staged page goes `serve` -> `install`. All modules but `range`,
//! `copy` and `advise` run in the thread that serves the fault, possibly inside a signal handler that interrupted it
//! anywhere. So they take no lock but a slot's (the store holds it for one copy, never while it touches the range),
//! allocate nothing, and log nothing. They wait only for the page's word, for memory of the budget, for a scratch, and
//! for the medium of a written-back page. In turn, no thread touches the range while it holds a lock or a stream of the
//! engine.
//!
//! A fault that waits for memory waits for the evictors, which allocate nothing once they have started, so the
//! interrupted thread may hold the allocator's lock. With a backing and a full pool the evictors wait for the writeback
//! thread, which allocates some memory for each pass. If it shares the allocator's lock with the interrupted thread,
//! both can wait for ever (`docs/memory.md`, "Restrictions").

mod advise;
mod claims;
mod copy;
mod file;
mod install;
mod kernel_filled;
mod page_in;
mod range;
mod scratch;
mod serve;
mod unregistered;

pub(crate) use range::Pinned;
pub(crate) use serve::{OnLoss, Served};

use crate::advice::AccessTable;
use crate::budget::split::Sharer;
use crate::budget::{RegionShare, ResidentBudget};
use crate::config::{Eviction, RegionConfig, Service};
use crate::counters::{Counter, Counters};
use crate::error::RegionError;
use crate::limit::PoolLimit;
use crate::page::{FoldTime, Frame, PageWord};
use crate::readahead::Readahead;
use crate::region_budget::RegionBudget;
use crate::source::Source;
use crate::staging::{BATCH_FRAMES, Staging};
use crate::table::Table;
use kernel_filled::{RANGE_ALIGN_BYTES, Unregistered};
use pagefold_page::{PAGE_SIZE, PageCount, PageIndex};
use pagefold_store::{MemLimit, Store, StoreConfig};
use pagefold_sys::forkguard::ForkGuard;
use pagefold_sys::forkmark::ForkMark;
use pagefold_sys::mem::{self, Reservation};
use pagefold_sys::uffd::{self, Feature, Uffd, UffdOptions};
use scratch::{CopyScratches, ScratchPool};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// The state that all threads of a region share.
pub(crate) struct Pager {
    pub(crate) uffd: Uffd,
    pub(crate) range: Reservation,
    pub(crate) staging: Staging,
    pub(crate) table: Table,
    pub(crate) budget: RegionBudget,
    /// The region's place in a shared budget.
    share: OnceLock<Arc<RegionShare>>,
    pub(crate) store: Arc<Store>,
    pub(crate) limit: PoolLimit,
    pub(crate) counters: Counters,
    pub(crate) readahead: Readahead,
    pub(crate) fork_mark: ForkMark,
    /// Makes the range inaccessible in children.
    _fork_guard: ForkGuard,
    /// The eviction method in use: never `Auto`.
    pub(crate) eviction: Eviction,
    pub(crate) service: Service,
    /// Whether threads of the region serve faults of system calls.
    serves_kernel: bool,
    /// Whether pages may be copied out instead of moved.
    may_copy: bool,
    /// Whether scattered pages that are loaded to be read are write-protected: then they leave by being dropped.
    protects_loads: bool,
    /// Whether frames may keep their memory for other pages.
    pub(crate) reuses_frames: bool,
    /// Seed of the hashes.
    pub(crate) seed: u64,
    /// Whether pages that repeat one word are kept as that word.
    pub(crate) checks_same_filled: bool,
    /// Where to look next for a copy to drop.
    copy_cursor: AtomicU64,
    scratch_pool: ScratchPool,
    copy_scratches: CopyScratches,
    neighbours: bool,
    access: AccessTable,
    /// The file whose bytes untouched pages have.
    pub(crate) source: Option<Source>,
    unregistered: Unregistered,
    resident_max: AtomicU64,
    /// Whether any page was poisoned.
    has_poison: AtomicBool,
    /// Threads that protect pages at this moment.
    protecting: AtomicU32,
    /// Threads that are bringing pages in and do not wait for memory.
    page_ins: AtomicU32,
}

impl Pager {
    /// Makes everything but the threads and the signal handler.
    pub(crate) fn new(mut config: RegionConfig, source: Option<Source>) -> Result<Self, RegionError> {
        let page_count = PageCount::covering(config.reserved_bytes());
        let limit_pages = config.limit_bytes / PAGE_SIZE as u64;
        let features = uffd::kernel_features()?;
        let eviction = choose(config.eviction, features)?;
        let moves = eviction != Eviction::Protect;
        let may_copy = !moves || !config.system_calls;
        // Where pages are copied, those around them are protected and unprotected together with them.
        let protects_loads = !may_copy && !mem::is_merged();
        let reuses_frames = !moves || !config.system_calls;
        let is_signal = config.service == Service::FaultingThread;
        let kernel_faults = !is_signal && config.kernel_faults;
        let open = UffdOptions {
            sigbus: is_signal,
            kernel_faults,
            exact_address: features.has(Feature::ExactAddress),
        };
        let uffd = Uffd::open(&open)?;
        let unregistered = Unregistered::new(&config, source.is_some())?;
        let range = Reservation::movable(page_count.0 as usize * PAGE_SIZE, RANGE_ALIGN_BYTES)?;
        // SAFETY: a child that touches the region ends by SIGSEGV; `Region`'s drop forgets the pager in a child.
        unsafe { range.keep_from_children() }?;
        let fork_guard = ForkGuard::new(range.base().as_ptr().expose_provenance(), range.len_bytes())?;
        let staging = Staging::new(batch_count(limit_pages, config.fold_threads))?;
        uffd.register(range.base().as_ptr().addr(), range.len_bytes(), true, true)?;
        if moves {
            uffd.register(
                staging.memory().base().as_ptr().addr(),
                staging.memory().len_bytes(),
                true,
                false,
            )?;
        }
        let store = open_store(&mut config, page_count)?;
        let scratch_count = (2 * pagefold_sys::cpu::count()).max(config.handler_threads).max(4);
        Ok(Pager {
            uffd,
            range,
            staging,
            table: Table::new(page_count)?,
            budget: RegionBudget::new(limit_pages),
            share: OnceLock::new(),
            limit: PoolLimit::new(config.max_pool_bytes(), config.accept_threshold_percent),
            counters: Counters::new(),
            readahead: Readahead::new(limit_pages.min(page_count.0)),
            fork_mark: ForkMark::new()?,
            _fork_guard: fork_guard,
            eviction,
            service: config.service,
            serves_kernel: kernel_faults,
            may_copy,
            protects_loads,
            reuses_frames,
            checks_same_filled: config.same_filled,
            seed: pagefold_sys::entropy::random_u64()?,
            copy_cursor: AtomicU64::new(0),
            scratch_pool: ScratchPool::new(&store, scratch_count)?,
            store,
            copy_scratches: CopyScratches::new(),
            has_poison: AtomicBool::new(false),
            neighbours: config.neighbours,
            source,
            access: AccessTable::new(page_count, config.neighbours),
            unregistered,
            resident_max: AtomicU64::new(0),
            protecting: AtomicU32::new(0),
            page_ins: AtomicU32::new(0),
        })
    }

    /// Joins a shared budget, before the range is used.
    pub(crate) fn join(
        self: &Arc<Self>,
        budget: &ResidentBudget,
        max_bytes: u64,
    ) -> Result<Arc<RegionShare>, RegionError> {
        let share = Arc::new(budget.join(self.clone(), max_bytes)?);
        Ok(self.share.get_or_init(|| share).clone())
    }

    /// Asks a shared budget for a higher limit. Returns whether there is one and the region got more.
    pub(crate) fn grow_limit(&self) -> bool {
        self.share.get().is_some_and(|share| share.grow())
    }

    /// Returns whether pages can be moved.
    pub(crate) fn can_move(&self) -> bool {
        self.eviction != Eviction::Protect
    }

    /// Returns whether pages may be protected, copied to a frame, and dropped: no system call can be using their memory,
    /// or the owner of the region pins memory that system calls use.
    pub(crate) fn may_copy(&self) -> bool {
        self.may_copy
    }

    /// Returns whether scattered pages that are loaded to be read are write-protected.
    pub(crate) fn protects_loads(&self) -> bool {
        self.protects_loads
    }

    /// Returns whether memory that system calls use must be pinned.
    pub(crate) fn needs_pins(&self) -> bool {
        self.may_copy || !self.serves_kernel
    }

    /// Returns the address of a page of the range.
    pub(crate) fn address(&self, page: PageIndex) -> usize {
        self.range.base().as_ptr().addr() + page.0 as usize * PAGE_SIZE
    }

    /// Returns the offset of an address, in bytes, if the address lies in the range.
    pub(crate) fn offset_of(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.range.base().as_ptr().addr())?;
        (offset < self.range.len_bytes()).then_some(offset as u64)
    }

    /// Returns whether an address lies in the staging area.
    pub(crate) fn is_staging(&self, address: usize) -> bool {
        let memory = self.staging.memory();
        address.checked_sub(memory.base().as_ptr().addr()).is_some_and(|at| at < memory.len_bytes())
    }

    /// Returns the word of a page of the range.
    #[inline]
    pub(crate) fn word(&self, page: PageIndex) -> &PageWord {
        self.table.word(page)
    }

    /// Returns the present time in units of [`FoldTime`].
    pub(crate) fn fold_time(&self) -> FoldTime {
        self.table.fold_time(self.budget.limit())
    }

    /// Counts a page that became folded: only the store has it.
    pub(crate) fn note_folded(&self, page: PageIndex) {
        self.table.remove_live(page);
        self.table.add_folded(1);
        self.table.count_fold();
    }

    /// Returns the address of a frame.
    pub(crate) fn frame_address(&self, frame: Frame) -> usize {
        self.staging.address(frame).addr()
    }

    /// Returns the number of free frames with memory that a fault can use instead of new memory.
    pub(crate) fn ready_frames(&self) -> u32 {
        if self.can_move() { self.staging.backed_free_frames() } else { 0 }
    }

    /// Returns the next page, going round the range, at which to look for a copy to drop.
    pub(crate) fn next_copy_candidate(&self) -> PageIndex {
        PageIndex(self.copy_cursor.fetch_add(1, Relaxed) % self.table.page_count().0)
    }

    /// Returns whether pages are being brought in, which can be evicted soon.
    pub(crate) fn has_page_ins(&self) -> bool {
        self.page_ins.load(Relaxed) > 0
    }

    /// Updates the highest number of charged pages.
    pub(crate) fn note_resident(&self) {
        self.resident_max.fetch_max(self.budget.in_use(), Relaxed);
    }

    /// Returns the highest number of charged pages so far.
    pub(crate) fn resident_max(&self) -> u64 {
        self.resident_max.load(Relaxed)
    }
}

fn choose(configured: Eviction, features: uffd::Features) -> Result<Eviction, RegionError> {
    let can_move = features.has(Feature::Move);
    match configured {
        Eviction::Auto if can_move => Ok(Eviction::Mixed),
        Eviction::Auto => Ok(Eviction::Protect),
        Eviction::Mixed if !can_move => Err(RegionError::NoFeature(Feature::Move)),
        chosen => Ok(chosen),
    }
}

/// Returns the number of frame batches: a quarter of the limit, and some for each thread that fills one.
fn batch_count(limit_pages: u64, threads: usize) -> usize {
    (limit_pages / 4 / BATCH_FRAMES as u64) as usize + 4 * threads.max(1) + 8
}

fn open_store(config: &mut RegionConfig, page_count: PageCount) -> Result<Arc<Store>, RegionError> {
    let store_config = StoreConfig {
        codec: config.codec.clone(),
        mem_limit: MemLimit::Bytes(config.max_pool_bytes()),
        same_filled: config.same_filled,
        ..StoreConfig::new(page_count.0 * PAGE_SIZE as u64)
    };
    let mut store = Store::new(store_config)?;
    if let Some(backing) = config.backing.take() {
        store.attach(backing)?;
    }
    Ok(Arc::new(store))
}

impl Sharer for Pager {
    fn in_use_pages(&self) -> u64 {
        self.budget.in_use() + self.budget.copy_pages()
    }

    fn page_ins(&self) -> u64 {
        self.counters.get(Counter::FaultsFolded) + self.counters.get(Counter::FileRereads)
    }

    fn set_limit_pages(&self, pages: u64) {
        let is_lower = pages < self.budget.limit();
        self.budget.set_limit(pages);
        if is_lower {
            self.budget.wake_evictors();
        }
    }
}
