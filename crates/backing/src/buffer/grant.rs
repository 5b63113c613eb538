//! A memory budget, and grants from it: all the memory that one piece of work needs, at once.
//!
//! A [`Grant`] is a number of bytes for one piece of work. The work takes its buffers from the grant, and charges to it
//! memory that it allocates elsewhere (the state of a decompressor). Dropping the grant returns the unused bytes.
//!
//! Required grants that do not fit wait in a FIFO queue. While one waits, later grants wait too, so that small grants
//! do not starve a large one. Best-effort grants never wait: they are refused while a required grant waits, or if
//! they do not fit.
//!
//! Before a grant waits or is refused, the budget asks the owner of its caches ([`Reclaim`]) to drop buffers.
//!
//! Locking: one mutex per budget guards the counters and the queue; it is not held while `Reclaim` runs. A thread that
//! holds a grant must not request a second one, and must not wait for a thread that holds one: the holder of a grant
//! never blocks on the budget, so grants cannot deadlock.

use super::{AllocatorState, Buffer, BufferStats, Demand, Shared, footprint};
use crate::BackingError;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

/// Address space of a budget, as a multiple of its limit: buffers of all sizes fragment the region, and a long buffer
/// needs a contiguous run. The limit bounds the memory all the same: see `Shared::mark_resident`.
const ADDRESS_SPACE_FACTOR: usize = 4;

/// A limit on memory, and a region from which the buffers of its grants are allocated. Clones share both.
///
/// The region returns memory to the kernel, so no queue registers it; queues take [`Buffers`](super::Buffers):
///
/// ```compile_fail,E0308
/// # use pagefold_backing::{Backing, BackingError, Budget, MemoryBacking};
/// let (medium, budget) = (MemoryBacking::new(8192), Budget::new(8192, 0)?);
/// let queue = medium.queue(1, &budget)?;
/// # drop(queue);
/// # Ok::<(), BackingError>(())
/// ```
///
/// A request of a queue may use a buffer of a grant all the same, as any buffer from elsewhere:
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

/// The owner of caches in a budget's memory, which can drop cached buffers.
pub trait Reclaim: Send + Sync {
    /// Drops buffers of about `len_bytes` in total. Returns how many bytes it freed; 0 if there is nothing to drop.
    fn reclaim(&self, len_bytes: u64) -> u64;
}

/// Why a grant was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// A best-effort grant does not fit now.
    #[error("no room in the budget for {needed_bytes} bytes now")]
    NoRoom {
        /// The requested bytes.
        needed_bytes: u64,
    },
    /// The grant exceeds the budget without its reservations, so that waiting would not help.
    #[error("{needed_bytes} bytes are needed at once, and the budget is {limit_bytes}")]
    TooLarge {
        /// The requested bytes.
        needed_bytes: u64,
        /// The budget without its reservations, bytes.
        limit_bytes: u64,
    },
}

/// The FIFO queue of required grants that wait. The budget's mutex guards it.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// Tickets of the waiting grants; the first one is next.
    waiting: VecDeque<u64>,
    next_ticket: u64,
    /// Event counter: releases and [`Budget::wake`] calls while a grant waits. The waiter compares it before it sleeps,
    /// so that it misses no event that happened while `Reclaim` ran without the mutex.
    wakes: u64,
    reclaim: Option<Weak<dyn Reclaim>>,
    #[cfg(feature = "testing")]
    refusal: Option<Arc<RefusalTest>>,
}

/// Decides whether to refuse a request, from the request's sequence number and demand.
#[cfg(feature = "testing")]
type RefusalTest = dyn Fn(u64, Demand) -> bool + Send + Sync;

impl WaitQueue {
    /// Whether a grant waits.
    pub(super) fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts an event that may let a waiting grant go on. Returns whether a grant waits, so that the caller must
    /// notify.
    pub(super) fn record_wake(&mut self) -> bool {
        self.wakes += u64::from(self.has_waiters());
        self.has_waiters()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    fn is_first(&self, ticket: u64) -> bool {
        self.waiting.front() == Some(&ticket)
    }
}

/// Whether a required grant is a reservation. Its bytes are counted as reserved in the lock section that grants them:
/// a grant that was checked in between would wait forever.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    /// Of one piece of work.
    Temporary,
    /// Of a [`BudgetReservation`].
    Permanent,
}

impl AllocatorState {
    /// Fails if a grant exceeds the budget without its reservations. Reserved bytes do not come back: the grant would
    /// wait forever, and block the queue behind it.
    fn check_reservations(&self, needed_bytes: u64) -> Result<(), GrantError> {
        let limit_bytes = self.stats.limit_bytes.saturating_sub(self.reserved_bytes);
        if needed_bytes <= limit_bytes {
            return Ok(());
        }
        Err(GrantError::TooLarge { needed_bytes, limit_bytes })
    }
}

impl Budget {
    /// Makes a budget of `limit_bytes`, rounded up to whole units, of which the last `required_only_bytes` are kept for
    /// required grants. The region takes memory only as it is used.
    pub fn new(limit_bytes: usize, required_only_bytes: usize) -> Result<Self, BackingError> {
        Ok(Budget(Arc::new(Shared::new(limit_bytes, required_only_bytes, ADDRESS_SPACE_FACTOR)?)))
    }

    /// The bytes that a buffer of `len_bytes` takes from a budget: whole units.
    pub fn footprint(len_bytes: usize) -> u64 {
        footprint(len_bytes)
    }

    /// Bytes granted now, and counts of refusals and waits.
    pub fn stats(&self) -> BufferStats {
        self.0.state().stats
    }

    /// Sets the owner of caches that the budget calls when a grant does not fit.
    pub fn reclaim_with(&self, reclaim: Weak<dyn Reclaim>) {
        self.0.state().wait_queue.reclaim = Some(reclaim);
    }

    /// Makes the budget refuse each request for which `test` returns true, given the sequence number of the request:
    /// for tests that make each request fail in turn. A required grant is then refused with [`GrantError::TooLarge`].
    #[cfg(feature = "testing")]
    pub fn refuse_when(&self, test: impl Fn(u64, Demand) -> bool + Send + Sync + 'static) {
        self.0.state().wait_queue.refusal = Some(Arc::new(test));
    }

    /// Grants `len_bytes` (a sum of [`Budget::footprint`]s and charges) for one piece of work.
    ///
    /// A [`Demand::Required`] grant waits until it is first in the queue and fits. It is refused only if it exceeds the
    /// budget without its reservations: at once, or when a [`Budget::reserve`] that waited before it succeeds.
    /// A [`Demand::BestEffort`] grant never waits, and leaves the bytes for required grants alone.
    pub fn grant(&self, len_bytes: u64, demand: Demand) -> Result<Grant, GrantError> {
        self.refused_by_test(len_bytes, demand)?;
        match demand {
            Demand::Required => self.wait_for(len_bytes, Lifetime::Temporary),
            Demand::BestEffort => self.try_for(len_bytes, true),
        }
    }

    /// Charges `len_bytes` of memory that is allocated elsewhere, such as a table that grows, if the budget has room
    /// for it now.
    ///
    /// It leaves the bytes for required grants alone, so it may succeed while a required grant waits.
    pub fn try_charge(&self, len_bytes: u64) -> Option<Charge> {
        self.refused_by_test(len_bytes, Demand::BestEffort).ok()?;
        self.try_for(len_bytes, false).ok().map(Charge::of)
    }

    /// Takes `len_bytes` out of the budget for memory that is held permanently, such as a thread's buffers. Waits as a
    /// required grant does. From then on, grants that do not fit into the rest of the budget are refused, waiting ones
    /// too.
    pub fn reserve(&self, len_bytes: u64) -> Result<BudgetReservation, GrantError> {
        self.refused_by_test(len_bytes, Demand::Required)?;
        self.wait_for(len_bytes, Lifetime::Permanent).map(BudgetReservation)
    }

    /// Wakes waiting grants, so that they call `Reclaim` again: a cached buffer has become idle.
    pub fn wake(&self) {
        let has_waiters = self.0.state().wait_queue.record_wake();
        if has_waiters {
            self.0.room.notify_all();
        }
    }

    #[cfg(not(feature = "testing"))]
    fn refused_by_test(&self, _: u64, _: Demand) -> Result<(), GrantError> {
        Ok(())
    }

    #[cfg(feature = "testing")]
    fn refused_by_test(&self, needed_bytes: u64, demand: Demand) -> Result<(), GrantError> {
        let mut state = self.0.state();
        let Some(test) = state.wait_queue.refusal.clone() else { return Ok(()) };
        let number = state.wait_queue.next_ticket;
        state.wait_queue.next_ticket += 1;
        let limit_bytes = state.stats.limit_bytes;
        drop(state);
        match (test(number, demand), demand) {
            (false, _) => Ok(()),
            (true, Demand::BestEffort) => Err(GrantError::NoRoom { needed_bytes }),
            (true, Demand::Required) => Err(GrantError::TooLarge { needed_bytes, limit_bytes }),
        }
    }

    fn try_for(&self, needed_bytes: u64, yields_to_waiters: bool) -> Result<Grant, GrantError> {
        for may_reclaim in [true, false] {
            let mut state = self.0.state();
            let limit_bytes = state.stats.limit_bytes.saturating_sub(state.required_only_bytes);
            let wanted_bytes = state.stats.in_use_bytes.saturating_add(needed_bytes);
            let possible =
                needed_bytes <= limit_bytes && !(yields_to_waiters && state.wait_queue.has_waiters());
            if possible && wanted_bytes <= limit_bytes {
                return Ok(self.grant_now(&mut state, needed_bytes, Lifetime::Temporary));
            }
            let reclaim = state.wait_queue.reclaim.clone().filter(|_| possible && may_reclaim);
            let freed = match reclaim.and_then(|r| r.upgrade()) {
                None => 0,
                Some(reclaim) => {
                    drop(state);
                    reclaim.reclaim(wanted_bytes - limit_bytes)
                }
            };
            if freed == 0 {
                break;
            }
        }
        self.0.state().stats.refused += 1;
        Err(GrantError::NoRoom { needed_bytes })
    }

    fn wait_for(&self, needed_bytes: u64, lifetime: Lifetime) -> Result<Grant, GrantError> {
        let mut state = self.0.state();
        let limit_bytes = state.stats.limit_bytes;
        state.check_reservations(needed_bytes)?;
        if !state.wait_queue.has_waiters() && state.stats.in_use_bytes + needed_bytes <= limit_bytes {
            return Ok(self.grant_now(&mut state, needed_bytes, lifetime));
        }
        let ticket = state.wait_queue.next_ticket;
        state.wait_queue.next_ticket += 1;
        state.wait_queue.waiting.push_back(ticket);
        let mut waited = false;
        loop {
            // A reservation that waited before this grant may have been made since the last check.
            if let Err(error) = state.check_reservations(needed_bytes) {
                state.wait_queue.waiting.retain(|waiting| *waiting != ticket);
                state.stats.waits += u64::from(waited);
                self.notify_next(state);
                return Err(error);
            }
            let wanted_bytes = state.stats.in_use_bytes + needed_bytes;
            if state.wait_queue.is_first(ticket) {
                if wanted_bytes <= limit_bytes {
                    state.wait_queue.waiting.pop_front();
                    state.stats.waits += u64::from(waited);
                    let grant = self.grant_now(&mut state, needed_bytes, lifetime);
                    self.notify_next(state);
                    return Ok(grant);
                }
                let (wakes, reclaim) = (state.wait_queue.wakes, state.wait_queue.reclaim.clone());
                if let Some(reclaim) = reclaim.and_then(|r| r.upgrade()) {
                    drop(state);
                    let freed = reclaim.reclaim(wanted_bytes - limit_bytes);
                    state = self.0.state();
                    let room = state.stats.in_use_bytes + needed_bytes <= limit_bytes;
                    if freed > 0 || room || state.wait_queue.wakes != wakes {
                        continue;
                    }
                }
            }
            waited = true;
            state = self.0.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notifies the waiting grants that the queue has changed.
    fn notify_next(&self, state: MutexGuard<'_, AllocatorState>) {
        let next_waits = state.wait_queue.has_waiters();
        drop(state);
        if next_waits {
            self.0.room.notify_all();
        }
    }

    fn grant_now(&self, state: &mut AllocatorState, len_bytes: u64, lifetime: Lifetime) -> Grant {
        state.count(len_bytes);
        if lifetime == Lifetime::Permanent {
            state.reserved_bytes += len_bytes;
            self.0.return_free_memory(state);
        }
        Grant { shared: self.0.clone(), left_bytes: len_bytes }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.stats()).finish()
    }
}

/// Bytes of a budget for one piece of work. Dropping it returns the bytes that were not taken.
pub struct Grant {
    shared: Arc<Shared>,
    left_bytes: u64,
}

impl Grant {
    /// Bytes that have not been taken yet.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Takes a buffer of `len_bytes` from this grant; `None` if too little is left. Its contents are undefined, as
    /// those of [`Buffers::get`](super::Buffers::get).
    pub fn buffer(&mut self, len_bytes: usize) -> Option<Buffer> {
        self.left_bytes = self.left_bytes.checked_sub(footprint(len_bytes))?;
        let mut state = self.shared.state();
        if let Some(buffer) = self.shared.take(&mut state, len_bytes) {
            return Some(buffer);
        }
        // If the region is so fragmented that no run of free units is long enough, the heap serves the buffer. That is
        // rare, and the limit bounds it all the same.
        self.shared.add_elsewhere(&mut state, footprint(len_bytes));
        drop(state);
        Some(Buffer::on_heap(len_bytes, Some(self.shared.clone())))
    }

    /// Charges `len_bytes` of memory that is allocated elsewhere, until the charge is dropped; `None` if too little is
    /// left.
    pub fn charge(&mut self, len_bytes: u64) -> Option<Charge> {
        self.left_bytes = self.left_bytes.checked_sub(len_bytes)?;
        Some(Charge::of(Grant { shared: self.shared.clone(), left_bytes: len_bytes }))
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

/// Bytes taken out of a budget by [`Budget::reserve`]. Dropping it returns them.
#[derive(Debug)]
pub struct BudgetReservation(Grant);

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.0.shared.state().reserved_bytes -= self.0.left_bytes;
    }
}

/// Bytes of a budget that account for memory allocated elsewhere. Dropping it returns them.
#[derive(Debug)]
pub struct Charge(Grant);

impl Charge {
    /// Turns all of a grant into a charge.
    fn of(grant: Grant) -> Self {
        grant.shared.add_elsewhere(&mut grant.shared.state(), grant.left_bytes);
        Charge(grant)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.shared.release_elsewhere(std::mem::take(&mut self.0.left_bytes));
    }
}
