//! LZ4 block format: this crate's encoder for whole pages, and liblz4 (vendored by `lz4-sys`) for everything else.
//!
//! Compressing pages costs the program more time than anything else. So [`page`] handles the usual case, a whole page
//! at level 1 without dictionary: it takes a sixth less time than liblz4, and its output is no longer. liblz4 handles
//! other lengths, dictionaries, short destinations, all decompression, and other levels, which are liblz4's
//! acceleration factor. Factors above 65537 are refused, because liblz4 treats them as 65537. A stream keeps liblz4's
//! state between calls, so that each call initialises only its hash table, 16 KiB. Format: `lz4_Block_format.md` of the
//! LZ4 project.

mod output;
mod page;

use crate::backend::{Backend, Levels, Stream};
use crate::error::CodecError;
use crate::liblz4::{Encoder, Library, LibraryStream};
use crate::lz4_block::NAME;
use pagefold_page::Page;

pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "fast both ways; the default",
    levels: Some(Levels { min: 1, max: 65537, default: 1 }),
    dictionary: true,
    window_bits: false,
    in_zram: true,
    open: |params| {
        let lz4 = Lz4::new(params.level, params.dictionary)?;
        Ok(Box::new(move || Ok(Box::new(lz4.open()?))))
    },
};

/// LZ4 with its acceleration factor and dictionary.
pub(crate) struct Lz4 {
    library: Library,
    /// Whether the page compressor handles whole pages.
    has_pages: bool,
}

impl Lz4 {
    /// Prepares the dictionary, if there is one.
    pub(crate) fn new(acceleration: i32, dictionary: Option<&[u8]>) -> Result<Self, CodecError> {
        let has_pages = acceleration == 1 && dictionary.is_none();
        Ok(Lz4 { library: Library::new(NAME, Encoder::Fast, acceleration, dictionary)?, has_pages })
    }

    /// Allocates a working state.
    pub(crate) fn open(&self) -> Result<Lz4Stream, CodecError> {
        Ok(Lz4Stream { library: self.library.open()?, has_pages: self.has_pages })
    }
}

/// Working state of [`Lz4`].
pub(crate) struct Lz4Stream {
    library: LibraryStream,
    has_pages: bool,
}

impl Stream for Lz4Stream {
    #[inline]
    fn compress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        if self.has_pages
            && let Ok(page) = <&Page>::try_from(src)
            && let Some(room) = dst.first_chunk_mut()
        {
            let len = page::compress(page, room);
            return len.ok_or(CodecError::Compress { codec: NAME, dst_len_bytes: page::DST_LEN });
        }
        self.library.compress(src, dst)
    }

    #[inline]
    fn decompress(&mut self, src: &[u8], dst: &mut [u8]) -> Result<usize, CodecError> {
        self.library.decompress(src, dst)
    }
}
