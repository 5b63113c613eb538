//! Limits of bytes written and files created by an extraction, so that a small image cannot fill a disk.
//!
//! All threads charge the same atomic counters. When one is exhausted, the extraction stops, and fails with the limit's
//! name.

use super::options::ExtractOptions;
use pagefold_page::size::Human;
use pagefold_sys::beneath::FreeSpace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The remaining bytes and files, and whether a request exceeded them.
pub(super) struct ExtractLimits {
    bytes: AtomicU64,
    files: AtomicU64,
    max_bytes: u64,
    max_files: u64,
    out_of_bytes: AtomicBool,
    out_of_files: AtomicBool,
}

impl ExtractLimits {
    pub(super) fn new(options: &ExtractOptions, space: FreeSpace) -> Self {
        let max_bytes = options.max_bytes.unwrap_or(space.free_bytes / 10 * 9);
        let max_files = space.free_files.map_or(options.max_inodes, |free| free.min(options.max_inodes));
        ExtractLimits {
            bytes: AtomicU64::new(max_bytes),
            files: AtomicU64::new(max_files),
            max_bytes,
            max_files,
            out_of_bytes: AtomicBool::new(false),
            out_of_files: AtomicBool::new(false),
        }
    }

    /// Charges `n` bytes; false, with nothing charged, if fewer are left.
    pub(super) fn take_bytes(&self, n: u64) -> bool {
        take(&self.bytes, n, &self.out_of_bytes)
    }

    /// Charges a file; false if none is left.
    pub(super) fn take_file(&self) -> bool {
        take(&self.files, 1, &self.out_of_files)
    }

    /// The message for the limit that was exceeded, if any.
    pub(super) fn exceeded(&self) -> Option<String> {
        if self.out_of_bytes.load(Ordering::Relaxed) {
            let max = Human(self.max_bytes);
            return Some(format!("the image holds more than {max}, the limit; raise it with --max-bytes"));
        }
        if self.out_of_files.load(Ordering::Relaxed) {
            let max = self.max_files;
            return Some(format!(
                "the image holds more than {max} files, the limit; raise it with --max-inodes"
            ));
        }
        None
    }
}

fn take(left: &AtomicU64, n: u64, out: &AtomicBool) -> bool {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(n)).is_ok();
    if !taken {
        out.store(true, Ordering::Relaxed);
    }
    taken
}
