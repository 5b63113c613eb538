//! [`Codec`]: an algorithm of the table with its parameters, chosen by a [`CodecSpec`].

use crate::backend::{Algorithm, Backend, Params, Stream};
use crate::error::CodecError;
use crate::table;
use std::fmt;

/// An algorithm and its parameters, as the user configured them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecSpec {
    /// A name of the [`table`](crate::table()).
    pub name: String,
    /// The level; `None` is the algorithm's default.
    pub level: Option<i32>,
    /// Bytes that pages are likely to share, for algorithms that take them.
    pub dictionary: Option<Vec<u8>>,
    /// zlib's `windowBits` (zram: `deflate.winbits`), for algorithms that take them: the number's magnitude, 9 to 15,
    /// is log2 of the bytes that a match may reach back, and its sign the format, raw deflate if negative and zlib if
    /// positive. `None` leaves both to the algorithm.
    pub window_bits: Option<i32>,
}

impl CodecSpec {
    /// The named algorithm with its default parameters.
    pub fn named(name: impl Into<String>) -> Self {
        CodecSpec { name: name.into(), level: None, dictionary: None, window_bits: None }
    }
}

/// An algorithm with parameters and prepared dictionary: immutable, shared by all streams.
pub struct Codec {
    backend: &'static Backend,
    level: Option<i32>,
    algorithm: Algorithm,
}

impl Codec {
    /// Looks the algorithm up and prepares its parameters.
    pub fn new(spec: &CodecSpec) -> Result<Self, CodecError> {
        let backend = table::backend(&spec.name)?;
        let level = backend.check_level(spec.level)?;
        if spec.dictionary.is_some() && !backend.dictionary {
            return Err(CodecError::NoDictionary { codec: backend.name });
        }
        if spec.window_bits.is_some() && !backend.window_bits {
            return Err(CodecError::NoWindowBits { codec: backend.name });
        }
        let (level_or_zero, dictionary) = (level.unwrap_or(0), spec.dictionary.as_deref());
        let params = Params { level: level_or_zero, dictionary, window_bits: spec.window_bits };
        let algorithm = (backend.open)(&params)?;
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

    /// Allocates a working state for this codec.
    pub fn stream(&self) -> Result<Box<dyn Stream>, CodecError> {
        let stream = (self.algorithm)()?;
        #[cfg(feature = "planted-hole")]
        let stream = Box::new(WithHole(stream));
        Ok(stream)
    }
}

/// A stream whose decompression has a planted hole, for tests of confinement.
#[cfg(feature = "planted-hole")]
struct WithHole(Box<dyn Stream>);

#[cfg(feature = "planted-hole")]
impl Stream for WithHole {
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        self.0.compress(src, dst)
    }

    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        match crate::cluster::hole::grant(src, dst) {
            true => Ok(dst.len()),
            false => self.0.decompress(src, dst),
        }
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("name", &self.name()).field("level", &self.level).finish()
    }
}
