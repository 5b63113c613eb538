//! Bytes by address: fixed-size pieces of them, and an image in memory for tests and fuzz targets.

use super::Bytes;
use crate::{Address, ImageError, Space};

/// `N` bytes from `at`.
pub fn array_at<const N: usize>(bytes: &dyn Bytes, at: Address) -> Result<[u8; N], ImageError> {
    let mut array = [0; N];
    bytes.read_at(at, &mut array)?;
    Ok(array)
}

/// `at`, `len_bytes` further on; past the end of all numbers is corrupt.
pub(crate) fn advance(at: Address, len_bytes: u64) -> Result<Address, ImageError> {
    at.checked_add(len_bytes).ok_or_else(|| ImageError::corrupt(at, "an address beyond all numbers"))
}

/// An image that is all in memory: one device, no metabox.
#[derive(Debug, Clone, Copy)]
pub struct SliceBytes<'a>(pub &'a [u8]);

impl Bytes for SliceBytes<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        let end = match at.space {
            Space::Device(0) => self.0.len() as u64,
            _ => 0,
        };
        let found = usize::try_from(at.offset)
            .ok()
            .filter(|_| end > 0)
            .and_then(|start| self.0.get(start..start.checked_add(buf.len())?));
        match found {
            Some(found) => {
                buf.copy_from_slice(found);
                Ok(())
            }
            None => Err(ImageError::Truncated { at, len_bytes: buf.len() as u64, end }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_where_it_ends() {
        let image = SliceBytes(&[1, 2, 3, 4]);
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
