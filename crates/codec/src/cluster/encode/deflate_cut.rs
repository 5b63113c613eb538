//! Shortens a raw deflate stream to a limit.
//!
//! A deflate stream can end after any of its symbols: the end-of-block code of the block follows, the block is marked
//! as the last, and nothing else changes. So an encoder that cannot fill a destination can compress too much, and the
//! result is cut. This needs the position of each symbol: the cutter decodes the codes of the stream, but does not
//! produce its output.
//!
//! The streams are those of an encoder in this process; nevertheless a stream that does not decode is reported as
//! `None`. Format: RFC 1951.

use super::deflate_codes::{Codes, Kind, dynamic_lengths, fixed_lengths, peek};

/// Bytes after the stream that the cutter may read.
pub(super) const READ_AHEAD_BYTES: usize = 8;

/// The longest part of a stream that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Length of the output that the part decodes to.
    pub(super) plain_bytes: usize,
    /// Length of the part.
    pub(super) stream_bytes: usize,
}

/// Where and how a stream can end.
#[derive(Clone, Copy)]
struct End {
    plain_bytes: usize,
    /// The bit where the last block begins, whose first bit marks it as the last.
    block_bit: usize,
    kind: EndKind,
}

#[derive(Clone, Copy)]
enum EndKind {
    /// The end-of-block code comes at this bit.
    Code { bit: usize, code: u64, len: usize },
    /// A stored block, whose data begins at this byte, has this many bytes.
    Stored { data_at: usize, len: usize },
}

/// Cuts streams; keeps the tables of codes between calls.
pub(super) struct Cutter {
    codes: Codes,
}

impl Cutter {
    /// Bound of the heap memory.
    pub(super) const HEAP_BYTES: usize = Codes::HEAP_BYTES;

    pub(super) fn new() -> Self {
        Cutter { codes: Codes::new() }
    }

    /// Cuts the stream at the front of `stream` to at most `limit_bytes`.
    ///
    /// `stream` has [`READ_AHEAD_BYTES`] more bytes than the stream. Returns `None` if not even one symbol fits.
    pub(super) fn cut(&mut self, stream: &mut [u8], limit_bytes: usize) -> Option<Cut> {
        let end = self.find_end(stream, limit_bytes)?;
        stream[end.block_bit / 8] |= 1 << (end.block_bit % 8);
        let stream_bytes = match end.kind {
            EndKind::Code { bit, code, len } => {
                let first = bit / 8;
                let last = (bit + len).div_ceil(8);
                let low_bits = u64::from(stream[first]) & ((1 << (bit % 8)) - 1);
                let bytes = (low_bits | code << (bit % 8)).to_le_bytes();
                stream[first..last].copy_from_slice(&bytes[..last - first]);
                last
            }
            EndKind::Stored { data_at, len } => {
                let len_field = len as u16;
                stream[data_at - 4..data_at - 2].copy_from_slice(&len_field.to_le_bytes());
                stream[data_at - 2..data_at].copy_from_slice(&(!len_field).to_le_bytes());
                data_at + len
            }
        };
        Some(Cut { plain_bytes: end.plain_bytes, stream_bytes })
    }

    /// Finds the last place where the stream can end within the limit.
    fn find_end(&mut self, stream: &[u8], limit_bytes: usize) -> Option<End> {
        let mut best = None;
        let (mut bit, mut plain_bytes) = (0, 0);
        loop {
            let block_bit = bit;
            if bit + 3 > limit_bytes * 8 {
                return best;
            }
            let header = peek(stream, bit)?;
            let is_last = header & 1 != 0;
            bit += 3;
            let is_full = match header >> 1 & 3 {
                0 => {
                    let data_at = bit.div_ceil(8) + 4;
                    let len = (peek(stream, (data_at - 4) * 8)? & 0xffff) as usize;
                    let fits = len.min(limit_bytes.saturating_sub(data_at));
                    if fits > 0 {
                        plain_bytes += fits;
                        best = Some(End {
                            plain_bytes,
                            block_bit,
                            kind: EndKind::Stored { data_at, len: fits },
                        });
                    }
                    bit = (data_at + len) * 8;
                    fits < len
                }
                kind => {
                    match kind {
                        1 => self.codes.build(&fixed_lengths(), 288)?,
                        _ => {
                            let (lengths, literals) = dynamic_lengths(stream, &mut bit)?;
                            self.codes.build(&lengths, literals)?;
                        }
                    }
                    let found = self.find_end_in_block(stream, bit, limit_bytes * 8)?;
                    if found.plain_bytes > 0 {
                        plain_bytes += found.plain_bytes;
                        let (code, len) = self.codes.end_code();
                        let kind = EndKind::Code { bit: found.bit, code, len };
                        best = Some(End { plain_bytes, block_bit, kind });
                    }
                    bit = found.bit + self.codes.end_code().1;
                    !found.is_complete
                }
            };
            if is_last || is_full {
                return best;
            }
        }
    }

    /// Decodes a block's symbols from `bit` on as long as the end-of-block code fits after them.
    fn find_end_in_block(&self, stream: &[u8], bit: usize, limit_bits: usize) -> Option<BlockEnd> {
        let limit_bits = limit_bits.saturating_sub(self.codes.end_code().1);
        let mut end = BlockEnd { bit, plain_bytes: 0, is_complete: false };
        loop {
            let bits = peek(stream, end.bit)?;
            let (next_bit, plain_bytes) = match self.codes.symbol(bits)? {
                Kind::End => {
                    end.is_complete = true;
                    return Some(end);
                }
                Kind::Bytes { len, bits } => (end.bit + bits, end.plain_bytes + len),
            };
            if next_bit > limit_bits {
                return Some(end);
            }
            (end.bit, end.plain_bytes) = (next_bit, plain_bytes);
        }
    }
}

/// The last place in a block where the stream can end.
struct BlockEnd {
    /// The end of the last symbol that fits.
    bit: usize,
    plain_bytes: usize,
    /// Whether all symbols of the block fit.
    is_complete: bool,
}
