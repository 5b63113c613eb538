//! The static table of back ends.

use crate::codec::Algorithm;
use crate::{CodecError, deflate, lz4, lz4hc, lzo, zstd};

/// The levels of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// Lowest.
    pub min: i32,
    /// Highest.
    pub max: i32,
    /// Used when none is asked for.
    pub default: i32,
}

/// One algorithm as the table knows it.
pub struct Backend {
    /// The name people type.
    pub name: &'static str,
    /// What it is good for, in a few words.
    pub summary: &'static str,
    /// Its levels, if it has any.
    pub levels: Option<Levels>,
    /// Whether it takes a dictionary.
    pub dictionary: bool,
    /// Prepares level (0 where there are none) and dictionary.
    pub(crate) open: Open,
}

pub(crate) type Open = fn(level: i32, dictionary: Option<&[u8]>) -> Result<Box<dyn Algorithm>, CodecError>;

static TABLE: &[Backend] = &[
    lz4::BACKEND,
    lz4hc::BACKEND,
    zstd::BACKEND,
    deflate::BACKEND,
    lzo::backend::LZO_BACKEND,
    lzo::backend::LZO_RLE_BACKEND,
];

const _: () = assert!(!TABLE.is_empty());

/// All back ends.
pub fn table() -> &'static [Backend] {
    TABLE
}

/// The names of all back ends, in the table's order.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|b| b.name)
}

/// The back end of this name.
pub fn backend(name: &str) -> Result<&'static Backend, CodecError> {
    TABLE.iter().find(|b| b.name == name).ok_or_else(|| CodecError::Unknown {
        name: name.to_string(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}
