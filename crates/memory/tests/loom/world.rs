//! A region for the model checker: the production words of pages, and the least of everything about them.
//!
//! The kernel's part, a page of the range or nothing, is one atomic, accessed by read-modify-write alone (the kernel
//! makes sure that nobody sees a page after it was unmapped) and relaxed, so that it orders nothing else. Frames,
//! the store and the hashes are plain memory: what belongs to whom is for the words alone to say, and loom fails
//! any model in which two threads get at one of them without an order. What is read from a frame that was given
//! up is `GARBAGE`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pagefold_memory::page::{
    Drop as ToDrop, Effort, FoldTime, Folded, Frame, PageWord, Refused, State, Touch, Visit,
};

/// No page, no memory, no copy.
pub const NONE: u64 = 0;
/// A page of zeroes. Other contents are versions, which grow: 10, 11, ...
pub const ZERO: u64 = 1;
/// What a frame holds that is another's.
pub const GARBAGE: u64 = 666;
/// Of a page in the range.
const PROTECTED: u64 = 1 << 32;

/// All schedules with up to so many forced switches: more take hours (Musuvathi and Qadeer, "Iterative Context
/// Bounding", 2007).
pub fn check_bound(bound: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(bound));
    builder.check(model);
}

/// Plain memory that one thread at a time may have.
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

/// One page, with what the table, the store and the kernel know of it.
pub struct Page {
    pub word: PageWord,
    range: AtomicU64,
    store: Cell,
    hash: Cell,
}

impl Page {
    /// The page in the range, or `NONE`. The latest there is.
    fn mapped(&self) -> u64 {
        self.range.fetch_add(0, Relaxed)
    }

    /// `Pager::drop_copy`.
    fn drop_copy(&self) {
        self.store.set(NONE);
    }

    /// Write-protects the page, if there is one.
    fn protect(&self) {
        let _ = self.range.fetch_update(Relaxed, Relaxed, |page| (page != NONE).then_some(page | PROTECTED));
    }

    /// `copy_in`, `zero_in`, `move_in`: a page that is there is left as it is. Says whether it was put there.
    fn put(&self, value: u64) -> bool {
        self.range.compare_exchange(NONE, value, Relaxed, Relaxed).is_ok()
    }
}

/// How pages are taken out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Move,
    Protect,
}

/// What the store says to a page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Accepts,
    Refuses,
}

/// Pages, and frames of trays of one frame.
pub struct World {
    pub pages: [Page; 2],
    pub frames: [Cell; 3],
    method: Method,
    /// Somebody drops pages behind the pager's back.
    is_dropped_behind: bool,
}

impl World {
    pub fn new(method: Method) -> Arc<World> {
        Arc::new(Self::with(method, false))
    }

    pub fn dropped_behind(method: Method) -> Arc<World> {
        Arc::new(Self::with(method, true))
    }

    fn with(method: Method, is_dropped_behind: bool) -> World {
        let page = || Page {
            word: PageWord::new(),
            range: AtomicU64::new(NONE),
            store: Cell::new(NONE),
            hash: Cell::new(NONE),
        };
        let frame = || Cell::new(NONE);
        World { pages: [page(), page()], frames: [frame(), frame(), frame()], method, is_dropped_behind }
    }

    /// A program's write of a whole page.
    pub fn write(&self, page: usize, value: u64) {
        while !self.try_write(page, value) {
            self.serve(page, true);
        }
    }

    /// Also a program's write: it is the thread's that has no memory when it first asks for some.
    pub fn write_in_need(&self, page: usize, value: u64) {
        let mut has_memory = false;
        while !self.try_write(page, value) {
            self.serve(page, has_memory);
            // `await_more` ends, because others give memory up.
            has_memory = true;
        }
    }

    fn try_write(&self, page: usize, value: u64) -> bool {
        let range = &self.pages[page].range;
        let mut seen = range.fetch_add(0, Relaxed);
        while seen != NONE && seen & PROTECTED == 0 {
            match range.compare_exchange(seen, value, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// A program's read.
    pub fn read(&self, page: usize) -> u64 {
        loop {
            match self.pages[page].mapped() {
                NONE => self.serve(page, true),
                value => {
                    assert_ne!(value & !PROTECTED, GARBAGE);
                    return value & !PROTECTED;
                }
            }
        }
    }

    /// `Pager::serve_touch`.
    pub fn serve(&self, page: usize, has_memory: bool) {
        let (page, word) = (&self.pages[page], &self.pages[page].word);
        match word.touch() {
            Touch::There => self.recheck(page),
            Touch::Busy(seen) => word.wait(seen),
            Touch::Return { frame, is_folding } => {
                match self.bring_back(page, frame, is_folding, has_memory) {
                    true => word.finish_return(),
                    false => word.abandon_return(),
                }
            }
            touch => self.bring_in(page, touch, has_memory),
        }
    }

    /// `Pager::recheck`.
    fn recheck(&self, page: &Page) {
        if page.word.begin_recheck() {
            let was_lost = page.put(ZERO);
            assert!(self.is_dropped_behind || !was_lost, "resident, but not in the range");
            page.word.end_recheck();
        }
    }

    /// `Pager::bring_back`.
    fn bring_back(&self, page: &Page, frame: Frame, is_read: bool, has_memory: bool) -> bool {
        let memory = &self.frames[usize::from(frame.0)];
        let value = memory.get();
        assert!(value != NONE && value != GARBAGE, "a frame that was given up: {value}");
        if self.method == Method::Move && !is_read {
            // The frame's memory goes to the range, unless that has some.
            if page.put(value) {
                memory.set(NONE);
            }
            return true;
        }
        if !has_memory {
            return false;
        }
        let was_absent = page.put(value);
        assert!(self.is_dropped_behind || was_absent, "returning, but in the range");
        true
    }

    /// `Pager::bring_in`, of the touched page or of a neighbour.
    fn bring_in(&self, page: &Page, touch: Touch, has_memory: bool) {
        if !has_memory {
            page.word.abandon_load();
            return;
        }
        let value = if touch == Touch::Load { page.store.get() } else { ZERO };
        assert_ne!(value, NONE, "folded, but not in the store");
        let was_absent = page.put(value);
        assert!(self.is_dropped_behind || was_absent, "loading, but in the range");
        page.word.finish_load(FoldTime(0));
    }

    /// A neighbour of a page that is brought in: `claim`, and `shrink` if there is no memory for it.
    pub fn bring_ahead(&self, page: usize, has_memory: bool) {
        let page = &self.pages[page];
        if let Some(touch) = page.word.touch_ahead() {
            self.bring_in(page, touch, has_memory);
        }
    }

    /// `Evictor::step` for one page: `visit`, `take_out`, and at once `fold_tray`.
    pub fn evict(&self, page: usize, frame: u16, store: Store) {
        if self.take_out(page, frame) {
            self.fold_frame(page, frame, store);
        }
    }

    /// `Sweep::visit` and `Mover::take_out`. Says whether the page is staged.
    pub fn take_out(&self, page: usize, frame: u16) -> bool {
        let page = &self.pages[page];
        if page.word.visit(None, Effort::Any, 0) != Visit::Taken {
            return false;
        }
        let value = match self.method {
            // `move_out`.
            Method::Move => page.range.swap(NONE, Relaxed),
            // `copy_out`: protect, copy, drop.
            Method::Protect => {
                page.protect();
                // Read in a way that says if nothing is there.
                let copied = page.mapped();
                if copied != NONE {
                    assert!(copied & PROTECTED != 0, "copied while it could be written");
                    let dropped = page.range.swap(NONE, Relaxed);
                    assert!(
                        dropped == copied || self.is_dropped_behind && dropped == NONE,
                        "a write is lost"
                    );
                }
                copied & !PROTECTED
            }
        };
        if value == NONE {
            assert!(self.is_dropped_behind, "resident, but not in the range");
            self.lose(page);
            return false;
        }
        self.frames[usize::from(frame)].set(value);
        page.word.stage(Frame(frame));
        true
    }

    /// `lose`.
    fn lose(&self, page: &Page) {
        if page.word.has_copy() {
            page.drop_copy();
        }
        page.word.finish_drop();
    }

    /// What becomes of a page that cannot be moved: `unprotect_and_put_back`, or `put_back_busy` alone.
    pub fn fail_to_take_out(&self, page: usize) {
        let page = &self.pages[page];
        if page.word.visit(None, Effort::Any, 0) != Visit::Taken {
            return;
        }
        if self.method == Method::Protect {
            page.protect();
            page.range.fetch_and(!PROTECTED, Relaxed);
        }
        page.word.put_back_busy();
    }

    /// `fold_frame`, and `Pager::release` of the frame: from then on it is another's.
    pub fn fold_frame(&self, page: usize, frame: u16, store: Store) {
        let page = &self.pages[page];
        let memory = &self.frames[usize::from(frame)];
        while page.word.begin_fold(Frame(frame)) {
            if self.store_page(page, memory, store) {
                if page.word.finish_fold(Frame(frame), FoldTime(0)) == Folded::Yes {
                    break;
                }
            } else if page.word.refuse_fold(Frame(frame)) == Refused::BringBack {
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
        assert!(value != NONE && value != GARBAGE, "a frame that was given up: {value}");
        if page.word.has_copy() && page.hash.get() == value {
            assert_eq!(page.store.get(), value, "clean, but not what the store has");
            return true;
        }
        if store == Store::Refuses {
            return false;
        }
        assert!(self.is_dropped_behind || page.store.get() <= value, "an older version over a newer one");
        page.store.set(value);
        page.hash.set(value);
        true
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

    /// `Pager::drop_page`. False if the page is pinned.
    pub fn discard(&self, page: usize) -> bool {
        let page = &self.pages[page];
        loop {
            match page.word.take_to_drop() {
                ToDrop::Nothing => return true,
                ToDrop::Pinned => return false,
                ToDrop::Busy(seen) => page.word.wait(seen),
                ToDrop::Taken { was, has_copy } => {
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

    /// `madvise` by somebody who does not know of the region.
    pub fn drop_behind(&self, page: usize) {
        self.pages[page].range.swap(NONE, Relaxed);
    }

    /// `Pager::pin_page`, a system call on the page that writes to it, and `unpin`.
    pub fn write_pinned(&self, page: usize, value: u64) {
        while !self.pages[page].word.pin() {
            self.serve(page, true);
        }
        assert!(self.try_write(page, value), "pinned, but not in the range");
        let seen = self.pages[page].mapped();
        assert!(seen != NONE && seen & PROTECTED == 0, "pinned, but taken");
        self.pages[page].word.unpin();
    }
}
