//! A page and its neighbours from the store, into the range.
//!
//! The neighbours are those that `ahead` names and that nobody else is at. They take what memory is to be had
//! without waiting: frames of the stock, into which they are decompressed and which are then moved to the range many at
//! a time; or new memory, to which the kernel copies them. Only the page that was touched is waited for.

use super::Pager;
use super::install::Put;
use super::scratch::{Scratch, ScratchGuard};
use super::serve::Served;
use crate::ahead::{WINDOW_MAX, Window};
use crate::counters::Counter;
use crate::page::Touch;
use crate::staging::{Tray, longest_run};
use pagefold_page::{Page, PageIndex};
use pagefold_store::{LoadError, Loaded};
use pagefold_sys::cpu;
use std::sync::atomic::Ordering::Relaxed;

/// A stock tray is taken for so many pages or more; fewer are copied to new memory, if there is any.
const MOVED_MIN: usize = 4;

/// Pages that are loading by this thread, in order of address: [`Pager::put_runs`] relies on that.
struct Claims {
    pages: [(PageIndex, Touch); WINDOW_MAX],
    len: usize,
    /// The place of the page that was touched.
    touched: usize,
}

/// Memory for pages that come in.
enum Memory {
    /// Of the kernel's, to be copied to; so many pages were taken.
    New(usize),
    /// Frames from this one on, so many.
    Frames { tray: Tray, first: usize, len: usize },
}

/// What a page turned out to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bytes,
    Zero,
    Failed,
}

impl Pager {
    /// Brings a page in, with neighbours. If that fails, the page is still loading.
    ///
    /// # Safety
    /// The page is loading, by the caller; `touch` is what made it so.
    pub(super) unsafe fn bring_in(&self, page: PageIndex, touch: Touch, is_write: bool) -> Served {
        // What is done until it is read takes about as long as its way from memory.
        self.store.prefetch_object(page);
        let counter = if touch == Touch::Zero { Counter::FaultsZero } else { Counter::FaultsFolded };
        self.counters.add(counter, 1);
        let window = if self.neighbours { self.ahead.note(page) } else { Window::ALONE };
        self.bringing.fetch_add(1, Relaxed);
        // SAFETY: the page is loading, by the caller.
        let mut claims = unsafe { self.claim(page, touch, window) };
        let Some(memory) = self.memory_for(&mut claims) else {
            self.bringing.fetch_sub(1, Relaxed);
            self.word(page).abandon_load();
            return Served::Again;
        };
        self.tell_how_far(page, window, &claims);
        let mut scratch = self.scratches.take(cpu::current());
        let served = self.fill_and_put(&claims, memory, &mut scratch, is_write);
        self.bringing.fetch_sub(1, Relaxed);
        self.note_resident();
        served
    }

    /// Tells where a window ended that there was no memory for, or in which pages were there already.
    fn tell_how_far(&self, page: PageIndex, window: Window, claims: &Claims) {
        let last = if window.stride > 0 { claims.pages[claims.len - 1].0 } else { claims.pages[0].0 };
        if (claims.len as u64) < window.pages {
            self.ahead.cut(page, window, last, claims.len as u64 - 1);
        }
    }

    /// Claims the neighbours that are to be had.
    ///
    /// # Safety
    /// The page is loading, by the caller.
    unsafe fn claim(&self, page: PageIndex, touch: Touch, window: Window) -> Claims {
        let mut claims = Claims { pages: [(page, touch); WINDOW_MAX], len: 1, touched: 0 };
        for step in 1..window.pages as i64 {
            let neighbour = u64::try_from(page.0 as i64 + step * window.stride);
            let Ok(neighbour) = neighbour.map(PageIndex) else { break };
            if !self.table.page_count().contains(neighbour) {
                break;
            }
            if let Some(touch) = self.word(neighbour).touch_ahead() {
                self.store.prefetch_slot(neighbour);
                claims.pages[claims.len] = (neighbour, touch);
                claims.len += 1;
            }
        }
        if window.stride < 0 {
            claims.pages[..claims.len].reverse();
            claims.touched = claims.len - 1;
        }
        claims
    }

    /// Memory for the claims, or for as many of them as there is some for; the others are given up. Waits if there is
    /// none at all. `None` if the region is going.
    fn memory_for(&self, claims: &mut Claims) -> Option<Memory> {
        let found = self.try_memory(claims.len);
        let memory = match found {
            Some(memory) => memory,
            None => {
                self.shrink(claims, 1);
                self.await_memory(|| self.try_memory(1), || Memory::New(1))?
            }
        };
        self.shrink(claims, memory.len());
        Some(memory)
    }

    /// Memory for so many pages, or fewer, without waiting: for many rather frames of the stock, for few rather new.
    fn try_memory(&self, wanted: usize) -> Option<Memory> {
        let is_many = self.moves() && wanted >= MOVED_MIN;
        if is_many {
            if let Some(frames) = self.frames(wanted) {
                return Some(frames);
            }
            self.staging.want(wanted as u32);
        }
        match self.left.take(wanted as u32) {
            0 if self.moves() => self.frames(wanted),
            0 => None,
            pages => Some(Memory::New(pages as usize)),
        }
    }

    fn frames(&self, wanted: usize) -> Option<Memory> {
        let tray = self.staging.take_stock()?;
        let (first, len) = longest_run(self.staging.backed(&tray));
        // From the end, so that what is left of the run is a run.
        let used = len.min(wanted);
        Some(Memory::Frames { tray, first: first + len - used, len: used })
    }

    /// Gives neighbours up until `len` claims are left.
    fn shrink(&self, claims: &mut Claims, len: usize) {
        while claims.len > len.max(1) {
            claims.len -= 1;
            // The touched page stands at one end: give up at the other.
            let at = if claims.touched == 0 { claims.len } else { 0 };
            self.word(claims.pages[at].0).abandon_load();
            if claims.touched > 0 {
                claims.pages.copy_within(1..claims.len + 1, 0);
                claims.touched -= 1;
            }
        }
    }

    fn fill_and_put(
        &self,
        claims: &Claims,
        memory: Memory,
        scratch: &mut ScratchGuard,
        is_write: bool,
    ) -> Served {
        let pages = &claims.pages[..claims.len];
        let mut kinds = [Kind::Zero; WINDOW_MAX];
        let mut zeroes_paid = 0;
        for (at, (page, touch)) in pages.iter().enumerate() {
            if let Some((next, _)) = pages.get(at + 1) {
                self.store.prefetch_object(*next);
            }
            let Scratch { loader, pages } = &mut **scratch;
            let to: &mut Page = match &memory {
                Memory::New(_) => &mut pages.0[at],
                Memory::Frames { tray, first, .. } => {
                    let frame = self.staging.frame(tray, first + at);
                    // SAFETY: the frame has memory, and its tray is this thread's alone: nobody else refers to it.
                    unsafe { &mut *self.staging.address(frame).cast::<Page>() }
                }
            };
            let wants_memory = is_write || matches!(memory, Memory::Frames { .. });
            kinds[at] = match touch {
                Touch::Load => self.load(*page, loader, to),
                _ if wants_memory => {
                    to.fill(0);
                    Kind::Bytes
                }
                _ => Kind::Zero,
            };
            // A page of zeroes counts like any other: the program may write to it unseen.
            if kinds[at] == Kind::Zero && matches!(memory, Memory::Frames { .. }) {
                match self.left.take(1) {
                    0 => {
                        to.fill(0);
                        kinds[at] = Kind::Bytes;
                    }
                    _ => zeroes_paid += 1,
                }
            }
        }
        let used = self.put_runs(claims, &kinds, &memory, scratch);
        self.settle(memory, zeroes_paid, used);
        self.ahead.count_brought(claims.len as u64 - 1);
        if kinds[claims.touched] == Kind::Failed { Served::Failed } else { Served::Again }
    }

    /// The page's bytes from the store.
    fn load(&self, page: PageIndex, loader: &mut pagefold_store::Loader, to: &mut Page) -> Kind {
        let began = self.meter.start();
        let loaded = self.store.load(page, loader, to);
        let mut is_same_filled = true;
        let kind = match loaded {
            Ok(Loaded::Page) => {
                is_same_filled = false;
                Kind::Bytes
            }
            Ok(Loaded::SameFilled(0)) => Kind::Zero,
            Ok(Loaded::Empty) => {
                // The store has it, or the page would not be folded.
                self.counters.add(Counter::DecompressFail, 1);
                return Kind::Failed;
            }
            Ok(Loaded::SameFilled(word)) => {
                pagefold_store::fill(to, word);
                Kind::Bytes
            }
            Err(error) => {
                let counter = match error {
                    LoadError::ReadBack { .. } => Counter::ReadBackFail,
                    LoadError::Corrupt { .. } | LoadError::CorruptRecord { .. } => Counter::DecompressFail,
                };
                self.counters.add(counter, 1);
                return Kind::Failed;
            }
        };
        if let Some(began) = began {
            let ns = self.meter.ns_since(began);
            let counter = if is_same_filled { Counter::SameFilledLoadNs } else { Counter::LoadNs };
            self.counters.add(counter, ns);
            self.counters.add(Counter::SameFilledLoaded, is_same_filled.into());
        }
        kind
    }

    /// Puts the pages into the range, run by run, and ends their loading; but not that of the touched page if it cannot be
    /// loaded. Returns how many pages of memory that was paid for were used.
    fn put_runs(
        &self,
        claims: &Claims,
        kinds: &[Kind; WINDOW_MAX],
        memory: &Memory,
        scratch: &Scratch,
    ) -> u32 {
        let pages = &claims.pages[..claims.len];
        let mut used = 0;
        let mut at = 0;
        while at < pages.len() {
            let (first, kind) = (pages[at].0, kinds[at]);
            let follows = |i: usize| pages[i].0.0 == first.0 + (i - at) as u64 && kinds[i] == kind;
            let len = (at + 1..pages.len()).take_while(|i| follows(*i)).count() + 1;
            let put = match (kind, memory) {
                (Kind::Failed, _) => Put::Refused(0, 0),
                // SAFETY: the claims are loading, by this thread.
                (Kind::Zero, _) => unsafe { self.zero_in(first, len) },
                (Kind::Bytes, Memory::New(_)) => {
                    // SAFETY: the claims are loading, by this thread.
                    unsafe { self.copy_in(first, &scratch.pages.0[at..at + len]) }
                }
                (Kind::Bytes, Memory::Frames { tray, first: frame, .. }) => {
                    let frame = self.staging.frame(tray, frame + at);
                    // SAFETY: the claims are loading, by this thread, which has the tray, and holds no reference into its
                    // frames any more.
                    unsafe { self.move_in(first, frame, len) }
                }
            };
            let done = match put {
                Put::Done => len,
                // Something is there that was not brought by us: the mark of a page that was lost. It stays folded.
                Put::Present(done) | Put::Refused(done, _) => done,
            };
            for (i, (page, touch)) in pages.iter().enumerate().skip(at).take(done) {
                if kind == Kind::Bytes
                    && let Memory::Frames { tray, first, .. } = memory
                {
                    self.staging.note_moved(self.staging.frame(tray, first + i));
                }
                self.finish(*page, *touch);
            }
            used += match (kind, memory) {
                (Kind::Bytes, Memory::Frames { .. }) => 0,
                _ => done as u32,
            };
            at += done;
            if put != Put::Done {
                // A touched page that is lost is given up by who serves the fault.
                if at != claims.touched || kind != Kind::Failed {
                    self.word(pages[at].0).abandon_load();
                    self.wake(pages[at].0);
                }
                at += 1;
            }
        }
        used
    }

    /// Ends the loading of a page that is there.
    fn finish(&self, page: PageIndex, touch: Touch) {
        self.table.add_live(page);
        if touch == Touch::Load {
            self.table.add_folded(-1);
            self.table.add_copies(1);
        }
        self.word(page).finish_load(self.fold_time());
    }

    /// Gives back what memory was not used.
    fn settle(&self, memory: Memory, zeroes_paid: u32, used: u32) {
        let paid = match memory {
            Memory::New(pages) => pages as u32,
            Memory::Frames { tray, .. } => {
                self.give_tray(tray);
                zeroes_paid
            }
        };
        if paid > used {
            self.left.give(paid - used);
        }
    }

    /// Puts a tray in which nothing waits where it belongs.
    pub(crate) fn give_tray(&self, tray: Tray) {
        match self.staging.backed(&tray) {
            0 => self.staging.give_empty(tray),
            _ => {
                self.staging.give_stock(tray);
                self.left.tell_of_memory();
            }
        }
    }
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Memory::New(len) | Memory::Frames { len, .. } => *len,
        }
    }
}
