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

pub use compress::Workspace;
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

/// Compresses `src`, of at most 64 KiB, into the front of `dst` and returns the length written, a multiple of 8.
///
/// The result depends on `src` alone, not on earlier uses of `work`. Bytes of `dst` past the result are unspecified.
///
/// # Errors
/// [`C842Error::OutputOverrun`] when the result does not fit in `dst`; it always fits in [`compress_bound`] bytes.
pub fn compress(work: &mut Workspace, src: &[u8], dst: &mut [u8]) -> Result<usize, C842Error> {
    compress::compress(work, src, dst)
}

/// Decompresses the whole of `src` into the front of `dst` and returns the length written.
///
/// Bytes of `dst` past the result are unspecified; after an error all of `dst` is.
///
/// # Errors
/// Every variant of [`C842Error`]: `src` is not trusted.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, C842Error> {
    decompress::decompress(src, dst)
}
