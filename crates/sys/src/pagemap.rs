//! Which pages are there, and which were written: the kernel's PAGEMAP_SCAN (Linux 6.7).
//!
//! One system call walks a range and gives runs of pages, instead of eight bytes for each; and in the same
//! step, under the page table's lock, it protects the written pages again, so that no write between looking
//! and protecting is lost. "Written" means: not write-protected by a [`crate::uffd`] context that was opened
//! with `async_wp`.
//!
//! No memory is allocated but by [`Pagemap::open`]; the kernel writes the runs where the caller wants them. A
//! forked child's scans show its parent's pages, as the descriptor belongs to the address space that opened
//! it.
//!
//! Reference: PAGEMAP_SCAN(2const), the kernel's Documentation/admin-guide/mm/pagemap.rst and
//! `include/uapi/linux/fs.h`.

use crate::{Errno, SysError};
use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// Pages next to each other, of one kind: `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Run>() == 24);

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArg>(b'f' as u32, 16);
/// Write-protects the pages that it names.
const PM_SCAN_WP_MATCHING: u64 = 1 << 0;
/// Refuses memory that has no asynchronous write protection.
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

impl Run {
    /// The address of its first byte.
    pub fn start(&self) -> usize {
        self.start as usize
    }

    /// Its length in bytes, whole pages.
    pub fn len_bytes(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// What a scan found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// How many runs were filled in.
    pub runs: usize,
    /// The address that the scan got to: the range's end, or less if the runs are full. It goes on from
    /// there.
    pub end: usize,
}

/// The page tables of this process, to be scanned.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens the page map. That works on kernels that cannot scan it, too: see [`Pagemap::is_supported`].
    pub fn open() -> Result<Pagemap, SysError> {
        const PATH: &str = "/proc/self/pagemap";
        let file = File::open(PATH).map_err(|e| SysError::io(format!("opening {PATH}"), &e))?;
        Ok(Pagemap { file })
    }

    /// Whether the kernel can scan. Tries it on a page.
    pub fn is_supported(&self) -> bool {
        let mut runs = [Run::default()];
        let page = crate::mem::page_size();
        self.present(std::ptr::from_ref(&runs).addr() & !(page - 1), page, &mut runs).is_ok()
    }

    /// The pages of a range that were written since they were last protected, in ascending order, as runs;
    /// with
    /// `protect` they are protected again, each in the same step.
    ///
    /// Pages that are not there are neither named nor protected. Pages that arrive (by a copy, a page of
    /// zeroes, a move) arrive unprotected, which is: written.
    ///
    /// EPERM if a part of the range is not registered with a context that was opened with `async_wp`; ENOTTY
    /// if the kernel cannot scan.
    pub fn written(
        &self,
        start: usize,
        len_bytes: usize,
        protect: bool,
        runs: &mut [Run],
    ) -> Result<Scan, Errno> {
        let wanted = ScanArg {
            flags: PM_SCAN_CHECK_WPASYNC | if protect { PM_SCAN_WP_MATCHING } else { 0 },
            category_mask: PAGE_IS_WRITTEN,
            // Without this the kernel takes a short way that counts missing pages as written, and protects
            // them by a mark in the page table, at which UFFDIO_ZEROPAGE and UFFDIO_MOVE then stop as at a
            // page that is there.
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_WRITTEN,
            ..ScanArg::default()
        };
        self.scan(start, len_bytes, wanted, runs)
    }

    /// The pages of a range that are in memory, in ascending order, as runs. Those in swap are not.
    pub fn present(&self, start: usize, len_bytes: usize, runs: &mut [Run]) -> Result<Scan, Errno> {
        let wanted =
            ScanArg { category_mask: PAGE_IS_PRESENT, return_mask: PAGE_IS_PRESENT, ..ScanArg::default() };
        self.scan(start, len_bytes, wanted, runs)
    }

    fn scan(&self, start: usize, len_bytes: usize, wanted: ScanArg, runs: &mut [Run]) -> Result<Scan, Errno> {
        if runs.is_empty() || len_bytes == 0 {
            // The kernel takes no list to mean that nobody wants to know, and would protect all the same.
            return Ok(Scan { runs: 0, end: start });
        }
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: start as u64,
            end: start.checked_add(len_bytes).ok_or(Errno(libc::EINVAL))? as u64,
            // As a number; the kernel writes through it.
            vec: runs.as_mut_ptr().expose_provenance() as u64,
            vec_len: runs.len() as u64,
            ..wanted
        };
        // SAFETY: the argument is a whole `pm_scan_arg`; the kernel writes `vec_len` runs at most to the list
        // it names, which is borrowed for writing. Protection by a context that lifts it by itself changes no
        // contents.
        let filled = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        match usize::try_from(filled) {
            Ok(runs) => Ok(Scan { runs, end: arg.walk_end as usize }),
            Err(_) => Err(Errno::last()),
        }
    }
}

#[cfg(test)]
mod tests;
