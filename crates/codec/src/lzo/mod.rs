//! LZO1X and its variant with zero runs, the kernel's `lzo` and `lzo-rle`.
//!
//! This implementation is written from the description of the byte stream (`docs/formats/lzo.md`), because every fast
//! implementation is under the GPL. [`compress`] writes streams that any LZO1X decoder reads ([`Variant::Lzo`]) or
//! that any decoder of version-1 bitstreams reads ([`Variant::LzoRle`]). [`decompress`] reads both and distinguishes
//! them by the first byte. It returns for any input, and accesses nothing outside the two slices.
//!
//! `format` holds the constants, `compress` finds matches, `emit` writes instructions, `decompress` reads them, and
//! `backend` puts both variants into the codec table. There is no `unsafe`: the
//! bounds checks that remain are one per instruction, too few to measure.
//!
//! The module does not frame blocks, keep checksums or know page sizes, though its hash table is sized for 4 KiB
//! inputs. It has one level: it decodes the streams that other LZO tools write at higher levels, but does not write
//! such streams.

pub(crate) mod backend;
mod compress;
mod decompress;
mod emit;
mod error;
mod format;

pub use compress::Workspace;
pub use decompress::decompress;
pub use error::LzoError;

/// Which bitstream to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The original stream, version 0.
    Lzo,
    /// Version 1: a two-byte prefix, and runs of zeros as instructions.
    LzoRle,
}

/// Returns the greatest number of bytes that [`compress`] writes for `len_bytes` bytes, in both variants.
///
/// Proof: a match replaces at least four bytes and takes three, or more bytes only where it replaces more than nine. Up
/// to 18 literals before it cost one byte in addition, up to 273 cost two, and each further 255 cost one more. So a
/// match with the literals before it grows only where there are 19 literals or more, by less than one byte in 23. The
/// last literals, prefix and end marker add at most 2 + 2 + 3. The sixteenth and the constant of this function are
/// those that other LZO implementations reserve, so that buffers sized for them fit.
#[cfg(any(test, feature = "testing"))]
pub const fn compress_bound(len_bytes: usize) -> usize {
    len_bytes.saturating_add(len_bytes / 16).saturating_add(64 + 3 + 2)
}

/// Compresses `src` into the front of `dst` and returns the length written.
///
/// The result depends on `variant` and `src` alone, not on earlier uses of `work`. Bytes of `dst` past the result are
/// unspecified.
///
/// # Errors
/// [`LzoError::OutputOverrun`] when the result does not fit in `dst`; it always fits in [`compress_bound`] bytes.
pub fn compress(
    variant: Variant,
    work: &mut Workspace,
    src: &[u8],
    dst: &mut [u8],
) -> Result<usize, LzoError> {
    match variant {
        Variant::Lzo => compress::compress::<false>(work, src, dst),
        Variant::LzoRle => compress::compress::<true>(work, src, dst),
    }
}
