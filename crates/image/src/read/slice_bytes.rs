//! Stored bytes in memory: an inline cluster that was read before it is decoded, or an image of a test.

use super::Bytes;
use crate::{Address, ImageError, Result};

/// Stored bytes in memory, from an address on.
#[derive(Debug, Clone, Copy)]
pub struct SliceBytes<'a> {
    /// The address of the first one.
    pub at: Address,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> SliceBytes<'a> {
    /// A whole image, with one device and no metabox.
    pub fn image(bytes: &'a [u8]) -> Self {
        SliceBytes { at: Address::image(0), bytes }
    }
}

impl Bytes for SliceBytes<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        let start = at.offset.checked_sub(self.at.offset).filter(|_| at.space == self.at.space);
        let start = start.and_then(|start| usize::try_from(start).ok());
        match start.and_then(|start| self.bytes.get(start..start.checked_add(buf.len())?)) {
            Some(found) => {
                buf.copy_from_slice(found);
                Ok(())
            }
            None => {
                let end = self.at.offset + self.bytes.len() as u64;
                Err(ImageError::Truncated { at, len_bytes: buf.len() as u64, end })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use crate::read::bytes::array_at;

    #[test]
    fn reads_behind_the_end_of_a_slice_fail() {
        let image = SliceBytes::image(&[1, 2, 3, 4]);
        assert_eq!(array_at::<2>(&image, Address::image(2)).unwrap(), [3, 4]);
        for offset in [3, 4, u64::MAX, u64::MAX - 1] {
            let error = array_at::<2>(&image, Address::image(offset)).unwrap_err();
            assert!(matches!(error, ImageError::Truncated { len_bytes: 2, end: 4, .. }), "{error}");
        }
        for space in [Space::Device(1), Space::Metabox] {
            assert!(array_at::<1>(&image, Address { space, offset: 0 }).is_err());
        }
    }
}
