//! The media of an image, and the translation of addresses to them.
//!
//! The address space of device 0 is unified: the table of devices maps other devices into ranges of it. An address in
//! such a range belongs to the device mapped there. Reads across the end of a device fail; they are not split, because
//! no extent crosses it. If the image is opened without them, because its own file goes on with their contents, a device
//! is a range of that file, as the kernel has it. [`Source`] has no locks: each read is one request to one medium, in the caller's thread.

use crate::{Address, ImageError, Result, Space};
use pagefold_backing::{ByteSource, Prefetched};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The range of the unified space that a device of the table occupies, bytes. A length of 0: the device is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnifiedRange {
    pub(crate) start: u64,
    pub(crate) len_bytes: u64,
}

impl UnifiedRange {
    fn contains(&self, offset: u64) -> bool {
        offset.checked_sub(self.start).is_some_and(|within| within < self.len_bytes)
    }
}

/// The image and its further devices.
pub(crate) struct Source {
    media: Vec<Arc<dyn ByteSource>>,
    unified_ranges: Vec<UnifiedRange>,
    /// Whether the devices of the table are ranges of the image's medium.
    is_flat: bool,
    read_bytes: AtomicU64,
}

impl Source {
    /// Makes a source of the image alone, for reading its superblock.
    pub(crate) fn new(image: Arc<dyn ByteSource>) -> Self {
        Source {
            media: vec![image],
            unified_ranges: Vec::new(),
            is_flat: false,
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Adds the devices of the table, with their ranges of the unified space in the table's order.
    pub(crate) fn with_devices(
        mut self,
        devices: Vec<Arc<dyn ByteSource>>,
        unified_ranges: Vec<UnifiedRange>,
    ) -> Self {
        self.media.extend(devices);
        self.unified_ranges = unified_ranges;
        self
    }

    /// Makes the devices of the table ranges of the image's medium.
    pub(crate) fn flat(mut self, unified_ranges: Vec<UnifiedRange>) -> Self {
        self.unified_ranges = unified_ranges;
        self.is_flat = true;
        self
    }

    /// Whether the devices of the table are ranges of the image's medium.
    pub(crate) fn is_flat(&self) -> bool {
        self.is_flat
    }

    /// Bytes read from all media so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Fills `buf` from the device that holds `at`. An address in the metabox is [`ImageError::Corrupt`].
    pub(crate) fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        let (medium, offset) = self.resolve(at)?;
        self.read_medium(medium, offset, at, buf)
    }

    /// Fills `buf` from a device itself, without regard to devices mapped into its address space. Metadata is read
    /// this way.
    pub(crate) fn read_own(&self, device: u16, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = Address { space: Space::Device(device), offset };
        if self.is_flat {
            return self.read_at(at, buf);
        }
        self.read_medium(self.medium(at, usize::from(device))?, offset, at, buf)
    }

    /// Asks a medium to fetch a range that will be read soon.
    pub(crate) fn prefetch(&self, medium: usize, range: Range<u64>) -> Prefetched {
        match self.media.get(medium) {
            Some(medium) => medium.prefetch(range.start, range.end.saturating_sub(range.start)),
            None => Prefetched::Failed,
        }
    }

    /// The size of a device, bytes.
    pub(crate) fn len_bytes(&self, device: u16) -> Result<u64> {
        let at = Address { space: Space::Device(device), offset: 0 };
        if self.is_flat && device > 0 {
            return Ok(self.flat_range(at, device.into())?.len_bytes);
        }
        Ok(self.medium(at, usize::from(device))?.len_bytes())
    }

    /// The size of all devices, bytes.
    pub(crate) fn media_bytes(&self) -> u64 {
        self.media.iter().fold(0, |sum, medium| sum.saturating_add(medium.len_bytes()))
    }

    /// Whether an address belongs to the device that it names, and not to a device mapped into its address space.
    pub(crate) fn is_own(&self, at: Address) -> bool {
        at.space != Space::Device(0) || !self.unified_ranges.iter().any(|range| range.contains(at.offset))
    }

    /// Returns the number of bytes from `at` to the end of its device.
    pub(crate) fn bytes_left_at(&self, at: Address) -> Result<u64> {
        let (medium, offset) = self.resolve(at)?;
        Ok(medium.len_bytes().saturating_sub(offset))
    }

    fn read_medium(&self, medium: &dyn ByteSource, offset: u64, at: Address, buf: &mut [u8]) -> Result<()> {
        let len_bytes = buf.len() as u64;
        let end = medium.len_bytes();
        if offset.checked_add(len_bytes).is_none_or(|wanted| wanted > end) {
            return Err(ImageError::Truncated { at, len_bytes, end });
        }
        self.read_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        let read = medium.read_at(offset, buf);
        read.map_err(|e| ImageError::Read { at, len_bytes, source: Arc::new(e) })
    }

    fn medium(&self, at: Address, index: usize) -> Result<&dyn ByteSource> {
        match self.media.get(index) {
            Some(medium) => Ok(medium),
            None => Err(ImageError::corrupt(
                at,
                format!("device {index}, but the image has {} further devices", self.media.len() - 1),
            )),
        }
    }

    /// The range of a device, if it is one of the image's medium.
    fn flat_range(&self, at: Address, device: usize) -> Result<UnifiedRange> {
        let range = device.checked_sub(1).and_then(|index| self.unified_ranges.get(index)).copied();
        range.ok_or_else(|| ImageError::corrupt(at, format!("device {device}, which is not listed")))
    }

    fn resolve(&self, at: Address) -> Result<(&dyn ByteSource, u64)> {
        let (index, offset) = self.own_address(at)?;
        Ok((self.medium(at, index)?, offset))
    }

    /// Returns the number of the device that holds `at`, and the position in that device.
    pub(crate) fn own_address(&self, at: Address) -> Result<(usize, u64)> {
        let device = match at.space {
            Space::Device(n) => usize::from(n),
            Space::Metabox => return Err(no_metabox(at)),
        };
        if self.is_flat {
            let start = if device == 0 { 0 } else { self.flat_range(at, device)?.start };
            let offset = start.checked_add(at.offset);
            return Ok((0, offset.ok_or_else(|| ImageError::corrupt(at, "an address beyond all numbers"))?));
        }
        if let (0, Some(index)) =
            (device, self.unified_ranges.iter().position(|range| range.contains(at.offset)))
        {
            return Ok((index + 1, at.offset - self.unified_ranges[index].start));
        }
        Ok((device, at.offset))
    }
}

/// The fault of an address in the metabox of an image without one.
pub(crate) fn no_metabox(at: Address) -> ImageError {
    ImageError::corrupt(at, "an address in the metabox, but the image has no metabox")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_backing::{Backing, MemoryBacking};

    fn medium(byte: u8) -> Arc<dyn ByteSource> {
        let medium = MemoryBacking::new(8192);
        medium.write_at(0, &[byte; 8192]).unwrap();
        Arc::new(medium)
    }

    #[test]
    fn devices_may_be_ranges_of_the_image() {
        let image = MemoryBacking::new(8192);
        image.write_at(0, &[1; 4096]).unwrap();
        image.write_at(4096, &[2; 4096]).unwrap();
        let source = Source::new(Arc::new(image)).flat(vec![UnifiedRange { start: 4096, len_bytes: 4096 }]);
        let read = |space, offset| {
            let mut buf = [9; 16];
            source.read_at(Address { space, offset }, &mut buf).map(|()| buf[0])
        };
        assert_eq!(read(Space::Device(0), 0).unwrap(), 1);
        assert_eq!(read(Space::Device(1), 0).unwrap(), 2);
        assert_eq!(read(Space::Device(0), 4096).unwrap(), 2);
        assert!(matches!(read(Space::Device(1), 4090), Err(ImageError::Truncated { .. })));
        assert!(matches!(read(Space::Device(2), 0), Err(ImageError::Corrupt { .. })));
        assert!(matches!(read(Space::Device(1), u64::MAX), Err(ImageError::Corrupt { .. })));
        assert_eq!((source.len_bytes(0).unwrap(), source.len_bytes(1).unwrap()), (8192, 4096));
    }

    #[test]
    fn an_address_is_read_from_the_device_that_holds_it() {
        let unified_ranges =
            vec![UnifiedRange { start: 0, len_bytes: 0 }, UnifiedRange { start: 1 << 20, len_bytes: 8192 }];
        let source = Source::new(medium(0)).with_devices(vec![medium(1), medium(2)], unified_ranges);
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
