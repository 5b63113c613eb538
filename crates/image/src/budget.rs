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

use pagefold_backing::{BackingError, BoundedBuffers, Buffer, Demand};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// A limit on memory, and a region from which the buffers of its grants are allocated. Clones share both.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

/// Counters of a [`Budget`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BudgetStats {
    /// Bytes in grants, buffers and charges now.
    pub in_use_bytes: u64,
    /// The highest value that `in_use_bytes` has had.
    pub peak_bytes: u64,
    /// The limit, bytes.
    pub limit_bytes: u64,
    /// Best-effort requests that were refused, since creation.
    pub refused: u64,
    /// Required grants that had to wait, since creation.
    pub waits: u64,
}

struct Shared {
    buffers: BoundedBuffers,
    state: Mutex<State>,
    /// Required grants wait here until memory is released.
    released: Condvar,
}

struct State {
    /// Bytes that best-effort requests may not take.
    required_only_bytes: u64,
    /// Bytes of [`BudgetReservation`]s: in use permanently, so that no grant can ever have them.
    reserved_bytes: u64,
    wait_queue: WaitQueue,
    stats: BudgetStats,
}

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
struct WaitQueue {
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
    fn has_waiters(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts an event that may let a waiting grant go on. Returns whether a grant waits, so that the caller must
    /// notify.
    fn record_wake(&mut self) -> bool {
        self.wakes += u64::from(self.has_waiters());
        self.has_waiters()
    }

    #[cfg(test)]
    fn len(&self) -> usize {
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies the waiting grants, after an event that may let one of them go on.
    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let has_waiters = state.wait_queue.record_wake();
        drop(state);
        if has_waiters {
            self.released.notify_all();
        }
    }
}

impl State {
    /// Fails if a grant exceeds the budget without its reservations. Reserved bytes do not come back: the grant would
    /// wait forever, and block all that come after it.
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
        let buffers = BoundedBuffers::new(limit_bytes)?;
        let stats = BudgetStats { limit_bytes: buffers.limit_bytes(), ..BudgetStats::default() };
        let (required_only_bytes, wait_queue) = (required_only_bytes as u64, WaitQueue::default());
        let state = Mutex::new(State { required_only_bytes, reserved_bytes: 0, wait_queue, stats });
        Ok(Budget(Arc::new(Shared { buffers, state, released: Condvar::new() })))
    }

    /// The bytes that a buffer of `len_bytes` takes from a budget: whole units.
    pub fn footprint(len_bytes: usize) -> u64 {
        Buffer::footprint(len_bytes)
    }

    /// Bytes granted now, and counts of refusals and waits.
    pub fn stats(&self) -> BudgetStats {
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
        self.wait_for(len_bytes, Lifetime::Permanent).map(Charge::of).map(BudgetReservation)
    }

    /// Wakes waiting grants, so that they call `Reclaim` again: a cached buffer has become idle.
    pub fn wake(&self) {
        self.0.notify(self.0.state());
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
                    let leave = LeaveOnPanic { budget: self, ticket };
                    let freed = reclaim.reclaim(wanted_bytes - limit_bytes);
                    std::mem::forget(leave);
                    state = self.0.state();
                    let room = state.stats.in_use_bytes + needed_bytes <= limit_bytes;
                    if freed > 0 || room || state.wait_queue.wakes != wakes {
                        continue;
                    }
                }
            }
            waited = true;
            state = self.0.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notifies the waiting grants that the queue has changed.
    fn notify_next(&self, state: MutexGuard<'_, State>) {
        let next_waits = state.wait_queue.has_waiters();
        drop(state);
        if next_waits {
            self.0.released.notify_all();
        }
    }

    fn grant_now(&self, state: &mut State, len_bytes: u64, lifetime: Lifetime) -> Grant {
        let stats = &mut state.stats;
        stats.in_use_bytes += len_bytes;
        stats.peak_bytes = stats.peak_bytes.max(stats.in_use_bytes);
        if lifetime == Lifetime::Permanent {
            state.reserved_bytes += len_bytes;
        }
        Grant { shared: self.0.clone(), left_bytes: len_bytes }
    }
}

/// Takes a grant that waits out of the queue when `Reclaim` panics: the grants after it would wait forever.
struct LeaveOnPanic<'a> {
    budget: &'a Budget,
    ticket: u64,
}

impl Drop for LeaveOnPanic<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.0.state();
        state.wait_queue.waiting.retain(|waiting| *waiting != self.ticket);
        self.budget.notify_next(state);
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

    /// Takes a buffer of `len_bytes` from this grant; `None` if too little is left. Its contents are undefined.
    pub fn buffer(&mut self, len_bytes: usize) -> Option<GrantedBuffer> {
        let grant = self.split_off(Budget::footprint(len_bytes))?;
        Some(GrantedBuffer { buffer: self.shared.buffers.get(len_bytes), _grant: grant })
    }

    /// Charges `len_bytes` of memory that is allocated elsewhere, until the charge is dropped; `None` if too little is
    /// left.
    pub fn charge(&mut self, len_bytes: u64) -> Option<Charge> {
        self.split_off(len_bytes).map(Charge::of)
    }

    fn split_off(&mut self, len_bytes: u64) -> Option<Grant> {
        self.left_bytes = self.left_bytes.checked_sub(len_bytes)?;
        Some(Grant { shared: self.shared.clone(), left_bytes: len_bytes })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.left_bytes > 0 {
            let mut state = self.shared.state();
            state.stats.in_use_bytes -= self.left_bytes;
            // Notify even if the first waiter needs more: buffers may have become idle, so that `Reclaim` can free them.
            self.shared.notify(state);
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grant({} bytes left)", self.left_bytes)
    }
}

/// A buffer of a budget. Dropping it returns its memory, and then its bytes to the budget.
#[derive(Debug)]
pub struct GrantedBuffer {
    buffer: Buffer,
    _grant: Grant,
}

impl Deref for GrantedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer
    }
}

impl DerefMut for GrantedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buffer
    }
}

/// Bytes taken out of a budget by [`Budget::reserve`]. Dropping it returns them.
#[derive(Debug)]
pub struct BudgetReservation(Charge);

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        let grant = &self.0.0;
        grant.shared.state().reserved_bytes -= grant.left_bytes;
    }
}

/// Bytes of a budget that account for memory allocated elsewhere. Dropping it returns them.
#[derive(Debug)]
pub struct Charge(Grant);

impl Charge {
    /// Turns all of a grant into a charge.
    fn of(grant: Grant) -> Self {
        grant.shared.buffers.add_elsewhere(grant.left_bytes);
        Charge(grant)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.shared.buffers.subtract_elsewhere(self.0.left_bytes);
    }
}

/// A buffer of a budget that has room for it only.
#[cfg(test)]
pub(crate) fn test_buffer(len_bytes: usize) -> GrantedBuffer {
    let budget = Budget::new(len_bytes, 0).unwrap();
    budget.grant(Budget::footprint(len_bytes), Demand::Required).unwrap().buffer(len_bytes).unwrap()
}

#[cfg(test)]
mod tests;
