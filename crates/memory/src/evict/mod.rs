//! Moving pages out, in the background.
//!
//! A few threads do it whenever memory is short: they take what a sequential read has left behind it, or else a clock's
//! hand goes round the range and takes pages that are cold (`sweep`); they are moved out to a tray of the staging area
//! (`out`), where they wait; what is not touched there in time is folded (`fold`), and the memory of its frame is used again
//! or given back (`release`).
//!
//! The kernel does not tell a program which of its pages were read. So hot pages are told from cold ones by being
//! missed: a page that is touched in the staging area, or comes back from the store before as many pages were folded
//! as may be resident, gets chances, and is passed over for as many rounds of the hand. Where the kernel tells which pages
//! were written ([`Eviction::Move`](crate::Eviction::Move)), that counts too.
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
use out::{BATCH_PAGES, How, Mover, TakenOut};
use pagefold_page::PageIndex;
use pagefold_sys::SysError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use sweep::Sweep;

/// How long to wait before trying again when nothing can be moved out.
const STUCK_PAUSE: Duration = Duration::from_millis(5);
/// How long nothing can be moved out before threads go beyond the limit.
const STUCK_AFTER: Duration = Duration::from_millis(20);
/// How long to wait for what other threads have in hand.
const SHORT_PAUSE: Duration = Duration::from_micros(50);

/// Least trays that wait to be touched again.
const TRAYS_WAITING_MIN: usize = 4;

/// The clock's hand, shared by the threads.
pub(crate) struct Hand {
    /// Stretches looked at so far.
    at: AtomicU64,
    /// Trays and stretches that threads have in hand at this moment.
    busy: AtomicU32,
}

/// A thread moves pages out or folds them, until this is dropped.
struct Busy<'a>(&'a Hand);

impl Hand {
    pub(crate) fn new() -> Self {
        Hand { at: AtomicU64::new(0), busy: AtomicU32::new(0) }
    }

    fn advance(&self) -> u64 {
        self.at.fetch_add(1, Relaxed)
    }

    fn busy(&self) -> Busy<'_> {
        self.begin();
        Busy(self)
    }

    /// A thread is moving pages out, or keeps others from it.
    fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    fn end(&self) {
        self.busy.fetch_sub(1, Relaxed);
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// What a thread got done.
enum Step {
    /// Pages were moved out, and wait.
    Staged,
    /// Pages were folded, or memory was given back in another way.
    Folded,
    /// The store refused all that it was given.
    Refused,
    /// Nothing yet: streams go on, and leave pages behind.
    Awaited,
    /// There was nothing to do either for.
    Nothing,
}

/// One thread that moves pages out.
pub(crate) struct Evictor {
    pager: Arc<Pager>,
    hand: Arc<Hand>,
    sweep: Sweep,
    mover: Mover,
    /// Since when nothing could be moved out, whenever it was tried.
    stuck_since: Option<Instant>,
}

impl Evictor {
    /// Its working memory; the thread is started by the region.
    pub(crate) fn new(pager: Arc<Pager>, hand: Arc<Hand>) -> Result<Self, SysError> {
        let sweep = Sweep::new(hand.clone(), pager.tells_writes)?;
        let mover = Mover::new(&pager)?;
        Ok(Evictor { pager, hand, sweep, mover, stuck_since: None })
    }

    /// Moves pages out whenever memory is short, until the region goes.
    pub(crate) fn run(mut self) {
        let pager = self.pager.clone();
        let is_short = || pager.left.is_short(pager.ready_frames());
        while !pager.left.is_closing() {
            if !is_short() {
                // What could not be moved out before says nothing of the next time.
                self.stuck_since = None;
                pager.left.set_stuck(false);
                self.sweep.let_go(&pager);
                pager.left.await_work(is_short);
                continue;
            }
            pager.count_copies();
            match self.step() {
                Step::Staged => {}
                Step::Folded => {
                    self.stuck_since = None;
                    pager.left.set_stuck(false);
                }
                Step::Refused => self.pause(true),
                // Not told by those who read: each of their faults would be a system call longer.
                Step::Awaited => {
                    self.sweep.let_go(&pager);
                    std::thread::sleep(SHORT_PAUSE);
                }
                // What other threads have in hand will make room.
                Step::Nothing => {
                    self.sweep.let_go(&pager);
                    self.pause(!self.hand.is_busy() && !pager.is_loading());
                }
            }
            pager.left.tell_if_any(pager.ready_frames());
        }
    }

    /// Lets some time pass. If nothing can be moved out for a while, threads do not wait for it.
    fn pause(&mut self, is_stuck: bool) {
        let left = &self.pager.left;
        let since = self.stuck_since.filter(|_| is_stuck);
        left.set_stuck(since.is_some_and(|since| since.elapsed() >= STUCK_AFTER) && left.is_empty());
        self.stuck_since = if is_stuck { since.or_else(|| Some(Instant::now())) } else { None };
        std::thread::sleep(if is_stuck { STUCK_PAUSE } else { SHORT_PAUSE });
    }

    /// Moves some pages out and folds some. Above the limit, memory that lies ready goes first.
    fn step(&mut self) -> Step {
        if self.pager.left.is_exceeded() && self.pager.shrink_stock() {
            return Step::Folded;
        }
        let mut step = if self.pager.staging.has_trays() { self.fill() } else { Step::Nothing };
        for _ in 0..BATCH_PAGES / TRAY_FRAMES {
            let is_behind = self.pager.staging.queued() > self.pager.trays_waiting();
            if !is_behind && matches!(step, Step::Staged | Step::Folded | Step::Refused) {
                break;
            }
            let Some(tray) = self.pager.staging.dequeue() else { break };
            let hand = self.hand.clone();
            let _busy = hand.busy();
            step = if self.fold_tray(tray) { Step::Folded } else { Step::Refused };
        }
        step
    }

    /// Fills trays and puts them in the queue: with what streams have left behind, or else with cold pages.
    fn fill(&mut self) -> Step {
        // Copying takes a stretch that nobody else sweeps.
        if self.pager.moves()
            && let Some(step) = self.fill_from_behind()
        {
            return step;
        }
        let pager = &*self.pager;
        let mut pages = [PageIndex(0); BATCH_PAGES];
        let wanted = pager.tray_pages();
        let mut found = self.sweep.take(pager, &mut pages[..wanted], Effort::Cold);
        if found == 0 {
            found = self.sweep.take(pager, &mut pages[..wanted], Effort::Any);
        }
        if found == 0 {
            // Faults use the stock only where its frames can be moved: else this memory helps nobody who waits.
            let gave_stock = !pager.moves() && pager.shrink_stock();
            return if gave_stock { Step::Folded } else { Step::Nothing };
        }
        let _busy = self.hand.busy();
        let how = Mover::choose(pager, &pages[..found]);
        // The more pages are copied at once, the fewer interruptions.
        if how == How::Copy && found == TRAY_FRAMES && !pager.left.is_waited_for() {
            found += self.sweep.take_more(pager, &mut pages[found..], Effort::Cold);
        }
        // SAFETY: the sweep has taken the pages, which it gives in order, of the one stretch that this thread holds.
        step_of(unsafe { self.mover.take_out(pager, how, &mut pages[..found]) })
    }

    /// Fills a tray with what streams have left behind, or has them waited for. `None` if that is of no use now.
    fn fill_from_behind(&mut self) -> Option<Step> {
        let pager = &*self.pager;
        let mut pages = [PageIndex(0); TRAY_FRAMES];
        let found = self.sweep.take_behind(pager, &mut pages[..pager.tray_pages()]);
        if found > 0 {
            let _busy = self.hand.busy();
            // SAFETY: the sweep has taken the pages, and gives them in order; moving takes no stretch.
            return Some(step_of(unsafe { self.mover.take_out(pager, How::Move, &mut pages[..found]) }));
        }
        let can_wait = self.sweep.has_streams(pager) && !pager.left.is_pressed(pager.ready_frames());
        can_wait.then_some(Step::Awaited)
    }
}

fn step_of(taken: TakenOut) -> Step {
    match taken {
        TakenOut { staged: 0, clean: 0, lost: 0 } => Step::Nothing,
        TakenOut { clean: 0, lost: 0, .. } => Step::Staged,
        _ => Step::Folded,
    }
}

impl Pager {
    /// Pages that a tray is filled with: fewer where the limit is small.
    fn tray_pages(&self) -> usize {
        (self.left.limit() / 32).clamp(1, TRAY_FRAMES as u64) as usize
    }

    /// A tray that was to be filled goes to the queue, if there is a page in it.
    fn pass_on(&self, tray: Tray) {
        match self.staging.filled(&tray) {
            0 => self.give_tray(tray),
            _ => self.staging.enqueue(tray),
        }
    }

    /// Trays that wait to be touched again: few, because what a page may wait there others cannot be resident, and a touch
    /// there is a fault all the same. So one is seldom worth it.
    fn trays_waiting(&self) -> usize {
        let pages = (self.left.limit() / 64) as usize;
        (pages / self.tray_pages()).max(TRAYS_WAITING_MIN).min(self.staging.tray_count() / 2)
    }
}
