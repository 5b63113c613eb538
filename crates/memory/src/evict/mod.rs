//! Eviction: moving cold pages out of the range, in the background.
//!
//! | module | what is in it |
//! |---|---|
//! | `hand` | the position of the clock hand |
//! | `sweep` | finding pages: drop-behind windows of sequential streams, else the clock hand |
//! | `page_out` | moving pages from the range to frames of the staging area |
//! | `fold` | writing staged pages to the store |
//! | `release` | what happens to the memory of a batch afterwards |
//!
//! A few `pagefold-fold` threads run [`Evictor::run`]: they sleep until the budget is short, and then repeat *page
//! out, fold* until the high watermark is reached. Staged pages wait in a queue of batches, so that a page that is
//! used again returns at small cost; the oldest batch is folded.
//!
//! The kernel does not report which pages a program reads. A page is hot if it is faulted back soon after eviction:
//! from the staging area, or from the store before as many pages were folded as may be resident. A hot page gets
//! chances, and the hand passes it over as often.
//!
//! The threads share the position of the clock hand, the queue of batches, and the page words. The locks, in order: a
//! chunk of the table (tried only), page words, the store's locks. While it holds one, an evictor accesses the range
//! only by system calls, which return an error instead of faulting, so that a fault never waits for a thread that waits
//! for a fault.

mod fold;
mod hand;
mod page_out;
mod release;
mod sweep;

use crate::page::Candidates;
use crate::pager::Pager;
use crate::staging::{BATCH_FRAMES, FrameBatch};
use page_out::{Method, Mover, PAGE_OUT_MAX, TakenOut};
use pagefold_page::PageIndex;
use pagefold_sys::SysError;
use std::sync::Arc;
use std::time::Duration;
use sweep::Sweep;

pub(crate) use hand::ClockHand;

/// Pause before the next attempt when nothing can be evicted.
const STUCK_PAUSE: Duration = Duration::from_millis(5);
/// After so many attempts in a row without any eviction, pages may exceed the limit. Attempts are counted, not time: on
/// a busy machine time passes in which this thread does not run, and that says nothing about pages. For the same reason
/// only attempts count that began when no memory was left: there may be no page to evict before, and many afterwards.
const STUCK_ATTEMPTS: u32 = 5;
/// Pause while other threads are evicting or bringing pages in.
const SHORT_PAUSE: Duration = Duration::from_micros(50);

/// Attempts at other pages, without a pause, after pages that the kernel does not move: a part of the range that the program
/// has locked, or pages that devices write to.
const UNMOVABLE_ATTEMPTS: usize = 16;

/// Least number of batches that wait in the queue.
const BATCHES_WAITING_MIN: usize = 4;

/// The result of one step of an evictor.
enum StepResult {
    /// Pages were moved to the staging area.
    Staged,
    /// Pages were folded, or memory was released in another way.
    Folded,
    /// The store refused all pages of a batch.
    Refused,
    /// Sequential streams are active and will leave pages behind soon.
    AwaitStreams,
    /// No page could be moved out or folded.
    Nothing,
}

/// One evicting thread.
pub(crate) struct Evictor {
    pager: Arc<Pager>,
    hand: Arc<ClockHand>,
    sweep: Sweep,
    mover: Mover,
    /// Attempts in a row that evicted nothing, though no memory was left when they began.
    failed_attempts: u32,
}

/// The reason why a thread pauses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Other threads are evicting or bringing pages in, and will make room.
    Busy,
    /// No page can be moved out: all are pinned, or other threads work on them.
    NoPage,
    /// The store refuses pages.
    Refused,
}

impl Evictor {
    /// Allocates the working memory. The region starts the thread.
    pub(crate) fn new(pager: Arc<Pager>, hand: Arc<ClockHand>) -> Result<Self, SysError> {
        let sweep = Sweep::new(hand.clone());
        let mover = Mover::new(&pager)?;
        Ok(Evictor { pager, hand, sweep, mover, failed_attempts: 0 })
    }

    /// Evicts whenever the budget is short, until the region is dropped.
    pub(crate) fn run(mut self) {
        let pager = self.pager.clone();
        let needs_eviction = || pager.budget.needs_eviction(pager.ready_frames());
        while !pager.budget.is_closing() {
            if !needs_eviction() {
                // Failures before say nothing about the next attempt.
                self.failed_attempts = 0;
                pager.budget.set_store_refuses(false);
                self.sweep.unlock_chunk(&pager);
                pager.budget.wait_for_work(needs_eviction);
                continue;
            }
            // A limit that was just lowered is not to be raised again by pages that are still beyond it.
            if !pager.budget.is_over_limit() && pager.grow_limit() {
                continue;
            }
            pager.count_copies();
            let was_exhausted = pager.budget.is_exhausted();
            match self.step() {
                StepResult::Staged => {}
                StepResult::Folded => {
                    self.failed_attempts = 0;
                    pager.budget.set_store_refuses(false);
                }
                StepResult::Refused => self.pause(Pause::Refused, was_exhausted),
                // Readers do not wake the evictor: that would add a system call to each fault. So poll.
                StepResult::AwaitStreams => {
                    self.sweep.unlock_chunk(&pager);
                    std::thread::sleep(SHORT_PAUSE);
                }
                StepResult::Nothing => {
                    self.sweep.unlock_chunk(&pager);
                    let others_work = self.hand.is_busy() || pager.has_page_ins();
                    self.pause(if others_work { Pause::Busy } else { Pause::NoPage }, was_exhausted);
                }
            }
            pager.budget.wake_waiters_if_available(pager.ready_frames());
        }
    }

    /// Sleeps for a moment after a failed attempt. After several of them, allows pages to exceed the limit.
    /// `was_exhausted` says whether no memory was left when the attempt began.
    fn pause(&mut self, reason: Pause, was_exhausted: bool) {
        let budget = &self.pager.budget;
        self.failed_attempts = match reason != Pause::Busy && was_exhausted {
            true => self.failed_attempts.saturating_add(1),
            false => 0,
        };
        let is_stuck = self.failed_attempts >= STUCK_ATTEMPTS && budget.is_exhausted();
        match reason {
            Pause::NoPage if is_stuck => budget.overcommit_waiters(),
            _ => budget.set_store_refuses(is_stuck),
        }
        std::thread::sleep(if reason == Pause::Busy { SHORT_PAUSE } else { STUCK_PAUSE });
    }

    /// Moves some pages out and folds some. Above the limit, memory of free frames is released first.
    fn step(&mut self) -> StepResult {
        // Pages of unregistered chunks cannot be moved out, and were touched before most others.
        if self.pager.register_next_chunk() {
            return StepResult::Folded;
        }
        if self.pager.budget.is_over_limit() && self.pager.trim_free_frames() {
            return StepResult::Folded;
        }
        let mut step = if self.pager.staging.has_free_batch() { self.fill() } else { StepResult::Nothing };
        for _ in 0..PAGE_OUT_MAX / BATCH_FRAMES {
            let is_queue_long = self.pager.staging.queued() > self.pager.batches_waiting();
            if !is_queue_long && matches!(step, StepResult::Staged | StepResult::Folded | StepResult::Refused)
            {
                break;
            }
            let Some(batch) = self.pager.staging.dequeue() else { break };
            let hand = self.hand.clone();
            let _busy = hand.busy();
            step = if self.fold_batch(batch) { StepResult::Folded } else { StepResult::Refused };
        }
        step
    }

    /// Fills batches with pages and enqueues them: pages that streams have passed, else cold pages.
    fn fill(&mut self) -> StepResult {
        // Copying needs a chunk that no other thread sweeps, so pages of streams are only moved.
        if self.pager.can_move()
            && let Some(step) = self.page_out_behind_streams()
        {
            return step;
        }
        let mut attempts = (0..UNMOVABLE_ATTEMPTS).map(|attempt| attempt == 0);
        attempts.find_map(|is_first| self.page_out_pages(is_first)).unwrap_or(StepResult::Nothing)
    }

    /// Fills batches with pages, cold ones if there are any and `prefers_cold` is set: otherwise those that could not leave
    /// would be found again. `None` if none of the pages that were found could leave.
    fn page_out_pages(&mut self, prefers_cold: bool) -> Option<StepResult> {
        let pager = &*self.pager;
        let mut pages = [PageIndex(0); PAGE_OUT_MAX];
        let wanted = pager.batch_pages();
        let mut found = 0;
        if prefers_cold {
            found = self.sweep.take(pager, &mut pages[..wanted], Candidates::Cold);
        }
        if found == 0 {
            found = self.sweep.take(pager, &mut pages[..wanted], Candidates::Any);
        }
        if found == 0 {
            // Faults use the memory of free frames only if frames can be moved, and a fault whose page waits in a frame
            // needs new memory all the same.
            let is_unused = !pager.can_move() || pager.budget.has_unserved_waiters();
            let has_shrunk = is_unused && pager.trim_free_frames();
            return Some(if has_shrunk { StepResult::Folded } else { StepResult::Nothing });
        }
        let _busy = self.hand.busy();
        let method = Mover::choose(pager, &pages[..found]);
        // The more pages are copied at once, the fewer interruptions.
        if method == Method::Copy && found == BATCH_FRAMES && !pager.budget.has_waiters() {
            found += self.sweep.take_more(pager, &mut pages[found..], Candidates::Cold);
        }
        // Unwritten pages need no frame.
        while method == Method::Move && found >= BATCH_FRAMES && !pager.budget.has_waiters() {
            let unwritten = pages[..found].iter().filter(|page| pager.word(**page).is_unwritten()).count();
            let end = (BATCH_FRAMES + unwritten).min(PAGE_OUT_MAX);
            match self.sweep.take_more(pager, &mut pages[found..end], Candidates::Cold) {
                0 => break,
                more => found += more,
            }
        }
        // SAFETY: the sweep has taken the pages, sorted and of the one chunk that this thread has locked.
        let step = step_result(unsafe { self.mover.page_out(pager, method, &mut pages[..found]) });
        (!matches!(step, StepResult::Nothing)).then_some(step)
    }

    /// Fills a batch with pages that streams have passed, or says that it is worth waiting for some. `None` if
    /// neither.
    fn page_out_behind_streams(&mut self) -> Option<StepResult> {
        let pager = &*self.pager;
        let mut pages = [PageIndex(0); BATCH_FRAMES];
        let found = self.sweep.take_drop_behind(pager, &mut pages[..pager.batch_pages()]);
        if found > 0 {
            let _busy = self.hand.busy();
            // SAFETY: the sweep has taken the pages, and returned them sorted; moving needs no chunk.
            return Some(step_result(unsafe {
                self.mover.page_out(pager, Method::Move, &mut pages[..found])
            }));
        }
        let can_wait = self.sweep.has_streams(pager) && !pager.budget.is_urgent(pager.ready_frames());
        can_wait.then_some(StepResult::AwaitStreams)
    }
}

fn step_result(taken: TakenOut) -> StepResult {
    match taken {
        TakenOut { staged: 0, clean: 0, missing: 0 } => StepResult::Nothing,
        TakenOut { clean: 0, missing: 0, .. } => StepResult::Staged,
        _ => StepResult::Folded,
    }
}

impl Pager {
    /// Returns the number of pages to fill a batch with: fewer if the limit is small.
    fn batch_pages(&self) -> usize {
        (self.budget.limit() / 32).clamp(1, BATCH_FRAMES as u64) as usize
    }

    /// Enqueues a batch that was to be filled, or recycles it if no page waits in it.
    fn enqueue_or_recycle(&self, batch: FrameBatch) {
        match self.staging.filled(&batch) {
            0 => self.recycle_batch(batch),
            _ => self.staging.enqueue(batch),
        }
    }

    /// Returns how many batches wait in the queue before the oldest is folded. The number is small: frames with
    /// waiting pages are charged, so fewer pages can be resident, and an access to a staged page costs a fault all the
    /// same.
    fn batches_waiting(&self) -> usize {
        let pages = (self.budget.limit() / 64) as usize;
        (pages / self.batch_pages()).max(BATCHES_WAITING_MIN).min(self.staging.batch_count() / 2)
    }
}

#[cfg(test)]
mod tests;
