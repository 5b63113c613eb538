//! Indexes of compressed files: compared with a slow twin (a second, simple implementation) on built and real images,
//! and tested with random bytes.

mod build;
mod decode;
mod image;
mod mutated;
mod reference;
mod synthetic;
mod twin;
mod written;

use pagefold_image::read::Bytes;
use pagefold_image::{Address, ImageError};

/// Bytes in memory, the same in every address space, from address 0 on.
struct Slice<'a>(&'a [u8]);

impl Bytes for Slice<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        let range = usize::try_from(at.offset).ok().and_then(|from| self.0.get(from..)?.get(..buf.len()));
        let (len_bytes, end) = (buf.len() as u64, self.0.len() as u64);
        buf.copy_from_slice(range.ok_or(ImageError::Truncated { at, len_bytes, end })?);
        Ok(())
    }
}
