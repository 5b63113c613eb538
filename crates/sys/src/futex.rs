//! Sleeping on a 32-bit word until another thread of this process changes it.

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

/// The count for [`wake`] that wakes every sleeper: the kernel takes the count as a signed number, and wakes one thread
/// for a negative one.
pub const ALL: u32 = i32::MAX as u32;

/// Wakes up to `count` threads that sleep on `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // Waking has no failure that a caller could act on.
    let _ = futex::wake(word, futex::Flags::PRIVATE, count);
}
