//! The error type of codecs and cluster decoders.

/// A codec that cannot be set up, or a call that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// No back end has this name.
    #[error("unknown codec '{name}'; known are {known}")]
    Unknown {
        /// The requested name.
        name: String,
        /// All known names, separated by commas.
        known: String,
    },
    /// The level is outside the algorithm's range.
    #[error("codec {codec} has no level {level}; its levels are {min} to {max}")]
    Level {
        /// The codec.
        codec: &'static str,
        /// The requested level.
        level: i32,
        /// Its lowest level.
        min: i32,
        /// Its highest level.
        max: i32,
    },
    /// The algorithm has no levels.
    #[error("codec {codec} has no levels; leave the level out")]
    NoLevels {
        /// The codec.
        codec: &'static str,
    },
    /// The algorithm has no dictionaries.
    #[error("codec {codec} takes no dictionary")]
    NoDictionary {
        /// The codec.
        codec: &'static str,
    },
    /// The algorithm has no window bits.
    #[error("codec {codec} takes no window bits")]
    NoWindowBits {
        /// The codec.
        codec: &'static str,
    },
    /// The algorithm has no such window bits.
    #[error(
        "codec {codec} has no window bits {window_bits}; they are {min} to {max}, or -{max} to -{min} for raw streams"
    )]
    WindowBits {
        /// The codec.
        codec: &'static str,
        /// The requested window bits.
        window_bits: i32,
        /// log2 of its shortest window.
        min: u8,
        /// log2 of its longest window.
        max: u8,
    },
    /// The algorithm refused the dictionary.
    #[error("codec {codec} cannot use this dictionary of {len_bytes} bytes")]
    BadDictionary {
        /// The codec.
        codec: &'static str,
        /// Its length.
        len_bytes: usize,
    },
    /// No memory for a stream.
    #[error("no memory for the working state of codec {codec}")]
    NoMemory {
        /// The codec.
        codec: &'static str,
    },
    /// The destination is shorter than the codec's bound for this source.
    #[error("codec {codec} cannot compress into {dst_len_bytes} bytes")]
    Compress {
        /// The codec.
        codec: &'static str,
        /// The destination's length.
        dst_len_bytes: usize,
    },
    /// The compressed bytes do not decode into the destination.
    #[error("{src_len_bytes} bytes do not decode as {codec}")]
    Corrupt {
        /// The codec.
        codec: &'static str,
        /// The source's length.
        src_len_bytes: usize,
    },
    /// A [`cluster::Format`](crate::cluster::Format) was declared with a window that decoders do not support. (A zstd
    /// frame with a longer window than its format allows is [`CodecError::Corrupt`].)
    #[error("{codec} has no window of {window_bytes} bytes; its windows are {min} to {max}")]
    Window {
        /// The codec.
        codec: &'static str,
        /// The requested window.
        window_bytes: u32,
        /// Its shortest window.
        min: u32,
        /// Its longest window.
        max: u32,
    },
    /// A buffer that a decoder works in is too short.
    #[error("{codec} needs a {what} of {min_bytes} bytes, not {len_bytes}")]
    Room {
        /// The codec.
        codec: &'static str,
        /// The buffer's purpose.
        what: &'static str,
        /// Its length.
        len_bytes: usize,
        /// The length that it must have at least.
        min_bytes: usize,
    },
}
