//! The error of LZO.

/// The reason why a block could not be compressed or decompressed.
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
