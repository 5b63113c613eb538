//! The trailer: totals, the place of the index, and the digest, at a fixed length before the end of the file.

use crate::bytes::{array, put, u32_at, u64_at};
use crate::error::SavedError;

/// Length of the trailer, bytes.
pub const TRAILER_LEN: usize = 128;
const MAGIC: [u8; 8] = *b"pgsvdend";

/// The totals of a saved disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Pages with contents.
    pub pages: u64,
    /// Those of them that repeat a word.
    pub same_filled_pages: u64,
    /// Those of them that are stored as they are, because they do not compress.
    pub raw_pages: u64,
    /// Those of them whose contents were lost before.
    pub lost_pages: u64,
    /// Bytes of all pages but the same-filled ones, as they are stored.
    pub payload_bytes: u64,
    /// Bytes of the saved disk, header, index and trailer included.
    pub len_bytes: u64,
    /// SHA-256 of all bytes before the trailer.
    pub digest: [u8; 32],
}

/// The trailer as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) totals: Totals,
    /// Where the root of the index begins, bytes.
    pub(crate) root_offset: u64,
    /// The identity in the header again.
    pub(crate) id: [u8; 16],
}

impl Trailer {
    pub(crate) fn encode(&self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        let Totals { pages, same_filled_pages, raw_pages, lost_pages, payload_bytes, len_bytes, digest } =
            self.totals;
        put(&mut bytes, 0, &MAGIC);
        let numbers =
            [self.root_offset, pages, same_filled_pages, raw_pages, lost_pages, payload_bytes, len_bytes];
        for (at, number) in numbers.iter().enumerate() {
            put(&mut bytes, 8 + at * 8, &number.to_le_bytes());
        }
        put(&mut bytes, 64, &digest);
        put(&mut bytes, 96, &self.id);
        let checksum = crc32c::crc32c(&bytes[..TRAILER_LEN - 4]);
        put(&mut bytes, TRAILER_LEN - 4, &checksum.to_le_bytes());
        bytes
    }

    /// Parses the last bytes of a file, from byte `offset` on. A file that was cut ends with the bytes of pages.
    pub(crate) fn decode_end(bytes: &[u8; TRAILER_LEN], offset: u64) -> Result<Self, SavedError> {
        match bytes.starts_with(&MAGIC) {
            true => Self::decode(bytes, offset),
            false => Err(SavedError::Truncated { offset: offset + TRAILER_LEN as u64 }),
        }
    }

    /// Parses the trailer at byte `offset`.
    pub(crate) fn decode(bytes: &[u8; TRAILER_LEN], offset: u64) -> Result<Self, SavedError> {
        let damaged = |what| SavedError::Damaged { offset, what };
        if bytes[..8] != MAGIC {
            return Err(damaged("its last part does not begin as that does"));
        }
        if crc32c::crc32c(&bytes[..TRAILER_LEN - 4]) != u32_at(bytes, TRAILER_LEN - 4) {
            return Err(damaged("the checksum of its last part is wrong"));
        }
        let number = |at: usize| u64_at(bytes, 8 + at * 8);
        let totals = Totals {
            pages: number(1),
            same_filled_pages: number(2),
            raw_pages: number(3),
            lost_pages: number(4),
            payload_bytes: number(5),
            len_bytes: number(6),
            digest: array(bytes, 64),
        };
        if offset.checked_add(TRAILER_LEN as u64) != Some(totals.len_bytes) {
            return Err(damaged("its length is not the one that its last part says"));
        }
        Ok(Trailer { totals, root_offset: number(0), id: array(bytes, 96) })
    }
}

/// Counts a page in the totals.
pub(crate) fn count(totals: &mut Totals, form: &crate::block::PageForm<'_>) {
    use crate::block::PageForm;
    totals.pages += 1;
    match form {
        PageForm::SameFilled(_) => totals.same_filled_pages += 1,
        PageForm::Lost => totals.lost_pages += 1,
        PageForm::Raw(_) => {
            totals.raw_pages += 1;
            totals.payload_bytes += form.payload_len() as u64;
        }
        PageForm::Compressed { bytes, .. } => totals.payload_bytes += bytes.len() as u64,
    }
}
