//! A futex lock in two bits of a word, which guards the word's other bits.
//!
//! It does not spin: a thread that finds the word locked sets the awaited bit and sleeps. The release stores the new
//! state bits and clears both lock bits in one atomic exchange, and wakes one sleeper if the awaited bit was set. The
//! sleeper takes the lock with the awaited bit set, because it cannot know whether others still sleep. (The
//! three-state futex mutex of Drepper, "Futexes Are Tricky", 2011, with state bits beside it.)

use super::intent::Noted;
use super::word::Word;
use crate::sync::{AtomicU32, Ordering, wait, wake};

/// A locked word; the drop stores the state bits and unlocks.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    atomic: &'a AtomicU32,
    /// The state bits to store; no other thread changes them while the lock is held.
    state: Word,
}

impl<'a> Locked<'a> {
    #[inline]
    pub(super) fn try_acquire(atomic: &'a AtomicU32) -> Option<Self> {
        let seen = Word(atomic.load(Ordering::Relaxed));
        if seen.is_locked() {
            return None;
        }
        let taken = atomic.compare_exchange(seen.0, seen.locked().0, Ordering::Acquire, Ordering::Relaxed);
        // `then` and not `then_some`: a `Locked` created and dropped for a failed exchange would release another
        // thread's lock.
        taken.is_ok().then(|| Locked { atomic, state: seen.unlocked() })
    }

    #[inline]
    pub(super) fn acquire(atomic: &'a AtomicU32) -> Self {
        Self::try_acquire(atomic).unwrap_or_else(|| Self::acquire_slow(atomic))
    }

    #[cold]
    fn acquire_slow(atomic: &'a AtomicU32) -> Self {
        loop {
            let seen = Word(atomic.load(Ordering::Relaxed));
            let want = if seen.is_locked() { seen.awaited() } else { seen.locked().awaited() };
            let set = atomic.compare_exchange(seen.0, want.0, Ordering::Acquire, Ordering::Relaxed);
            if set.is_ok() {
                if !seen.is_locked() {
                    return Locked { atomic, state: seen.unlocked() };
                }
                wait(atomic, want.0);
            }
        }
    }

    /// The state bits.
    #[inline]
    pub(super) fn word(&self) -> Word {
        self.state
    }

    /// Changes the state bits; the release stores them.
    #[inline]
    pub(super) fn set_word(&mut self, state: Word) {
        self.state = state.unlocked();
    }

    /// Unlocks with new state bits, which are noted: the note ends with the word in place, and the lock still held.
    #[inline]
    pub(super) fn release_noted(mut self, state: Word, noted: Noted<'_>) {
        self.state = state.unlocked();
        if noted.is_shared() {
            // Other threads may set the awaited bit meanwhile.
            let lock_bits = |word| Some(self.state.0 | Word(word).lock_bits());
            let _ = self.atomic.fetch_update(Ordering::Release, Ordering::Relaxed, lock_bits);
        }
        drop(noted);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // Acquire too: later stores, to the place of the old object, come after this one, also in memory that outlives the
        // process.
        let before = Word(self.atomic.swap(self.state.0, Ordering::AcqRel));
        if before.is_awaited() {
            wake(self.atomic, 1);
        }
    }
}
