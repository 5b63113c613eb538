//! Sleeping on a 32-bit word until another thread of this process changes it.
//!
//! Under the model checker loom (`--cfg loom`) the words are loom's atomics, and a queue takes the place of the kernel,
//! for all crates of the workspace.

/// The count with which [`wake`] wakes every sleeper. The kernel reads the count as a signed number, and wakes one
/// thread if it is negative.
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
    /// Returns at once if `word` has another value, and may wake spuriously: call it in a loop that checks the word.
    pub fn wait(word: &AtomicU32, expected: u32) {
        // After every result (woken, value changed, interrupted) the caller checks the word again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, expected, None);
    }

    /// Wakes up to `count` threads that sleep on `word`.
    pub fn wake(word: &AtomicU32, count: u32) {
        // Waking has no failure that a caller could handle.
        let _ = futex::wake(word, futex::Flags::PRIVATE, count);
    }
}

#[cfg(loom)]
mod model {
    //! A futex for loom: one queue for all words; comparing and sleeping are one atomic step.

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

    /// Wakes all sleepers. For sleepers on other words that is a spurious wake-up.
    pub fn wake(_word: &AtomicU32, _count: u32) {
        drop(QUEUE.0.lock());
        QUEUE.1.notify_all();
    }
}
