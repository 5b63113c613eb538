//! A small model of a region for loom: the production page words, and models of everything else.
//!
//! The page table entry of a page is one atomic: the page in the range, or nothing. It is accessed by
//! read-modify-write only (the kernel makes sure that no thread sees a page after it was unmapped) and relaxed, so
//! that it orders nothing else. Frames, the store and the hashes are plain memory. Only the words say which thread
//! owns them, and loom fails a model in which two threads access one of them unordered. A frame that was released
//! reads as `GARBAGE`.

mod chunk;

use chunk::{Chunk, UNREGISTERED};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread::{self, JoinHandle};
use pagefold_memory::page::{
    Arrival, Candidates, DropClaim, FaultClaim, FoldResult, FoldTime, Frame, OverwriteClaim, PageWord,
    RefusalResult, State, Visit, Whereabouts,
};

/// No page, no memory, no copy.
pub const NONE: u64 = 0;
/// A page of zeroes. Other contents are versions, which grow: 10, 11, ...
pub const ZERO: u64 = 1;
/// The contents of a frame after it was released.
pub const GARBAGE: u64 = 666;
/// Flag of a page in the range.
const PROTECTED: u64 = 1 << 32;
/// Flag of a page in the range: a device has its memory, to write to it.
const DEVICE: u64 = 1 << 34;

/// Bound of forced switches of models with two threads.
pub const TWO: usize = 3;
/// Bound of forced switches of models with three threads.
pub const THREE: usize = 2;

/// Starts a thread of a model.
pub fn spawn(region: &Arc<RegionModel>, run: impl FnOnce(&RegionModel) + 'static) -> JoinHandle<()> {
    let region = region.clone();
    thread::spawn(move || run(&region))
}

/// Waits for threads of a model.
pub fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs all schedules with up to `bound` forced switches: more take hours (Musuvathi and Qadeer, "Iterative Context
/// Bounding", 2007).
pub fn check_bound(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(bound));
    builder.check(model);
}

/// Plain memory that one thread at a time may access.
pub struct Cell(UnsafeCell<u64>);

impl Cell {
    fn new(value: u64) -> Self {
        Cell(UnsafeCell::new(value))
    }

    pub fn set(&self, value: u64) {
        // SAFETY: loom hands out a valid pointer and fails the model if the access races.
        self.0.with_mut(|p| unsafe { *p = value });
    }

    pub fn get(&self) -> u64 {
        // SAFETY: as in `set`.
        self.0.with(|p| unsafe { *p })
    }
}

/// One page, with its data in the table, the store and the kernel.
pub struct Page {
    pub word: PageWord,
    range: AtomicU64,
    store: Cell,
    hash: Cell,
}

impl Page {
    /// Returns the latest page in the range, or `NONE`.
    fn mapped(&self) -> u64 {
        self.range.fetch_add(0, Relaxed) & !UNREGISTERED
    }

    /// `Pager::drop_copy`.
    fn drop_copy(&self) {
        self.store.set(NONE);
    }

    /// Write-protects the page, if there is one.
    fn protect(&self) {
        let _ = self.range.fetch_update(Relaxed, Relaxed, |page| (page != NONE).then_some(page | PROTECTED));
    }

    /// `copy_in`, `zero_in`, `move_in`: a page that is present is left as it is. Returns whether the page was absent.
    fn put(&self, value: u64) -> bool {
        self.range.compare_exchange(NONE, value, Relaxed, Relaxed).is_ok()
    }
}

/// How pages leave the range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Move,
    Protect,
    /// Pages that come from the store are protected, and dropped while they are unwritten. The others are moved.
    Drop,
}

/// Whether the store accepts a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Accepts,
    Refuses,
}

/// Pages, and frames of batches of one frame.
pub struct RegionModel {
    pub pages: [Page; 2],
    pub frames: [Cell; 3],
    method: Method,
    /// Whether the model drops pages by `madvise`.
    has_madvise: bool,
    /// The chunk that the kernel may fill, in the models with one.
    chunk: Option<Chunk>,
}

impl RegionModel {
    pub fn new(method: Method) -> Arc<RegionModel> {
        Arc::new(Self::with(method, false, None))
    }

    pub fn with_madvise(method: Method) -> Arc<RegionModel> {
        Arc::new(Self::with(method, true, None))
    }

    /// Both pages are one chunk, which may be unregistered so often.
    pub fn late(method: Method, room: u32) -> Arc<RegionModel> {
        Arc::new(Self::with(method, false, Some(Chunk::new(room))))
    }

    fn with(method: Method, has_madvise: bool, chunk: Option<Chunk>) -> RegionModel {
        let page = || Page {
            word: PageWord::new(),
            range: AtomicU64::new(NONE),
            store: Cell::new(NONE),
            hash: Cell::new(NONE),
        };
        let frame = || Cell::new(NONE);
        let frames = [frame(), frame(), frame()];
        RegionModel { pages: [page(), page()], frames, method, has_madvise, chunk }
    }

    /// A program's write of a whole page.
    pub fn write(&self, page: usize, value: u64) {
        while !self.try_write(page, value) {
            self.serve(page, true);
        }
    }

    /// A program's write by a thread that finds no memory at first.
    pub fn write_without_memory(&self, page: usize, value: u64) {
        let mut has_memory = false;
        while !self.try_write(page, value) {
            self.serve(page, has_memory);
            // `wait_for_release` returns, because other threads release memory.
            has_memory = true;
        }
    }

    fn try_write(&self, page: usize, value: u64) -> bool {
        let range = &self.pages[page].range;
        let mut seen = range.fetch_add(0, Relaxed);
        while seen != NONE && seen & PROTECTED == 0 {
            match range.compare_exchange(seen, value | seen & (UNREGISTERED | DEVICE), Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// A program's read.
    pub fn read(&self, page: usize) -> u64 {
        loop {
            let page_table =
                if self.is_late() { self.pages[page].access() } else { self.pages[page].mapped() };
            match page_table & !(PROTECTED | UNREGISTERED | DEVICE) {
                NONE => self.serve(page, true),
                value => {
                    assert_ne!(value, GARBAGE);
                    return value;
                }
            }
        }
    }

    /// `Pager::serve_by_state`.
    pub fn serve(&self, page: usize, has_memory: bool) {
        let (page, word) = (&self.pages[page], &self.pages[page].word);
        if word.is_untouched() && self.unregister_around() {
            return;
        }
        match word.claim_fault() {
            FaultClaim::Recheck => self.recheck(page),
            // Another thread is changing the chunk.
            FaultClaim::Unregistered => loom::thread::yield_now(),
            FaultClaim::Busy(seen) => word.wait(seen),
            FaultClaim::Return { frame, is_folding } => {
                match self.bring_back(page, frame, is_folding, has_memory) {
                    true => word.finish_return(),
                    false => word.abandon_return(),
                }
            }
            claim => self.page_in(page, claim, has_memory),
        }
    }

    /// `Pager::recheck`.
    fn recheck(&self, page: &Page) {
        let was_missing = page.put(ZERO);
        assert!(self.has_madvise || !was_missing, "resident, but not in the range");
        if self.method == Method::Drop {
            page.range.fetch_and(!PROTECTED, Relaxed);
        }
        page.word.end_recheck();
    }

    /// `Pager::bring_back`.
    fn bring_back(&self, page: &Page, frame: Frame, is_read: bool, has_memory: bool) -> bool {
        let memory = &self.frames[usize::from(frame.0)];
        let value = memory.get();
        assert!(value != NONE && value != GARBAGE, "a frame that was released: {value}");
        if self.method != Method::Protect && !is_read {
            // The frame's memory goes to the range, unless a page is present there.
            if page.put(value) {
                memory.set(NONE);
            }
            return true;
        }
        if !has_memory {
            return false;
        }
        let was_absent = page.put(value);
        assert!(self.has_madvise || was_absent, "returning, but in the range");
        true
    }

    /// `Pager::page_in`, of the faulting page or of a neighbour.
    fn page_in(&self, page: &Page, claim: FaultClaim, has_memory: bool) {
        if !has_memory {
            page.word.abandon_load();
            return;
        }
        let value = if claim == FaultClaim::Load { page.store.get() } else { ZERO };
        assert_ne!(value, NONE, "folded, but not in the store");
        let is_protected =
            self.method == Method::Drop && claim == FaultClaim::Load && !page.word.is_rewritten();
        let was_absent = page.put(if is_protected { value | PROTECTED } else { value });
        assert!(self.has_madvise || was_absent, "loading, but in the range");
        if is_protected {
            return page.word.finish_load_protected(FoldTime(0), Arrival::Plain);
        }
        if claim == FaultClaim::Load && page.word.is_rewritten() {
            page.drop_copy();
            return page.word.finish_load_without_copy(FoldTime(0), Arrival::Plain);
        }
        page.word.finish_load(FoldTime(0), Arrival::Plain);
    }

    /// A system call that has a device write to the page, past any protection: the kernel gets the page's memory as a write
    /// would, and the device writes to it later.
    pub fn write_by_device(&self, page: usize, value: u64) {
        let range = &self.pages[page].range;
        let get = |page: u64| (page != NONE && page & PROTECTED == 0).then_some(page | DEVICE);
        while range.fetch_update(Relaxed, Relaxed, get).is_err() {
            self.serve(page, true);
        }
        let write = |page: u64| (page & DEVICE != 0).then_some(value);
        assert!(range.fetch_update(Relaxed, Relaxed, write).is_ok(), "a page left that a device has");
    }

    /// A neighbour of a page that is brought in: `claim_window`, and `abandon_neighbours` if there is no memory for it.
    pub fn read_ahead(&self, page: usize, has_memory: bool) {
        let page = &self.pages[page];
        if let Some(claim) = page.word.claim_readahead() {
            self.page_in(page, claim, has_memory);
        }
    }

    /// `Evictor::step` for one page: `visit`, `page_out`, and at once `fold_batch`.
    pub fn evict(&self, page: usize, frame: u16, store: Store) {
        if self.page_out(page, frame) {
            self.fold_frame(page, frame, store);
        }
    }

    /// `Sweep::visit` and `Mover::page_out`. Returns whether the page is staged.
    pub fn page_out(&self, page: usize, frame: u16) -> bool {
        let page = &self.pages[page];
        if page.word.visit(Candidates::Any, 0) != Visit::Taken {
            return false;
        }
        if page.word.is_unwritten() {
            self.drop_unwritten(page);
            return false;
        }
        if page.word.is_protected() {
            page.range.fetch_and(!PROTECTED, Relaxed);
            page.word.end_protection();
        }
        let value = match self.method {
            // `move_out`: the kernel refuses a page that a device has.
            Method::Move | Method::Drop => {
                let free = |page: u64| (page & DEVICE == 0).then_some(NONE);
                match page.range.fetch_update(Relaxed, Relaxed, free) {
                    Ok(moved) => {
                        assert_eq!(moved & PROTECTED, 0, "the protection is moved along");
                        moved
                    }
                    Err(_) => {
                        page.word.put_back_busy();
                        return false;
                    }
                }
            }
            // `copy_out`: protect, copy, drop.
            Method::Protect => {
                page.protect();
                // As `Reader::read`, which reports a missing page.
                let copied = page.mapped();
                if copied != NONE {
                    assert!(copied & PROTECTED != 0, "copied while it could be written");
                    let dropped = page.range.swap(NONE, Relaxed);
                    assert!(dropped == copied || self.has_madvise && dropped == NONE, "a write is lost");
                }
                copied & !PROTECTED
            }
        };
        if value == NONE {
            assert!(self.has_madvise, "resident, but not in the range");
            self.drop_missing(page);
            return false;
        }
        self.frames[usize::from(frame)].set(value);
        page.word.stage(Frame(frame));
        true
    }

    /// `Mover::drop_unwritten`.
    fn drop_unwritten(&self, page: &Page) {
        let dropped = page.range.swap(NONE, Relaxed);
        if dropped != NONE || !self.has_madvise {
            assert_eq!(dropped & DEVICE, 0, "a write of a device will be lost");
            assert_eq!(dropped, page.store.get() | PROTECTED, "a write is lost");
        }
        page.word.fold_clean(FoldTime(0));
    }

    /// `drop_missing`.
    fn drop_missing(&self, page: &Page) {
        if page.word.has_copy() {
            page.drop_copy();
        }
        page.word.finish_drop();
    }

    /// A page that cannot be moved: `unprotect` and `put_back_busy`, or `put_back_busy` alone.
    pub fn fail_to_page_out(&self, page: usize) {
        let page = &self.pages[page];
        if page.word.visit(Candidates::Any, 0) != Visit::Taken {
            return;
        }
        if self.method == Method::Protect {
            page.protect();
            page.range.fetch_and(!PROTECTED, Relaxed);
        }
        page.word.put_back_busy();
    }

    /// `fold_frame`, and `Pager::release` of the frame: from then on the frame is free for other pages.
    pub fn fold_frame(&self, page: usize, frame: u16, store: Store) {
        let page = &self.pages[page];
        let memory = &self.frames[usize::from(frame)];
        while page.word.begin_fold(Frame(frame)) {
            if self.store_page(page, memory, store) {
                if page.word.finish_fold(Frame(frame), FoldTime(0)) == FoldResult::Folded {
                    break;
                }
            } else if page.word.refuse_fold(Frame(frame)) == RefusalResult::BringBack {
                assert!(self.bring_back(page, Frame(frame), false, true));
                page.word.finish_refusal();
                break;
            }
        }
        memory.set(GARBAGE);
    }

    /// `store_page`.
    fn store_page(&self, page: &Page, memory: &Cell, store: Store) -> bool {
        let value = memory.get();
        assert!(value != NONE && value != GARBAGE, "a frame that was released: {value}");
        if page.word.has_fold_hash() {
            page.word.note_rewritten(page.hash.get() != value);
        }
        if page.word.has_copy() && page.hash.get() == value {
            assert_eq!(page.store.get(), value, "clean, but not what the store has");
            return true;
        }
        if store == Store::Refuses {
            return false;
        }
        assert!(self.has_madvise || page.store.get() <= value, "an older version over a newer one");
        page.store.set(value);
        page.hash.set(value);
        true
    }

    /// `Pager::overwrite` of a page that is not resident, and an ordinary write of any other.
    pub fn write_whole(&self, page: usize, value: u64, store: Store) {
        if !self.overwrite(&self.pages[page], value, store) {
            self.write(page, value);
        }
    }

    fn overwrite(&self, page: &Page, value: u64, store: Store) -> bool {
        let Some(claim) = page.word.begin_overwrite(true) else { return false };
        // `store_bytes`.
        if store == Store::Refuses {
            page.word.abandon_overwrite(claim);
            return false;
        }
        assert!(page.store.get() <= value, "an older version over a newer one");
        page.store.set(value);
        page.hash.set(value);
        page.word.finish_overwrite(FoldTime(0));
        true
    }

    /// `Pager::read_part` of one page. A page that only the store has is owned here, because the store has no lock in this
    /// model that makes a read of it one version.
    pub fn read_whole(&self, page: usize) -> u64 {
        let word = &self.pages[page].word;
        loop {
            match word.whereabouts() {
                Whereabouts::Range => return self.read(page),
                Whereabouts::Nowhere { .. } => return ZERO,
                Whereabouts::Frame => {
                    if let Some(frame) = word.claim_frame() {
                        let value = self.frames[usize::from(frame.0)].get();
                        assert!(value != NONE && value != GARBAGE, "a frame that was released: {value}");
                        word.abandon_return();
                        return value;
                    }
                }
                Whereabouts::Store => {
                    let Some(claim) = word.begin_overwrite(false) else { continue };
                    let is_stored = claim == OverwriteClaim::Folded;
                    let value = if is_stored { self.pages[page].store.get() } else { NONE };
                    word.abandon_overwrite(claim);
                    if is_stored {
                        assert_ne!(value, NONE, "folded, but not in the store");
                        return value;
                    }
                }
            }
        }
    }

    /// `drop_old_copy`.
    pub fn drop_old_copy(&self, page: usize) {
        let page = &self.pages[page];
        if !page.word.take() {
            return;
        }
        if page.word.has_copy() {
            page.drop_copy();
        }
        page.word.put_back_dirty();
    }

    /// `Pager::drop_page`. Returns false if the page is pinned.
    pub fn discard(&self, page: usize) -> bool {
        let page = &self.pages[page];
        loop {
            match page.word.claim_drop() {
                DropClaim::Nothing => return true,
                DropClaim::Pinned => return false,
                DropClaim::Unregistered => self.register_around(),
                DropClaim::Busy(seen) => page.word.wait(seen),
                DropClaim::Taken { was, has_copy } => {
                    if was == State::Resident {
                        page.range.swap(NONE, Relaxed);
                    }
                    if has_copy {
                        page.drop_copy();
                    }
                    page.word.finish_drop();
                    return true;
                }
            }
        }
    }

    /// `madvise(MADV_DONTNEED)` by code that does not know that the page lies in a region.
    pub fn madvise_dontneed(&self, page: usize) {
        self.pages[page].range.swap(NONE, Relaxed);
    }

    /// `Pager::pin_page`, a system call on the page that writes to it, and `unpin`.
    pub fn write_pinned(&self, page: usize, value: u64) {
        while !self.pages[page].word.pin() {
            match self.pages[page].word.is_unregistered() {
                true if self.pin_unregistered(page) => break,
                true => loom::thread::yield_now(),
                false => self.serve(page, true),
            }
        }
        assert!(self.try_write(page, value), "pinned, but not in the range");
        let seen = self.pages[page].mapped();
        assert!(seen != NONE && seen & PROTECTED == 0, "pinned, but taken");
        self.pages[page].word.unpin();
    }
}
