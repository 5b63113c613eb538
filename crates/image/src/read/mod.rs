//! Finding things in an image: total on any input, and without memory of its own beyond what it returns.

pub mod extent;
pub mod zmap;

pub use extent::{Algorithm, Cluster, Extent, Place};
pub use zmap::{Cursor, IndexForm, ZContext, ZMap};

use crate::{Address, ImageError};

/// Bytes of an image by address: the devices themselves, or a file that holds metadata.
///
/// The production implementation keeps pages of metadata in the cache; tests and fuzz targets use a slice.
pub trait Bytes {
    /// Fills `buf` from `at`; past the end is [`ImageError::Truncated`].
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError>;
}
