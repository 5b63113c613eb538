//! [`Store`]: its parts, its construction, its settings and its counters.

use crate::engine::capture::Saving;
use crate::engine::config::{MemLimit, StoreConfig};
use crate::engine::fetch::Unfetched;
use crate::engine::stats::{IoStat, MemoryStats, MmStat, RecompressStats, Stats};
use crate::error::StoreError;
use crate::pages::{Codecs, Counter, Counters, Pages};
use crate::policy::BUSY_PERCENT;
use crate::slot::Content;
use crate::writeback::{AttachError, Writeback, WritebackConfig};
use pagefold_page::PAGE_SIZE;
use pagefold_pool::{Arena, ClassStats, FrameSource, Pool, Reserve};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const LEN_MAX: u64 = 1 << 50;

/// Compressed pages by index; any number of threads may share one.
///
/// Threads that access different pages contend only for the pool's lock of a size class, which is never held across a
/// codec call. A slot's lock is held to copy compressed bytes out or to exchange the slot's contents.
pub struct Store {
    pub(crate) len_bytes: u64,
    pub(crate) same_filled: AtomicBool,
    /// Whether accesses are timed; fixed once the store is in use.
    pub(crate) access_times: bool,
    /// Pressure above which automatic recompression waits, per cent; 0: it never waits.
    recompress_busy_percent: AtomicU32,
    pub(crate) saving: Saving,
    pub(crate) unfetched: Unfetched,
    pub(crate) pages: Pages,
    pub(crate) writeback: Option<Writeback>,
    reserve: Option<Reserve>,
}

impl Store {
    /// Creates an empty store. It reserves address space at once, and takes memory as pages are written, except for
    /// the streams and the reserve, if one is configured.
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let arena = Arc::new(Arena::new(config.arena_len_bytes()).map_err(StoreError::SetUp)?);
        let mut store = Store::over(&config, arena.clone())?;
        store.start_reserve(arena, &config)?;
        Ok(store)
    }

    /// Starts the reserve, if one is configured.
    pub(crate) fn start_reserve(
        &mut self,
        arena: Arc<Arena>,
        config: &StoreConfig,
    ) -> Result<(), StoreError> {
        if let Some(len) = config.reserve_bytes {
            self.reserve = Some(Reserve::start(arena, len).map_err(StoreError::SetUp)?);
            self.pages.table.touch();
        }
        Ok(())
    }

    /// Creates an empty store that takes its memory from `source`, which may refuse it.
    #[cfg(feature = "testing")]
    pub fn with_source(config: StoreConfig, source: Arc<dyn FrameSource>) -> Result<Self, StoreError> {
        Store::over(&config, source)
    }

    fn over(config: &StoreConfig, source: Arc<dyn FrameSource>) -> Result<Self, StoreError> {
        let (codecs, counters) = Store::parts(config)?;
        let pages = Pages::new(codecs, counters, config.page_count(), Pool::new(source));
        Ok(Store::of(config, pages.map_err(StoreError::SetUp)?))
    }

    /// Checks the length, and makes the parts of a store that do not depend on its memory.
    pub(crate) fn parts(config: &StoreConfig) -> Result<(Codecs, Counters), StoreError> {
        if config.len_bytes == 0 || config.len_bytes > LEN_MAX {
            return Err(StoreError::BadLength(config.len_bytes));
        }
        let codecs = Codecs::new(&config.codec, &config.further_codecs, config.cpu_count);
        Ok((codecs.map_err(StoreError::Codec)?, Counters::new(config.cpu_count)))
    }

    /// A store of these pages.
    pub(crate) fn of(config: &StoreConfig, pages: Pages) -> Self {
        let store = Store {
            len_bytes: config.len_bytes,
            same_filled: AtomicBool::new(config.same_filled),
            access_times: config.access_times,
            recompress_busy_percent: AtomicU32::new(BUSY_PERCENT),
            saving: Saving::default(),
            unfetched: Unfetched::default(),
            pages,
            writeback: None,
            reserve: None,
        };
        store.set_mem_limit(config.mem_limit);
        store
    }

    /// Attaches a backing, whose former contents are lost. A store has at most one: a second call returns
    /// [`AttachError::HasOne`], because pages may lie on the first backing.
    pub fn attach(&mut self, config: WritebackConfig) -> Result<(), StoreError> {
        if self.writeback.is_some() {
            return Err(StoreError::Attach(AttachError::HasOne));
        }
        self.writeback = Some(Writeback::attach(config, &self.pages).map_err(StoreError::Attach)?);
        self.access_times = true;
        Ok(())
    }

    /// The store's writeback, if a backing is attached.
    pub fn writeback(&self) -> Option<&Writeback> {
        self.writeback.as_ref()
    }

    /// The size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The name and the level of the codec that compresses pages when they are written.
    pub fn codec(&self) -> (&'static str, Option<i32>) {
        let codec = &self.pages.codecs.primary.codec;
        (codec.name(), codec.level())
    }

    /// The name and the level of the codec of a priority, if the store has it: 0 is the primary codec, and up to
    /// [`FURTHER_CODECS_MAX`](crate::FURTHER_CODECS_MAX) are further ones.
    pub fn codec_of(&self, priority: u8) -> Option<(&'static str, Option<i32>)> {
        self.pages.codecs.get(priority).map(|of| (of.codec.name(), of.codec.level()))
    }

    /// Priority, name and level of each further codec, by priority.
    pub fn further_codecs(&self) -> impl Iterator<Item = (u8, &'static str, Option<i32>)> {
        self.pages.codecs.further().map(|(priority, of)| (priority, of.codec.name(), of.codec.level()))
    }

    /// Sets the memory limit. Pages already stored stay, even above the limit; new objects are refused there.
    pub fn set_mem_limit(&self, limit: MemLimit) {
        self.pages.pool.source().arena().set_limit(limit.bytes());
    }

    /// The memory limit on objects, bytes; `u64::MAX` is no limit. Takes no lock.
    pub fn mem_limit_bytes(&self) -> u64 {
        self.pages.pool.source().arena().limit_bytes()
    }

    /// Bytes of memory that objects use, including gaps: the value that is compared with the limit, and
    /// `mem_used_total` of [`Store::stats`]. Takes no lock.
    pub fn in_use_bytes(&self) -> u64 {
        self.pages.pool.source().arena().in_use_bytes()
    }

    /// The pressure of the machine above which automatic recompression waits, per cent of time stalled in the last ten
    /// seconds; 0: it never waits.
    pub fn recompress_busy_percent(&self) -> u32 {
        self.recompress_busy_percent.load(Relaxed)
    }

    /// Sets [`Store::recompress_busy_percent`], at most 100.
    pub fn set_recompress_busy_percent(&self, percent: u32) {
        self.recompress_busy_percent.store(percent.min(100), Relaxed);
    }

    /// Whether the same-filled check is enabled.
    pub fn same_filled_enabled(&self) -> bool {
        self.same_filled.load(Relaxed)
    }

    /// Enables or disables the same-filled check for pages written from now on.
    pub fn set_same_filled_enabled(&self, enabled: bool) {
        self.same_filled.store(enabled, Relaxed);
    }

    /// Compacts the pool by closing the holes between objects. Returns the bytes freed.
    pub fn compact(&self) -> u64 {
        self.pages.compact().freed_frames * PAGE_SIZE as u64
    }

    /// Resets `mem_used_max` to the present use.
    pub fn reset_mem_used_max(&self) {
        self.pages.pool.source().arena().reset_in_use_max();
    }

    /// A snapshot of the counters. Waits for no pass and no I/O.
    pub fn stats(&self) -> Stats {
        let arena = self.pages.pool.source().arena().stats();
        let count = |c| self.pages.counters.get(c);
        Stats {
            mm: MmStat {
                orig_data_size: count(Counter::PagesStored) * PAGE_SIZE as u64,
                compr_data_size: count(Counter::CompressedBytes),
                mem_used_total: arena.in_use_bytes,
                mem_limit: if arena.limit_bytes == u64::MAX { 0 } else { arena.limit_bytes },
                mem_used_max: arena.in_use_max_bytes,
                same_pages: count(Counter::SamePages),
                pages_compacted: self.pages.pool.frames_compacted(),
                huge_pages: count(Counter::HugePages),
                huge_pages_since: count(Counter::HugePagesSince),
            },
            io: IoStat {
                failed_reads: count(Counter::FailedReads),
                failed_writes: count(Counter::FailedWrites),
                invalid_io: count(Counter::InvalidIo),
                notify_free: count(Counter::NotifyFree),
            },
            recompress: RecompressStats {
                recompressed_pages: count(Counter::Recompressed),
                saved_bytes: count(Counter::RecompressSavedBytes),
                not_smaller_pages: count(Counter::RecompressNotSmaller),
                pages_now: Counter::PRIORITIES.map(count),
            },
            memory: MemoryStats {
                objects: arena.in_use_bytes,
                slots: arena.slots_bytes,
                links: arena.link_bytes,
                ready: arena.ready_bytes,
            },
            streams: self.pages.codecs.primary.streams.waits(),
            slow_writes: count(Counter::SlowWrites),
            objects_moved: self.pages.pool.moved(),
        }
    }

    /// The pool's size classes in use.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        self.pages.pool.class_stats()
    }

    /// Whether writes must not wait for memory of the machine, because the system may swap to the store.
    pub(crate) fn has_reserve(&self) -> bool {
        self.reserve.is_some()
    }

    /// Frees the object or the place on the backing of contents that are in no slot.
    #[inline]
    pub(crate) fn release(&self, content: Content) {
        match content {
            Content::WrittenBack(written_back) => {
                if let Some(writeback) = &self.writeback {
                    writeback.release(written_back);
                }
            }
            _ => self.pages.free(content),
        }
    }
}
