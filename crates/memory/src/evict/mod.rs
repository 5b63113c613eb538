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
use crate::staging::TRAY_FRAMES;
use out::Mover;
use pagefold_page::PageIndex;
use pagefold_sys::SysError;
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
}

impl Evictor {
    /// Its working memory; the thread is started by the region.
    pub(crate) fn new(pager: Arc<Pager>, hand: Arc<Hand>) -> Result<Self, SysError> {
        let sweep = Sweep::new(hand, pager.tells_writes)?;
        Ok(Evictor { pager, sweep, mover: Mover::new() })
    }

    /// Moves pages out whenever memory is short, until the region goes.
    pub(crate) fn run(mut self) {
        let pager = self.pager.clone();
        let is_short = || pager.left.is_short(pager.ready_frames());
        while !pager.left.is_closing() {
            if !is_short() {
                self.sweep.let_go(&pager);
                pager.left.await_work(is_short);
                continue;
            }
            pager.count_copies();
            let progress = self.step();
            pager.left.set_stuck(!progress && pager.left.is_empty());
            if !progress {
                std::thread::sleep(STUCK_PAUSE);
            }
        }
    }

    /// Moves some pages out and folds some. False if there was nothing to do either for.
    fn step(&mut self) -> bool {
        let mut progress = self.pager.staging.has_trays() && self.fill() > 0;
        let is_behind = self.pager.staging.queued() > self.pager.trays_waiting();
        if (is_behind || !progress)
            && let Some(tray) = self.pager.staging.dequeue()
        {
            progress |= self.fold_tray(tray);
        }
        progress
    }

    /// Fills a tray with cold pages and puts it in the queue. Returns how many.
    fn fill(&mut self) -> usize {
        let pager = &*self.pager;
        let mut pages = [PageIndex(0); TRAY_FRAMES];
        let wanted = pager.tray_pages();
        let mut found = self.sweep.take(pager, &mut pages[..wanted], Effort::Cold);
        if found == 0 {
            found = self.sweep.take(pager, &mut pages[..wanted], Effort::Any);
        }
        let how = Mover::choose(pager, &pages[..found]);
        let Some(tray) = pager.take_tray(how) else {
            pages[..found].iter().for_each(|page| pager.word(*page).put_back());
            return 0;
        };
        let moved = self.mover.take_out(pager, how, &tray, &pages[..found]);
        match pager.staging.filled(&tray) {
            0 => pager.give_tray(tray),
            _ => pager.staging.enqueue(tray),
        }
        if moved > 0 && pager.left.is_waited_for() {
            pager.left.tell();
        }
        moved
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
