//! Writing one page: the same-filled check, compression, and publication in the slot.
//!
//! [`Store::fold`] turns a page into slot contents, by the same-filled check or by compression. If the pool has no
//! frame ready for the object, [`Store::fold_slowly`] takes frames first, and at the memory limit waits for
//! writeback. [`Store::publish`] then exchanges the contents of the slot under its lock and frees the old object.
//! Until the exchange the slot holds the old page, so a failed write changes nothing. A write for which there is no
//! frame uses memory that the pool has already (`overwrite`).
//!
//! All of this runs in the thread of the caller. The slot's lock is held for the exchange only.

use crate::engine::store::Store;
use crate::error::StoreError;
use crate::pages::Counter;
use crate::slot::{Content, Generation, Slot, SlotGuard};
use pagefold_codec::same_filled;
use pagefold_page::{Page, PageIndex};
use pagefold_pool::{BackedFrames, FRAME_LEN, Frames, Purpose, PutError};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The behaviour of a thread at the memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// It waits for writeback, or compacts the pool.
    Waited,
    /// It takes memory only below the limit.
    Free,
}

/// The pause before holes are closed whose objects other threads were using.
const HINDERED_PAUSE: Duration = Duration::from_micros(50);

impl Store {
    /// Returns the slot of a page, and allocates its chunk of the table if necessary.
    pub(crate) fn slot(&self, index: PageIndex) -> Result<&Slot, StoreError> {
        self.slot_in(index, Room::Waited)
    }

    /// The same, with another behaviour at the memory limit.
    #[inline]
    pub(crate) fn slot_in(&self, index: PageIndex, room: Room) -> Result<&Slot, StoreError> {
        match self.pages.table.get(index) {
            Some(slot) => Ok(slot),
            None => self.new_slot(index, room),
        }
    }

    #[cold]
    fn new_slot(&self, index: PageIndex, room: Room) -> Result<&Slot, StoreError> {
        let source = self.pages.pool.source();
        let mut backed = BackedFrames::new(source, Purpose::Slots);
        loop {
            match self.pages.table.ensure(index, source, backed.frames()) {
                Ok(slot) => return Ok(slot),
                Err(error) => self.take_frames(index, &mut backed, error, room)?,
            }
        }
    }

    /// Turns `page` into slot contents. Its object, if any, is in the pool but in no slot yet.
    pub(crate) fn fold(&self, cpu: usize, index: PageIndex, page: &Page) -> Result<Content, StoreError> {
        self.fold_in(cpu, index, page, Room::Waited)
    }

    /// The same, with another behaviour at the memory limit.
    #[inline]
    pub(crate) fn fold_in(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        room: Room,
    ) -> Result<Content, StoreError> {
        if self.same_filled.load(Relaxed)
            && let Some(fill_word) = same_filled(page)
        {
            return Ok(Content::SameFilled(fill_word));
        }
        match self.try_fold(cpu, index, page, &mut Frames::none())? {
            Ok(content) => Ok(content),
            Err(error) => self.fold_slowly(cpu, index, page, error, room),
        }
    }

    /// Takes the frames that the page needs, then compresses and stores it: the slow path of [`Store::fold`].
    #[cold]
    fn fold_slowly(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        mut error: PutError,
        room: Room,
    ) -> Result<Content, StoreError> {
        let mut backed = BackedFrames::new(self.pages.pool.source(), Purpose::Objects);
        loop {
            // The stream is released by now, so other threads compress while this one waits for memory.
            self.take_frames(index, &mut backed, error, room)?;
            self.pages.counters.add(cpu, Counter::SlowWrites, 1);
            match self.try_fold(cpu, index, page, backed.frames())? {
                Ok(content) => return Ok(content),
                // Another writer has filled the class's last frame in the meantime, so two are needed and not one.
                Err(e) => error = e,
            }
        }
    }

    /// Compresses the page once and tries once to store the result.
    fn try_fold(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        backed: &mut Frames,
    ) -> Result<Result<Content, PutError>, StoreError> {
        let stored = self.pages.try_store(cpu, index, page, backed);
        stored.map_err(|source| StoreError::Compress { index, source })
    }

    /// Takes the frames that a failed attempt needed into `backed`.
    pub(crate) fn take_frames(
        &self,
        index: PageIndex,
        backed: &mut BackedFrames,
        error: PutError,
        room: Room,
    ) -> Result<(), StoreError> {
        let (frames, refused) = match error {
            PutError::NotReady { frames } => (frames, None),
            PutError::NoMemory { frames, source } => (frames, Some(source)),
        };
        let charged = match refused {
            Some(source) if !source.is_limit() => Err(source),
            _ => backed.charge(frames).or_else(|refused| {
                match refused.is_limit() && room == Room::Waited && self.make_room(backed, frames) {
                    true => Ok(()),
                    false => Err(refused),
                }
            }),
        };
        charged.and_then(|()| backed.fill()).map_err(|source| StoreError::NoMemory { index, source })
    }

    /// Charges the frames at the memory limit: waits until automatic writeback has freed memory, or compacts the pool
    /// if there is no writeback thread or it cannot free any. Returns false if the memory cannot be freed.
    ///
    /// A frame may be free after the compaction although this one freed none: another thread may have done so.
    fn make_room(&self, backed: &mut BackedFrames, frames: usize) -> bool {
        let needed_bytes = (frames * FRAME_LEN) as u64;
        if needed_bytes > self.mem_limit_bytes() {
            // More than the limit: writeback cannot help.
            return false;
        }
        let mut charge = || backed.charge(frames).is_ok();
        let is_charged = self
            .writeback
            .as_ref()
            .is_some_and(|writeback| writeback.policy().throttle().wait_for_room(needed_bytes, &mut charge));
        is_charged
            || loop {
                let compaction = self.pages.compact();
                match (charge(), compaction.is_hindered) {
                    (true, _) => break true,
                    (false, false) => break false,
                    // The other threads have the objects for the time of a copy.
                    (false, true) => std::thread::sleep(HINDERED_PAUSE),
                }
            }
    }

    /// Puts contents into the slot of a page and frees the old contents.
    pub(crate) fn publish(&self, cpu: usize, index: PageIndex, slot: &Slot, new: Content) {
        let old = self.exchange(cpu, self.lock_to_change(index, slot), new);
        self.release(old);
    }

    /// Does the same if the slot's generation is still `seen`, where that is given. Otherwise frees `new` and returns
    /// false.
    pub(crate) fn publish_if_unchanged(
        &self,
        cpu: usize,
        index: PageIndex,
        slot: &Slot,
        seen: Option<Generation>,
        new: Content,
    ) -> bool {
        let guard = self.lock_to_change(index, slot);
        let is_unchanged = seen.is_none_or(|seen| guard.generation() == seen);
        let freed = if is_unchanged {
            self.exchange(cpu, guard, new)
        } else {
            drop(guard);
            new
        };
        self.release(freed);
        is_unchanged
    }

    /// Puts written contents into a slot that [`Store::lock_to_change`] has locked, counts them, and returns the old contents. Records the time as the slot's
    /// last access, from which writeback computes the page's age.
    pub(crate) fn exchange(&self, cpu: usize, mut guard: SlotGuard, new: Content) -> Content {
        self.time_access(&mut guard);
        let old = guard.publish(new, &self.pages.intents);
        self.count_written(cpu, old, new);
        old
    }

    /// Records the present time as the slot's last access, if the store keeps these.
    pub(crate) fn time_access(&self, guard: &mut SlotGuard) {
        if self.access_times {
            guard.set_last_access(self.pages.clock.now());
        }
    }

    /// Counts contents that were written, and replaced others.
    pub(crate) fn count_written(&self, cpu: usize, old: Content, new: Content) {
        self.pages.account(cpu, old, new);
        self.pages.account_written(cpu, new);
    }
}
