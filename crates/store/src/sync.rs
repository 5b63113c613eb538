//! The atomics and the sleeping that the slot lock and the segments' counts are made of, so that a model checker
//! can stand in for them (`--cfg loom`) without a copy of either.

#[cfg(not(loom))]
pub(crate) use pagefold_sys::futex::{wait, wake};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use model::{Mutex, wait, wake};

#[cfg(loom)]
mod model {
    //! A futex for loom: one queue for all words, compare and sleep as one step.

    use super::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex as LoomMutex, MutexGuard};
    use std::sync::PoisonError;

    loom::lazy_static! {
        static ref QUEUE: (LoomMutex<()>, Condvar) = (LoomMutex::new(()), Condvar::new());
    }

    /// loom's mutex with the interface of the one it stands for.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(LoomMutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(LoomMutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

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
