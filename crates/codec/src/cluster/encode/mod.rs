//! Encoders of image clusters: each compresses as long a beginning of a source as fits into a cluster.
//!
//! An image stores clusters of a fixed length, so the writer asks how much input fits into one, not how short some
//! input becomes. An [`Encoder`] has two methods:
//!
//! - [`Encoder::fit`] fills a cluster: it compresses the longest beginning of the source that it can find.
//! - [`Encoder::whole`] compresses all of the source, or reports that it does not fit.
//!
//! The streams are those that [`Decoder`](super::Decoder) and the kernel read: one complete stream each, whose first
//! byte is not 0, with no reference beyond the window that the [`EncoderConfig`] declares. A result depends on the
//! configuration, the source and the length of the destination, never on earlier calls.
//!
//! | format | how the cluster is filled |
//! |---|---|
//! | LZ4 | the encoder stops where the destination is full: that of this module, or liblz4's fast one |
//! | MicroLZMA | liblzma does the same |
//! | deflate | libdeflate compresses somewhat more than fits, and the stream is cut after the last symbol that fits |
//! | zstd | one frame of blocks that shrink towards the end; a block that does not fit is taken back and made shorter |
//!
//! An encoder belongs to one thread at a time and takes no locks. It keeps its memory between calls, at most
//! [`Encoder::heap_bytes`]. After an error it stays usable, and the destination holds arbitrary bytes.

mod deflate;
mod deflate_codes;
mod deflate_cut;
mod fit;
mod lz4;
mod microlzma;
mod zstd;
mod zstd_context;
mod zstd_kind;
mod zstd_level;

use super::Format;
use crate::error::CodecError;
use fit::DST_MIN_BYTES;

pub use fit::Fit;

/// Most bytes that a cluster decodes to. An encoder does not examine a source beyond them.
const DECODED_MAX_BYTES: usize = 12 << 20;

/// A format with its limits, and how much effort compression takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EncoderConfig {
    /// LZ4 blocks by the fast encoder.
    Lz4 {
        /// The greatest distance of a match, 1 to 65535.
        window_bytes: u32,
    },
    /// LZ4 blocks by an encoder that searches longer: denser, and as fast to decode.
    Lz4Hc {
        /// The greatest distance of a match, 1 to 65535.
        window_bytes: u32,
        /// 1 to 12.
        level: i32,
    },
    /// MicroLZMA streams.
    MicroLzma {
        /// The dictionary's length, 4 KiB to 8 MiB.
        dict_bytes: u32,
        /// 0 to 9.
        level: i32,
        /// Whether to search longer than the level does.
        extreme: bool,
    },
    /// Raw deflate streams.
    Deflate {
        /// 1 to 12.
        level: i32,
    },
    /// Zstandard frames.
    Zstd {
        /// The longest window of a frame, 1 KiB to 1 MiB.
        max_window_bytes: u32,
        /// 1 to 22.
        level: i32,
    },
}

impl EncoderConfig {
    /// Returns the format of the streams, which is also that of their decoder.
    pub fn format(&self) -> Format {
        match *self {
            EncoderConfig::Lz4 { window_bytes } | EncoderConfig::Lz4Hc { window_bytes, .. } => {
                Format::Lz4 { window_bytes }
            }
            EncoderConfig::MicroLzma { dict_bytes, .. } => Format::MicroLzma { dict_bytes },
            EncoderConfig::Deflate { .. } => Format::Deflate,
            EncoderConfig::Zstd { max_window_bytes, .. } => Format::Zstd { max_window_bytes },
        }
    }

    /// Checks that the limits are within those of the format, and the level within those of the encoder.
    fn check(&self) -> Result<(), CodecError> {
        self.format().check()?;
        let (codec, level, min, max) = match *self {
            EncoderConfig::Lz4 { .. } => return Ok(()),
            EncoderConfig::Lz4Hc { level, .. } => (lz4::HIGH_NAME, level, 1, 12),
            EncoderConfig::MicroLzma { level, .. } => {
                (super::microlzma::NAME, level, 0, microlzma::LEVEL_MAX)
            }
            EncoderConfig::Deflate { level } => {
                (super::deflate::NAME, level, deflate::LEVEL_MIN, deflate::LEVEL_MAX)
            }
            EncoderConfig::Zstd { level, .. } => (super::zstd::NAME, level, 1, 22),
        };
        match (min..=max).contains(&level) {
            true => Ok(()),
            false => Err(CodecError::Level { codec, level, min, max }),
        }
    }
}

/// The working state of one compression at a time.
pub struct Encoder {
    config: EncoderConfig,
    state: State,
    input_bytes: u64,
}

enum State {
    Lz4(lz4::Fast),
    Lz4Hc(lz4::High),
    MicroLzma(microlzma::MicroLzma),
    Deflate(deflate::Deflate),
    Zstd(zstd::Zstd),
}

impl Encoder {
    /// Makes an encoder and allocates its working memory.
    pub fn new(config: &EncoderConfig) -> Result<Encoder, CodecError> {
        config.check()?;
        let state = match *config {
            EncoderConfig::Lz4 { window_bytes } => State::Lz4(lz4::Fast::new(window_bytes)?),
            EncoderConfig::Lz4Hc { window_bytes, level } => State::Lz4Hc(lz4::High::new(window_bytes, level)),
            EncoderConfig::MicroLzma { dict_bytes, level, extreme } => {
                State::MicroLzma(microlzma::MicroLzma::new(dict_bytes, level, extreme)?)
            }
            EncoderConfig::Deflate { level } => State::Deflate(deflate::Deflate::new(level)?),
            EncoderConfig::Zstd { max_window_bytes, level } => {
                State::Zstd(zstd::Zstd::new(max_window_bytes, level)?)
            }
        };
        Ok(Encoder { config: *config, state, input_bytes: 0 })
    }

    /// Returns the configuration that the encoder was made with.
    pub fn config(&self) -> EncoderConfig {
        self.config
    }

    /// Returns the number of input bytes that the encoder has compressed so far. Bytes that zstd and deflate compressed
    /// several times to fill a cluster count as often.
    pub fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Returns an upper bound, in bytes, of the heap memory of an encoder.
    pub fn heap_bytes(config: &EncoderConfig) -> usize {
        match *config {
            EncoderConfig::Lz4 { window_bytes } => lz4::fast_bytes(window_bytes),
            EncoderConfig::Lz4Hc { .. } => lz4::HIGH_BYTES,
            EncoderConfig::MicroLzma { dict_bytes, level, extreme } => {
                microlzma::heap_bytes(dict_bytes, level, extreme)
            }
            EncoderConfig::Deflate { level } => deflate::heap_bytes(level),
            EncoderConfig::Zstd { max_window_bytes, level } => zstd::heap_bytes(max_window_bytes, level),
        }
    }

    /// Compresses as long a beginning of `src` as fits into `dst` to one complete stream at the front of `dst`.
    ///
    /// `dst` is a cluster of 64 bytes to 1 MiB. Of `src` at most the 12 MiB that a cluster may decode to are
    /// compressed. The bytes of `dst` after the stream are arbitrary.
    pub fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        self.check_room(dst)?;
        if src.is_empty() {
            return Ok(Fit::default());
        }
        let src = &src[..src.len().min(DECODED_MAX_BYTES)];
        let fit = match &mut self.state {
            State::Lz4(state) => state.fit(src, dst),
            State::Lz4Hc(state) => Ok(state.fit(src, dst)),
            State::MicroLzma(state) => state.fit(src, dst),
            State::Deflate(state) => state.fit(src, dst, &mut self.input_bytes),
            State::Zstd(state) => state.fit(src, dst, &mut self.input_bytes),
        }?;
        if let State::Lz4(_) | State::Lz4Hc(_) | State::MicroLzma(_) = self.state {
            self.input_bytes += fit.consumed_bytes as u64;
        }
        Ok(fit)
    }

    /// Whether [`Encoder::fit_of_part`] may have a result.
    pub fn fits_parts(&self) -> bool {
        matches!(self.state, State::Lz4Hc(_))
    }

    /// Does what [`Encoder::fit`] does for all sources that begin with `part`, or returns `None`: then a longer part may do, as
    /// all of the source does with `fit`. So a source can be compressed while it is read.
    ///
    /// Only lz4hc needs to know little of what follows; for the others the result is always `None`.
    pub fn fit_of_part(&mut self, part: &[u8], dst: &mut [u8]) -> Result<Option<Fit>, CodecError> {
        self.check_room(dst)?;
        let State::Lz4Hc(state) = &mut self.state else { return Ok(None) };
        // Beyond its limit, a source is cut by `fit`.
        let fit = if part.len() > DECODED_MAX_BYTES { None } else { state.fit_of_part(part, dst) };
        self.input_bytes += fit.map_or(0, |fit| fit.consumed_bytes as u64);
        Ok(fit)
    }

    fn check_room(&self, dst: &[u8]) -> Result<(), CodecError> {
        if dst.len() < DST_MIN_BYTES {
            let (what, min_bytes) = ("destination", DST_MIN_BYTES);
            let codec = self.config.format().name();
            return Err(CodecError::Room { codec, what, len_bytes: dst.len(), min_bytes });
        }
        Ok(())
    }

    /// Compresses all of `src` to one complete stream at the front of `dst` and returns its length, or `None` if it
    /// does not fit.
    ///
    /// An empty source, and one that is longer than the 12 MiB that a cluster may decode to, does not fit either.
    pub fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Option<usize>, CodecError> {
        if src.is_empty() || src.len() > DECODED_MAX_BYTES {
            return Ok(None);
        }
        self.input_bytes += src.len() as u64;
        match &mut self.state {
            State::Lz4(state) => Ok(state.whole(src, dst)),
            State::Lz4Hc(state) => Ok(state.whole(src, dst)),
            State::MicroLzma(state) => state.whole(src, dst),
            State::Deflate(state) => Ok(state.whole(src, dst)),
            State::Zstd(state) => state.whole(src, dst),
        }
    }
}
