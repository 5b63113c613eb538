//! Keeps the files of a cache within its size: groups of blocks leave, the least recently used of all objects first.
//!
//! A process that is about to have written much looks at the folder: it adds up what the files take on disk, and deallocates groups
//! until there is space for what processes write until the next look. It needs no table of the folder's contents, and
//! nothing that has to be right after a crash: times of use are in the files. Files without groups are removed, and so
//! are files that have no valid header. One process at a time does this, so that not all do the same work; eviction
//! would be right without that, because a group may leave at any time.
//!
//! The cache leaves an eighth of the space that it could have on a file system to others.

use super::folder::{Cache, is_full, max_unchecked_bytes, now_s, read_header, read_record};
use super::format::{HEADER_BYTES, HEADER_USED_BYTES, Layout, RECORD_BYTES, Record};
use super::key::Key;
use pagefold_sys::SysError;
use pagefold_sys::blockdev::punch_hole;
use pagefold_sys::cachedir::Access;
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;

/// The name of the file that is locked by the process that evicts.
const LOCK_NAME: &str = "lock";
/// Looks in a row that are left to another process that evicts. It may be stopped.
const MAX_BUSY: u64 = 2;
/// Records that are read at once.
const CHUNK_RECORDS: u64 = 128;

impl Cache {
    /// Bytes that the files of the cache take on disk now. Looks at each file.
    pub fn used_bytes(&self) -> u64 {
        files(self).iter().map(|file| file.used_bytes).sum()
    }

    /// Remembers the failure of a write. If the disk is full, the cache leaves some of its space to others.
    pub(super) fn write_failed(&self, error: &SysError) {
        self.writes.failed(error);
        if is_full(io::Error::from_raw_os_error(error.errno).kind()) {
            evict(self, 0);
        }
    }

    /// Makes space for a write, by eviction when it is time to look. `None` if another thread or process is at that, and has
    /// not made space yet: those that fetch faster than one evicts would make the cache larger than it may be.
    pub(super) fn reserve(&self, len_bytes: u64) -> Option<Reserved<'_>> {
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

/// Space in the cache for a write.
pub(super) struct Reserved<'c> {
    cache: &'c Cache,
    len_bytes: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.cache.writing().now_bytes -= self.len_bytes;
    }
}

/// A file of the cache. It is not open, because there may be more files than descriptors.
pub(super) struct FileInfo {
    name: String,
    pub(super) used_bytes: u64,
}

/// A group that can leave.
struct Candidate {
    used_s: u64,
    /// The index of its file.
    file: usize,
    group: u64,
}

/// The files of the cache. Those that have such a name and no valid header are removed.
pub(super) fn files(cache: &Cache) -> Vec<FileInfo> {
    let names = cache.dir.names().unwrap_or_default();
    let look = |name: String| {
        let key = Key::of_file_name(&name)?;
        let file = cache.dir.open_file(&name, Access::Read).ok()?;
        let metadata = file.metadata().ok()?;
        // A file that was just made has no header yet.
        let is_new = metadata.len() < HEADER_USED_BYTES as u64;
        if !is_new && read_header(&file).is_none_or(|header| header.key != key) {
            cache.dir.remove(&name).ok()?;
            return None;
        }
        Some(FileInfo { name, used_bytes: metadata.blocks() * 512 })
    };
    names.into_iter().filter_map(look).collect()
}

/// Evicts groups, if the cache is larger than it may be when `pending_bytes` are written, too. Returns false if another
/// process is at that: it does not know what this one writes.
pub(super) fn evict(cache: &Cache, pending_bytes: u64) -> bool {
    // Without the file, as on a disk without an inode left or beside a folder of its name, processes may do the same work.
    let Ok(lock) = cache.dir.open_file(LOCK_NAME, Access::Create) else {
        make_room(cache, pending_bytes);
        return true;
    };
    let is_busy = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
    if is_busy && cache.busy_evictions.fetch_add(1, Ordering::Relaxed) < MAX_BUSY {
        return false;
    }
    cache.busy_evictions.store(0, Ordering::Relaxed);
    make_room(cache, pending_bytes);
    // Closing the file would not do while a child that this process has just started has it open, too.
    let _ = lock.unlock();
    true
}

fn make_room(cache: &Cache, pending_bytes: u64) {
    let files = files(cache);
    let used: u64 = files.iter().map(|file| file.used_bytes).sum();
    let limit = limit_bytes(cache, used);
    let unchecked = max_unchecked_bytes(limit);
    let left = limit.saturating_sub(unchecked + pending_bytes);
    if used > left {
        evict_files(cache, &files, used, left.saturating_sub(unchecked));
    }
}

/// Evicts groups until the files take `target_bytes`, and removes files that have none.
pub(super) fn evict_files(cache: &Cache, files: &[FileInfo], used_bytes: u64, target_bytes: u64) {
    let freed = evict_from(cache, files, used_bytes.saturating_sub(target_bytes));
    cache.counters.evicted_bytes.fetch_add(freed, Ordering::Relaxed);
    for FileInfo { name, .. } in files {
        if cache.dir.open_file(name, Access::Read).is_ok_and(|file| !has_groups(&file)) {
            let _ = cache.dir.remove(name);
        }
    }
}

/// The size of the cache, or less where the file system is nearly full.
fn limit_bytes(cache: &Cache, used_bytes: u64) -> u64 {
    let room = match cache.dir.free_space() {
        Ok(space) => space.free_bytes.saturating_add(used_bytes) / 8 * 7,
        Err(_) => u64::MAX,
    };
    cache.size_bytes.min(room)
}

/// Deallocates groups, the least recently used first, until `wanted_bytes` are free. Returns how many bytes are.
fn evict_from(cache: &Cache, files: &[FileInfo], wanted_bytes: u64) -> u64 {
    let candidates = candidates(cache, files);
    let mut opened: Option<(usize, File)> = None;
    let mut freed_bytes = 0;
    for candidate in candidates {
        if freed_bytes >= wanted_bytes {
            break;
        }
        // Groups of one file often follow each other.
        if opened.as_ref().is_none_or(|(index, _)| *index != candidate.file) {
            let file = cache.dir.open_file(&files[candidate.file].name, Access::Write);
            opened = file.ok().map(|file| (candidate.file, file));
        }
        if let Some((_, file)) = &opened {
            freed_bytes += evict_group(file, &candidate);
        }
    }
    freed_bytes
}

/// All groups, the least recently used first.
fn candidates(cache: &Cache, files: &[FileInfo]) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (index, FileInfo { name, .. }) in files.iter().enumerate() {
        let Ok(file) = cache.dir.open_file(name, Access::Read) else { continue };
        let Some(layout) = layout(&file) else { continue };
        for_each_record(&file, &layout, &mut |group, record| {
            let used_s = age_rank(record);
            if used_s != 0 {
                candidates.push(Candidate { used_s, file: index, group });
            }
            true
        });
    }
    candidates.sort_unstable_by_key(|candidate| (candidate.used_s, candidate.file, candidate.group));
    candidates
}

/// The time of the last use. A time in the future counts as the oldest: the clock was wrong, or the file is damaged.
fn age_rank(record: &Record) -> u64 {
    if record.used_s() > now_s() { 1 } else { record.used_s() }
}

/// Deallocates a group, unless it was used meanwhile. Returns the bytes that are free now.
fn evict_group(file: &File, candidate: &Candidate) -> u64 {
    let Some(layout) = layout(file) else { return 0 };
    let record = read_record(file, &layout, candidate.group);
    if record.is_ok_and(|record| age_rank(&record) > candidate.used_s) {
        return 0;
    }
    let allocated_bytes = || file.metadata().map_or(0, |metadata| metadata.blocks() * 512);
    let before = allocated_bytes();
    // The data first: a process that dies in between leaves a group that is still known.
    if punch_hole(file, layout.group_data(candidate.group)).is_err() {
        // A file system without holes: all of the file leaves at once, and its users go on with it as it was.
        return if file.set_len(HEADER_BYTES).is_ok() { before } else { 0 };
    }
    let _ = file.write_all_at(&[0; RECORD_BYTES], layout.record_at(candidate.group));
    // Blocks that were written meanwhile would stay in a group that nobody knows. Their writer looks at the record last, and
    // marks the group again if it is zeroed; what it wrote before that leaves now.
    let _ = punch_hole(file, layout.group_data(candidate.group));
    before.saturating_sub(allocated_bytes())
}

fn layout(file: &File) -> Option<Layout> {
    read_header(file).and_then(|header| Layout::of(header.len_bytes))
}

fn has_groups(file: &File) -> bool {
    let Some(layout) = layout(file) else { return false };
    let mut has_groups = false;
    for_each_record(file, &layout, &mut |_, record| {
        has_groups = record.used_s() != 0;
        !has_groups
    });
    has_groups
}

/// Calls `visit` with each record of a file, up to the end of the file, until it returns false.
fn for_each_record(file: &File, layout: &Layout, visit: &mut dyn FnMut(u64, &Record) -> bool) {
    let len_bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let in_file = len_bytes.saturating_sub(HEADER_BYTES) / RECORD_BYTES as u64;
    let groups = layout.groups.min(in_file);
    let mut chunk = vec![0; CHUNK_RECORDS as usize * RECORD_BYTES];
    let mut first = 0;
    while let Some(next) = next_record(file, layout, first).filter(|next| *next < groups) {
        first = next;
        let count = (groups - first).min(CHUNK_RECORDS);
        let bytes = &mut chunk[..count as usize * RECORD_BYTES];
        if file.read_exact_at(bytes, layout.record_at(first)).is_err() {
            return;
        }
        for (group, record) in (first..).zip(bytes.chunks_exact(RECORD_BYTES)) {
            let mut record_bytes = [0; RECORD_BYTES];
            record_bytes.copy_from_slice(record);
            if !visit(group, &Record::new(record_bytes)) {
                return;
            }
        }
        first += count;
    }
}

/// The first group from `first` on whose record may be other than zeroes; `None` if there is none. A long object of which
/// little was read has a gigabyte of records that were never written.
fn next_record(file: &File, layout: &Layout, first: u64) -> Option<u64> {
    use rustix::fs::{SeekFrom, seek};
    match seek(file, SeekFrom::Data(layout.record_at(first))) {
        Ok(data) => Some(data.saturating_sub(HEADER_BYTES) / RECORD_BYTES as u64).map(|next| next.max(first)),
        Err(rustix::io::Errno::NXIO) => None,
        // A file system that does not know.
        Err(_) => Some(first),
    }
}
