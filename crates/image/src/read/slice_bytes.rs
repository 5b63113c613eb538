//! An image in memory, which tests and fuzz targets parse without a medium.

use super::Bytes;
use crate::{Address, ImageError, Result, Space};

/// An image in memory, with one device and no metabox.
#[derive(Debug, Clone, Copy)]
pub struct SliceBytes<'a>(pub &'a [u8]);

impl Bytes for SliceBytes<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
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
    use crate::read::bytes::array_at;

    #[test]
    fn reads_behind_the_end_of_a_slice_fail() {
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
