//! Putting saved pages into a store.
//!
//! The bytes of a page are stored as they are if they were made by one of the store's codecs. Otherwise the caller
//! decompresses them, and writes the page.

use crate::engine::fold::Room;
use crate::engine::save::SavedContents;
use crate::engine::store::Store;
use crate::error::StoreError;
use crate::slot::Content;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_pool::{BackedFrames, Owner, Purpose};
use pagefold_sys::cpu;

impl Store {
    /// Stores a page in the form that it has in a save of a store with the same codecs by priority. Returns false, and
    /// changes nothing, if the page has contents already. At the memory limit it waits as a write does.
    ///
    /// Compressed bytes are not decompressed here: if they do not decode, reading the page is an error.
    pub fn restore(&self, index: PageIndex, contents: SavedContents<'_>) -> Result<bool, StoreError> {
        if !self.pages.table.page_count().contains(index) {
            return Err(self.out_of_range(index));
        }
        self.pages.pool.source().arena().mark_used();
        let slot = self.slot(index)?;
        if !slot.is_empty() {
            return Ok(false);
        }
        let content = self.content_of(index, contents, Room::Waited)?;
        self.publish(cpu::current(), index, slot, content);
        Ok(true)
    }

    /// Turns saved contents into those of a slot. Their object, if any, is in the pool but in no slot yet.
    pub(crate) fn content_of(
        &self,
        index: PageIndex,
        contents: SavedContents<'_>,
        room: Room,
    ) -> Result<Content, StoreError> {
        Ok(match contents {
            SavedContents::SameFilled(word) => Content::SameFilled(word),
            SavedContents::Lost => Content::Lost,
            SavedContents::Raw(page) => Content::Raw { handle: self.put(index, page, room)? },
            SavedContents::Compressed { priority, bytes } => {
                let is_possible =
                    self.pages.codecs.get(priority).is_some() && (1..PAGE_SIZE).contains(&bytes.len());
                if !is_possible {
                    return Err(self.out_of_range(index));
                }
                let handle = self.put(index, bytes, room)?;
                Content::Folded { handle, len_bytes: bytes.len() as u16, priority }
            }
        })
    }

    fn out_of_range(&self, index: PageIndex) -> StoreError {
        StoreError::OutOfRange {
            offset: index.0.saturating_mul(PAGE_SIZE as u64),
            len_bytes: PAGE_SIZE as u64,
            store_len_bytes: self.len_bytes,
        }
    }

    /// Puts the bytes of an object into the pool, and returns its handle. The object is in no slot yet.
    fn put(&self, index: PageIndex, bytes: &[u8], room: Room) -> Result<u64, StoreError> {
        let pool = &self.pages.pool;
        let owner = Owner::new(index.0);
        let mut error = match pool.try_put(bytes, owner) {
            Ok(handle) => return Ok(handle.to_bits()),
            Err(error) => error,
        };
        let mut backed = BackedFrames::new(pool.source(), Purpose::Objects);
        loop {
            self.take_frames(index, &mut backed, error, room)?;
            match pool.try_put_from(backed.frames(), bytes, owner) {
                Ok(handle) => return Ok(handle.to_bits()),
                Err(e) => error = e,
            }
        }
    }
}
