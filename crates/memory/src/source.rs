//! The file that a region begins with. Faulting threads, perhaps inside a signal handler, read it by system calls only.

use crate::error::RegionError;
use pagefold_page::{PAGE_SIZE, Page, PageCount, PageIndex};
use pagefold_sys::SysError;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::{Errno, pread};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The size and the time of the last modification of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    len_bytes: i64,
    seconds: i64,
    nanoseconds: u64,
}

impl Version {
    fn of(stat: &Stat) -> Self {
        Version { len_bytes: stat.st_size, seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec }
    }
}

/// A file, and the version of it that the region has.
pub(crate) struct Source {
    file: File,
    version: Version,
    is_changed: AtomicBool,
}

impl Source {
    pub(crate) fn new(file: File) -> Result<Self, RegionError> {
        let stat = fstat(&file).map_err(|e| SysError::new("reading the size of a file", e.raw_os_error()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            _ => return Err(RegionError::NotAFile),
        }
        Ok(Source { version: Version::of(&stat), file, is_changed: AtomicBool::new(false) })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.version.len_bytes as u64
    }

    /// Returns whether the file has bytes for a page.
    pub(crate) fn has(&self, page: PageIndex) -> bool {
        PageCount::covering(self.len_bytes()).contains(page)
    }

    /// Returns whether a read has found that the file was changed.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.load(Relaxed)
    }

    /// Reads pages of which the file has bytes, from `first` on; the bytes behind the file's end are zero. Returns false
    /// if the medium fails or the file was changed.
    pub(crate) fn read(&self, first: PageIndex, to: &mut [Page]) -> bool {
        let offset = first.0 * PAGE_SIZE as u64;
        let to = to.as_flattened_mut();
        let wanted = (self.len_bytes() - offset).min(to.len() as u64) as usize;
        let (bytes, rest) = to.split_at_mut(wanted);
        rest.fill(0);
        let mut done = 0;
        while done < wanted {
            match pread(&self.file, &mut bytes[done..], offset + done as u64) {
                // The file is shorter now.
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        // After the bytes were read: a change before that is seen here.
        let is_same = fstat(&self.file).is_ok_and(|stat| Version::of(&stat) == self.version);
        if !is_same {
            self.is_changed.store(true, Relaxed);
        }
        is_same && done == wanted
    }
}
