//! The versions of pages that a process notes before and after each write, in memory that outlives it.

use crate::support::Random;
use crate::support::rig::raw_page;
use pagefold_page::{PAGE_SIZE, Page};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Pages of the store.
pub const PAGES: u64 = 600;
/// Words: the round whose store was checked, the writes, those refused, and two for each page.
const LEN: usize = 3 + 2 * PAGES as usize;

/// The notes, mapped.
pub struct Notes(&'static [AtomicU64]);

impl Notes {
    /// Maps the file of the notes, until the process ends.
    pub fn map(file: &File) -> Self {
        let len_bytes = LEN * size_of::<AtomicU64>();
        file.set_len(len_bytes as u64).unwrap();
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping of a file.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len_bytes, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the file has this length and is not made shorter; it is mapped as long as the process lives, and all
        // processes access it as atomics.
        Notes(unsafe { std::slice::from_raw_parts(base.cast(), LEN) })
    }

    /// The round whose store was found right.
    pub fn checked_round(&self) -> &AtomicU64 {
        &self.0[0]
    }

    pub fn writes(&self) -> &AtomicU64 {
        &self.0[1]
    }

    pub fn refused_writes(&self) -> &AtomicU64 {
        &self.0[2]
    }

    /// The last version of a page whose write began, and the last one whose write was acknowledged.
    pub fn versions(&self, index: u64) -> (u64, u64) {
        (self.begun(index).load(SeqCst), self.acknowledged(index).load(SeqCst))
    }

    fn begun(&self, index: u64) -> &AtomicU64 {
        &self.0[3 + 2 * index as usize]
    }

    fn acknowledged(&self, index: u64) -> &AtomicU64 {
        &self.0[4 + 2 * index as usize]
    }

    /// Notes that a write of this version begins.
    pub fn begin(&self, index: u64, version: u64) {
        self.begun(index).store(version, SeqCst);
    }

    /// Notes that the page has this version, and no other.
    pub fn settle(&self, index: u64, version: u64) {
        self.acknowledged(index).store(version, SeqCst);
        self.begun(index).store(version, SeqCst);
    }
}

/// How a version of a page is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Discard,
    Zeroes,
    Fill(u64),
    Write,
}

/// The contents of a version of a page, and how a single page gets them. No two versions with contents are equal.
pub fn contents(index: u64, version: u64) -> (How, Page) {
    let mut random = Random((index << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| {
        random.next();
    });
    let mut page = [0; PAGE_SIZE];
    match random.below(9) {
        _ if version == 0 => (How::Discard, page),
        0 => (How::Discard, page),
        1 => (How::Zeroes, page),
        2 => {
            let word = index << 40 | version | 1 << 63;
            page.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&word.to_le_bytes()));
            (How::Fill(word), page)
        }
        kind => {
            page = raw_page(index, version);
            // Often the same length as other pages have, so that objects of one size class move.
            let noise_len = match kind {
                3 | 4 => PAGE_SIZE,
                5 => 1300,
                6 => 16,
                _ => 16 + random.below(PAGE_SIZE as u64 - 16) as usize,
            };
            page[noise_len..].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 11) as u8);
            (How::Write, page)
        }
    }
}
