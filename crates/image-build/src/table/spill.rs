//! The file for what does not fit into memory, and the bound of what of it is resident.
//!
//! The mappings of the file note which parts were accessed, and so how much of them is resident at most. When that could be
//! too much, the resident pages of mapped files are counted, and if they are too many, none stays: those that are needed
//! come back from the page cache. So the bound costs a comparison for an access, and few system calls. The page cache is
//! the kernel's, which takes it from a process that needs memory.

use crate::{BuildError, Result};
use pagefold_sys::SysError;
use pagefold_sys::spool::{Mapping, ResidentFiles, Spool};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Least bytes that accesses may make resident before the resident pages are counted.
const LOOK_BYTES_MIN: u64 = 4 << 20;
/// Most such bytes: a kernel may make more resident than the mappings assume.
const LOOK_BYTES_MAX: u64 = 16 << 20;

/// Where tables spill to; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Spill(Option<Arc<SpillFile>>);

#[derive(Debug)]
struct SpillFile {
    spool: Arc<Spool>,
    /// The count of resident bytes; `None` if it cannot be opened.
    resident_files: Option<ResidentFiles>,
    /// Bytes of this file that may be resident.
    resident_bytes: u64,
    /// Resident bytes of the other mapped files of the process: its program, of which more and more becomes resident.
    others_bytes: AtomicU64,
    /// Bytes that may be mapped, for tests of a full file system.
    mapped_bytes_max: AtomicU64,
    /// When so many bytes were accessed since the last eviction, the resident pages are counted.
    look_at_bytes: AtomicU64,
}

impl Spill {
    /// Keeps everything in memory.
    pub fn none() -> Self {
        Spill(None)
    }

    /// Spills to a file without a name in a directory. At most about `resident_bytes` of it are resident.
    pub fn in_directory(directory: &Path, resident_bytes: u64) -> Result<Self> {
        let spool = Spool::in_directory(directory).map_err(failed)?;
        let file = SpillFile {
            spool,
            resident_files: ResidentFiles::open().ok(),
            resident_bytes,
            others_bytes: AtomicU64::new(0),
            mapped_bytes_max: AtomicU64::new(u64::MAX),
            look_at_bytes: AtomicU64::new(look_bytes(resident_bytes)),
        };
        file.others_bytes.store(file.resident().unwrap_or(0), Ordering::Relaxed);
        Ok(Spill(Some(Arc::new(file))))
    }

    /// Lets the file have no more than this many bytes, as on a full file system. For tests.
    #[doc(hidden)]
    pub fn limit(&self, bytes: u64) {
        self.0.iter().for_each(|file| file.mapped_bytes_max.store(bytes, Ordering::Relaxed));
    }

    /// Whether there is a file.
    pub fn is_file(&self) -> bool {
        self.0.is_some()
    }

    /// Bytes of the file that are in use.
    pub fn mapped_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |file| file.spool.mapped_bytes())
    }

    /// Maps further bytes of the file; `None` if there is none.
    pub(super) fn map(&self, len_bytes: usize) -> Result<Option<Mapping>> {
        let Some(file) = &self.0 else { return Ok(None) };
        if file.spool.mapped_bytes() + len_bytes as u64 > file.mapped_bytes_max.load(Ordering::Relaxed) {
            return Err(failed(SysError::new("allocating a temporary file", libc::ENOSPC)));
        }
        file.spool.map(len_bytes).map(Some).map_err(failed)
    }

    /// Fails if a part of the file may have been lost because it could not be written.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |file| file.spool.check().map_err(failed))
    }

    /// Makes room for an access, if too much of the file may be resident.
    pub(super) fn bound(&self) {
        if let Some(file) = &self.0
            && file.spool.touched_bytes() >= file.look_at_bytes.load(Ordering::Relaxed)
        {
            file.bound();
        }
    }
}

impl SpillFile {
    #[cold]
    fn bound(&self) {
        let allowed = self.others_bytes.load(Ordering::Relaxed).saturating_add(self.resident_bytes);
        // If it is not known how much is resident, all that was touched may be.
        let left_bytes = self.resident().and_then(|resident| allowed.checked_sub(resident)).unwrap_or(0);
        let look_at_bytes = if left_bytes < LOOK_BYTES_MIN {
            self.spool.evict();
            self.others_bytes.store(self.resident().unwrap_or(0), Ordering::Relaxed);
            look_bytes(self.resident_bytes)
        } else {
            self.spool.touched_bytes() + look_bytes(left_bytes)
        };
        self.look_at_bytes.store(look_at_bytes, Ordering::Relaxed);
    }

    /// Resident bytes of mapped files; `None` if that is not known.
    fn resident(&self) -> Option<u64> {
        self.resident_files.as_ref()?.bytes().ok()
    }
}

/// The bytes that may be accessed until the resident pages are counted, if so many more may be resident.
fn look_bytes(left_bytes: u64) -> u64 {
    left_bytes.clamp(LOOK_BYTES_MIN, LOOK_BYTES_MAX)
}

fn failed(error: SysError) -> BuildError {
    BuildError::Spool { source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::super::{CHUNK_BYTES, Table};
    use super::*;

    /// Resident bytes of the mapped files in a directory, by the kernel's table of mappings.
    fn resident_bytes_in(directory: &Path) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_inside, mut sum_kib) = (false, 0);
        for line in maps.lines() {
            let kib = |field: &str| line.strip_prefix(field)?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
            if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
                is_inside = line.contains(directory.to_str().unwrap());
            } else if let Some(kib) = kib("Rss:").filter(|_| is_inside) {
                sum_kib += kib;
            }
        }
        sum_kib << 10
    }

    #[test]
    fn tables_are_resident_up_to_the_limit_however_they_are_accessed() {
        const TABLE_BYTES: usize = 160 << 20;
        let directory = tempfile::tempdir().unwrap();
        let spill = Spill::in_directory(directory.path(), 8 << 20).unwrap();
        let mut table = Table::filled(&spill, TABLE_BYTES / 8, 0u64).unwrap();
        assert!(spill.mapped_bytes() >= (TABLE_BYTES - CHUNK_BYTES) as u64);
        let mut most = resident_bytes_in(directory.path());
        let mut state = 1u64;
        for n in 0..40_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % table.len();
            if n % 4 == 0 {
                table.set(at, n);
            } else {
                table.get(at);
            }
            if n % 1000 == 0 {
                most = most.max(resident_bytes_in(directory.path()));
            }
        }
        // Mapped files of tests that run at the same time count as those of the program.
        assert!(most > 1 << 20 && most < 64 << 20, "{most}");
    }
}
