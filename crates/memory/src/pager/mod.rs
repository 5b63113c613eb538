//! The pager: what all threads of a region share, and how a page that was touched comes in.
//!
//! | module | what |
//! |---|---|
//! | `serve` | what a fault leads to, by the state of its page |
//! | `bring` | a page and its neighbours from the store, into the range |
//! | `install` | the system calls that put pages into the range |
//! | `scratch` | working memory for that, made beforehand |
//! | `range` | pinning and dropping parts of the range |
//!
//! Everything here but `range` runs in the thread that touched the page, possibly inside a signal handler that interrupted
//! it anywhere: it takes no lock but a slot's (held by the engine for one copy, never across memory of the range),
//! allocates nothing, and logs nothing. It waits only for the page's word, for memory, for a scratch, and for
//! the medium of a parked page. In turn, nothing in the engine touches memory of the range while it holds a
//! lock or a stream.

mod bring;
mod install;
mod range;
mod scratch;
mod serve;

pub(crate) use range::Pinned;
pub(crate) use serve::{OnLoss, Served};

use crate::ahead::Ahead;
use crate::config::{Eviction, RegionConfig, Service};
use crate::counters::Counters;
use crate::error::RegionError;
use crate::limit::PoolLimit;
use crate::memory_left::MemoryLeft;
use crate::meter::Meter;
use crate::page::{FoldTime, Frame, PageWord};
use crate::staging::{Staging, TRAY_FRAMES};
use crate::table::Table;
use pagefold_page::{PAGE_SIZE, PageCount, PageIndex};
use pagefold_store::{MemLimit, Store, StoreConfig};
use pagefold_sys::forkmark::ForkMark;
use pagefold_sys::mem::Reservation;
use pagefold_sys::uffd::{self, Feature, Open, Uffd};
use scratch::Scratches;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What all threads of a region share.
pub(crate) struct Pager {
    pub(crate) uffd: Uffd,
    pub(crate) range: Reservation,
    pub(crate) staging: Staging,
    pub(crate) table: Table,
    pub(crate) left: MemoryLeft,
    pub(crate) store: Arc<Store>,
    pub(crate) limit: PoolLimit,
    pub(crate) counters: Counters,
    pub(crate) ahead: Ahead,
    pub(crate) mark: ForkMark,
    /// The method in use: never `Auto`.
    pub(crate) eviction: Eviction,
    pub(crate) service: Service,
    /// Writes can be told by asynchronous write-protection.
    pub(crate) tells_writes: bool,
    pub(crate) meter: Meter,
    /// Of the hashes.
    pub(crate) seed: u64,
    /// Pages that repeat one word are kept as that word.
    pub(crate) knows_same_filled: bool,
    /// Where copies are looked for that can go.
    copies: AtomicU64,
    scratches: Scratches,
    neighbours: bool,
    resident_max: AtomicU64,
    /// Threads that protect pages at this moment.
    protecting: AtomicU32,
    /// Threads that bring pages in and do not wait for memory.
    bringing: AtomicU32,
}

impl Pager {
    /// Everything but threads and the signal handler.
    pub(crate) fn new(mut config: RegionConfig) -> Result<Self, RegionError> {
        let page_count = PageCount::covering(config.len_bytes);
        let limit_pages = config.limit_bytes / PAGE_SIZE as u64;
        let features = uffd::kernel_features()?;
        let eviction = choose(config.eviction, features)?;
        let moves = eviction != Eviction::Protect;
        // Where writes are told, they are not held up: no page can be protected for copying.
        let tells_writes = eviction == Eviction::Move && features.has(Feature::WpAsync);
        let is_signal = config.service == Service::FaultingThread;
        let open = Open { sigbus: is_signal, async_wp: tells_writes, kernel_faults: !is_signal };
        let uffd = Uffd::open(&open)?;
        let range = Reservation::new(page_count.0 as usize * PAGE_SIZE)?;
        // SAFETY: a child that touches the region dies of it; `Region`'s drop forgets the pager in a child.
        unsafe { range.keep_from_children() }?;
        let staging = Staging::new(tray_count(limit_pages, config.fold_threads))?;
        let protects = tells_writes || eviction != Eviction::Move;
        uffd.register(range.base().as_ptr().addr(), range.len_bytes(), true, protects)?;
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
            left: MemoryLeft::new(limit_pages),
            limit: PoolLimit::new(config.max_pool_bytes(), config.accept_threshold_percent),
            counters: Counters::new(),
            ahead: Ahead::new(),
            mark: ForkMark::new()?,
            eviction,
            service: config.service,
            tells_writes,
            meter: Meter::new(config.measure_pages),
            knows_same_filled: config.same_filled,
            seed: pagefold_sys::entropy::random_u64()?,
            copies: AtomicU64::new(0),
            scratches: Scratches::new(&store, scratch_count)?,
            store,
            neighbours: config.neighbours,
            resident_max: AtomicU64::new(0),
            protecting: AtomicU32::new(0),
            bringing: AtomicU32::new(0),
        })
    }

    /// Whether pages can be moved.
    pub(crate) fn moves(&self) -> bool {
        self.eviction != Eviction::Protect
    }

    /// Whether pages can be held from being written for as long as they are copied.
    pub(crate) fn protects(&self) -> bool {
        self.eviction != Eviction::Move
    }

    /// Where a page of the range is.
    pub(crate) fn address(&self, page: PageIndex) -> usize {
        self.range.base().as_ptr().addr() + page.0 as usize * PAGE_SIZE
    }

    /// The page at an address, if it is in the range.
    pub(crate) fn page_at(&self, address: usize) -> Option<PageIndex> {
        let offset = address.checked_sub(self.range.base().as_ptr().addr())?;
        (offset < self.range.len_bytes()).then_some(PageIndex((offset / PAGE_SIZE) as u64))
    }

    /// Whether an address is in the staging area.
    pub(crate) fn is_staging(&self, address: usize) -> bool {
        let memory = self.staging.memory();
        address.checked_sub(memory.base().as_ptr().addr()).is_some_and(|at| at < memory.len_bytes())
    }

    /// The word of a page of the range.
    #[inline]
    pub(crate) fn word(&self, page: PageIndex) -> &PageWord {
        self.table.word(page)
    }

    /// The time, by pages folded.
    pub(crate) fn fold_time(&self) -> FoldTime {
        self.table.fold_time(self.left.limit())
    }

    /// A page is folded now: the store has it, and nothing else.
    pub(crate) fn note_folded(&self, page: PageIndex) {
        self.table.remove_live(page);
        self.table.add_folded(1);
        self.table.count_fold();
    }

    /// Where a frame is.
    pub(crate) fn frame_address(&self, frame: Frame) -> usize {
        self.staging.address(frame).addr()
    }

    /// Frames that a fault can use, instead of new memory.
    pub(crate) fn ready_frames(&self) -> u32 {
        if self.moves() { self.staging.stock() } else { 0 }
    }

    /// The next page, round the range, at which to look for a copy that can go.
    pub(crate) fn next_copy(&self) -> PageIndex {
        PageIndex(self.copies.fetch_add(1, Relaxed) % self.table.page_count().0)
    }

    /// Whether pages are coming in: they can be moved out soon.
    pub(crate) fn is_loading(&self) -> bool {
        self.bringing.load(Relaxed) > 0
    }

    /// Notes how much memory is in use.
    pub(crate) fn note_resident(&self) {
        self.resident_max.fetch_max(self.left.in_use(), Relaxed);
    }

    /// The most pages of memory that were in use.
    pub(crate) fn resident_max(&self) -> u64 {
        self.resident_max.load(Relaxed)
    }
}

fn choose(asked: Eviction, features: uffd::Features) -> Result<Eviction, RegionError> {
    let can_move = features.has(Feature::Move);
    match asked {
        Eviction::Auto if can_move => Ok(Eviction::Mixed),
        Eviction::Auto => Ok(Eviction::Protect),
        Eviction::Move | Eviction::Mixed if !can_move => Err(RegionError::NoFeature(Feature::Move)),
        chosen => Ok(chosen),
    }
}

/// A quarter of the limit, and some for each thread that fills one.
fn tray_count(limit_pages: u64, threads: usize) -> usize {
    (limit_pages / 4 / TRAY_FRAMES as u64) as usize + 4 * threads.max(1) + 8
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
