//! Pins, and calls on parts of a region that several threads have.
//!
//! Rust's rules for slices say which thread may use which bytes. A shared pin borrows the region or a slice of it, as
//! any number of readers do. An exclusive pin borrows a slice exclusively, so two of them never overlap, and no check
//! at run time is needed. The page's word counts its pins, because parts of one page can belong to several threads.

use crate::advice::Advice;
use crate::error::RangeError;
use crate::owned_pin::pin;
use crate::pager::{Pager, Pinned};
use crate::stats::{self, RegionStats};
use pagefold_page::PAGE_SIZE;
use pagefold_sys::signal;
use std::io::{self, ErrorKind};
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};

/// Most pages that one step of reading or writing pins.
const STEP_PAGES_MAX: u64 = 256;
/// The part of the limit that such a step pins, so that many threads can read and write at once.
const STEP_SHARE: u64 = 32;

/// A part of a region that stays resident until this is dropped. It is the part's bytes, which system calls can read.
///
/// Code that writes to the part by the region's raw address can hold a pin for it: a pin refers to the bytes only while
/// it is dereferenced.
pub struct PinnedSlice<'a> {
    _pinned: Pinned<'a>,
    start: *const u8,
    len_bytes: usize,
}

// SAFETY: the value is a shared slice of bytes, which any thread may read; pages are unpinned by atomic changes of
// their words, in any thread.
unsafe impl Send for PinnedSlice<'_> {}
// SAFETY: as for `Send`: sharing it shares a slice of bytes.
unsafe impl Sync for PinnedSlice<'_> {}

impl<'a> PinnedSlice<'a> {
    /// Pins a part of the range.
    ///
    /// # Safety
    /// `start` is the address of the part's first byte, and the part's bytes can be read and do not change for `'a`,
    /// unless somebody else is responsible for such changes.
    pub(crate) unsafe fn new(
        pager: &'a Pager,
        range: Range<usize>,
        start: *const u8,
    ) -> Result<Self, RangeError> {
        Ok(PinnedSlice { _pinned: pin(pager, &range)?, start, len_bytes: range.len() })
    }
}

impl Deref for PinnedSlice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: by the contract of `new`, the bytes can be read and do not change. Memory of a region is initialised.
        unsafe { std::slice::from_raw_parts(self.start, self.len_bytes) }
    }
}

/// A part of a region with exclusive access that stays resident until this is dropped. It is the part's bytes, which
/// system calls can read and write.
pub struct PinnedSliceMut<'a> {
    bytes: &'a mut [u8],
    _pinned: Pinned<'a>,
}

impl Deref for PinnedSliceMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for PinnedSliceMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// The calls on parts of a region whose bytes [`Region::parts`](crate::Region::parts) lends.
///
/// Each call takes a slice, which must lie in the region. An exclusive slice can be in one thread's hands only, so
/// threads that divide the bytes of a region among them can make these calls at the same time:
///
/// ```compile_fail,E0499
/// # use pagefold_memory::{Region, RegionConfig};
/// let mut region = Region::new(RegionConfig::new(64 << 20, 8 << 20))?;
/// let (bytes, parts) = region.parts();
/// let one = parts.pin_mut(&mut bytes[..8192])?;
/// let overlapping = parts.pin_mut(&mut bytes[4096..])?;
/// drop((one, overlapping));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pager: &'a Pager,
}

impl<'a> Parts<'a> {
    pub(crate) fn new(pager: &'a Pager) -> Self {
        Parts { pager }
    }

    /// Like [`Region::pin`](crate::Region::pin).
    pub fn pin<'b>(&self, bytes: &'b [u8]) -> Result<PinnedSlice<'b>, RangeError>
    where
        'a: 'b,
    {
        let range = self.locate(bytes)?;
        // SAFETY: the address is that of a slice that is borrowed for as long.
        unsafe { PinnedSlice::new(self.pager, range, bytes.as_ptr()) }
    }

    /// Like [`Region::pin_mut`](crate::Region::pin_mut).
    pub fn pin_mut<'b>(&self, bytes: &'b mut [u8]) -> Result<PinnedSliceMut<'b>, RangeError>
    where
        'a: 'b,
    {
        let range = self.locate(bytes)?;
        Ok(PinnedSliceMut { bytes, _pinned: pin(self.pager, &range)? })
    }

    /// Like [`Region::read_from`](crate::Region::read_from).
    pub fn read_from(&self, mut reader: impl io::Read, bytes: &mut [u8]) -> io::Result<usize> {
        let range = self.locate(bytes)?;
        let mut done = 0;
        while done < bytes.len() {
            let step = self.step(range.start + done, bytes.len() - done);
            let _pinned = self.pin_step(range.start + done, step)?;
            let end = done + step;
            while done < end {
                match reader.read(&mut bytes[done..end]) {
                    Ok(0) => return Ok(done),
                    Ok(count) if count <= end - done => done += count,
                    Ok(_) => {
                        return Err(io::Error::other("the reader returned more bytes than it was asked for"));
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(done)
    }

    /// Like [`Region::write_to`](crate::Region::write_to).
    pub fn write_to(&self, mut writer: impl io::Write, bytes: &[u8]) -> io::Result<()> {
        let range = self.locate(bytes)?;
        let mut done = 0;
        while done < bytes.len() {
            let step = self.step(range.start + done, bytes.len() - done);
            let _pinned = self.pin_step(range.start + done, step)?;
            writer.write_all(&bytes[done..done + step])?;
            done += step;
        }
        Ok(())
    }

    /// Like [`Region::read_part`](crate::Region::read_part).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn read_part(&self, bytes: &[u8], to: &mut [u8]) -> Result<(), RangeError> {
        assert_eq!(bytes.len(), to.len(), "the bytes and the buffer have different lengths");
        let range = self.locate(bytes)?;
        let _masked = signal::mask_asynchronous();
        self.pager.read_part(range.start, to)
    }

    /// Like [`Region::write_part`](crate::Region::write_part).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn write_part(&self, bytes: &mut [u8], from: &[u8]) -> Result<(), RangeError> {
        assert_eq!(bytes.len(), from.len(), "the bytes and the buffer have different lengths");
        let range = self.locate(bytes)?;
        let _masked = signal::mask_asynchronous();
        // Exposed: the bytes are changed by their address, which counts as a change through this slice.
        bytes.as_mut_ptr().expose_provenance();
        // SAFETY: this has the only reference to the bytes, and does not use it meanwhile.
        unsafe { self.pager.write_part(range.start, from) }
    }

    /// Like [`Region::discard`](crate::Region::discard).
    pub fn discard(&self, bytes: &mut [u8]) -> Result<(), RangeError> {
        let range = self.locate(bytes)?;
        let to_page = range.start.next_multiple_of(PAGE_SIZE) - range.start;
        let (head, rest) = bytes.split_at_mut(to_page.min(bytes.len()));
        let (whole, tail) = rest.split_at_mut(rest.len() / PAGE_SIZE * PAGE_SIZE);
        head.fill(0);
        tail.fill(0);
        if whole.is_empty() {
            return Ok(());
        }
        let _masked = signal::mask_asynchronous();
        // Exposed: the kernel changes the bytes by their address, which counts as a change through this slice.
        let start = whole.as_mut_ptr().expose_provenance() - self.start();
        // SAFETY: this has the only reference to the bytes, and does not use it meanwhile.
        unsafe { self.pager.discard(start, whole.len()) }
    }

    /// Like [`Region::advise`](crate::Region::advise).
    pub fn advise(&self, bytes: &[u8], advice: Advice) -> Result<(), RangeError> {
        let range = self.locate(bytes)?;
        self.pager.advise(range.start, range.len(), advice)
    }

    /// Like [`Region::stats`](crate::Region::stats).
    pub fn stats(&self) -> RegionStats {
        stats::collect(self.pager)
    }

    fn start(&self) -> usize {
        self.pager.range.base().as_ptr().addr()
    }

    /// Returns the place of a slice in the range.
    fn locate(&self, bytes: &[u8]) -> Result<Range<usize>, RangeError> {
        // An empty slice may have any address.
        if bytes.is_empty() {
            return Ok(0..0);
        }
        let start = bytes.as_ptr().addr().wrapping_sub(self.start());
        match start.checked_add(bytes.len()) {
            Some(end) if end <= self.pager.range.len_bytes() => Ok(start..end),
            _ => Err(RangeError::NotInRegion { len_bytes: bytes.len() }),
        }
    }

    /// Returns how many of the bytes from `offset` on are read or written next: up to the end of a page, and a small
    /// part of the limit.
    fn step(&self, offset: usize, len_bytes: usize) -> usize {
        let pages = (self.pager.budget.limit() / STEP_SHARE).clamp(1, STEP_PAGES_MAX) as usize;
        (pages * PAGE_SIZE - offset % PAGE_SIZE).min(len_bytes)
    }

    /// Pins the bytes of a step, while the limit may be lowered.
    fn pin_step(&self, offset: usize, len_bytes: usize) -> Result<Pinned<'a>, RangeError> {
        let _masked = signal::mask_asynchronous();
        self.pager.pin_briefly(offset, len_bytes)
    }
}

/// Returns the bytes that a range means in a region of so many bytes.
pub(crate) fn resolve(
    range: impl RangeBounds<usize>,
    region_len_bytes: usize,
) -> Result<Range<usize>, RangeError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => region_len_bytes,
    };
    match start <= end && end <= region_len_bytes {
        true => Ok(start..end),
        false => Err(RangeError::OutOfRange { start, end, region_len_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_mean_the_bytes_that_they_mean_for_slices() {
        let bytes: Vec<usize> = (0..100).collect();
        let same = |range: Range<usize>, expected: &[usize]| assert_eq!(&bytes[range], expected);
        same(resolve(.., 100).unwrap(), &bytes[..]);
        same(resolve(3..3, 100).unwrap(), &bytes[3..3]);
        same(resolve(3..100, 100).unwrap(), &bytes[3..100]);
        same(resolve(..=7, 100).unwrap(), &bytes[..=7]);
        same(resolve(100.., 100).unwrap(), &bytes[100..]);
        same(resolve((Bound::Excluded(4), Bound::Unbounded), 100).unwrap(), &bytes[5..]);
    }

    #[test]
    fn ranges_outside_are_refused() {
        let backwards = Range { start: 5, end: 4 };
        for (start, end) in [(0, 101), (101, 101), (5, usize::MAX)] {
            let error = RangeError::OutOfRange { start, end, region_len_bytes: 100 };
            assert_eq!(resolve(start..end, 100), Err(error));
        }
        assert!(resolve(backwards, 100).is_err() && resolve(101.., 100).is_err());
        assert!(resolve(..=usize::MAX, 100).is_err() && resolve(5..=100, 100).is_err());
        assert!(resolve((Bound::Excluded(usize::MAX), Bound::Unbounded), 100).is_err());
    }
}
