//! The state that the handles of a region, its pins and its arenas share.

use crate::error::{Code, Error};
use pagefold_memory::Region;
use pagefold_sys::forkmark::ForkMark;
use parking_lot::{
    MappedRwLockReadGuard, MappedRwLockWriteGuard, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A region and its users.
pub(crate) struct Shared {
    /// The region, until it is destroyed: a call that ends the last use of the region, and a thread that ends, may have
    /// this struct a moment longer. Locked exclusively to change the size, and to destroy it.
    region: RwLock<Option<Region>>,
    pub(crate) start: usize,
    /// A copy of the region's size, which a signal handler can read.
    pub(crate) len_bytes: AtomicUsize,
    pub(crate) mark: ForkMark,
    /// Pins that exist.
    pub(crate) pins: AtomicUsize,
    /// The parts that arenas have, by offset.
    pub(crate) arenas: Mutex<Vec<Range<usize>>>,
}

impl Shared {
    pub(crate) fn new(region: Region) -> Result<Self, Error> {
        let mark = ForkMark::new().map_err(|error| Error::new(Code::NoMemory, error))?;
        Ok(Shared {
            start: region.as_ptr().addr(),
            len_bytes: AtomicUsize::new(region.len_bytes()),
            region: RwLock::new(Some(region)),
            mark,
            pins: AtomicUsize::new(0),
            arenas: Mutex::new(Vec::new()),
        })
    }

    /// Returns the region, for all calls but a change of its size.
    #[inline]
    pub(crate) fn region(&self) -> Result<MappedRwLockReadGuard<'_, Region>, Error> {
        RwLockReadGuard::try_map(self.region.read(), Option::as_ref).map_err(|_| destroyed())
    }

    /// Returns the region, for a change of its size.
    pub(crate) fn region_mut(&self) -> Result<MappedRwLockWriteGuard<'_, Region>, Error> {
        RwLockWriteGuard::try_map(self.region.write(), Option::as_mut).map_err(|_| destroyed())
    }

    /// Unmaps the region, and ends its threads.
    pub(crate) fn destroy(&self) {
        let region = self.region.write().take();
        drop(region);
    }

    /// Refuses a process that has only a copy of the handle.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        match self.mark.is_same_process() {
            true => Ok(()),
            false => Err(Error::new(Code::Forked, "a forked child does not have the regions of its parent")),
        }
    }

    /// Returns the offsets of a part that the caller names by its address. An empty part may have any address.
    pub(crate) fn locate(&self, start: usize, len_bytes: usize) -> Result<Range<usize>, Error> {
        if len_bytes == 0 {
            return Ok(0..0);
        }
        let region_len_bytes = self.len_bytes.load(SeqCst);
        let offset = start.wrapping_sub(self.start);
        match offset.checked_add(len_bytes) {
            Some(end) if end <= region_len_bytes => Ok(offset..end),
            _ => Err(Error::new(
                Code::Range,
                format_args!(
                    "{len_bytes} bytes at {start:#x} do not lie in the region of {region_len_bytes} bytes at {:#x}",
                    self.start
                ),
            )),
        }
    }
}

/// The error of a call that a caller makes against the rules, and that finds the memory still there.
fn destroyed() -> Error {
    Error::new(Code::Invalid, "the region was destroyed")
}
