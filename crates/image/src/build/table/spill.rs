//! The file for what does not fit into memory, and the bound of what of it is resident.
//!
//! Tables count their accesses here. After every few MiB the resident pages of mapped files are counted, and if they are too
//! many, none stays: those that are needed come back from the page cache. So the bound costs a system call for some
//! hundred accesses, and no list of pages. The page cache is the kernel's, which takes it from a process that needs
//! memory.

use crate::build::BuildError;
use pagefold_sys::SysError;
use pagefold_sys::spool::{self, Mapping, Spool};
use std::fs::File;
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
    /// Resident bytes of all mapped files of the process, from which on the pages of this one leave memory.
    resident_bytes_max: u64,
    /// Bytes that accesses made resident, at most.
    touched_bytes: AtomicU64,
}

impl Spill {
    /// Keeps everything in memory.
    pub fn none() -> Self {
        Spill(None)
    }

    /// Spills to an empty file without a name. At most about `resident_bytes` of it are resident.
    pub fn file(file: File, resident_bytes: u64) -> Result<Self, BuildError> {
        let spool = Spool::new(file).map_err(failed)?;
        // The program itself is a mapped file too.
        let resident_bytes_max = resident_bytes + resident();
        Ok(Spill(Some(Arc::new(SpillFile { spool, resident_bytes_max, touched_bytes: AtomicU64::new(0) }))))
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
        file.spool.map(len_bytes).map(Some).map_err(failed)
    }

    /// Counts an access to this many bytes of the file.
    pub(super) fn touch(&self, bytes: usize) {
        let Some(file) = &self.0 else { return };
        let bytes = RECORD_BYTES.max(bytes as u64);
        let before = file.touched_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before / LOOK_BYTES != (before + bytes) / LOOK_BYTES && resident() > file.resident_bytes_max {
            file.spool.evict();
        }
    }
}

/// Resident bytes of mapped files; 0 if that is not known.
fn resident() -> u64 {
    spool::resident_file_bytes().unwrap_or(0)
}

fn failed(error: SysError) -> BuildError {
    BuildError::Spool { source: error.into() }
}
