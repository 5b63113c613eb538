//! The seam between a pass and a layout: where the next page goes.
//!
//! A packer fills one write at a time. The pass asks for room, does what the answer
//! says until there is some, copies the page to where it is told, and adds it. Room
//! is asked for with no lock held; copying happens under the slot's lock.

use crate::parking::log::Sequence;
use crate::parking::request::{Source, WriteRequest};
use crate::slot::Generation;
use pagefold_page::PageIndex;

/// The answer to a request for room.
#[derive(Debug)]
pub(crate) enum Room {
    /// There is room in the write that is being filled.
    Ready,
    /// No write is being filled: begin one with an idle request.
    Begin,
    /// The write that was being filled is to be submitted first.
    Submit(WriteRequest),
}

/// There is no room on the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// A page that was copied to the packer's place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed {
    pub(crate) index: PageIndex,
    pub(crate) generation: Generation,
    /// Bytes copied.
    pub(crate) len_bytes: u16,
    pub(crate) priority: u8,
    pub(crate) from: Source,
    /// In the log, the segment in which the contents first stood; absent for contents that come from memory.
    pub(crate) birth: Option<Sequence>,
}

/// Fills writes.
pub(crate) trait Packer {
    /// Asks for room for a page of so many bytes.
    fn room(&mut self, len_bytes: usize) -> Result<Room, NoRoom>;

    /// Begins a write.
    fn begin(&mut self, request: WriteRequest);

    /// Where the next page's bytes go, after [`Room::Ready`]; at least as many as room was asked for.
    fn place(&mut self) -> &mut [u8];

    /// The bytes at the place are this page, for which there was room.
    fn add(&mut self, page: Packed);

    /// The write being filled, for submission or, if it has no entries, to be idle again. Gives back
    /// whatever else was reserved.
    fn finish(&mut self) -> Option<WriteRequest>;

    /// Whether pages are to be copied uncompressed.
    fn wants_pages(&self) -> bool;
}
