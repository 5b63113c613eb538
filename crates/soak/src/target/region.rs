//! A region of compressed memory: requests are plain accesses, or system calls that are given pinned memory of it.

use super::{Connection, Failure, Target};
use crate::random::Random;
use pagefold_memory::Region;
use std::fmt::Display;
use std::fs::File;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;

/// A region whose first bytes a load uses. Each thread of the load uses a part of them, and no other thread does.
pub struct RegionTarget<'a> {
    /// The region.
    pub region: &'a Region,
    /// Bytes that the load uses.
    pub len_bytes: u64,
    /// Most bytes that a thread may pin.
    pub pinned_max_bytes: u64,
    /// Draws how a request is made.
    pub seed: u64,
}

impl Target for RegionTarget<'_> {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn align(&self) -> u64 {
        1
    }

    fn connect(&self) -> Result<Box<dyn Connection + '_>, String> {
        let failed = |e: &dyn Display| format!("making a file in memory: {e}");
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("soak", flags).map_err(|e| failed(&e))?);
        Ok(Box::new(RegionConnection { target: self, file, random: Random::new(self.seed) }))
    }
}

struct RegionConnection<'a> {
    target: &'a RegionTarget<'a>,
    /// What system calls copy to and from the region.
    file: File,
    random: Random,
}

impl RegionConnection<'_> {
    fn start(&self, offset: u64, len_bytes: u64) -> *mut u8 {
        assert!(offset + len_bytes <= self.target.len_bytes);
        self.target.region.as_ptr().wrapping_add(offset as usize)
    }

    /// Whether a request so long is to be made by a system call.
    fn by_system_call(&mut self, len_bytes: u64) -> bool {
        // A range may touch a page more than it has.
        len_bytes + 2 * PAGE <= self.target.pinned_max_bytes && self.random.percent(10)
    }

    fn drop_bytes(&self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.start(offset, len_bytes);
        // SAFETY: in the part of the range that this thread alone uses; it has no reference into it.
        let dropped = unsafe { self.target.region.discard_shared(offset as usize, len_bytes as usize) };
        dropped.map_err(other)
    }
}

fn other(error: impl Display) -> Failure {
    Failure::Other(error.to_string())
}

impl Connection for RegionConnection<'_> {
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        let from = self.start(offset, buf.len() as u64);
        if self.by_system_call(buf.len() as u64) {
            let pin = self.target.region.pin(offset as usize, buf.len()).map_err(other)?;
            assert_eq!(pin.as_ptr(), from);
            // SAFETY: in the part of the range that this thread alone uses; gone before anything is written there.
            let bytes = unsafe { std::slice::from_raw_parts(from, buf.len()) };
            self.file.write_all_at(bytes, 0).map_err(other)?;
            return self.file.read_exact_at(buf, 0).map_err(other);
        }
        // SAFETY: in the part of the range that this thread alone uses, and apart from `buf`.
        unsafe { buf.as_mut_ptr().copy_from_nonoverlapping(from, buf.len()) };
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let to = self.start(offset, data.len() as u64);
        if self.by_system_call(data.len() as u64) {
            let _pin = self.target.region.pin(offset as usize, data.len()).map_err(other)?;
            self.file.write_all_at(data, 0).map_err(other)?;
            // SAFETY: in the part of the range that this thread alone uses; there is no other reference into it.
            let bytes = unsafe { std::slice::from_raw_parts_mut(to, data.len()) };
            return self.file.read_exact_at(bytes, 0).map_err(other);
        }
        // SAFETY: in the part of the range that this thread alone uses, and apart from `data`.
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }

    fn discard(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        let (first, end) = (offset.next_multiple_of(PAGE), (offset + len_bytes) / PAGE * PAGE);
        if first < end { self.drop_bytes(first, end - first) } else { Ok(()) }
    }

    fn write_zeroes(&mut self, offset: u64, len_bytes: u64) -> Result<(), Failure> {
        self.drop_bytes(offset, len_bytes)
    }
}
