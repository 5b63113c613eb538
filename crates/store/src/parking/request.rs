//! A write in the making, in flight, or idle: its buffer and the pages in it.

use crate::parking::settings::Charge;
use crate::slot::{Generation, Parked};
use pagefold_backing::Buffer;
use pagefold_page::PageIndex;

/// Where a page was when it was put into a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// In memory; parking it cost this.
    Memory(Charge),
    /// Parked at this place; the cleaner moves it.
    Parked(Parked),
}

/// One page in a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: PageIndex,
    /// Of the contents that were copied.
    pub(crate) generation: Generation,
    pub(crate) from: Source,
    /// Where the write puts it.
    pub(crate) to: Parked,
}

/// One write. Used again and again; keeps its buffer.
#[derive(Debug)]
pub(crate) struct WriteRequest {
    pub(crate) id: u64,
    /// Absent only while the queue has it.
    pub(crate) buf: Option<Buffer>,
    /// Where on the medium, bytes.
    pub(crate) offset: u64,
    /// Bytes in the buffer that are to be written.
    pub(crate) len: usize,
    pub(crate) entries: Vec<Entry>,
}

impl WriteRequest {
    pub(crate) fn new(id: u64, buf: Buffer) -> Self {
        WriteRequest { id, buf: Some(buf), offset: 0, len: 0, entries: Vec::new() }
    }

    /// The bytes of the buffer, none while the queue has it.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}
