//! Finding things in an image: total on any input, and without memory of its own beyond what it returns.

pub mod acl;
pub mod bytes;
pub mod chunk;
pub mod dir;
pub mod extent;
pub mod flat;
#[cfg(test)]
pub(crate) mod forge;
pub mod inode;
mod kind;
pub mod superblock;
pub mod xattr;
pub mod zmap;

pub use bytes::SliceBytes;
pub use extent::{Algorithm, Cluster, Extent, Place};
pub use inode::{Inode, Layout};
pub use kind::FileKind;
pub use superblock::Superblock;
pub use xattr::Xattr;
pub use zmap::{Cursor, IndexForm, ZContext, ZMap};

use crate::{Address, ImageError};

/// Bytes of an image by address: the devices themselves, or a file that holds metadata.
///
/// The production implementation keeps pages of metadata in the cache; tests and fuzz targets use a slice.
pub trait Bytes {
    /// Fills `buf` from `at`; past the end is [`ImageError::Truncated`].
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError>;
}
