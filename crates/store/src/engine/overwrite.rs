//! Writing one page when no frame can be taken: at the memory limit, with the reserve empty, or when the kernel has no
//! memory.
//!
//! A write that was refused a frame may need none: there may be room between the objects of its size class, or the page
//! has an object whose place is long enough for the new bytes. Then these overwrite the old ones, under the locks of the
//! class and of the slot, and the object stays where it is. So a write that needs no more memory than what it replaces
//! is never refused for want of memory, and takes none beyond the limit.
//!
//! A page that needs less than its place moves to a shorter one if at most [`REPLACEMENT_FRAMES_MAX`] frames beyond the
//! limit are then in use: as in recompression, memory can otherwise not become free where all of it is used. Where the
//! bound is reached, it keeps its place.

use crate::engine::store::Store;
use crate::error::StoreError;
use crate::slot::{Content, Generation, Slot};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::{FRAME_LEN, Handle, ObjectFit, Owner, REPLACEMENT_FRAMES_MAX};

impl Store {
    /// Stores a page whose write was refused memory (`refused`), in memory that the pool has already. Returns false if
    /// the slot's generation is not `seen`, if that is given; returns `refused` if the page needs more memory.
    #[cold]
    pub(crate) fn store_without_frames(
        &self,
        cpu: usize,
        index: PageIndex,
        slot: &Slot,
        page: &Page,
        seen: Option<Generation>,
        refused: StoreError,
    ) -> Result<bool, StoreError> {
        if !matches!(refused, StoreError::NoMemory { .. }) {
            return Err(refused);
        }
        let mut buf = [0; PAGE_SIZE];
        let bytes = self
            .pages
            .compress(cpu, page, &mut buf)
            .map_err(|source| StoreError::Compress { index, source })?;
        if let Some(handle) = self.put_without_frames(index, slot, bytes) {
            let new = Content::object(handle.to_bits(), bytes.len());
            return Ok(self.publish_if_unchanged(cpu, index, slot, seen, new));
        }
        self.overwrite(cpu, index, slot, bytes, seen).ok_or(refused)
    }

    /// Stores `bytes` as an object that is in no slot yet, if the pool has room for it, or if it replaces an object in
    /// a longer place.
    fn put_without_frames(&self, index: PageIndex, slot: &Slot, bytes: &[u8]) -> Option<Handle> {
        let pool = &self.pages.pool;
        if let Ok(handle) = pool.try_put(bytes, Owner::new(index.0)) {
            return Some(handle);
        }
        let content = slot.lock().content();
        let old = Handle::from_bits(content.handle()?);
        let limit = self.mem_limit_bytes() / FRAME_LEN as u64;
        match pool.fit(old, bytes.len()) {
            ObjectFit::Longer => {
                self.pages.put_replacement(index, bytes, limit.saturating_add(REPLACEMENT_FRAMES_MAX))
            }
            ObjectFit::Same | ObjectFit::TooShort => None,
        }
    }

    /// Overwrites the bytes of the slot's object. Returns false if the slot's generation is not `seen`, if that is
    /// given, and `None` if there is no object, or none that is long enough.
    fn overwrite(
        &self,
        cpu: usize,
        index: PageIndex,
        slot: &Slot,
        bytes: &[u8],
        seen: Option<Generation>,
    ) -> Option<bool> {
        let pool = &self.pages.pool;
        loop {
            let (content, generation) = {
                // A save gets the old bytes here: with the lock of the class held, nothing may wait.
                let guard = self.lock_to_change(index, slot);
                (guard.content(), guard.generation())
            };
            if seen.is_some_and(|seen| seen != generation) {
                return Some(false);
            }
            let handle = Handle::from_bits(content.handle()?);
            if pool.fit(handle, bytes.len()) == ObjectFit::TooShort {
                return None;
            }
            let new = Content::object(handle.to_bits(), bytes.len());
            let _kept = self.pages.kept.as_ref().map(|kept| kept.keep_redo(bytes));
            let lock_owner = || {
                let mut guard = slot.try_lock()?;
                if self.saving.note_change(index) {
                    return None;
                }
                if guard.content() != content || guard.generation() != generation {
                    return None;
                }
                self.time_access(&mut guard);
                // From here on the page has its new contents, whenever the process dies.
                let noted = guard.note_publish(new, bytes.len() as u32, &self.pages.intents);
                Some((guard, noted))
            };
            // SAFETY: the handle came from this pool. With the slot locked and the handle in it, the object is live;
            // readers copy under that lock, no thread frees an object that is in a slot, and `relocate` refuses.
            let Some((guard, noted)) = (unsafe { pool.overwrite(handle, bytes, lock_owner) }) else {
                // The slot was locked, or the page was changed or moved in the meantime.
                continue;
            };
            // The old contents are the same object, which stays.
            let old = guard.publish_noted(new, noted);
            self.count_written(cpu, old, new);
            return Some(true);
        }
    }
}
