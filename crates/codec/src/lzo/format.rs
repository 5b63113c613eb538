//! The constants of the LZO1X instruction encodings, which compressor and decompressor share.
//!
//! `docs/formats/lzo.md` describes the encodings. The facts come from the kernel's *LZO stream format* document and
//! from the behaviour of the tools that the tests compare with.

/// The opcode that ends a stream and begins a versioned one: a far match of length 3. In the end marker two zero bytes
/// follow.
pub(super) const END_OPCODE: u8 = 17;

/// The whole end marker: a far match of length 3 at the impossible distance 16384 + 0.
pub(super) const END_MARKER: [u8; 3] = [END_OPCODE, 0, 0];

/// Version of the bitstream with zero runs, the byte after the leading 17.
pub(super) const VERSION_RLE: u8 = 1;

/// Length of the shortest versioned stream: two bytes of prefix and an end marker. A shorter stream that begins with 17
/// is the empty unversioned stream.
pub(super) const MIN_VERSIONED_LEN: usize = 5;

/// A first byte above this announces literals: their number is the byte minus this.
pub(super) const FIRST_LITERALS_BASE: u8 = 17;

/// Longest literal run that the first byte can announce.
pub(super) const FIRST_LITERALS_MAX: usize = 255 - FIRST_LITERALS_BASE as usize;

/// Longest literal run that the low two bits of the preceding instruction can announce.
pub(super) const STATE_LITERALS_MAX: usize = 3;

/// The decoder's state after a run of four or more literals. After shorter runs the state is their length.
pub(super) const STATE_LONG_LITERALS: usize = 4;

/// Longest literal run with its length in the opcode: 3 + 15.
pub(super) const LITERALS_INLINE_MAX: usize = 18;

/// Near match: opcodes 64..=255, two bytes, length 3..=8.
pub(super) const NEAR_MAX_LEN: usize = 8;
/// Near match: greatest distance, 11 bits.
pub(super) const NEAR_MAX_DISTANCE: usize = 1 << 11;

/// Middle match: opcodes 32..=63, length above 33 in extra bytes.
pub(super) const MIDDLE_OPCODE: u8 = 0x20;
/// Middle match: longest length without extra bytes.
pub(super) const MIDDLE_INLINE_MAX: usize = 33;
/// Middle match: greatest distance, 14 bits.
pub(super) const MIDDLE_MAX_DISTANCE: usize = 1 << 14;

/// Far match: opcodes 16..=31, length above 9 in extra bytes.
pub(super) const FAR_OPCODE: u8 = 0x10;
/// Far match: longest length without extra bytes.
pub(super) const FAR_INLINE_MAX: usize = 9;
/// Far match: distances count from here; exactly this distance is the end marker.
pub(super) const FAR_BASE: usize = 1 << 14;
/// Far match: greatest distance. In version 1 it means a zero run instead.
pub(super) const FAR_MAX_DISTANCE: usize = 0xbfff;

/// Zero run (version 1): the far-match opcode with its high distance bit, 24..=31.
pub(super) const ZERO_RUN_OPCODE: u8 = 0x18;
/// Zero run: the fourteen distance bits, all set, above the two state bits.
pub(super) const ZERO_RUN_MARK: u16 = 0xfffc;
/// Zero run: shortest run.
pub(super) const ZERO_RUN_MIN: usize = 4;
/// Zero run: longest run, eleven bits of length above the shortest.
pub(super) const ZERO_RUN_MAX: usize = ZERO_RUN_MIN + (1 << 11) - 1;

/// Opcodes 0..=15 after a long literal run: matches of three bytes beyond this distance.
pub(super) const AFTER_LITERALS_DISTANCE: usize = NEAR_MAX_DISTANCE;
