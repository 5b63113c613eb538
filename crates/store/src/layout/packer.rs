//! The interface between a pass and a layout: puts pages into writes.
//!
//! A packer fills one write at a time. For each page the pass calls [`Packer::prepare`] until it returns
//! [`NextStep::Ready`], doing what it returns in between; copies the page to [`Packer::payload_buf`] under the slot's
//! lock; and calls [`Packer::add`]. `prepare` is called with no slot locked.

use crate::layout::format::Sequence;
use crate::layout::request::{Source, WriteRequest};
use crate::slot::Generation;
use pagefold_page::PageIndex;

/// The next step of the pass before the packer can take a page.
#[derive(Debug)]
pub(crate) enum NextStep {
    /// Copy the page: the write being filled has room.
    Ready,
    /// Call [`Packer::begin`] with an idle request: no write is being filled.
    Begin,
    /// Submit this write, which is full.
    Submit(WriteRequest),
}

/// The backing has no free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// A page that was copied to the packer's buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackedPage {
    pub(crate) index: PageIndex,
    pub(crate) generation: Generation,
    /// Bytes copied.
    pub(crate) len_bytes: u16,
    pub(crate) priority: u8,
    pub(crate) from: Source,
    /// In the log, the segment that first contained the record; `None` for a page that comes from memory.
    pub(crate) birth: Option<Sequence>,
}

/// Fills writes with pages.
pub(crate) trait Packer {
    /// Prepares for a page of `len_bytes` bytes, and returns what the pass has to do next.
    fn prepare(&mut self, len_bytes: usize) -> Result<NextStep, NoSpace>;

    /// Begins a write with an idle request.
    fn begin(&mut self, request: WriteRequest);

    /// The buffer for the next page's bytes, after [`NextStep::Ready`]; at least as long as the page given to
    /// `prepare`.
    fn payload_buf(&mut self) -> &mut [u8];

    /// Adds the page whose bytes are in the buffer.
    fn add(&mut self, page: PackedPage);

    /// Returns the write being filled, for submission, or for reuse if it has no entries. Frees everything else that
    /// was reserved.
    fn finish(&mut self) -> Option<WriteRequest>;

    /// Whether pages have to be copied uncompressed.
    fn wants_pages(&self) -> bool;
}
