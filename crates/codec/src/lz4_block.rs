//! The rules of the LZ4 block format that encoders and decoders share: `lz4_Block_format.md` of the LZ4 project.

/// The format's name, for errors.
pub(crate) const NAME: &str = "lz4";
/// Shortest match, which a length field of 0 stands for.
pub(crate) const MATCH_LEN_MIN: usize = 4;
/// The last sequence of a block is literals only, at least this many where it follows a match.
pub(crate) const LAST_LITERALS: usize = 5;
/// The last match begins at least this far from the end.
pub(crate) const LAST_MATCH_TO_END: usize = 12;
/// A length in a token with this value continues in the bytes that follow.
pub(crate) const LEN_IN_TOKEN_MAX: usize = 15;
