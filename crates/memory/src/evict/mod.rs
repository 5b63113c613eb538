//! Moving pages out, in the background.
//!
//! A few threads do it whenever memory is short: a clock's hand goes round the range and takes pages that are
//! cold (`sweep`); they are moved out to a tray of the staging area (`out`), where they wait; what is not touched
//! there in time is folded (`fold`), and the memory of its frame is used again or given back (`release`). So a
//! page gets its last chance in the staging area: a touch there costs a move, not a decompression, and is what
//! tells hot pages from cold ones where the kernel does not tell what was read.
//!
//! The threads meet at the hand's number, the queue of trays, and the words of pages. None of them touches the
//! range itself while it holds anything, so that a fault never waits for one that waits for a fault.

mod fold;
mod out;
mod release;
mod sweep;

use crate::page::Effort;
use crate::pager::Pager;
use crate::staging::{TRAY_FRAMES, Tray};
use out::Mover;
use pagefold_page::PageIndex;
use pagefold_sys::SysError;
use pagefold_sys::cpu::Affinity;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use sweep::Sweep;

/// How long to wait before trying again when nothing can be moved out.
const STUCK_PAUSE: Duration = Duration::from_millis(5);

/// The clock's hand, shared by the threads: stretches looked at so far.
pub(crate) struct Hand(AtomicU64);

impl Hand {
    pub(crate) fn new() -> Self {
        Hand(AtomicU64::new(0))
    }

    fn advance(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
}

/// One thread that moves pages out.
pub(crate) struct Evictor {
    pager: Arc<Pager>,
    sweep: Sweep,
    mover: Mover,
    place: Place,
}

impl Evictor {
    /// Its working memory; the thread is started by the region.
    pub(crate) fn new(pager: Arc<Pager>, hand: Arc<Hand>) -> Result<Self, SysError> {
        let sweep = Sweep::new(hand, pager.tells_writes)?;
        Ok(Evictor { pager, sweep, mover: Mover::new(), place: Place::default() })
    }

    /// Moves pages out whenever memory is short, until the region goes.
    pub(crate) fn run(mut self) {
        let pager = self.pager.clone();
        self.place.affinity = Some(Affinity::current());
        let is_short = || pager.left.is_short(pager.ready_frames());
        while !pager.left.is_closing() {
            if !is_short() {
                pager.left.await_work(is_short);
                continue;
            }
            pager.count_copies();
            let progress = self.step();
            pager.left.set_stuck(!progress && pager.left.left() <= 0);
            if !progress {
                std::thread::sleep(STUCK_PAUSE);
            }
        }
    }

    /// Moves some pages out and folds some. False if there was nothing to do either for.
    fn step(&mut self) -> bool {
        let pager = self.pager.clone();
        let mut progress = false;
        if let Some(tray) = pager.take_tray_to_fill() {
            progress |= self.fill(tray) > 0;
        }
        let is_behind = pager.staging.queued() > pager.trays_waiting();
        if (is_behind || !progress)
            && let Some(tray) = pager.staging.dequeue()
        {
            progress |= self.fold_tray(tray);
        }
        progress
    }

    /// Fills a tray with cold pages and puts it in the queue. Returns how many.
    fn fill(&mut self, tray: Tray) -> usize {
        let mut pages = [PageIndex(0); TRAY_FRAMES];
        let wanted = self.pager.tray_pages();
        let mut found = self.sweep.take(&self.pager, &mut pages[..wanted], Effort::Cold);
        if found == 0 {
            found = self.sweep.take(&self.pager, &mut pages[..wanted], Effort::Any);
        }
        if self.pager.moves() {
            self.place.choose(self.pager.left.caller(), Mover::is_scattered(&pages[..found]));
        }
        let moved = self.mover.take_out(&self.pager, &tray, &pages[..found]);
        match moved {
            0 => self.pager.give_tray(tray),
            _ => self.pager.staging.enqueue(tray),
        }
        moved
    }
}

/// Where a thread that moves pages out runs.
///
/// Each move interrupts every other CPU that runs the program, so that it forgets where the page was; for pages
/// that lie behind each other that is once for many, but for scattered ones once for each, and costs more than all
/// the rest of folding. If one CPU makes all the faults, it is better to take turns with it there.
#[derive(Default)]
struct Place {
    affinity: Option<Affinity>,
    caller: usize,
    /// Trays of scattered pages in a row, filled for faults of one CPU.
    alike: u32,
}

/// Trays after which a thread changes its place.
const ALIKE_MIN: u32 = 4;

impl Place {
    fn choose(&mut self, caller: usize, is_scattered: bool) {
        let is_alike = is_scattered && caller == self.caller;
        self.alike = if is_alike { (self.alike + 1).min(ALIKE_MIN) } else { 0 };
        self.caller = caller;
        if let Some(affinity) = &mut self.affinity {
            affinity.bind((self.alike == ALIKE_MIN).then_some(caller));
        }
    }
}

impl Pager {
    /// Pages that a tray is filled with: fewer where the limit is small.
    fn tray_pages(&self) -> usize {
        (self.left.limit() / 32).clamp(1, TRAY_FRAMES as u64) as usize
    }

    /// Trays that wait to be touched again: an eighth of the limit.
    fn trays_waiting(&self) -> usize {
        let pages = self.left.limit() / 8;
        (pages as usize / self.tray_pages()).min(self.staging.tray_count() / 2)
    }
}
