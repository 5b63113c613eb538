//! Blocks: a frame with a checksum, and in it either pages or a part of the index.
//!
//! A block of pages describes itself: its table says which pages it has and in which form, and the bytes of these follow.

use crate::bytes::{put, u32_at, u64_at};
use pagefold_page::PAGE_SIZE;

/// Length of a frame's header, bytes.
pub(crate) const FRAME_LEN: usize = 24;
/// Length of an entry of a block of pages.
pub(crate) const ENTRY_LEN: usize = 8;
/// The length at which the writer ends a block.
pub(crate) const BLOCK_LEN: usize = 128 << 10;
/// The longest frame that a reader takes, but for the root of the index.
pub(crate) const FRAME_LEN_MAX: usize = 256 << 10;
/// Most entries of a block: the index has 16 bits for the first one of a run.
pub(crate) const ENTRIES_MAX: usize = 1 << 14;

const PAGE_BITS: u32 = 40;
const LEN_SHIFT: u32 = PAGE_BITS;
const KIND_SHIFT: u32 = 52;
const CODEC_SHIFT: u32 = 56;
const UNUSED_SHIFT: u32 = 60;
const COMPRESSED: u64 = 0;
const RAW: u64 = 1;
const SAME_FILLED: u64 = 2;
const LOST: u64 = 3;

/// The contents of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// Pages.
    Pages,
    /// Runs of the index.
    Leaf,
    /// The list of leaves.
    Root,
}

impl FrameKind {
    fn magic(self) -> [u8; 4] {
        match self {
            FrameKind::Pages => *b"PGBK",
            FrameKind::Leaf => *b"PGIX",
            FrameKind::Root => *b"PGRT",
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    /// Length with the header.
    pub(crate) len: usize,
    /// Entries, runs or leaves.
    pub(crate) count: usize,
    /// crc32c of all bytes but those of this field.
    pub(crate) checksum: u32,
    /// Its number: frames are counted from 0.
    pub(crate) sequence: u64,
}

impl FrameHeader {
    pub(crate) fn decode(bytes: &[u8; FRAME_LEN]) -> Option<Self> {
        let kinds = [FrameKind::Pages, FrameKind::Leaf, FrameKind::Root];
        let kind = kinds.into_iter().find(|kind| bytes[..4] == kind.magic())?;
        Some(FrameHeader {
            kind,
            len: u32_at(bytes, 4) as usize,
            count: u32_at(bytes, 8) as usize,
            checksum: u32_at(bytes, 12),
            sequence: u64_at(bytes, 16),
        })
    }
}

/// The checksum of a frame before its body: the header without the field of the checksum.
pub(crate) fn header_checksum(header: &[u8]) -> u32 {
    let before = crc32c::crc32c(&header[..12.min(header.len())]);
    crc32c::crc32c_append(before, header.get(16..FRAME_LEN).unwrap_or_default())
}

/// Fills in the header of a frame whose body begins at [`FRAME_LEN`], and pads it to eight bytes.
pub(crate) fn seal(frame: &mut Vec<u8>, kind: FrameKind, count: usize, sequence: u64) {
    frame.resize(frame.len().next_multiple_of(8), 0);
    let len = frame.len() as u32;
    put(frame, 0, &kind.magic());
    put(frame, 4, &len.to_le_bytes());
    put(frame, 8, &(count as u32).to_le_bytes());
    put(frame, 16, &sequence.to_le_bytes());
    let checksum = crc32c::crc32c_append(header_checksum(frame), &frame[FRAME_LEN..]);
    put(frame, 12, &checksum.to_le_bytes());
}

/// The form of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageForm<'a> {
    /// Compressed bytes, 1 to 4095, and their codec, by its place in the header.
    Compressed {
        /// The place of the codec.
        codec: u8,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The page itself.
    Raw(&'a [u8; PAGE_SIZE]),
    /// The page repeats this word, in memory order.
    SameFilled(u64),
    /// The contents were lost before they were saved.
    Lost,
}

impl PageForm<'_> {
    /// Bytes of its payload.
    pub(crate) fn payload_len(&self) -> usize {
        match self {
            PageForm::Compressed { bytes, .. } => bytes.len(),
            PageForm::Raw(_) => PAGE_SIZE,
            PageForm::SameFilled(_) => 8,
            PageForm::Lost => 0,
        }
    }
}

/// The entry of a page in the table of a block.
pub(crate) fn entry(page: u64, form: &PageForm<'_>) -> u64 {
    let (kind, codec) = match form {
        PageForm::Compressed { codec, .. } => (COMPRESSED, u64::from(*codec)),
        PageForm::Raw(_) => (RAW, 0),
        PageForm::SameFilled(_) => (SAME_FILLED, 0),
        PageForm::Lost => (LOST, 0),
    };
    let len = form.payload_len().saturating_sub(1) as u64;
    page | len << LEN_SHIFT | kind << KIND_SHIFT | codec << CODEC_SHIFT
}

/// The page number in an entry.
pub(crate) fn page_of(entry: u64) -> u64 {
    entry & ((1 << PAGE_BITS) - 1)
}

/// The codec and the length of the payload that an entry says; `None` for an entry that cannot be.
fn payload_of(entry: u64) -> Option<(u64, u8, usize)> {
    let len = (entry >> LEN_SHIFT & 0xfff) as usize + 1;
    let kind = entry >> KIND_SHIFT & 0xf;
    let codec = (entry >> CODEC_SHIFT & 0xf) as u8;
    let len = match kind {
        COMPRESSED if len < PAGE_SIZE => Some(len),
        RAW if len == PAGE_SIZE && codec == 0 => Some(len),
        SAME_FILLED if len == 8 && codec == 0 => Some(len),
        LOST if len == 1 && codec == 0 => Some(0),
        _ => None,
    }?;
    (entry >> UNUSED_SHIFT == 0).then_some((kind, codec, len))
}

/// A block of pages that was verified.
#[derive(Debug)]
pub struct Block<'a> {
    pub(crate) table: &'a [u8],
    pub(crate) payload: &'a [u8],
}

impl<'a> Block<'a> {
    /// Checks the body of a frame, whose checksum was verified: all lengths, the pages, of which the disk has
    /// `page_count`, and the codecs, of which it has `codec_count`.
    pub(crate) fn parse(
        body: &'a [u8],
        count: usize,
        page_count: u64,
        codec_count: usize,
    ) -> Result<Self, &'static str> {
        if count == 0 || count > ENTRIES_MAX {
            return Err("the number of pages of a block is impossible");
        }
        let Some((table, payload)) = body.split_at_checked(count * ENTRY_LEN) else {
            return Err("the table of a block is longer than the block");
        };
        let mut len = 0;
        for at in 0..count {
            let entry = u64_at(table, at * ENTRY_LEN);
            let Some((kind, codec, payload_len)) = payload_of(entry) else {
                return Err("an entry of a block is impossible");
            };
            if page_of(entry) >= page_count {
                return Err("a page of a block lies behind the end of the disk");
            }
            if kind == COMPRESSED && usize::from(codec) >= codec_count {
                return Err("a page of a block has a codec that the header does not name");
            }
            len += payload_len;
        }
        match len.next_multiple_of(8) == payload.len() {
            true => Ok(Block { table, payload }),
            false => Err("the lengths of the pages of a block contradict its length"),
        }
    }

    /// The number of its pages.
    pub fn page_count(&self) -> usize {
        self.table.len() / ENTRY_LEN
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = u64> + '_ {
        self.table.chunks_exact(ENTRY_LEN).map(|entry| u64_at(entry, 0))
    }

    /// Its pages, with their forms, in their order.
    pub fn pages(&self) -> impl Iterator<Item = (u64, PageForm<'a>)> {
        let mut rest = self.payload;
        let table = self.table;
        table.chunks_exact(ENTRY_LEN).filter_map(move |entry| {
            let entry = u64_at(entry, 0);
            let (kind, codec, len) = payload_of(entry)?;
            let (bytes, behind) = rest.split_at_checked(len)?;
            rest = behind;
            let form = match kind {
                COMPRESSED => PageForm::Compressed { codec, bytes },
                RAW => PageForm::Raw(bytes.try_into().ok()?),
                SAME_FILLED => PageForm::SameFilled(u64_at(bytes, 0)),
                _ => PageForm::Lost,
            };
            Some((page_of(entry), form))
        })
    }
}
