//! The atomics and the sleeping that the page words and the count of memory are made of, so that a model checker can stand in for them
//! (`--cfg loom`) without a copy of the transitions.

#[cfg(not(loom))]
pub(crate) use pagefold_sys::futex::{ALL as WAKE_ALL, wait, wake};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use model::{WAKE_ALL, wait, wake};

#[cfg(loom)]
mod model {
    //! A futex for loom: one queue for all words, compare and sleep as one step.

    use super::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) const WAKE_ALL: u32 = u32::MAX;

    pub(crate) fn wait(word: &AtomicU32, expected: u32) {
        let Ok(guard) = QUEUE.0.lock() else { return };
        if word.load(Ordering::Relaxed) == expected {
            drop(QUEUE.1.wait(guard));
        }
    }

    /// Wakes everybody: sleepers of other words look again, as after any spurious wake-up.
    pub(crate) fn wake(_word: &AtomicU32, _count: u32) {
        drop(QUEUE.0.lock());
        QUEUE.1.notify_all();
    }
}
