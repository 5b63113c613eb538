//! The interface of a back end: the types that every back end implements and that the table lists.
//!
//! The modules of this crate are layered, and each uses only those below it: `codec` and `streams` (the public
//! front), `table`, the back ends (`lz4`, `lz4hc`, `zstd`, `deflate`, `lzo`, `c842`, `numbers`, which uses `lz4`), what
//! they and `cluster` share (`liblz4`, `lz4_block`, `load`, `isa`), this module, and `error`.

use crate::error::CodecError;
use pagefold_page::PAGE_SIZE;

/// Bytes of a compression's destination: two pages, so that no codec fails on an incompressible page.
pub const COMPRESS_BUF_LEN: usize = 2 * PAGE_SIZE;

/// The levels of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Lowest.
    pub min: i32,
    /// Highest.
    pub max: i32,
    /// Used where the [`CodecSpec`](crate::CodecSpec) names none.
    pub default: i32,
}

/// One algorithm as the table lists it.
pub struct Backend {
    /// The name that users type.
    pub name: &'static str,
    /// Strengths and costs in a few words, for help texts.
    pub summary: &'static str,
    /// Its levels, if it has any.
    pub levels: Option<Levels>,
    /// Whether it takes a dictionary.
    pub dictionary: bool,
    /// Whether it takes window bits; see [`CodecSpec::window_bits`](crate::CodecSpec::window_bits).
    pub window_bits: bool,
    /// Whether the kernel's zram has it too.
    pub in_zram: bool,
    /// Prepares an algorithm with its parameters.
    pub(crate) open: Open,
}

pub(crate) type Open = fn(&Params<'_>) -> Result<Algorithm, CodecError>;

/// An algorithm with its parameters, its dictionary prepared: allocates a working state. See [`Codec`](crate::Codec).
pub(crate) type Algorithm = Box<dyn Fn() -> Result<Box<dyn Stream>, CodecError> + Send + Sync>;

/// The parameters of an algorithm, of which only those are set that its entry in the table permits.
pub(crate) struct Params<'a> {
    /// One of its [`Levels`]; 0 if it has none.
    pub(crate) level: i32,
    /// Bytes that pages are likely to share.
    pub(crate) dictionary: Option<&'a [u8]>,
    /// zlib's `windowBits`, any value.
    pub(crate) window_bits: Option<i32>,
}

impl Backend {
    /// Returns the level to use for the `requested` one: itself, or the default where it is `None`.
    ///
    /// `None` is returned for an algorithm without levels.
    pub(crate) fn check_level(&self, requested: Option<i32>) -> Result<Option<i32>, CodecError> {
        match (self.levels, requested) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(CodecError::NoLevels { codec: self.name }),
            (Some(Levels { default, .. }), None) => Ok(Some(default)),
            (Some(Levels { min, max, .. }), Some(level)) if (min..=max).contains(&level) => Ok(Some(level)),
            (Some(Levels { min, max, .. }), Some(level)) => {
                Err(CodecError::Level { codec: self.name, level, min, max })
            }
        }
    }
}

/// The working state of one operation at a time.
///
/// A result does not depend on earlier calls: the same source always compresses to the same bytes.
pub trait Stream: Send {
    /// Compresses `src` (a page, or at most 64 KiB) into the front of `dst` and returns the compressed
    /// length.
    ///
    /// `dst` is at least [`COMPRESS_BUF_LEN`] for a page, or twice the source; output may be longer
    /// than the source. Bytes of `dst` after the returned length are unspecified.
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError>;

    /// Decompresses the whole of `src` into the front of `dst` and returns the length.
    ///
    /// `src` may be hostile: the result is then [`CodecError::Corrupt`] or arbitrary bytes within
    /// `dst`, and nothing else.
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError>;
}
