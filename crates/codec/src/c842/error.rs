//! The error of 842.

/// The reason why a block could not be compressed or decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum C842Error {
    /// The stream ends inside an instruction or before its end.
    #[error("842 stream is cut short: an instruction needs bits past its end")]
    InputOverrun,
    /// The result needs more room than the destination has.
    #[error("842 output does not fit: the destination is too small")]
    OutputOverrun,
    /// An index points at bytes that are not yet written, or a repeat has no phrase before it.
    #[error("842 stream is corrupt: it copies bytes that were not yet written")]
    NotYetWritten,
    /// An opcode without a meaning.
    #[error("842 stream is corrupt: unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// A short phrase without bytes.
    #[error("842 stream is corrupt: an empty short phrase")]
    EmptyShortPhrase,
    /// A short phrase is not the last instruction.
    #[error("842 stream is corrupt: an instruction follows a short phrase")]
    NotAtEnd,
    /// The checksum is not that of the output.
    #[error("842 stream is corrupt: the checksum is wrong")]
    Checksum,
    /// The stream is not padded with zeros to a multiple of 8 bytes, or goes on after that.
    #[error("842 stream is corrupt: wrong padding after its end")]
    Padding,
}
