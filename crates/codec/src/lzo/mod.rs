//! LZO1X and its variant with zero runs, the kernel's `lzo` and `lzo-rle`.
//!
//! Written from the description of the byte stream (`docs/formats/lzo.md`),
//! because every fast implementation is under the GPL. [`compress`] makes
//! streams that any LZO1X decoder reads ([`Variant::Lzo`]) or that any decoder
//! of version-1 bitstreams reads ([`Variant::LzoRle`]); [`decompress`] reads
//! both, tells them apart by the first byte, and is total: whatever the input,
//! it returns, and touches nothing outside the two slices.
//!
//! Cut by direction: `format` holds the numbers, `compress` finds matches,
//! `emit` writes instructions, `decompress` reads them, `bytes` has the loads
//! and comparisons of whole words. No `unsafe` anywhere: the checks that remain
//! are one per instruction, and measure as noise.
//!
//! It does not frame blocks, keep checksums or know page sizes, though its hash
//! table is sized with 4 KiB inputs in mind. It has one level: what other LZO
//! tools do at higher levels is decoded, not produced.

pub(crate) mod backend;
mod bytes;
mod compress;
mod decompress;
mod emit;
mod format;

pub use compress::Workspace;

/// Which bitstream to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The original stream, version 0.
    Lzo,
    /// Version 1: a two-byte prefix, and runs of zeros as instructions.
    LzoRle,
}

/// Why a block could not be compressed or decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LzoError {
    /// The stream ends inside an instruction or before its end marker.
    #[error("LZO stream is cut short: an instruction needs bytes past its end")]
    InputOverrun,
    /// The result needs more room than the destination has.
    #[error("LZO output does not fit: the destination is too small")]
    OutputOverrun,
    /// A match reaches back past the first byte of the output.
    #[error("LZO stream is corrupt: a match begins before the start of the output")]
    LookbehindOverrun,
    /// Bytes follow the end marker.
    #[error("LZO stream is corrupt: bytes follow the end marker")]
    TrailingInput,
    /// The end marker's distance with a length other than 3.
    #[error("LZO stream is corrupt: malformed end marker")]
    BadEndMarker,
    /// A bitstream version other than 0 and 1.
    #[error("LZO stream has unknown bitstream version {0}: only 0 (lzo) and 1 (lzo-rle) can be read")]
    UnknownVersion(u8),
}

/// The most bytes that [`compress`] makes of `len_bytes` bytes, for both variants.
///
/// Why it holds: a match replaces at least four bytes and takes three, or more
/// bytes only where it replaces more than nine. The literals before it cost one
/// byte beyond themselves up to 18, two up to 273, and one more for each 255.
/// So a match with the literals before it grows only where those are 19 or
/// more, by less than one byte in 23. The last literals, prefix and end marker
/// add at most 2 + 2 + 3. The sixteenth and the constant given here are what
/// other LZO implementations reserve, so that buffers sized for them fit.
pub const fn compress_bound(len_bytes: usize) -> usize {
    len_bytes.saturating_add(len_bytes / 16).saturating_add(64 + 3 + 2)
}

/// Compresses `src` into the front of `dst` and returns the length written.
///
/// The result depends on `variant` and `src` alone, not on what `work` was used
/// for before. Bytes of `dst` past the result are unspecified.
///
/// # Errors
/// [`LzoError::OutputOverrun`] when the result does not fit in `dst`; it always
/// fits in [`compress_bound`] bytes.
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

/// Decompresses the whole of `src` into the front of `dst` and returns the length written.
///
/// Reads both variants. Bytes of `dst` past the result are unspecified, and all
/// of `dst` is after an error.
///
/// # Errors
/// Every variant of [`LzoError`]: `src` is not trusted.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<usize, LzoError> {
    decompress::decompress(src, dst)
}
