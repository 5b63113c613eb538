//! A write request, being filled, in flight, or idle: its buffer and the pages in it.

use crate::slot::{BackingLocation, Generation};
use pagefold_backing::Buffer;
use pagefold_page::PageIndex;

/// The charge of a page against `writeback_limit`, refunded if the page was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum LimitCharge {
    /// One page.
    Page,
    /// No charge: the limit was disabled.
    None,
}

/// Where a page was when it was added to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// In memory, with its charge.
    Memory(LimitCharge),
    /// Written back at this location; the cleaner moves it.
    WrittenBack(BackingLocation),
}

/// One page in a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: PageIndex,
    /// The generation of the contents that were copied.
    pub(crate) generation: Generation,
    pub(crate) from: Source,
    /// Its location after the write.
    pub(crate) to: BackingLocation,
}

/// One write request. It is reused and keeps its buffer for the length of a pass.
#[derive(Debug)]
pub(crate) struct WriteRequest {
    pub(crate) id: u64,
    /// `None` while the queue owns it.
    pub(crate) buf: Option<Buffer>,
    /// Offset on the medium, bytes.
    pub(crate) offset: u64,
    /// Bytes of the buffer to write.
    pub(crate) len: usize,
    pub(crate) entries: Vec<Entry>,
}

impl WriteRequest {
    pub(crate) fn new(id: u64, buf: Buffer) -> Self {
        WriteRequest { id, buf: Some(buf), offset: 0, len: 0, entries: Vec::new() }
    }

    /// The bytes of the buffer; empty while the queue owns it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}
