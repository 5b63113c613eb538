//! Sleeping on a 32-bit word until another thread of this process changes it.
//!
//! Under a model checker (`--cfg loom`) the words are loom's, and a queue stands in for the kernel, here for all crates.

/// The count for [`wake`] that wakes every sleeper: the kernel takes the count as a signed number, and wakes one thread
/// for a negative one.
pub const ALL: u32 = i32::MAX as u32;

#[cfg(not(loom))]
pub use kernel::{wait, wake};
#[cfg(loom)]
pub use model::{wait, wake};

#[cfg(not(loom))]
mod kernel {
    use rustix::thread::futex;
    use std::sync::atomic::AtomicU32;

    /// Sleeps while `word` holds `expected`, until [`wake`] is called on it.
    ///
    /// Returns at once if it holds something else, and may return for no reason:
    /// call it in a loop that looks at the word.
    pub fn wait(word: &AtomicU32, expected: u32) {
        // Every outcome (woken, value changed, interrupted) means "look again".
        let _ = futex::wait(word, futex::Flags::PRIVATE, expected, None);
    }

    /// Wakes up to `count` threads that sleep on `word`.
    pub fn wake(word: &AtomicU32, count: u32) {
        // Waking has no failure that a caller could act on.
        let _ = futex::wake(word, futex::Flags::PRIVATE, count);
    }
}

#[cfg(loom)]
mod model {
    //! A futex for loom: one queue for all words, compare and sleep as one step.

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Sleeps while `word` holds `expected`, until [`wake`] is called.
    pub fn wait(word: &AtomicU32, expected: u32) {
        let Ok(guard) = QUEUE.0.lock() else { return };
        if word.load(Ordering::Relaxed) == expected {
            drop(QUEUE.1.wait(guard));
        }
    }

    /// Wakes everybody: sleepers of other words look again, as after any spurious wake-up.
    pub fn wake(_word: &AtomicU32, _count: u32) {
        drop(QUEUE.0.lock());
        QUEUE.1.notify_all();
    }
}
