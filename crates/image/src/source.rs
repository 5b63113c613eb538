//! The media that an image lies on, and which of them holds an address.
//!
//! An address of device 0 may be in the unified space, in which the devices of the table follow the image at
//! places that the table names; then it belongs to the device there. Reads that would cross the end of a device are refused,
//! not split: nothing that a file holds crosses it.

use crate::{Address, ImageError, Space};
use pagefold_backing::Backing;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a device of the table lies in the unified space, bytes; nowhere if the length is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
}

impl Window {
    fn contains(&self, offset: u64) -> bool {
        offset.checked_sub(self.start).is_some_and(|within| within < self.len_bytes)
    }
}

/// The image and its further devices.
pub(crate) struct Source {
    media: Vec<Arc<dyn Backing>>,
    windows: Vec<Window>,
    read_bytes: AtomicU64,
}

impl Source {
    /// Only the image, for reading its super block.
    pub(crate) fn new(image: Arc<dyn Backing>) -> Self {
        Source { media: vec![image], windows: Vec::new(), read_bytes: AtomicU64::new(0) }
    }

    /// Adds the devices of the table, with their windows in the table's order.
    pub(crate) fn with_devices(mut self, devices: Vec<Arc<dyn Backing>>, windows: Vec<Window>) -> Self {
        self.media.extend(devices);
        self.windows = windows;
        self
    }

    /// Bytes read from all media so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Fills `buf` from a device. The metabox is not on one: [`ImageError::Corrupt`].
    pub(crate) fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        let (medium, offset) = self.resolve(at)?;
        self.read_medium(medium, offset, at, buf)
    }

    /// Fills `buf` from a device's own bytes, whatever the unified space has at that place: metadata is read so.
    pub(crate) fn read_own(&self, device: u16, offset: u64, buf: &mut [u8]) -> Result<(), ImageError> {
        let at = Address { space: Space::Device(device), offset };
        self.read_medium(self.medium(at, usize::from(device))?, offset, at, buf)
    }

    /// The size of a device, bytes.
    pub(crate) fn len_bytes(&self, device: u16) -> Result<u64, ImageError> {
        let at = Address { space: Space::Device(device), offset: 0 };
        Ok(self.medium(at, usize::from(device))?.len_bytes())
    }

    /// The size of all devices, bytes.
    pub(crate) fn media_bytes(&self) -> u64 {
        self.media.iter().fold(0, |sum, medium| sum.saturating_add(medium.len_bytes()))
    }

    /// Whether an address is the device's own byte of that number, and not one of a window.
    pub(crate) fn is_own(&self, at: Address) -> bool {
        at.space != Space::Device(0) || !self.windows.iter().any(|window| window.contains(at.offset))
    }

    /// How many bytes there are from `at` to the end of its device.
    pub(crate) fn room_at(&self, at: Address) -> Result<u64, ImageError> {
        let (medium, offset) = self.resolve(at)?;
        Ok(medium.len_bytes().saturating_sub(offset))
    }

    fn read_medium(
        &self,
        medium: &dyn Backing,
        offset: u64,
        at: Address,
        buf: &mut [u8],
    ) -> Result<(), ImageError> {
        let len_bytes = buf.len() as u64;
        let end = medium.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|wanted| wanted > end) {
            return Err(ImageError::Truncated { at, len_bytes, end });
        }
        self.read_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        let read = medium.read_at(offset, buf);
        read.map_err(|e| ImageError::Read { at, len_bytes, source: Arc::new(e) })
    }

    fn medium(&self, at: Address, index: usize) -> Result<&dyn Backing, ImageError> {
        match self.media.get(index) {
            Some(medium) => Ok(medium),
            None => Err(ImageError::corrupt(
                at,
                format!("device {index}, and there are {}", self.media.len() - 1),
            )),
        }
    }

    fn resolve(&self, at: Address) -> Result<(&dyn Backing, u64), ImageError> {
        let device = match at.space {
            Space::Device(n) => usize::from(n),
            Space::Metabox => {
                return Err(ImageError::corrupt(at, "an address in the metabox, which this image has not"));
            }
        };
        if let (0, Some(index)) = (device, self.windows.iter().position(|window| window.contains(at.offset)))
        {
            return Ok((self.medium(at, index + 1)?, at.offset - self.windows[index].start));
        }
        Ok((self.medium(at, device)?, at.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_backing::MemoryBacking;

    fn medium(byte: u8) -> Arc<dyn Backing> {
        let medium = MemoryBacking::new(8192);
        medium.write_at(0, &[byte; 8192]).unwrap();
        Arc::new(medium)
    }

    #[test]
    fn addresses_find_their_device() {
        let windows = vec![Window { start: 0, len_bytes: 0 }, Window { start: 1 << 20, len_bytes: 8192 }];
        let source = Source::new(medium(0)).with_devices(vec![medium(1), medium(2)], windows);
        let read = |space, offset| {
            let mut buf = [9; 16];
            source.read_at(Address { space, offset }, &mut buf).map(|()| buf[0])
        };
        assert_eq!(read(Space::Device(0), 100).unwrap(), 0);
        assert_eq!(read(Space::Device(1), 100).unwrap(), 1);
        assert_eq!(read(Space::Device(0), (1 << 20) + 8176).unwrap(), 2);
        assert!(matches!(read(Space::Device(0), (1 << 20) + 8190), Err(ImageError::Truncated { .. })));
        assert!(matches!(read(Space::Device(0), 8190), Err(ImageError::Truncated { end: 8192, .. })));
        assert!(matches!(read(Space::Device(3), 0), Err(ImageError::Corrupt { .. })));
        assert!(matches!(read(Space::Device(0), u64::MAX), Err(ImageError::Truncated { .. })));
        assert!(matches!(read(Space::Metabox, 0), Err(ImageError::Corrupt { .. })));
        assert_eq!(source.read_bytes(), 48);
    }
}
