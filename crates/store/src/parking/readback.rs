//! Reading a parked page back, and bringing it back to memory if it is wanted again.
//!
//! The slot's lock is dropped while the medium is read; the place is pinned meanwhile,
//! so that it is not written anew. Afterwards the slot is looked at again, and if the
//! page was rewritten the read is repeated. An error is the page's only if its record
//! is still where it was read.

use crate::engine::{LoadError, Loader, Store, StoreError};
use crate::parking::fetch::{FetchError, Reader, Wanted};
use crate::parking::stats::add;
use crate::parking::{LayoutKind, Parking};
use crate::slot::{Content, Generation, Parked, Slot, SlotGuard, Stamp};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::{Frames, Owner, OwnerKind};
use pagefold_sys::cpu;

impl Store {
    /// Reads a page that was parked when `guard` was taken. `None` if it was changed meanwhile: to be
    /// repeated.
    pub(crate) fn read_back(
        &self,
        parking: &Parking,
        reader: &mut Reader,
        wanted: Wanted,
        slot: &Slot,
        mut guard: SlotGuard,
        page: &mut Page,
    ) -> Result<Option<Generation>, StoreError> {
        let now = parking.clock.now();
        let promotes = guard.touch(now).is_some_and(|last| self.is_wanted_again(parking, last, now));
        // Under the lock: the slot has its record there, so the place is in use until it is pinned.
        parking.pin(wanted.parked);
        drop(guard);
        let cpu = reader.cpu;
        let expanded = parking.fetch(wanted, reader, |bytes| {
            self.expand(cpu, bytes, page).map_err(|_| FetchError::Corrupt)?;
            Ok(if promotes { self.object_of(parking, cpu, wanted, bytes, page) } else { None })
        });
        let expanded = expanded.and_then(|decoded| decoded);
        match self.settle_read(parking, &mut reader.doubted, wanted, slot, expanded) {
            Ok(is_read) => Ok(is_read.then_some(wanted.generation)),
            Err(error) => {
                let error = unreadable(wanted.index, parking.offset(wanted.parked), error);
                parking.tell_failure(&error);
                Err(error)
            }
        }
    }

    /// The same into the loader's staging, without promotion and neighbours, and without telling: allocates
    /// nothing, and waits for the slot and the medium only. False if the page was changed meanwhile: to be
    /// repeated.
    pub(crate) fn load_back(
        &self,
        parking: &Parking,
        loader: &mut Loader,
        wanted: Wanted,
        slot: &Slot,
        mut guard: SlotGuard,
    ) -> Result<bool, LoadError> {
        guard.touch(parking.clock.now());
        parking.pin(wanted.parked);
        drop(guard);
        let Loader { stream, record, staged, doubted, .. } = loader;
        let expanded = parking.fetch_now(wanted, record).and_then(|bytes| {
            let decompress = |bytes: &[u8], page: &mut Page| stream.decompress(bytes, page);
            self.expand_with(decompress, bytes, staged).map(|()| None).map_err(|_| FetchError::Corrupt)
        });
        let (index, offset) = (wanted.index, parking.offset(wanted.parked));
        self.settle_read(parking, doubted, wanted, slot, expanded).map_err(|error| match error {
            FetchError::Io(source) => LoadError::ReadBack { index, offset, errno: source.errno() },
            FetchError::Corrupt => LoadError::CorruptRecord { index, offset },
        })
    }

    /// Ends a read whose place was pinned. Whether the page was read; if not, and without an error, the read
    /// is to be repeated.
    fn settle_read(
        &self,
        parking: &Parking,
        doubted: &mut Option<Wanted>,
        wanted: Wanted,
        slot: &Slot,
        expanded: Result<Option<Content>, FetchError>,
    ) -> Result<bool, FetchError> {
        if matches!(expanded, Err(FetchError::Corrupt)) && doubted.replace(wanted) != Some(wanted) {
            parking.unpin(wanted.parked);
            add(&parking.counters().read_repeats, 1);
            return Ok(false);
        }
        let outcome = self.look_again(parking, wanted, slot, expanded);
        parking.unpin(wanted.parked);
        outcome
    }

    fn look_again(
        &self,
        parking: &Parking,
        wanted: Wanted,
        slot: &Slot,
        expanded: Result<Option<Content>, FetchError>,
    ) -> Result<bool, FetchError> {
        let guard = slot.lock();
        let is_same = guard.generation() == wanted.generation;
        let is_there = is_same && guard.content() == Content::Parked(wanted.parked);
        match expanded {
            Ok(object) => {
                match object {
                    Some(object) => self.promote(parking, wanted.parked, guard, object),
                    None => drop(guard),
                }
                if is_same {
                    add(&parking.counters().page_reads, 1);
                    return Ok(true);
                }
            }
            Err(error) if is_there => {
                let counters = parking.counters();
                match &error {
                    FetchError::Io(_) => add(&counters.unreadable_pages, 1),
                    FetchError::Corrupt => add(&counters.corrupt_pages, 1),
                }
                return Err(error);
            }
            Err(_) => {}
        }
        add(&parking.counters().read_repeats, 1);
        Ok(false)
    }

    /// Whether a second read within the window brings the page back, if memory has room below the mark.
    fn is_wanted_again(&self, parking: &Parking, last: Stamp, now: Stamp) -> bool {
        let settings = parking.settings();
        let is_soon = last.age_s(now) <= u64::from(settings.promote_window_s());
        let arena = self.pool.source().arena().stats();
        let (high, _) = parking.policy().marks_percent();
        let mark = u128::from(arena.limit_bytes) * u128::from(high) / 100;
        settings.promote() && is_soon && u128::from(arena.in_use_bytes) < mark
    }

    /// The page as an object in memory, in no slot yet; `None` if there is no memory ready: it is not waited
    /// for.
    fn object_of(
        &self,
        parking: &Parking,
        cpu: usize,
        wanted: Wanted,
        bytes: &[u8],
        page: &Page,
    ) -> Option<Content> {
        if parking.layout() == LayoutKind::Blocks {
            return self.try_fold(cpu, wanted.index, page, &mut Frames::none()).ok()?.ok();
        }
        self.object_of_record(wanted.index, wanted.parked, bytes)
    }

    /// The same for the bytes of a record in the log.
    pub(crate) fn object_of_record(&self, index: PageIndex, parked: Parked, bytes: &[u8]) -> Option<Content> {
        let handle = self.pool.try_put(bytes, Owner::new(OwnerKind::Slot, index.0)).ok()?.to_bits();
        let Parked { len_bytes, priority, .. } = parked;
        Some(match usize::from(len_bytes) {
            PAGE_SIZE => Content::Raw { handle },
            _ => Content::Folded { handle, len_bytes, priority },
        })
    }

    /// Puts an object in the slot if its page is still parked at `from`; else frees it.
    pub(crate) fn promote(&self, parking: &Parking, from: Parked, guard: SlotGuard, object: Content) {
        match guard.promote(from, object) {
            true => {
                self.account(cpu::current(), Content::Parked(from), object);
                parking.release(from);
                add(&parking.counters().promoted_pages, 1);
            }
            false => self.release(object),
        }
    }
}

fn unreadable(index: PageIndex, offset: u64, error: FetchError) -> StoreError {
    match error {
        FetchError::Io(source) => StoreError::ReadBack { index, offset, source },
        FetchError::Corrupt => StoreError::CorruptRecord { index, offset },
    }
}
