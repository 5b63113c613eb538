//! Copies of scattered items, which decode each page once for all items that follow each other in it.
//!
//! A call for each item would take longer than most of its work: it masks signals and takes working memory. One call for
//! many also knows which pages come next.

use super::Pager;
use super::pieces;
use crate::error::RangeError;
use crate::page::Whereabouts;
use pagefold_page::{PAGE_SIZE, PageIndex};

/// How many items ahead a slot is prefetched, and an object.
const SLOT_AHEAD: usize = 8;
const OBJECT_AHEAD: usize = 4;

impl Pager {
    /// Calls `each` with the index in `offsets` and the bytes of each item, in order. After an error, it has been called for
    /// those before.
    pub(crate) fn read_items(
        &self,
        offsets: &[usize],
        len_bytes: usize,
        each: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RangeError> {
        // Bounds the memory for an item.
        self.pages_of(0, len_bytes)?;
        let mut scratch = self.copy_scratches.take(&self.store)?;
        // The page in `scratch.page`.
        let mut decoded = None;
        let mut item = vec![0; len_bytes];
        let page_of = |offset: &usize| PageIndex((offset / PAGE_SIZE) as u64);
        let result = offsets.iter().enumerate().try_for_each(|(at, offset)| {
            self.pages_of(*offset, len_bytes)?;
            if let Some(ahead) = offsets.get(at + SLOT_AHEAD) {
                self.store.prefetch_slot(page_of(ahead));
            }
            if let Some(ahead) = offsets.get(at + OBJECT_AHEAD) {
                self.store.prefetch_object(page_of(ahead));
            }
            for (page, within, piece) in pieces(*offset, len_bytes) {
                let to = &mut item[piece];
                if self.word(page).whereabouts() == Whereabouts::Range {
                    self.copy_from_range(page, within, to);
                    continue;
                }
                if decoded != Some(page) {
                    decoded = None;
                    self.copy_page_out(page, &mut scratch.page, &mut scratch.loader)?;
                    decoded = Some(page);
                }
                to.copy_from_slice(&scratch.page[within..within + to.len()]);
            }
            each(at, &item);
            Ok(())
        });
        self.copy_scratches.put(scratch);
        result
    }
}
