//! Packs pages into writes for the log, which fill segments from front to back.
//!
//! A write consists of a segment header and records. It is closed when it is long enough and its end is near a
//! multiple of the medium's write alignment, so that little padding is needed. The padding is zeroed, because the
//! buffer contains bytes of earlier pages.

use crate::layout::format::{
    HEADER_LEN, RECORD_HEADER_LEN, RECORD_LEN_MAX, RecordHeader, Seed, SegmentHeader, Sequence, StoreId,
    WRITE_ALIGN, record_len,
};
use crate::layout::packer::{NextStep, NoSpace, PackedPage, Packer};
use crate::layout::request::{Entry, WriteRequest};
use crate::layout::segments::{SegmentIndex, Segments};
use crate::slot::BackingLocation;

/// A write is closed as soon as it is this long and little padding is needed.
const WRITE_LEN_MIN: usize = 128 << 10;
/// The longest write, and the length of a request's buffer.
pub(crate) const WRITE_LEN_MAX: usize = 256 << 10;
/// The most padding that counts as little, bytes.
const PADDING_LITTLE: usize = 192;

/// The position of the next write in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    segment: SegmentIndex,
    sequence: Sequence,
    /// Bytes of the segment that are written or in flight: the offset of the next write.
    at: u32,
}

/// Packs pages into writes at one head.
pub(crate) struct LogPacker<'a> {
    segments: &'a Segments,
    id: StoreId,
    head: &'a mut Option<Head>,
    /// Free segments that this head leaves to other heads.
    spare: u32,
    /// The write being filled; its `len` is the filled length.
    current: Option<WriteRequest>,
    is_full: bool,
}

impl<'a> LogPacker<'a> {
    pub(crate) fn new(segments: &'a Segments, id: StoreId, head: &'a mut Option<Head>, spare: u32) -> Self {
        LogPacker { segments, id, head, spare, current: None, is_full: false }
    }

    /// The longest write that fits into the head's segment.
    fn len_max(&self) -> usize {
        let left = self.head.map_or(0, |head| self.segments.segment_len() - head.at);
        (left as usize).min(WRITE_LEN_MAX)
    }

    /// Opens the next segment if the head's segment has no room for a write with one record of `len_bytes`.
    fn advance(&mut self, len_bytes: usize) -> Result<(), NoSpace> {
        if self.len_max() >= HEADER_LEN + record_len(len_bytes) {
            return Ok(());
        }
        if let Some(head) = self.head.take() {
            self.segments.close(head.segment);
        }
        let (segment, sequence) = self.segments.open(self.spare).ok_or(NoSpace)?;
        *self.head = Some(Head { segment, sequence, at: 0 });
        Ok(())
    }

    fn close(&mut self) -> Option<WriteRequest> {
        self.is_full = false;
        let mut request = self.current.take()?;
        let (Some(head), false) = (self.head.as_mut(), request.entries.is_empty()) else {
            return Some(request);
        };
        let used = request.len;
        let len = used.next_multiple_of(WRITE_ALIGN);
        let header = SegmentHeader {
            id: self.id,
            sequence: head.sequence,
            offset: head.at,
            len: len as u32,
            used: used as u32,
            records: request.entries.len() as u32,
        };
        let bytes = request.bytes();
        bytes[used..len].fill(0);
        bytes[..HEADER_LEN].copy_from_slice(&header.encode());
        request.len = len;
        head.at += len as u32;
        Some(request)
    }
}

impl Packer for LogPacker<'_> {
    fn prepare(&mut self, len_bytes: usize) -> Result<NextStep, NoSpace> {
        let len_max = self.len_max();
        match &self.current {
            Some(request) if !self.is_full && request.len + record_len(len_bytes) <= len_max => {
                Ok(NextStep::Ready)
            }
            Some(_) => Ok(self.close().map_or(NextStep::Begin, NextStep::Submit)),
            None => self.advance(len_bytes).map(|()| NextStep::Begin),
        }
    }

    fn begin(&mut self, mut request: WriteRequest) {
        if let Some(head) = &self.head {
            request.offset = self.segments.start(head.segment) + u64::from(head.at);
        }
        request.len = HEADER_LEN;
        self.current = Some(request);
    }

    fn payload_buf(&mut self) -> &mut [u8] {
        match &mut self.current {
            Some(request) => {
                let at = request.len + RECORD_HEADER_LEN;
                let end = (at + RECORD_LEN_MAX - RECORD_HEADER_LEN).min(WRITE_LEN_MAX);
                &mut request.bytes()[at..end]
            }
            None => &mut [],
        }
    }

    fn add(&mut self, page: PackedPage) {
        let (Some(request), Some(head)) = (&mut self.current, &self.head) else { return };
        let at = request.len;
        let location = (request.offset + at as u64) / 8;
        let to = BackingLocation { location, len_bytes: page.len_bytes, priority: page.priority };
        let header = RecordHeader {
            slot: page.index.0,
            generation: page.generation,
            len_bytes: page.len_bytes,
            priority: page.priority,
            birth: page.birth.unwrap_or(head.sequence),
        };
        let end = at + RECORD_HEADER_LEN + usize::from(page.len_bytes);
        let next = at + record_len(page.len_bytes.into());
        header.seal(&mut request.bytes()[at..end], Seed::new(self.id, head.sequence));
        request.bytes()[end..next].fill(0);
        request.len = next;
        request.entries.push(Entry { index: page.index, generation: page.generation, from: page.from, to });
        self.segments.add_record(head.segment, (next - at) as u32);
        let padding = next.next_multiple_of(WRITE_ALIGN) - next;
        self.is_full = next >= WRITE_LEN_MIN && padding <= PADDING_LITTLE;
    }

    fn finish(&mut self) -> Option<WriteRequest> {
        self.close()
    }

    fn wants_pages(&self) -> bool {
        false
    }
}
