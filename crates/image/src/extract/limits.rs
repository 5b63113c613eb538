//! Limits of bytes written and files created by an extraction, so that a small image cannot fill a disk.
//!
//! All threads charge the same atomic counters. When one is exhausted, the extraction stops, and fails with the limit's
//! name.

use super::options::ExtractOptions;
use pagefold_page::size::Human;
use pagefold_sys::beneath::FreeSpace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The limits of bytes and of files.
pub(super) struct ExtractLimits {
    bytes: Limit,
    files: Limit,
}

/// The rest of a limit, and whether a request exceeded it.
struct Limit {
    max: u64,
    left: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Limit {
    fn new(max: u64) -> Self {
        Limit { max, left: AtomicU64::new(max), is_exceeded: AtomicBool::new(false) }
    }

    fn take(&self, n: u64) -> bool {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(n));
        if taken.is_err() {
            self.is_exceeded.store(true, Ordering::Relaxed);
        }
        taken.is_ok()
    }

    fn exceeded(&self) -> Option<u64> {
        self.is_exceeded.load(Ordering::Relaxed).then_some(self.max)
    }
}

impl ExtractLimits {
    pub(super) fn new(options: &ExtractOptions, space: FreeSpace) -> Self {
        let max_bytes = options.max_bytes.unwrap_or(space.free_bytes / 10 * 9);
        let max_files = space.free_files.map_or(options.max_inodes, |free| free.min(options.max_inodes));
        ExtractLimits { bytes: Limit::new(max_bytes), files: Limit::new(max_files) }
    }

    /// Charges `n` bytes; false, with nothing charged, if fewer are left.
    pub(super) fn take_bytes(&self, n: u64) -> bool {
        self.bytes.take(n)
    }

    /// Charges a file; false if none is left.
    pub(super) fn take_file(&self) -> bool {
        self.files.take(1)
    }

    /// The message for the limit that was exceeded, if any.
    pub(super) fn exceeded(&self) -> Option<String> {
        let (max, option) = match (self.bytes.exceeded(), self.files.exceeded()) {
            (Some(max), _) => (Human(max).to_string(), "bytes"),
            (None, Some(max)) => (format!("{max} files"), "inodes"),
            (None, None) => return None,
        };
        Some(format!("the image holds more than {max}, the limit; raise it with --max-{option}"))
    }
}
