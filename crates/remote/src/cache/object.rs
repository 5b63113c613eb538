//! The cached blocks of one version of an object.
//!
//! A write marks the group as used, then writes the blocks, then their checksums. A process that dies in between
//! leaves blocks without checksums, in a group that eviction knows. A read reads the checksum and then the block; if
//! another process changes one of them in between, they do not fit, and the block is not there. Only the checksums of
//! the blocks that were stored are written, never a whole record, so that processes that store neighbours do not undo
//! each other's work.

use super::evict::evict;
use super::folder::{Cache, is_full, now_s, read_header, read_record};
use super::format::{CHECKSUM_BYTES, GROUP_BLOCKS, Header, Layout, Record, checksum};
use super::key::Key;
use pagefold_sys::SysError;
use pagefold_sys::cachedir::Access;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The time of the last use of a group is written again when it is this old, seconds.
const TOUCH_AFTER_S: u64 = 60;

/// The cached blocks of one version of an object. Blocks are numbered from 0 and have 32 KiB; the last may be shorter.
pub struct CachedObject {
    pub(super) cache: Arc<Cache>,
    header: Header,
    pub(super) layout: Layout,
    opened: Mutex<Opened>,
    /// Until when nobody waits for the claims of other processes: seconds since 1970.
    pub(super) no_wait_until_s: AtomicU64,
    /// Whether wrong blocks could not be dropped, so that none is read any more.
    is_distrusted: AtomicBool,
}

/// The open file of an object.
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    /// Why the file cannot be written, if it cannot.
    pub(super) read_only: Option<SysError>,
}

/// Opens the file of an object, and makes it if there is none.
///
/// A file without a valid header is emptied. One whose header says another length is replaced: one of the two objects has a
/// wrong length, and a process that uses the other one keeps its file, without a name.
pub(super) fn open(cache: &Cache, header: &Header) -> Result<Opened, SysError> {
    let name = header.key.file_name();
    if is_of_another(cache, header) {
        cache.dir.remove(&name)?;
    }
    let (file, read_only) = match cache.dir.open_file(&name, Access::Create) {
        Ok(file) => (file, None),
        Err(e) => (cache.dir.open_file(&name, Access::Read).map_err(|_| e.clone())?, Some(e)),
    };
    match (read_header(&file) == Some(*header), &read_only) {
        (true, _) => {}
        (false, Some(e)) => return Err(e.clone()),
        (false, None) => {
            // Other processes may use the file, or do the same at this moment. Emptying it takes blocks from them, and they
            // write the same header.
            let written = file.set_len(0).and_then(|()| file.write_all_at(&header.to_bytes(), 0));
            written.map_err(|e| SysError::io("writing to the cache", &e))?;
        }
    }
    Ok(Opened { file: Arc::new(file), read_only })
}

/// Whether the file of this object's key has the valid header of an object of another length.
fn is_of_another(cache: &Cache, header: &Header) -> bool {
    let file = cache.dir.open_file(&header.key.file_name(), Access::Read);
    file.ok().and_then(|file| read_header(&file)).is_some_and(|found| found != *header)
}

impl Cache {
    /// The cached part of an object of this length; empty if it is new. `None` if the cache cannot have it: it is too long,
    /// has no bytes, or the folder fails.
    pub fn object(self: &Arc<Self>, key: &Key, len_bytes: u64) -> Option<CachedObject> {
        let layout = Layout::of(len_bytes)?;
        let header = Header { key: *key, len_bytes };
        let opened = open(self, &header).inspect_err(|e| self.write_failed(e)).ok()?;
        opened.read_only.iter().for_each(|e| self.writes.failed(e));
        Some(CachedObject::new(self.clone(), header, layout, opened))
    }

    /// The cached part of an object whose length only the cache knows; `None` if nothing of it is there. The length is as
    /// trustworthy as the file: the caller verifies it.
    pub fn find(self: &Arc<Self>, key: &Key) -> Option<CachedObject> {
        let file = self.dir.open_file(&key.file_name(), Access::Read).ok()?;
        let header = read_header(&file).filter(|header| header.key == *key)?;
        self.object(key, header.len_bytes)
    }
}

impl CachedObject {
    pub(super) fn new(cache: Arc<Cache>, header: Header, layout: Layout, opened: Opened) -> Self {
        let (opened, no_wait_until_s) = (Mutex::new(opened), AtomicU64::new(0));
        let is_distrusted = AtomicBool::new(false);
        CachedObject { cache, header, layout, opened, no_wait_until_s, is_distrusted }
    }

    /// The length of the object, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.layout.len_bytes
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.layout.blocks()
    }

    pub(super) fn file(&self) -> Arc<File> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).file.clone()
    }

    /// Reads the first of these blocks, and those after it as far as all are there. The range is inside the object.
    pub fn read(&self, blocks: &Range<u64>) -> Vec<Vec<u8>> {
        if self.cache.reads.is_paused() || self.is_distrusted.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let file = self.file();
        let mut loaded = Vec::new();
        let mut record: Option<(u64, Record)> = None;
        for block in blocks.clone() {
            let group = block / GROUP_BLOCKS;
            let found = match record {
                Some((of, found)) if of == group => Ok(found),
                _ => read_record(&file, &self.layout, group).inspect(|found| {
                    self.touch(&file, group, found);
                    record = Some((group, *found));
                }),
            };
            match found.and_then(|found| self.read_block(&file, block, &found)) {
                Ok(Some(bytes)) => loaded.push(bytes),
                Ok(None) => break,
                Err(e) => {
                    self.cache.reads.failed(&SysError::io("reading from the cache", &e));
                    return loaded;
                }
            }
        }
        self.cache.reads.succeeded();
        let counters = &self.cache.counters;
        counters.hit_blocks.fetch_add(loaded.len() as u64, Ordering::Relaxed);
        let hit_bytes: usize = loaded.iter().map(Vec::len).sum();
        counters.hit_bytes.fetch_add(hit_bytes as u64, Ordering::Relaxed);
        loaded
    }

    fn read_block(&self, file: &File, block: u64, record: &Record) -> io::Result<Option<Vec<u8>>> {
        let Some(expected) = record.checksum(block) else { return Ok(None) };
        let mut bytes = vec![0; self.layout.block_bytes(block)];
        match file.read_exact_at(&mut bytes, self.layout.data(&(block..block + 1)).start) {
            Ok(()) if checksum(&self.header.key, block, &bytes) == expected => return Ok(Some(bytes)),
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(e),
        }
        self.cache.counters.refused_blocks.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    /// Marks a group that has blocks as used now, if its mark is old. That may fail in a file that is open for reading only.
    fn touch(&self, file: &File, group: u64, record: &Record) {
        let now = now_s();
        if record.used_s() != 0 && record.used_s().abs_diff(now) >= TOUCH_AFTER_S {
            let _ = file.write_all_at(&now.to_le_bytes(), self.layout.record_at(group));
        }
    }

    /// The first of these blocks, and those after it up to one that has a checksum. Never empty if `blocks` is not.
    pub(super) fn missing(&self, blocks: &Range<u64>) -> Range<u64> {
        let end = (blocks.start + 1..blocks.end).find(|block| self.has(*block)).unwrap_or(blocks.end);
        blocks.start..end
    }

    /// Stores consecutive blocks from block `first` on. They must be whole, and inside the object.
    pub fn write(&self, first: u64, blocks: &[Vec<u8>]) {
        let cache = &self.cache;
        if cache.writes.is_paused() {
            return;
        }
        // A run that is not stored now may be stored when it is fetched again.
        let len_bytes = blocks.iter().map(|block| block.len() as u64).sum();
        let Some(_reserved) = cache.reserve(len_bytes) else { return };
        let failed = |e| SysError::io("writing to the cache", &e);
        let file = match self.current_file() {
            Ok(Some(file)) => Ok(file),
            Ok(None) => return,
            Err(e) => Err(e),
        };
        match file.and_then(|file| self.write_to(&file, first, blocks).map_err(failed)) {
            Ok(written_bytes) => {
                cache.writes.succeeded();
                cache.counters.written_bytes.fetch_add(written_bytes, Ordering::Relaxed);
            }
            Err(e) => cache.write_failed(&e),
        }
    }

    fn write_to(&self, file: &File, first: u64, blocks: &[Vec<u8>]) -> io::Result<u64> {
        let mut written_bytes = 0;
        let (mut at, mut rest) = (first, blocks);
        while !rest.is_empty() {
            let group = at / GROUP_BLOCKS;
            let here = (((group + 1) * GROUP_BLOCKS - at) as usize).min(rest.len());
            let mut written = self.write_group(file, group, at, &rest[..here]);
            if written.as_ref().is_err_and(|e| is_full(e.kind())) {
                // The cache's own writes may have filled the disk since it looked.
                evict(&self.cache, 0);
                written = self.write_group(file, group, at, &rest[..here]);
            }
            written_bytes += written?;
            (at, rest) = (at + here as u64, &rest[here..]);
        }
        Ok(written_bytes)
    }

    /// Stores blocks of one group.
    fn write_group(&self, file: &File, group: u64, first: u64, blocks: &[Vec<u8>]) -> io::Result<u64> {
        self.mark(file, group)?;
        let (mut written_bytes, mut checksums) = (0, Vec::with_capacity(blocks.len() * CHECKSUM_BYTES));
        for (block, bytes) in (first..).zip(blocks) {
            debug_assert_eq!(bytes.len(), self.layout.block_bytes(block));
            file.write_all_at(bytes, self.layout.data(&(block..block + 1)).start)?;
            written_bytes += bytes.len() as u64;
            checksums.extend(checksum(&self.header.key, block, bytes).to_le_bytes());
        }
        file.write_all_at(&checksums, self.layout.checksum_at(first))?;
        // The group may have been evicted meanwhile.
        if read_record(file, &self.layout, group)?.used_s() == 0 {
            self.mark(file, group)?;
        }
        Ok(written_bytes)
    }

    /// Marks a group as used now, so that eviction knows it.
    fn mark(&self, file: &File, group: u64) -> io::Result<()> {
        file.write_all_at(&now_s().max(1).to_le_bytes(), self.layout.record_at(group))
    }

    /// The file to write to: a new one if another process has removed the old one, whose blocks are lost. `None` if it has
    /// replaced the file by that of an object of another length: two processes must not do so again and again.
    fn current_file(&self) -> Result<Option<Arc<File>>, SysError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let metadata = opened.file.metadata().map_err(|e| SysError::io("looking at the cache", &e))?;
        if metadata.nlink() == 0 || opened.read_only.is_some() {
            if is_of_another(&self.cache, &self.header) {
                return Ok(None);
            }
            *opened = open(&self.cache, &self.header)?;
        }
        match &opened.read_only {
            Some(e) => Err(e.clone()),
            None => Ok(Some(opened.file.clone())),
        }
    }

    /// Whether a block is there, and fits its checksum.
    pub(super) fn is_intact(&self, block: u64) -> bool {
        let file = self.file();
        let record = read_record(&file, &self.layout, block / GROUP_BLOCKS);
        record.and_then(|record| self.read_block(&file, block, &record)).is_ok_and(|bytes| bytes.is_some())
    }

    /// Whether a block has a checksum. It may be damaged.
    fn has(&self, block: u64) -> bool {
        let record = read_record(&self.file(), &self.layout, block / GROUP_BLOCKS);
        record.is_ok_and(|record| record.checksum(block).is_some())
    }

    /// Drops blocks that the caller has proved wrong. Returns whether one of them was there.
    pub fn forget(&self, blocks: &Range<u64>) -> bool {
        let file = self.file();
        let mut was_there = false;
        for block in blocks.clone().filter(|block| self.has(*block)) {
            was_there = true;
            if file.write_all_at(&[0; CHECKSUM_BYTES], self.layout.checksum_at(block)).is_err() {
                self.is_distrusted.store(true, Ordering::Relaxed);
            }
        }
        was_there
    }
}
