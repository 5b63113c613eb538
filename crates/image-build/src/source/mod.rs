//! Where trees come from.
//!
//! A source fills a [`Tree`](super::tree::Tree) with names and metadata, and with [`Content`](super::content::Content)
//! that is read later.
//!
//! | module | source |
//! |---|---|
//! | `directory` | a directory of a mounted file system |
//! | `image` | another image |
//! | `tar` | a tar archive, which is a file and not compressed |
//! | `layers` | the layers of a container, which are archives or images |
//!
//! [`SourceKind::of`] says by its beginning which source a file is. `spool` makes a file of a stream, and decompresses
//! it. `whiteouts` converts those of layers, in the tree of any source, and `nested` treats those of an overlay mount
//! inside.

pub mod directory;
pub mod image;
mod layers;
mod lookahead;
mod nested;
mod scanned;
pub mod spool;
pub mod tar;
mod unreadable;
mod whiteouts;

pub use layers::Layers;
pub use nested::{NestedOverlay, OverlayFound};
pub use scanned::{OnEntry, Scanned};
pub use unreadable::{Unreadable, UnreadableFile, UnreadableXattr};
pub use whiteouts::Whiteouts;

use crate::{BuildError, Result};
use pagefold_image::format::superblock::{MAGIC, OFFSET};
use std::path::Path;

/// Bytes of a file that show which source it is.
pub const BEGINNING_BYTES: usize = OFFSET as usize + 4;

/// The kind of a file that an image is built from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A tar archive.
    Tar,
    /// A file that has to be decompressed; see [`spool`].
    Compressed(spool::Compression),
    /// An image.
    Image,
}

impl SourceKind {
    /// Recognizes a file by its first [`BEGINNING_BYTES`]; fewer, if it is shorter. `path` is for the message.
    pub fn of(beginning: &[u8], path: &Path) -> Result<Self> {
        let magic = beginning.get(OFFSET as usize..).and_then(|bytes| bytes.first_chunk());
        if let Some(compression) = spool::Compression::of(beginning) {
            return Ok(SourceKind::Compressed(compression));
        }
        if tar::is_archive(beginning) {
            return Ok(SourceKind::Tar);
        }
        if magic.is_some_and(|magic| u32::from_le_bytes(*magic) == MAGIC) {
            return Ok(SourceKind::Image);
        }
        // An archive without members is nothing but its end.
        if beginning.len() >= 1024 && beginning.iter().all(|&byte| byte == 0) {
            return Ok(SourceKind::Tar);
        }
        let what = match spool::Compression::other_program(beginning) {
            Some(program) => spool::decompress_with(program),
            None => {
                "it is no tar archive (plain, or compressed by gzip, zstd or xz) and no EROFS image".into()
            }
        };
        Err(BuildError::UnknownSource { path: path.into(), what })
    }
}
