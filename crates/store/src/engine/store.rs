//! The store: its parts, its set-up, its statistics.

use crate::engine::config::{MemLimit, StoreConfig};
use crate::engine::counters::{Counter, Counters};
use crate::engine::error::StoreError;
use crate::engine::stats::{IoStat, MemoryStats, MmStat, Stats};
use crate::engine::table::SlotTable;
use crate::parking::{AttachError, ParkConfig, Parking};
use crate::slot::Content;
use pagefold_codec::{Codec, Streams};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_pool::{Arena, ClassStats, Handle, Owner, OwnerKind, PageSource, Pool, Relocate, Reserve};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LEN_MAX: u64 = 1 << 50;

/// Compressed pages by index. Shared by any number of threads.
///
/// Two threads on different pages meet only at the pool's lock of a size class, which is never held
/// across a codec call. A slot's lock is held to copy compressed bytes out or to exchange old for new.
pub struct Store {
    pub(crate) len_bytes: u64,
    pub(crate) codec: Codec,
    pub(crate) streams: Streams,
    pub(crate) counters: Counters,
    pub(crate) same_filled: AtomicBool,
    pub(crate) table: SlotTable,
    // After the table, whose chunks lie in the arena that the pool's source owns.
    pub(crate) pool: Pool,
    pub(crate) parking: Option<Parking>,
    _reserve: Option<Reserve>,
}

impl Store {
    /// An empty store. Reserves address space; takes memory only as pages are written, but for the
    /// streams and a reserve if one is asked for.
    pub fn new(config: StoreConfig) -> Result<Self, StoreError> {
        let arena = Arc::new(Arena::new(config.arena_len_bytes()).map_err(StoreError::SetUp)?);
        let reserve = match config.reserve_bytes {
            Some(len) => Some(Reserve::start(arena.clone(), len).map_err(StoreError::SetUp)?),
            None => None,
        };
        let mut store = Store::with_source(config, Box::new(arena))?;
        if reserve.is_some() {
            store.table.touch();
        }
        store._reserve = reserve;
        Ok(store)
    }

    /// An empty store that takes its memory from `source`; for layers and tests.
    pub fn with_source(config: StoreConfig, source: Box<dyn PageSource>) -> Result<Self, StoreError> {
        if config.len_bytes == 0 || config.len_bytes > LEN_MAX {
            return Err(StoreError::BadLength(config.len_bytes));
        }
        let codec = Codec::new(&config.codec).map_err(StoreError::Codec)?;
        let streams = Streams::new(&codec, config.cpu_count).map_err(StoreError::Codec)?;
        let store = Store {
            len_bytes: config.len_bytes,
            streams,
            codec,
            counters: Counters::new(config.cpu_count),
            same_filled: AtomicBool::new(config.same_filled),
            table: SlotTable::new(config.page_count()).map_err(StoreError::SetUp)?,
            pool: Pool::new(source),
            parking: None,
            _reserve: None,
        };
        store.set_mem_limit(config.mem_limit);
        Ok(store)
    }

    /// Takes a backing into use. What it held is lost. Done once, before the store is shared: a second backing is
    /// refused, because pages may have been written to the first.
    pub fn attach(&mut self, config: ParkConfig) -> Result<(), StoreError> {
        if self.parking.is_some() {
            return Err(StoreError::Attach(AttachError::HasOne));
        }
        self.parking = Some(Parking::attach(config, self.table.page_count()).map_err(StoreError::Attach)?);
        Ok(())
    }

    /// Its parking, if it has a backing.
    pub fn parking(&self) -> Option<&Parking> {
        self.parking.as_ref()
    }

    /// The size in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The codec's name and level.
    pub fn codec(&self) -> (&'static str, Option<i32>) {
        (self.codec.name(), self.codec.level())
    }

    /// Sets the limit. What is stored beyond it stays; further pages are refused.
    pub fn set_mem_limit(&self, limit: MemLimit) {
        self.pool.source().arena().set_limit(limit.bytes());
    }

    /// The limit on what objects may take, bytes; `u64::MAX` is none. Locks nothing.
    pub fn mem_limit_bytes(&self) -> u64 {
        self.pool.source().arena().limit_bytes()
    }

    /// Bytes of memory that objects take, gaps included: what the limit is checked against, and
    /// `mem_used_total` of [`Store::stats`]. Locks nothing.
    pub fn held_bytes(&self) -> u64 {
        self.pool.source().arena().in_use_bytes()
    }

    /// Whether pages that repeat one word are kept as that word.
    pub fn same_filled_enabled(&self) -> bool {
        self.same_filled.load(Relaxed)
    }

    /// Switches the same-filled check for pages written from now on.
    pub fn set_same_filled_enabled(&self, enabled: bool) {
        self.same_filled.store(enabled, Relaxed);
    }

    /// Closes the holes between objects. Returns the bytes this freed.
    pub fn compact(&self) -> u64 {
        // SAFETY: all objects of this pool were put for slots of this store.
        unsafe { self.pool.compact(self) * PAGE_SIZE as u64 }
    }

    /// Starts `mem_used_max` anew from what is used now.
    pub fn reset_mem_used_max(&self) {
        self.pool.source().arena().reset_in_use_max();
    }

    /// The counters, without waiting for anything.
    pub fn stats(&self) -> Stats {
        let arena = self.pool.source().arena().stats();
        let count = |c| self.counters.get(c);
        Stats {
            mm: MmStat {
                orig_data_size: count(Counter::PagesStored) * PAGE_SIZE as u64,
                compr_data_size: count(Counter::CompressedBytes),
                mem_used_total: arena.in_use_bytes,
                mem_limit: if arena.limit_bytes == u64::MAX { 0 } else { arena.limit_bytes },
                mem_used_max: arena.in_use_max_bytes,
                same_pages: count(Counter::SamePages),
                pages_compacted: self.pool.frames_compacted(),
                huge_pages: count(Counter::HugePages),
                huge_pages_since: count(Counter::HugePagesSince),
            },
            io: IoStat {
                failed_reads: count(Counter::FailedReads),
                failed_writes: count(Counter::FailedWrites),
                invalid_io: count(Counter::InvalidIo),
                notify_free: count(Counter::NotifyFree),
            },
            memory: MemoryStats {
                objects: arena.in_use_bytes,
                slots: arena.slots_bytes,
                links: arena.link_bytes,
                ready: arena.ready_bytes,
            },
            streams: self.streams.waits(),
            slow_writes: count(Counter::SlowWrites),
            objects_moved: self.pool.moved(),
        }
    }

    /// The pool's size classes in use.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        self.pool.class_stats()
    }

    /// Counts that `old` gave way to `new`.
    pub(crate) fn account(&self, cpu: usize, old: Content, new: Content) {
        let (old, new) = (Shares::of(old), Shares::of(new));
        self.counters.add(cpu, Counter::PagesStored, new.stored - old.stored);
        self.counters.add(cpu, Counter::CompressedBytes, new.bytes - old.bytes);
        self.counters.add(cpu, Counter::SamePages, new.same - old.same);
        self.counters.add(cpu, Counter::HugePages, new.huge - old.huge);
    }

    /// Counts that a page was written that became `new`.
    pub(crate) fn account_written(&self, cpu: usize, new: Content) {
        self.counters.add(cpu, Counter::HugePagesSince, Shares::of(new).huge);
    }

    /// Frees what a slot no longer holds, or never came to hold.
    pub(crate) fn release(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            // SAFETY: the handle came from this pool, and the caller took it out of its slot (or never
            // put it there): readers copy under the slot's lock, so none is left, and `relocate` below
            // agrees only for handles that a slot holds.
            unsafe { self.pool.free(Handle::from_bits(handle), self) };
        } else if let (Content::Parked(parked), Some(parking)) = (content, &self.parking) {
            parking.release(parked);
        }
    }
}

/// What one page adds to the counters.
struct Shares {
    stored: i64,
    bytes: i64,
    same: i64,
    huge: i64,
}

impl Shares {
    fn of(content: Content) -> Self {
        let (stored, bytes, same, huge) = match content {
            Content::Empty => (0, 0, 0, 0),
            Content::SameFilled(_) => (1, 0, 1, 0),
            Content::Folded { len_bytes, .. } => (1, i64::from(len_bytes), 0, 0),
            Content::Raw { .. } => (1, PAGE_SIZE as i64, 0, 1),
            // Counted as stored, as zram does; what it takes on the backing is counted there.
            Content::Parked(_) => (1, 0, 0, 0),
        };
        Shares { stored, bytes, same, huge }
    }
}

// SAFETY: `SlotGuard::relocate` exchanges the handle under the slot's lock, and only if the slot holds `old`. Readers
// copy under that lock and ask the slot again for the next copy, so none is left with `old`.
unsafe impl Relocate for Store {
    /// Lets an object move if its slot holds it and nobody is at the slot now.
    fn relocate(&self, owner: Owner, old: Handle, new: Handle) -> bool {
        if owner.kind() != OwnerKind::Slot {
            return false;
        }
        let slot = self.table.get(PageIndex(owner.value()));
        match slot.and_then(|s| s.try_lock()) {
            Some(guard) => guard.relocate(old.to_bits(), new.to_bits()),
            None => false,
        }
    }
}
