//! The header of a packed page. `docs/formats/numbers.md` describes the format.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | kind: 1 to 4 for lanes of 1, 2, 4 and 8 bytes; 5 to 8 the same with differences to the row before |
//! | 1 | shift: zero bits that were removed from the end of each packed number |
//! | 1 | width: bits of a packed number |
//! | length of a lane | base, little-endian |
//! | 64, of kinds 5 to 8 only | the first row |
//!
//! The packed numbers follow: 8 bytes for each bit of width and each lane of a row. A kind differs from the first byte
//! of an LZ4 block, which is at least 16: a block begins with a literal, and their number is in the upper half of its
//! first byte.

use super::lane::{LANE_LEN_MAX, ROW_LEN, ROWS, RowBytes};

/// Bytes of the longest header.
pub(super) const HEADER_LEN_MAX: usize = 3 + LANE_LEN_MAX + ROW_LEN;
/// The first byte of a packed page is at most this, that of an LZ4 block is greater, or 0 for a block of no bytes.
const KIND_MAX: u8 = 8;

/// How a page is packed: number = base + (packed number << shift), or the same added to the number 64 bytes before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// log2 of the bytes of a lane.
    pub(super) lane_log: u8,
    /// Whether differences to the row before are packed.
    pub(super) is_delta: bool,
    /// Zero bits that are removed from packed numbers, less than the bits of a lane.
    pub(super) shift: u8,
    /// Bits of a packed number; with `shift` at most the bits of a lane.
    pub(super) width: u8,
    /// The lowest number or difference, as bits of a lane.
    pub(super) base: u64,
}

impl Plan {
    pub(super) fn lane_len(self) -> usize {
        1 << self.lane_log
    }

    fn lane_bits(self) -> u8 {
        8 << self.lane_log
    }

    /// Bytes of the header without the first row.
    fn fixed_len(self) -> usize {
        3 + self.lane_len()
    }

    /// Bytes of the header.
    pub(super) fn header_len(self) -> usize {
        self.fixed_len() + if self.is_delta { ROW_LEN } else { 0 }
    }

    /// Bytes of the packed numbers, whole rows.
    pub(super) fn payload_len(self) -> usize {
        let lanes = ROWS * ROW_LEN / self.lane_len();
        lanes * usize::from(self.width) / 8
    }

    /// Bytes of the packed page.
    pub(super) fn len(self) -> usize {
        self.header_len() + self.payload_len()
    }

    /// Writes the header; `first_row` is the page's.
    pub(super) fn write(self, first_row: &RowBytes, header: &mut [u8; HEADER_LEN_MAX]) {
        header[0] = 1 + self.lane_log + if self.is_delta { 4 } else { 0 };
        header[1] = self.shift;
        header[2] = self.width;
        let fixed_len = self.fixed_len();
        header[3..fixed_len].copy_from_slice(&self.base.to_le_bytes()[..self.lane_len()]);
        if self.is_delta {
            header[fixed_len..fixed_len + ROW_LEN].copy_from_slice(first_row);
        }
    }

    /// Whether compressed bytes are a packed page rather than an LZ4 block.
    pub(super) fn is_packed(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|kind| (1..=KIND_MAX).contains(kind))
    }

    /// Reads a packed page: its plan, its first row (zeros if it has none), and its packed numbers. `None` if the header
    /// is invalid, or the length is not the one that it says.
    pub(super) fn read(bytes: &[u8]) -> Option<(Plan, RowBytes, &[RowBytes])> {
        let [kind @ 1..=KIND_MAX, shift, width, rest @ ..] = bytes else { return None };
        let (kind, shift, width) = (*kind, *shift, *width);
        let (lane_log, is_delta) = ((kind - 1) % 4, kind > 4);
        let mut plan = Plan { lane_log, is_delta, shift, width, base: 0 };
        let bits = u32::from(shift) + u32::from(width);
        if bits > u32::from(plan.lane_bits()) || shift >= plan.lane_bits() || bytes.len() != plan.len() {
            return None;
        }
        let (base, rest) = rest.split_at_checked(plan.lane_len())?;
        let mut base_bytes = [0; LANE_LEN_MAX];
        base_bytes[..base.len()].copy_from_slice(base);
        plan.base = u64::from_le_bytes(base_bytes);
        let (first_row, rest) = if is_delta { rest.split_first_chunk()? } else { (&[0; ROW_LEN], rest) };
        let (payload, _) = rest.as_chunks();
        Some((plan, *first_row, payload))
    }
}
