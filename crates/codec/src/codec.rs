//! The contract: codec, stream, call.

use crate::table::{self, Backend};
use crate::{CodecError, Levels};
use pagefold_page::PAGE_SIZE;
use std::fmt;

/// Bytes of a compression's destination: two pages, so that no codec fails on an incompressible page.
pub const COMPRESS_BUF_LEN: usize = 2 * PAGE_SIZE;

/// What a user asks for: an algorithm and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecSpec {
    /// A name of the [`table`](crate::table()).
    pub name: String,
    /// The level; `None` is the algorithm's default.
    pub level: Option<i32>,
    /// Bytes that pages are likely to share, for algorithms that take them.
    pub dictionary: Option<Vec<u8>>,
}

impl CodecSpec {
    /// The named algorithm with its default parameters.
    pub fn named(name: impl Into<String>) -> Self {
        CodecSpec { name: name.into(), level: None, dictionary: None }
    }
}

/// An algorithm with parameters and prepared dictionary: immutable, shared by all streams.
pub struct Codec {
    backend: &'static Backend,
    level: Option<i32>,
    algorithm: Box<dyn Algorithm>,
}

/// The prepared part of a back end; see [`Codec`].
pub(crate) trait Algorithm: Send + Sync {
    /// A new working state.
    fn stream(&self) -> Result<Box<dyn Stream>, CodecError>;
}

/// The working state of one operation at a time.
///
/// A stream carries nothing from one call to the next that could change a result: the same source
/// gives the same bytes whatever ran before.
pub trait Stream: Send {
    /// Compresses `src` (a page, or at most 64 KiB) into the front of `dst` and returns the compressed
    /// length.
    ///
    /// `dst` is at least [`COMPRESS_BUF_LEN`] for a page, or twice the source; output may be longer
    /// than the source. Bytes of `dst` behind the returned length are undefined.
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError>;

    /// Decompresses the whole of `src` into the front of `dst` and returns the length.
    ///
    /// `src` may be hostile: the result is then [`CodecError::Corrupt`] or arbitrary bytes within
    /// `dst`, and nothing else.
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError>;
}

impl Codec {
    /// Looks the algorithm up and prepares its parameters.
    pub fn new(spec: &CodecSpec) -> Result<Self, CodecError> {
        let backend = table::backend(&spec.name)?;
        let level = backend.check_level(spec.level)?;
        if spec.dictionary.is_some() && !backend.dictionary {
            return Err(CodecError::NoDictionary { codec: backend.name });
        }
        let algorithm = (backend.open)(level.unwrap_or(0), spec.dictionary.as_deref())?;
        Ok(Codec { backend, level, algorithm })
    }

    /// The algorithm's name.
    pub fn name(&self) -> &'static str {
        self.backend.name
    }

    /// The level in use, or `None` where the algorithm has none.
    pub fn level(&self) -> Option<i32> {
        self.level
    }

    /// A new working state for this codec.
    pub fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        self.algorithm.stream()
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("name", &self.name()).field("level", &self.level).finish()
    }
}

impl Backend {
    /// The level to use for what was asked, or why not.
    fn check_level(&self, asked: Option<i32>) -> Result<Option<i32>, CodecError> {
        match (self.levels, asked) {
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
