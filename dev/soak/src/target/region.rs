//! A region of compressed memory: requests are plain accesses, or system calls on pinned memory of the region.

use super::{Connection, RequestError, other};
use crate::random::Random;
use pagefold_memory::Region;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE: u64 = pagefold_page::PAGE_SIZE as u64;

/// A connection to a region. A load uses the region's first bytes, and each thread of the load a separate part of them.
pub struct RegionConnection<'a> {
    region: &'a Region,
    len_bytes: u64,
    pinned_max_bytes: u64,
    /// A file in memory, with which system calls exchange data with the region.
    file: File,
    /// Chooses between plain accesses and system calls.
    random: Random,
}

impl<'a> RegionConnection<'a> {
    /// A connection to the first `len_bytes` of a region, which pins at most `pinned_max_bytes`.
    pub fn new(
        region: &'a Region,
        len_bytes: u64,
        pinned_max_bytes: u64,
        seed: u64,
    ) -> std::io::Result<Self> {
        let file = File::from(rustix::fs::memfd_create("soak", rustix::fs::MemfdFlags::CLOEXEC)?);
        Ok(RegionConnection { region, len_bytes, pinned_max_bytes, file, random: Random::new(seed) })
    }
}

impl RegionConnection<'_> {
    fn address(&self, offset: u64, len_bytes: u64) -> *mut u8 {
        assert!(offset + len_bytes <= self.len_bytes);
        self.region.as_ptr().wrapping_add(offset as usize)
    }

    /// Draws whether a request of this length is made by a system call.
    fn by_system_call(&mut self, len_bytes: u64) -> bool {
        // An unaligned range touches one page more than its length in pages.
        len_bytes + 2 * PAGE <= self.pinned_max_bytes && self.random.percent(10)
    }

    fn discard_bytes(&self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.address(offset, len_bytes);
        // SAFETY: only this thread uses the range, and it has no reference into it.
        let dropped = unsafe { self.region.discard_shared(range_of(offset, len_bytes as usize)) };
        dropped.map_err(other)
    }
}

fn range_of(offset: u64, len_bytes: usize) -> Range<usize> {
    offset as usize..offset as usize + len_bytes
}

impl Connection for RegionConnection<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), RequestError> {
        let from = self.address(offset, buf.len() as u64);
        if self.by_system_call(buf.len() as u64) {
            let pin = self.region.pin(range_of(offset, buf.len())).map_err(other)?;
            assert_eq!(pin.as_ptr(), from.cast_const());
            self.file.write_all_at(&pin, 0).map_err(other)?;
            return self.file.read_exact_at(buf, 0).map_err(other);
        }
        // SAFETY: only this thread uses the range, which does not overlap `buf`.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(from, buf.len()) };
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), RequestError> {
        let to = self.address(offset, data.len() as u64);
        if self.by_system_call(data.len() as u64) {
            let _pin = self.region.pin(range_of(offset, data.len())).map_err(other)?;
            self.file.write_all_at(data, 0).map_err(other)?;
            // SAFETY: only this thread uses the range, and there is no other reference into it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to, data.len()) };
            return self.file.read_exact_at(bytes, 0).map_err(other);
        }
        // SAFETY: only this thread uses the range, which does not overlap `data`.
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        let (first, end) = (offset.next_multiple_of(PAGE), (offset + len_bytes) / PAGE * PAGE);
        if first < end { self.discard_bytes(first, end - first) } else { Ok(()) }
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), RequestError> {
        self.discard_bytes(offset, len_bytes)
    }
}
