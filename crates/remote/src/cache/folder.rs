//! The folder of a cache: its size, its counters, and the writes of this process.

use super::format::{HEADER_USED_BYTES, Header, Layout, RECORD_BYTES, Record};
use super::health::Health;
use super::key::Key;
use pagefold_sys::cachedir::{CacheDir, CacheDirError};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The smallest size of a cache, bytes.
pub const MIN_SIZE_BYTES: u64 = 16 << 20;
/// Bytes that a process writes at most between two looks at the size of the folder.
const MAX_UNCHECKED_BYTES: u64 = 64 << 20;
/// Consecutive failures after which a disk is not read for a while. A single one may be a bad sector.
const READ_FAILURES: u32 = 8;

/// Reports the first failure of a cache to people, as a sentence without a full stop.
pub type Report = Box<dyn Fn(&str) + Send + Sync>;

/// Counters of a cache since this process opened it, and its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks read from it.
    pub hit_blocks: u64,
    /// Bytes read from it.
    pub hit_bytes: u64,
    /// Bytes stored in it.
    pub written_bytes: u64,
    /// Blocks that did not fit their checksums. They were fetched again.
    pub refused_blocks: u64,
    /// Bytes evicted by this process.
    pub evicted_bytes: u64,
    /// Waits for another process that fetched the same range.
    pub waits: u64,
    /// The last failure of the folder or its disk; `None` if there was none since it last worked.
    pub error: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) hit_blocks: AtomicU64,
    pub(super) hit_bytes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) refused_blocks: AtomicU64,
    pub(super) evicted_bytes: AtomicU64,
    pub(super) waits: AtomicU64,
}

/// The writes of this process.
#[derive(Debug)]
pub(super) struct Writing {
    /// Bytes of writes under way.
    pub(super) now_bytes: u64,
    /// Bytes of writes that began since the last look at the size of the folder.
    pub(super) unchecked_bytes: u64,
    /// Whether a thread looks now, and evicts.
    pub(super) is_evicting: bool,
}

/// A folder of cached objects. All sources of a process share one; processes share the folder.
pub struct Cache {
    pub(super) dir: CacheDir,
    path: PathBuf,
    pub(super) size_bytes: u64,
    writing: Mutex<Writing>,
    /// Times in a row that another process was evicting.
    pub(super) busy_evictions: AtomicU64,
    pub(super) counters: Counters,
    pub(super) reads: Health,
    pub(super) writes: Health,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("path", &self.path).field("size_bytes", &self.size_bytes).finish()
    }
}

impl Cache {
    /// Opens the folder, and makes it with mode 0700 if it is missing. The files in it will take up to `size_bytes`; at
    /// least [`MIN_SIZE_BYTES`] are taken. `report` gets the first failure of reading and of writing.
    pub fn open(path: &Path, size_bytes: u64, report: Report) -> Result<Arc<Self>, CacheDirError> {
        let dir = CacheDir::open_or_create(path)?;
        let size_bytes = size_bytes.max(MIN_SIZE_BYTES);
        let report: Arc<dyn Fn(&str) + Send + Sync> = report.into();
        Ok(Arc::new(Cache {
            dir,
            path: path.into(),
            size_bytes,
            // The first write is followed by a look: other processes may have written little each, and much together.
            writing: Mutex::new(Writing {
                now_bytes: 0,
                unchecked_bytes: max_unchecked_bytes(size_bytes),
                is_evicting: false,
            }),
            busy_evictions: AtomicU64::new(0),
            counters: Counters::default(),
            reads: Health::new("read", READ_FAILURES, report.clone()),
            writes: Health::new("written", 1, report),
        }))
    }

    /// The path of the folder, as it was when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the cache, bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// A snapshot of the counters.
    pub fn stats(&self) -> CacheStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            hit_blocks: get(&self.counters.hit_blocks),
            hit_bytes: get(&self.counters.hit_bytes),
            written_bytes: get(&self.counters.written_bytes),
            refused_blocks: get(&self.counters.refused_blocks),
            evicted_bytes: get(&self.counters.evicted_bytes),
            waits: get(&self.counters.waits),
            error: self.writes.error().or(self.reads.error()),
        }
    }

    /// Removes all of an object.
    pub fn remove(&self, key: &Key) {
        let _ = self.dir.remove(&key.file_name());
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is no space for a write.
pub(super) fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The bytes that one process writes at most between two looks at the size of the folder.
pub(super) fn max_unchecked_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 32).min(MAX_UNCHECKED_BYTES)
}

/// Seconds since 1970; 0 on a machine without a clock.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The header of a file; `None` if it has no valid one.
pub(super) fn read_header(file: &File) -> Option<Header> {
    let mut bytes = [0; HEADER_USED_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Header::parse(&bytes)
}

/// Reads the record of a group; an empty one where the file ends before it.
pub(super) fn read_record(file: &File, layout: &Layout, group: u64) -> io::Result<Record> {
    let mut bytes = [0; RECORD_BYTES];
    match file.read_exact_at(&mut bytes, layout.record_at(group)) {
        Ok(()) => Ok(Record::new(bytes)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Record::new([0; RECORD_BYTES])),
        Err(e) => Err(e),
    }
}
