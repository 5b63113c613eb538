//! Parsing an image: inodes, directories, attributes, and the mapping of a file's bytes to stored ones.
//!
//! All functions are safe on any input: they return an error for corrupt bytes, and each loop has a bound. They read
//! through the trait [`Bytes`], keep no state between calls, take no locks, and allocate only the values that they
//! return.
//!
//! A file's bytes are mapped by its layout: `flat` (blocks in a row), `chunk` (an array of chunk addresses) or `zmap`
//! (the index of a compressed file). Each lookup returns an [`Extent`].

pub mod acl;
pub mod bytes;
pub mod chunk;
pub mod dir;
pub mod extent;
pub mod flat;
pub mod inode;
mod kind;
mod slice_bytes;
pub mod superblock;
pub mod xattr;
pub mod zmap;

pub use extent::{Cluster, Extent, Mapping};
pub use inode::{Inode, Layout};
pub use kind::FileKind;
pub use slice_bytes::SliceBytes;
pub use superblock::Superblock;
pub use xattr::Xattr;
pub use zmap::{Cursor, IndexForm, ZContext, ZMap};

pub use crate::format::config::Algorithm;
use crate::{Address, Result};

/// Access to bytes of an image by address: those of its devices, or of a file that holds metadata.
///
/// The production implementation caches metadata; tests and fuzz targets use a slice.
pub trait Bytes {
    /// Fills `buf` from `at`. A range after the end is [`Truncated`](crate::ImageError::Truncated).
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()>;
}

#[cfg(test)]
pub(crate) mod tests;
