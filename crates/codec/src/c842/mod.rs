//! The 842 compression format of the kernel's `842`, which IBM's POWER processors have in hardware.
//!
//! This implementation is written from the description of the bit stream (`docs/formats/842.md`), because the kernel's
//! is under the GPL. [`compress`] writes streams that the kernel reads, and [`decompress`] reads streams of the kernel.
//! It returns for any input, and accesses nothing outside the two slices. There is no `unsafe`.
//!
//! `format` holds the constants, `bits` reads and writes bits, `finder` finds earlier pieces, `compress` chooses
//! instructions, `decompress` reads them, `crc` is the checksum, and `backend` puts the codec into the table.
//!
//! The compressor writes each phrase in the fewest bits, without a look at later phrases; that is what the kernel's
//! does, and in the tests both write the same bytes.

pub(crate) mod backend;
mod bits;
mod compress;
mod crc;
mod decompress;
mod error;
mod finder;
mod format;

pub use compress::{Workspace, compress};
pub use decompress::decompress;
#[cfg(feature = "testing")]
pub use error::C842Error;

/// Returns the greatest number of bytes that [`compress`] writes for `len_bytes` bytes.
///
/// Proof: a phrase of 8 bytes costs at most 69 bits, its opcode and its bytes, and a repeat takes less. The bytes after
/// the last whole phrase cost 8 bits each and 8 bits more; the end costs 37 bits, and the padding is less than 8 bytes.
#[cfg(any(test, feature = "testing"))]
pub const fn compress_bound(len_bytes: usize) -> usize {
    let bits = (len_bytes / format::PHRASE_LEN) * 69 + (len_bytes % format::PHRASE_LEN) * 8 + 8 + 37;
    bits.div_ceil(64) * 8
}
