//! LZ4 block format by liblz4's high-compression encoder: slower to compress than lz4, as fast to decompress.
//!
//! The kernel's lz4hc has 16 levels, of which the last ones search longer. liblz4 since 1.8 has 12, of which the last
//! finds the shortest encoding; levels above 12 are valid and are the same as 12.

use crate::backend::{Backend, Levels};
use crate::liblz4::{Encoder, Library};

const NAME: &str = "lz4hc";

/// liblz4's highest level.
const LIBRARY_LEVEL_MAX: i32 = 12;

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "denser than lz4 at several times its cost to write; reads as fast",
    levels: Some(Levels { min: 1, max: 16, default: 9 }),
    dictionary: true,
    window_bits: false,
    in_zram: true,
    open: |params| {
        let level = params.level.min(LIBRARY_LEVEL_MAX);
        let library = Library::new(NAME, Encoder::High, level, params.dictionary)?;
        Ok(Box::new(move || Ok(Box::new(library.open()?))))
    },
};
