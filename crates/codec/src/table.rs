//! The static table of back ends, in the order in which help texts list them.

use crate::backend::Backend;
use crate::error::CodecError;
use crate::{c842, deflate, lz4, lz4hc, lzo, numbers, zstd};

static TABLE: &[Backend] = &[
    lz4::BACKEND,
    lz4hc::BACKEND,
    zstd::BACKEND,
    deflate::BACKEND,
    lzo::backend::LZO_BACKEND,
    lzo::backend::LZO_RLE_BACKEND,
    c842::backend::BACKEND,
    numbers::BACKEND,
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

/// Looks a back end up by its name; the error lists the known names.
pub fn backend(name: &str) -> Result<&'static Backend, CodecError> {
    TABLE.iter().find(|b| b.name == name).ok_or_else(|| CodecError::Unknown {
        name: name.to_string(),
        known: names().collect::<Vec<_>>().join(", "),
    })
}
