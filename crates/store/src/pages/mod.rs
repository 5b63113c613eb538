//! The pages in memory: the table of slots, the pool of objects, and the codecs.
//!
//! [`Pages`] is the common base of the public store (`engine`) and of `writeback`: it compresses a page into an
//! object, decompresses an object, frees an object, lets the pool move one, and counts.
//!
//! It takes no lock that outlives a call, waits for no memory, and publishes no contents in a slot: `engine` and
//! `writeback` do both. An object belongs to the slot that refers to it, or to the thread that has not published it
//! yet or has taken it out of its slot; that thread frees it with [`Pages::free`].

mod clock;
mod codecs;
mod counters;
mod table;

pub use codecs::FURTHER_CODECS_MAX;
pub(crate) use codecs::{Codecs, OwnStreams};
pub(crate) use counters::{Counter, Counters};
pub(crate) use table::SlotTable;

use crate::kept::KeptMemory;
use crate::slot::{AccessTime, BackingLocation, Content, Intents, Slot, SlotSnapshot};
pub(crate) use clock::Clock;
use pagefold_codec::CodecError;
use pagefold_page::{PAGE_SIZE, Page, PageCount, PageIndex};
use pagefold_pool::{
    BackedFrames, Compaction, Frames, Handle, Owner, Pool, Purpose, PutError, Relocate, SourceError,
};
use parking_lot::Mutex;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

/// A page that compresses to at least this many bytes is stored raw: saving less than 1/32 is not worth a
/// decompression at each read. A raw object uses 4096 bytes.
pub(crate) const RAW_LEN_MIN: usize = PAGE_SIZE - PAGE_SIZE / 32;
/// Ticks between walks that clamp old access times, so that they do not wrap around.
const CLAMP_TICKS: u64 = 1 << 13;
/// Ticks from which on the clock advances in steps. With the time since the last walk and `AGE_MAX`, ages stay within
/// what `AccessTime` can tell.
const LEAP_TICKS: u64 = CLAMP_TICKS / 2;

/// The slots of a store, the pool of their objects, and the codecs.
pub(crate) struct Pages {
    pub(crate) codecs: Codecs,
    pub(crate) counters: Counters,
    /// The clock of access times.
    pub(crate) clock: Clock,
    /// Held while the clock advances in steps.
    leap: Mutex<()>,
    /// Notes of the changes of slots, of a store that outlives the process.
    pub(crate) intents: Intents,
    pub(crate) table: SlotTable,
    /// Its memory but for slots and objects.
    pub(crate) kept: Option<KeptMemory>,
    // Dropped after the table, whose chunks lie in the arena of the pool's source.
    pub(crate) pool: Pool,
}

impl Pages {
    /// Empty slots for `page_count` pages, and an empty pool.
    pub(crate) fn new(
        codecs: Codecs,
        counters: Counters,
        page_count: PageCount,
        pool: Pool,
    ) -> Result<Self, SourceError> {
        let table = SlotTable::new(page_count, pool.source().arena())?;
        let (clock, intents) = (Clock::new(), Intents::NONE);
        Ok(Pages { codecs, counters, clock, leap: Mutex::new(()), intents, table, kept: None, pool })
    }

    /// Pages in memory that outlives the process: the slots of `table`, and the objects of `pool` in its arena.
    pub(crate) fn kept(
        codecs: Codecs,
        counters: Counters,
        clock: Clock,
        table: SlotTable,
        kept: KeptMemory,
        pool: Pool,
    ) -> Self {
        let intents = kept.intents(pool.source().arena());
        Pages { codecs, counters, clock, leap: Mutex::new(()), intents, table, kept: Some(kept), pool }
    }

    /// Compresses a page with this CPU's stream and tries once to store the result, as an object that is in no slot
    /// yet. Frames come from `backed` first.
    pub(crate) fn try_store(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        backed: &mut Frames,
    ) -> Result<Result<Content, PutError>, CodecError> {
        let owner = Owner::new(index.0);
        let mut cpu_stream = self.codecs.primary.streams.get(cpu);
        let cpu_stream = &mut *cpu_stream;
        let len = cpu_stream.stream.compress(page, &mut cpu_stream.buf[..])?;
        let bytes = if len >= RAW_LEN_MIN { &page[..] } else { &cpu_stream.buf[..len] };
        let put = self.pool.try_put_from(backed, bytes, owner);
        Ok(put.map(|handle| Content::object(handle.to_bits(), bytes.len())))
    }

    /// Compresses a page with this CPU's stream. Returns the bytes that an object of it has: in `buf`, or the page
    /// itself if it is to be stored raw.
    pub(crate) fn compress<'a>(
        &self,
        cpu: usize,
        page: &'a Page,
        buf: &'a mut Page,
    ) -> Result<&'a [u8], CodecError> {
        let mut cpu_stream = self.codecs.primary.streams.get(cpu);
        let cpu_stream = &mut *cpu_stream;
        let len = cpu_stream.stream.compress(page, &mut cpu_stream.buf[..])?;
        if len >= RAW_LEN_MIN {
            return Ok(page);
        }
        buf[..len].copy_from_slice(&cpu_stream.buf[..len]);
        Ok(&buf[..len])
    }

    /// Stores `bytes`, which replace a longer object that is freed next, as an object that is in no slot yet.
    ///
    /// Does not wait for other writers at the memory limit, but takes frames up to `frames_max`, beyond the limit too
    /// ([`Purpose::Replacements`]). Takes nothing from writers that wait for the reserve.
    pub(crate) fn put_replacement(&self, index: PageIndex, bytes: &[u8], frames_max: u64) -> Option<Handle> {
        let owner = Owner::new(index.0);
        let source = self.pool.source();
        let mut backed = BackedFrames::new(source, Purpose::Replacements { frames_max });
        loop {
            match self.pool.try_put_from(backed.frames(), bytes, owner) {
                Ok(handle) => return Some(handle),
                Err(PutError::NotReady { .. }) if source.arena().has_reserve() => return None,
                Err(PutError::NoMemory { source, .. }) if !source.is_limit() => return None,
                Err(PutError::NotReady { frames } | PutError::NoMemory { frames, .. }) => {
                    backed.charge(frames).and_then(|()| backed.fill()).ok()?;
                }
            }
        }
    }

    /// Stores the bytes of a record as an object that is in no slot yet. Returns `None` without waiting if no memory
    /// is ready.
    pub(crate) fn try_store_record(
        &self,
        index: PageIndex,
        written_back: BackingLocation,
        bytes: &[u8],
    ) -> Option<Content> {
        let handle = self.pool.try_put(bytes, Owner::new(index.0)).ok()?.to_bits();
        let BackingLocation { len_bytes, priority, .. } = written_back;
        Some(match usize::from(len_bytes) {
            PAGE_SIZE => Content::Raw { handle },
            _ => Content::Folded { handle, len_bytes, priority },
        })
    }

    /// Decompresses the bytes of an object or a record into `page`, with this CPU's stream of the codec of `priority`.
    pub(crate) fn expand(
        &self,
        cpu: usize,
        priority: u8,
        bytes: &[u8],
        page: &mut Page,
    ) -> Result<(), CodecError> {
        self.expand_with(|bytes, page| self.codecs.decompress(cpu, priority, bytes, page), bytes, page)
    }

    /// Turns the bytes of an object or a record into a page: copies 4096 bytes as they are, and decompresses fewer
    /// with `decompress`.
    pub(crate) fn expand_with(
        &self,
        decompress: impl FnOnce(&[u8], &mut Page) -> Result<usize, CodecError>,
        bytes: &[u8],
        page: &mut Page,
    ) -> Result<(), CodecError> {
        if let Ok(whole) = <&Page>::try_from(bytes) {
            page.copy_from_slice(whole);
            return Ok(());
        }
        match decompress(bytes, page)? {
            PAGE_SIZE => Ok(()),
            _ => Err(CodecError::Corrupt {
                codec: self.codecs.primary.codec.name(),
                src_len_bytes: bytes.len(),
            }),
        }
    }

    /// Frees the object of contents that are in no slot. Contents without an object are ignored.
    #[inline]
    pub(crate) fn free(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            // SAFETY: the handle came from this pool, and the caller took it out of its slot or never put it there.
            // Readers copy under the slot's lock, so none is left, and `relocate` below returns true only for handles
            // that are in a slot.
            unsafe { self.pool.free(Handle::from_bits(handle), self) };
        }
    }

    /// Compacts the pool by closing the holes between objects.
    pub(crate) fn compact(&self) -> Compaction {
        // SAFETY: all objects of this pool were put for slots of this table.
        unsafe { self.pool.compact(self) }
    }

    /// Updates the counters for the replacement of a slot's contents `old` by `new`.
    pub(crate) fn account(&self, cpu: usize, old: Content, new: Content) {
        for (content, n) in [(old, -1), (new, 1)] {
            if let Content::Folded { priority, .. } = content
                && let Some(counter) = Counter::of_priority(priority)
            {
                self.counters.add(cpu, counter, n);
            }
        }
        let (old, new) = (StatDelta::of(old), StatDelta::of(new));
        self.counters.add(cpu, Counter::PagesStored, new.stored - old.stored);
        self.counters.add(cpu, Counter::CompressedBytes, new.bytes - old.bytes);
        self.counters.add(cpu, Counter::SamePages, new.same - old.same);
        self.counters.add(cpu, Counter::HugePages, new.huge - old.huge);
    }

    /// Updates the counters for a written page whose contents became `new`.
    pub(crate) fn account_written(&self, cpu: usize, new: Content) {
        self.counters.add(cpu, Counter::HugePagesSince, StatDelta::of(new).huge);
    }

    /// Advances the clock of access times, and returns the time. Once in half an hour it walks over all slots as well:
    /// it sets the access time of pages that are older than `AGE_MAX` to that age, so that none looks young after the
    /// wrap-around.
    pub(crate) fn tick(&self) -> AccessTime {
        self.advance_clock(self.clock.elapsed())
    }

    /// Advances the clock to `elapsed` after the creation of the store.
    pub(crate) fn advance_clock(&self, elapsed: Duration) -> AccessTime {
        if self.clock.ticks_behind(elapsed) > LEAP_TICKS {
            self.advance_in_steps(elapsed);
        }
        let now = self.clock.advance(elapsed);
        self.kept.iter().for_each(|kept| kept.note_ticks(self.clock.ticks()));
        if self.clock.is_walk_due(CLAMP_TICKS) {
            self.clamp_access_times();
        }
        now
    }

    /// Brings a clock that has stood still for long near to `elapsed`: because the process was stopped, or because no
    /// thread advances the clock of this store. Ages are clamped before each step, so that none wraps around.
    #[cold]
    fn advance_in_steps(&self, elapsed: Duration) {
        let _others_wait = self.leap.lock();
        let mut stepped = 0;
        loop {
            self.clamp_access_times();
            let behind = self.clock.ticks_behind(elapsed);
            if behind <= LEAP_TICKS {
                return;
            }
            let wraps = behind >> u16::BITS << u16::BITS;
            // All pages but those accessed at this moment are as old as ages get, and whole wraps change no age.
            let are_all_old = stepped >= u64::from(AccessTime::AGE_MAX);
            let step = if are_all_old && wraps > 0 { wraps } else { behind.min(CLAMP_TICKS) };
            self.clock.step(step);
            stepped += step;
        }
    }

    /// Sets the access time of pages that are older than `AGE_MAX` to that age. It reads the clock for each page: this
    /// thread may be stopped for any time.
    fn clamp_access_times(&self) {
        let is_older = |last: AccessTime| last.age_ticks(self.clock.now()) > AccessTime::AGE_MAX;
        self.each_slot(|_, slot, seen| {
            if is_older(seen.last_access()) {
                let mut guard = slot.lock();
                if is_older(guard.last_access()) {
                    guard.set_last_access(self.clock.now().before(AccessTime::AGE_MAX));
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Visits all allocated slots in order, without their locks, until `visit` returns `Break`.
    pub(crate) fn each_slot(&self, visit: impl FnMut(PageIndex, &Slot, &SlotSnapshot) -> ControlFlow<()>) {
        self.each_slot_in(PageIndex(0)..PageIndex(self.table.page_count().0), visit);
    }

    /// The same for the slots of a range.
    pub(crate) fn each_slot_in(
        &self,
        range: Range<PageIndex>,
        mut visit: impl FnMut(PageIndex, &Slot, &SlotSnapshot) -> ControlFlow<()>,
    ) {
        let end = range.end.0.min(self.table.page_count().0);
        let mut index = range.start;
        loop {
            index = self.table.next_allocated(index, end);
            if index.0 >= end {
                return;
            }
            if let Some(slot) = self.table.get(index)
                && visit(index, slot, &slot.snapshot()).is_break()
            {
                return;
            }
            index = PageIndex(index.0 + 1);
        }
    }
}

/// The amounts that one page adds to the counters.
struct StatDelta {
    stored: i64,
    bytes: i64,
    same: i64,
    huge: i64,
}

impl StatDelta {
    fn of(content: Content) -> Self {
        let (stored, bytes, same, huge) = match content {
            Content::Empty | Content::Lost => (0, 0, 0, 0),
            Content::SameFilled(_) => (1, 0, 1, 0),
            Content::Folded { len_bytes, .. } => (1, i64::from(len_bytes), 0, 0),
            Content::Raw { .. } => (1, PAGE_SIZE as i64, 0, 1),
            // Counted as stored, as zram does. Its bytes on the backing are counted by `writeback`.
            Content::WrittenBack(_) => (1, 0, 0, 0),
        };
        StatDelta { stored, bytes, same, huge }
    }
}

// SAFETY: `SlotGuard::relocate` exchanges the handle under the slot's lock, and only if the slot contains `old`.
// Readers copy under that lock and take the handle from the slot each time, so none still uses `old`.
unsafe impl Relocate for Pages {
    /// Updates the slot of an object that the pool moved. Refuses the move if the slot contains another handle or is
    /// locked.
    fn relocate(&self, owner: Owner, old: Handle, new: Handle) -> bool {
        let slot = self.table.get(PageIndex(owner.value()));
        match slot.and_then(|s| s.try_lock()) {
            Some(guard) => guard.relocate(old.to_bits(), new.to_bits()),
            None => false,
        }
    }
}
