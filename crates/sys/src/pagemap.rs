//! Finding present pages: the kernel's PAGEMAP_SCAN (Linux 6.7).
//!
//! One system call walks a range and returns runs of pages, instead of eight bytes for each page.
//!
//! Only [`Pagemap::open`] allocates memory; the kernel writes the runs into the caller's list. The descriptor belongs
//! to the address space that opened it, so scans in a forked child show its parent's pages.
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

/// Adjacent pages of one kind: `struct page_region`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Run>() == 24);

const PAGEMAP_SCAN: libc::Ioctl = libc::_IOWR::<ScanArg>(b'f' as u32, 16);
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

/// The result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// The number of runs that were filled in.
    pub runs: usize,
    /// The address at which the scan ended: the range's end, or less if the list of runs is full. The next scan begins
    /// there.
    pub end: usize,
}

/// The page map of this process (`/proc/self/pagemap`).
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens the page map. This succeeds on kernels without PAGEMAP_SCAN too: see [`Pagemap::is_supported`].
    pub fn open() -> Result<Pagemap, SysError> {
        const PATH: &str = "/proc/self/pagemap";
        let file = File::open(PATH).map_err(|e| SysError::io(format!("opening {PATH}"), &e))?;
        Ok(Pagemap { file })
    }

    /// Whether the kernel has PAGEMAP_SCAN. Scans one page to find out.
    pub fn is_supported(&self) -> bool {
        let mut runs = [Run::default()];
        let page = crate::mem::page_size();
        self.populated(std::ptr::from_ref(&runs).addr() & !(page - 1), page, &mut runs).is_ok()
    }

    /// Finds the pages of a range that have memory or are swapped out, in ascending order.
    pub fn populated(&self, start: usize, len_bytes: usize, runs: &mut [Run]) -> Result<Scan, Errno> {
        let wanted = ScanArg {
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        self.scan(start, len_bytes, wanted, runs)
    }

    fn scan(&self, start: usize, len_bytes: usize, wanted: ScanArg, runs: &mut [Run]) -> Result<Scan, Errno> {
        if runs.is_empty() || len_bytes == 0 {
            return Ok(Scan { runs: 0, end: start });
        }
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: start as u64,
            end: start.checked_add(len_bytes).ok_or(Errno(libc::EINVAL))? as u64,
            // The address as an integer; the kernel writes through it.
            vec: runs.as_mut_ptr().expose_provenance() as u64,
            vec_len: runs.len() as u64,
            ..wanted
        };
        // SAFETY: the argument is a whole `pm_scan_arg`. The kernel writes at most `vec_len` runs to the list at `vec`,
        // which is borrowed exclusively. Without flags it changes no page.
        let filled = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        match usize::try_from(filled) {
            Ok(runs) => Ok(Scan { runs, end: arg.walk_end as usize }),
            Err(_) => Err(Errno::last()),
        }
    }
}

#[cfg(test)]
mod tests;
