//! A cache of remote objects on disk: the ranges that were fetched, as they came, for all processes of one user.
//!
//! A [`Cache`] is a folder and a size. Each version of an object has one sparse file in it, found by a [`Key`]
//! (`key.rs`) that is a hash of all that identifies the version. The file has the blocks of 32 KiB at fixed places and a
//! checksum for each (`format.rs`; the document is `docs/formats/remote-cache.md`). [`CachedObject`] (`object.rs`) reads and
//! writes blocks, `claims.rs` keeps processes from fetching the same range at once, and `evict.rs` keeps the folder small.
//!
//! **Every block proves itself.** A block is returned only if its checksum, seeded with the object's key and the
//! block's number, fits its bytes. So nothing has to be written in order, flushed or checked at start, and the
//! processes that use the folder need not agree about anything: a block whose writer was killed, that another process
//! evicts at this moment, or that the disk has damaged, is a block that is not there. A process that forges a checksum
//! is believed; only a digest that the caller verifies helps against that, and [`CachedObject::forget`] lets the
//! caller drop such a block.
//!
//! **A failure costs speed, never a read.** No function here returns an error of the disk: a block is not there, or is not
//! stored. `health.rs` remembers the failure for people, and pauses the use of a disk that fails.
//!
//! Calls read and write in the calling thread. A disk that hangs makes them hang.

mod claims;
mod evict;
mod format;
mod health;
mod key;
mod object;
mod signature;

pub use key::Key;
pub use object::CachedObject;

pub(crate) use claims::Wait;

use crate::Url;
use crate::answer::Version;
use evict::evict;
use format::{Header, Layout};
use health::Health;
use pagefold_sys::SysError;
use pagefold_sys::cachedir::{Access, CacheDir, CacheDirError};
use std::fmt;
use std::io;
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

/// The use of a cache by one source.
#[derive(Debug, Clone)]
pub struct CacheUse {
    /// The cache.
    pub cache: Arc<Cache>,
    /// The key of the contents, if the caller verifies all bytes by it: then a cached object is opened without asking the
    /// server. `None`: the key is made of the version that the server names.
    pub content: Option<Key>,
}

impl CacheUse {
    /// The object, if its contents have a key and are cached.
    pub(crate) fn find(&self) -> Option<CachedObject> {
        self.content.and_then(|key| self.cache.find(&key))
    }

    /// The cached part of the version that the server has named, with its first block in it.
    /// `is_fixed`: the URL names one version only.
    pub(crate) fn object(
        &self,
        url: &Url,
        version: &Version,
        is_fixed: bool,
        first_block: &[u8],
    ) -> Option<CachedObject> {
        let key = self.content.or_else(|| Key::of_version(url, version, is_fixed, first_block))?;
        let object = self.cache.object(&key, version.len_bytes)?;
        if !object.is_intact(0) {
            object.write(0, &[first_block.to_vec()]);
        }
        Some(object)
    }
}

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
struct Counters {
    hit_blocks: AtomicU64,
    hit_bytes: AtomicU64,
    written_bytes: AtomicU64,
    refused_blocks: AtomicU64,
    evicted_bytes: AtomicU64,
    waits: AtomicU64,
}

/// The writes of this process.
#[derive(Debug)]
struct Writing {
    /// Bytes of writes under way.
    now_bytes: u64,
    /// Bytes of writes that began since the last look at the size of the folder.
    unchecked_bytes: u64,
    /// Whether a thread looks now, and evicts.
    is_evicting: bool,
}

/// A folder of cached objects. All sources of a process share one; processes share the folder.
pub struct Cache {
    dir: CacheDir,
    path: PathBuf,
    size_bytes: u64,
    writing: Mutex<Writing>,
    /// Times in a row that another process was evicting.
    busy_evictions: AtomicU64,
    counters: Counters,
    reads: Health,
    writes: Health,
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

    /// Bytes that the files of the cache take on disk now. Looks at each file.
    pub fn used_bytes(&self) -> u64 {
        evict::files(self).iter().map(|file| file.used_bytes).sum()
    }

    /// The cached part of an object of this length; empty if it is new. `None` if the cache cannot have it: it is too long,
    /// has no bytes, or the folder fails.
    pub fn object(self: &Arc<Self>, key: &Key, len_bytes: u64) -> Option<CachedObject> {
        let layout = Layout::of(len_bytes)?;
        let header = Header { key: *key, len_bytes };
        let opened = object::open(self, &header).inspect_err(|e| self.write_failed(e)).ok()?;
        opened.read_only.iter().for_each(|e| self.writes.failed(e));
        Some(CachedObject::new(self.clone(), header, layout, opened))
    }

    /// The cached part of an object whose length only the cache knows; `None` if nothing of it is there. The length is as
    /// trustworthy as the file: the caller verifies it.
    pub fn find(self: &Arc<Self>, key: &Key) -> Option<CachedObject> {
        let file = self.dir.open_file(&key.file_name(), Access::Read).ok()?;
        let header = object::read_header(&file).filter(|header| header.key == *key)?;
        self.object(key, header.len_bytes)
    }

    /// Removes all of an object.
    pub fn remove(&self, key: &Key) {
        let _ = self.dir.remove(&key.file_name());
    }

    /// Remembers the failure of a write. If the disk is full, the cache leaves some of its room to others.
    fn write_failed(&self, error: &SysError) {
        self.writes.failed(error);
        if is_full(io::Error::from_raw_os_error(error.errno).kind()) {
            evict(self, 0);
        }
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a write, by eviction when it is time to look. `None` if another thread or process is at that, and has
    /// not made room yet: those that fetch faster than one evicts would make the cache larger than it may be.
    fn reserve(&self, len_bytes: u64) -> Option<Reserved<'_>> {
        let reserved = Reserved { cache: self, len_bytes };
        let mut writing = self.writing();
        writing.now_bytes += len_bytes;
        if writing.unchecked_bytes + len_bytes < max_unchecked_bytes(self.size_bytes) {
            writing.unchecked_bytes += len_bytes;
            return Some(reserved);
        }
        if writing.is_evicting {
            // Dropping what is reserved takes the lock.
            drop(writing);
            return None;
        }
        (writing.unchecked_bytes, writing.is_evicting) = (len_bytes, true);
        let now_bytes = writing.now_bytes;
        drop(writing);
        let has_room = evict(self, now_bytes);
        let mut writing = self.writing();
        writing.is_evicting = false;
        if !has_room {
            // The next write is followed by a look again.
            writing.unchecked_bytes = max_unchecked_bytes(self.size_bytes);
        }
        drop(writing);
        has_room.then_some(reserved)
    }
}

/// Room in the cache for a write.
struct Reserved<'c> {
    cache: &'c Cache,
    len_bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.cache.writing().now_bytes -= self.len_bytes;
    }
}

/// Whether there is no room for a write.
fn is_full(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The bytes that one process writes at most between two looks at the size of the folder.
fn max_unchecked_bytes(size_bytes: u64) -> u64 {
    (size_bytes / 32).min(MAX_UNCHECKED_BYTES)
}

/// Seconds since 1970; 0 on a machine without a clock.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
