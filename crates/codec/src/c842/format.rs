//! The constants of the 842 format, which compressor and decompressor share.
//!
//! `docs/formats/842.md` describes the format. Streams that the kernel wrote are the proof of each fact.

/// Bytes of a phrase, the unit of the input.
pub(super) const PHRASE_LEN: usize = 8;

/// Bits of an opcode.
pub(super) const OPCODE_BITS: u32 = 5;

/// Ways to write half a phrase. Opcodes below the square of this name the way of the first half and of the second:
/// `first * HALF_WAYS + second`.
pub(super) const HALF_WAYS: u32 = 5;

/// Opcode of a phrase that is an index.
pub(super) const OP_PHRASE: u32 = 0x19;
/// Opcode that repeats the last phrase.
pub(super) const OP_REPEAT: u32 = 0x1b;
/// Opcode of a phrase of zeros.
pub(super) const OP_ZEROS: u32 = 0x1c;
/// Opcode of the bytes after the last whole phrase.
pub(super) const OP_SHORT: u32 = 0x1d;
/// Opcode of the end.
pub(super) const OP_END: u32 = 0x1e;

/// Bits of the number after [`OP_REPEAT`], which is one less than the number of repeats.
pub(super) const REPEAT_BITS: u32 = 6;
/// Most repeats of one instruction.
pub(super) const REPEATS_MAX: u32 = 1 << REPEAT_BITS;
/// Bits of the number of bytes after [`OP_SHORT`].
pub(super) const SHORT_BITS: u32 = 3;
/// Bits of the checksum after [`OP_END`].
pub(super) const CRC_BITS: u32 = 32;
/// A stream is a multiple of this long.
pub(super) const ALIGN_LEN: usize = 8;

/// The ways to write four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// The bytes.
    Plain,
    /// Two bytes, and the index of a pair.
    PlainThenPair,
    /// The index of a pair, and two bytes.
    PairThenPlain,
    /// The indices of two pairs.
    Pairs,
    /// The index of four bytes.
    Quad,
}

/// The ways in the order of their numbers.
pub(super) const HALVES: [Half; HALF_WAYS as usize] =
    [Half::Plain, Half::PlainThenPair, Half::PairThenPlain, Half::Pairs, Half::Quad];

/// A ring: the last bytes of the output, divided into units, of which an index names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    /// Bytes of a unit.
    pub(super) unit_len: usize,
    /// Bits of an index.
    pub(super) index_bits: u32,
}

impl Ring {
    /// Units of the ring.
    pub(super) const fn units(self) -> usize {
        1 << self.index_bits
    }

    /// Bytes of the ring.
    pub(super) const fn len_bytes(self) -> usize {
        self.units() * self.unit_len
    }
}

/// The ring of pairs of bytes.
pub(super) const PAIRS: Ring = Ring { unit_len: 2, index_bits: 8 };
/// The ring of four bytes each.
pub(super) const QUADS: Ring = Ring { unit_len: 4, index_bits: 9 };
/// The ring of phrases.
pub(super) const PHRASES: Ring = Ring { unit_len: PHRASE_LEN, index_bits: 8 };
