//! The file for what does not fit into memory, and the bound of what of it is resident.
//!
//! Tables count their accesses here. After every few MiB the resident pages of mapped files are counted, and if they are too
//! many, none stays: those that are needed come back from the page cache. So the bound costs three system calls for some
//! hundred accesses, and no list of pages. The page cache is the kernel's, which takes it from a process that needs
//! memory.

use crate::build::BuildError;
use pagefold_sys::SysError;
use pagefold_sys::spool::{self, Mapping, Spool};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that accesses may make resident between two looks at the resident pages.
const LOOK_BYTES: u64 = 4 << 20;
/// Bytes that an access to one record makes resident at most, on average: the kernel maps up to 64 KiB around it.
const RECORD_BYTES: u64 = 32 << 10;

/// Where tables spill to; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Spill(Option<Arc<SpillFile>>);

#[derive(Debug)]
struct SpillFile {
    spool: Arc<Spool>,
    /// Bytes of this file that may be resident.
    resident_bytes: u64,
    /// Resident bytes of the other mapped files of the process: its program, of which more and more becomes resident.
    others_bytes: AtomicU64,
    /// Bytes that may be mapped, for tests of a full file system.
    mapped_bytes_max: AtomicU64,
    /// Bytes that accesses made resident, at most.
    touched_bytes: AtomicU64,
}

impl Spill {
    /// Keeps everything in memory.
    pub fn none() -> Self {
        Spill(None)
    }

    /// Spills to a file without a name in a directory. At most about `resident_bytes` of it are resident.
    pub fn in_directory(directory: &Path, resident_bytes: u64) -> Result<Self, BuildError> {
        let spool = Spool::in_directory(directory).map_err(failed)?;
        let (others_bytes, mapped_bytes_max) =
            (AtomicU64::new(resident().unwrap_or(0)), AtomicU64::new(u64::MAX));
        let touched_bytes = AtomicU64::new(0);
        let file = SpillFile { spool, resident_bytes, others_bytes, mapped_bytes_max, touched_bytes };
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
    pub(super) fn map(&self, len_bytes: usize) -> Result<Option<Mapping>, BuildError> {
        let Some(file) = &self.0 else { return Ok(None) };
        if file.spool.mapped_bytes() + len_bytes as u64 > file.mapped_bytes_max.load(Ordering::Relaxed) {
            return Err(failed(SysError::new("allocating a temporary file", libc::ENOSPC)));
        }
        file.spool.map(len_bytes).map(Some).map_err(failed)
    }

    /// Counts an access to this many bytes of the file.
    pub(super) fn touch(&self, bytes: usize) {
        let Some(file) = &self.0 else { return };
        let bytes = RECORD_BYTES.max(bytes as u64);
        let before = file.touched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before / LOOK_BYTES == (before + bytes) / LOOK_BYTES {
            return;
        }
        let allowed = file.others_bytes.load(Ordering::Relaxed).saturating_add(file.resident_bytes);
        // If it is not known how much is resident, all that was touched may be.
        if resident().is_none_or(|resident| resident > allowed) {
            file.spool.evict();
            file.others_bytes.store(resident().unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// Resident bytes of mapped files; `None` if that is not known.
fn resident() -> Option<u64> {
    spool::resident_file_bytes().ok()
}

fn failed(error: SysError) -> BuildError {
    BuildError::Spool { source: error.into() }
}
