//! Memory for a piece of work, all at once and within the limit.
//!
//! A [`Grant`] is a number of bytes that belong to one piece of work: it takes its buffers from it, and accounts
//! in it for memory that comes from elsewhere (the state of a decompressor). Required grants that do not fit
//! wait in the order in which they came; while one waits, nothing is given to those behind it, so a large one
//! is not starved by small ones. What is left of a grant goes back when it is dropped.
//!
//! Before a grant waits or is refused, whoever keeps caches in the budget's memory ([`Reclaim`]) is asked to give some
//! up. A worker must not ask for a second grant while it holds one, nor wait for somebody who does: that is
//! what makes waiting safe.

use super::{Buffer, BufferStats, Demand, Shared, footprint};
use crate::BackingError;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError, Weak};

/// Address space of a budget, as a multiple of its limit: pieces come and go in all sizes, and room that is in pieces
/// is no room for a long buffer. Memory is bounded by the limit all the same: see `Shared::touch`.
const SPREAD: usize = 4;

/// A limit on memory, and a region from which the buffers of its grants are cut. Clones share it.
///
/// The region gives memory back to the kernel, so no queue registers it; queues take [`Buffers`](super::Buffers):
///
/// ```compile_fail,E0308
/// # use pagefold_backing::{Backing, BackingError, Budget, MemoryBacking};
/// let (medium, budget) = (MemoryBacking::new(8192), Budget::new(8192, 0)?);
/// let queue = medium.queue(1, &budget)?;
/// # drop(queue);
/// # Ok::<(), BackingError>(())
/// ```
///
/// A buffer of a grant can be given to a queue all the same, as any buffer from elsewhere:
///
/// ```
/// # use pagefold_backing::{Backing, Buffers, Budget, Demand, MemoryBacking, Operation, Request};
/// let (medium, budget) = (MemoryBacking::new(8192), Budget::new(8192, 0)?);
/// let buffers = Buffers::new(0)?;
/// let mut queue = medium.queue(1, &buffers)?;
/// let buf = budget.grant(Budget::footprint(8192), Demand::Required)?.buffer(8192).ok_or("too little")?;
/// let request = Request { id: 1, operation: Operation::Read, offset: 0, len_bytes: buf.len(), buf };
/// assert!(queue.submit(request).is_ok());
/// assert_eq!(queue.complete(1, &mut Vec::new()), 1);
/// # drop(queue);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Budget(pub(super) Arc<Shared>);

/// A holder of caches, who can give memory back.
pub trait Reclaim: Send + Sync {
    /// Drops buffers of about `len_bytes` together, and says how many bytes that were; 0 if there is nothing to drop.
    fn reclaim(&self, len_bytes: u64) -> u64;
}

/// Why there is no grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Best effort, and there is no room.
    #[error("no room in the budget for {needed_bytes} bytes of read-ahead")]
    NoRoom {
        /// What was asked for.
        needed_bytes: u64,
    },
    /// More than the whole budget.
    #[error("{needed_bytes} bytes are needed at once, and the budget is {limit_bytes}")]
    TooLarge {
        /// What was asked for.
        needed_bytes: u64,
        /// What there is.
        limit_bytes: u64,
    },
}

/// Who waits, and what tells them to look again.
#[derive(Default)]
pub(super) struct Turns {
    waiting: VecDeque<u64>,
    next_ticket: u64,
    /// Counts what may have changed the answer while somebody waits (memory that came back, [`Budget::wake`]), so that
    /// nothing between asking for reclaim and waiting is missed.
    wakes: u64,
    reclaim: Option<Weak<dyn Reclaim>>,
    #[cfg(feature = "testing")]
    refusal: Option<Arc<RefusalTest>>,
}

/// Decides from the running number of a request whether it is refused.
#[cfg(feature = "testing")]
type RefusalTest = dyn Fn(u64, Demand) -> bool + Send + Sync;

impl Turns {
    pub(super) fn anyone(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes note that there is something new to look at; whether there is anyone to be told.
    pub(super) fn note(&mut self) -> bool {
        self.wakes += u64::from(self.anyone());
        self.anyone()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn is_first(&self, ticket: u64) -> bool {
        self.waiting.front() == Some(&ticket)
    }
}

impl Budget {
    /// A budget of `limit_bytes`, rounded up to whole buffers, of which best-effort requests leave `reserve_bytes` alone. It
    /// takes memory as it is touched.
    pub fn new(limit_bytes: usize, reserve_bytes: usize) -> Result<Self, BackingError> {
        Ok(Budget(Arc::new(Shared::new(limit_bytes, reserve_bytes, SPREAD)?)))
    }

    /// What a buffer of `len_bytes` takes of a budget: whole units.
    pub fn footprint(len_bytes: usize) -> u64 {
        footprint(len_bytes)
    }

    /// What is granted now, and what was not.
    pub fn stats(&self) -> BufferStats {
        self.0.books().stats
    }

    /// Asks `reclaim` for memory from now on when a grant does not fit.
    pub fn reclaim_with(&self, reclaim: Weak<dyn Reclaim>) {
        self.0.books().turns.reclaim = Some(reclaim);
    }

    /// Makes the budget refuse grants as `test` says, given the running number of the request: for tests that let
    /// every one fail in turn. A required grant is then refused as if it were too large.
    #[cfg(feature = "testing")]
    pub fn refuse_when(&self, test: impl Fn(u64, Demand) -> bool + Send + Sync + 'static) {
        self.0.books().turns.refusal = Some(Arc::new(test));
    }

    /// `len_bytes` (a sum of [`Budget::footprint`]s and charges) for one piece of work.
    ///
    /// [`Demand::Required`] waits until its turn has come and there is room; it is refused only if it is more than the
    /// whole budget. [`Demand::BestEffort`] never waits, and leaves the reserve alone.
    pub fn grant(&self, len_bytes: u64, demand: Demand) -> Result<Grant, Refused> {
        self.refused_by_test(len_bytes, demand)?;
        match demand {
            Demand::Required => self.wait_for(len_bytes),
            Demand::BestEffort => self.try_for(len_bytes, true),
        }
    }

    /// Accounts for `len_bytes` of memory from elsewhere, such as tables that grow, if the budget has room for it now. As best
    /// effort it leaves the reserve alone, so that whoever waits for a grant gets it all the same, and for that reason it
    /// does not stand back for those who wait.
    pub fn try_charge(&self, len_bytes: u64) -> Option<Charge> {
        self.refused_by_test(len_bytes, Demand::BestEffort).ok()?;
        self.try_for(len_bytes, false).ok().map(Charge)
    }

    /// Takes `len_bytes` out of the budget for memory that is held for good, such as a thread's buffers. Grants that could only
    /// be given with these bytes are refused from then on. Waits its turn as a required grant.
    pub fn set_aside(&self, len_bytes: u64) -> Result<Aside, Refused> {
        let grant = self.grant(len_bytes, Demand::Required)?;
        self.0.books().aside_bytes += len_bytes;
        Ok(Aside(grant))
    }

    /// Tells those who wait that there may be something to reclaim now.
    pub fn wake(&self) {
        let anyone_waits = self.0.books().turns.note();
        if anyone_waits {
            self.0.room.notify_all();
        }
    }

    #[cfg(not(feature = "testing"))]
    fn refused_by_test(&self, _: u64, _: Demand) -> Result<(), Refused> {
        Ok(())
    }

    #[cfg(feature = "testing")]
    fn refused_by_test(&self, needed_bytes: u64, demand: Demand) -> Result<(), Refused> {
        let mut books = self.0.books();
        let Some(test) = books.turns.refusal.clone() else { return Ok(()) };
        let number = books.turns.next_ticket;
        books.turns.next_ticket += 1;
        let limit_bytes = books.stats.limit_bytes;
        drop(books);
        match (test(number, demand), demand) {
            (false, _) => Ok(()),
            (true, Demand::BestEffort) => Err(Refused::NoRoom { needed_bytes }),
            (true, Demand::Required) => Err(Refused::TooLarge { needed_bytes, limit_bytes }),
        }
    }

    fn try_for(&self, needed_bytes: u64, stands_back: bool) -> Result<Grant, Refused> {
        for may_reclaim in [true, false] {
            let mut books = self.0.books();
            let limit_bytes = books.stats.limit_bytes.saturating_sub(books.reserve_bytes);
            let wanted_bytes = books.stats.in_use_bytes.saturating_add(needed_bytes);
            let possible = needed_bytes <= limit_bytes && !(stands_back && books.turns.anyone());
            if possible && wanted_bytes <= limit_bytes {
                return Ok(self.give(&mut books, needed_bytes));
            }
            let reclaim = books.turns.reclaim.clone().filter(|_| possible && may_reclaim);
            let freed = match reclaim.and_then(|r| r.upgrade()) {
                None => 0,
                Some(reclaim) => {
                    drop(books);
                    reclaim.reclaim(wanted_bytes - limit_bytes)
                }
            };
            if freed == 0 {
                break;
            }
        }
        self.0.books().stats.refused += 1;
        Err(Refused::NoRoom { needed_bytes })
    }

    fn wait_for(&self, needed_bytes: u64) -> Result<Grant, Refused> {
        let mut books = self.0.books();
        let limit_bytes = books.stats.limit_bytes;
        // What is set aside does not come back: to wait for it would be to wait for ever, and all others with it.
        if needed_bytes > limit_bytes.saturating_sub(books.aside_bytes) {
            return Err(Refused::TooLarge {
                needed_bytes,
                limit_bytes: limit_bytes.saturating_sub(books.aside_bytes),
            });
        }
        if !books.turns.anyone() && books.stats.in_use_bytes + needed_bytes <= limit_bytes {
            return Ok(self.give(&mut books, needed_bytes));
        }
        let ticket = books.turns.next_ticket;
        books.turns.next_ticket += 1;
        books.turns.waiting.push_back(ticket);
        let mut waited = false;
        loop {
            let wanted_bytes = books.stats.in_use_bytes + needed_bytes;
            if books.turns.is_first(ticket) {
                if wanted_bytes <= limit_bytes {
                    books.turns.waiting.pop_front();
                    books.stats.waits += u64::from(waited);
                    let grant = self.give(&mut books, needed_bytes);
                    let next_waits = books.turns.anyone();
                    drop(books);
                    if next_waits {
                        self.0.room.notify_all();
                    }
                    return Ok(grant);
                }
                let (wakes, reclaim) = (books.turns.wakes, books.turns.reclaim.clone());
                if let Some(reclaim) = reclaim.and_then(|r| r.upgrade()) {
                    drop(books);
                    let freed = reclaim.reclaim(wanted_bytes - limit_bytes);
                    books = self.0.books();
                    let room = books.stats.in_use_bytes + needed_bytes <= limit_bytes;
                    if freed > 0 || room || books.turns.wakes != wakes {
                        continue;
                    }
                }
            }
            waited = true;
            books = self.0.room.wait(books).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give(&self, books: &mut super::Books, len_bytes: u64) -> Grant {
        books.count(len_bytes);
        Grant { shared: self.0.clone(), left_bytes: len_bytes }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.stats()).finish()
    }
}

/// Bytes of a budget for one piece of work.
pub struct Grant {
    shared: Arc<Shared>,
    left_bytes: u64,
}

impl Grant {
    /// What has not been taken yet, bytes.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// A buffer of `len_bytes`, paid from this grant; `None` if it has too little left. Its contents are undefined, as
    /// those of [`Buffers::get`](super::Buffers::get).
    pub fn buffer(&mut self, len_bytes: usize) -> Option<Buffer> {
        self.left_bytes = self.left_bytes.checked_sub(footprint(len_bytes))?;
        let taken = self.shared.take(&mut self.shared.books(), len_bytes);
        // No run of free addresses is long enough, although the room is there: rare, and bounded all the same.
        Some(taken.unwrap_or_else(|| Buffer::on_heap(len_bytes, Some(self.shared.clone()))))
    }

    /// Accounts for `len_bytes` of memory from elsewhere as long as the charge lives; `None` if too little is left.
    pub fn charge(&mut self, len_bytes: u64) -> Option<Charge> {
        self.left_bytes = self.left_bytes.checked_sub(len_bytes)?;
        Some(Charge(Grant { shared: self.shared.clone(), left_bytes: len_bytes }))
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.left_bytes > 0 {
            self.shared.release(self.left_bytes);
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({} bytes left)", self.left_bytes)
    }
}

/// Bytes that were set aside; part of the budget again when dropped.
#[derive(Debug)]
pub struct Aside(Grant);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.shared.books().aside_bytes -= self.0.left_bytes;
    }
}

/// Bytes of a budget that stand for memory from elsewhere; given back when dropped.
#[derive(Debug)]
pub struct Charge(#[expect(dead_code, reason = "held for its drop")] Grant);
