//! Pins that borrow nothing, for callers that use a region by its address.

use crate::config::Service;
use crate::error::RangeError;
use crate::pager::{Pager, Pinned};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_sys::signal;
use std::ops::Range;
use std::sync::Arc;

/// Pages of a region that stay resident until this is dropped, in any thread.
///
/// A pin should be dropped before its region. Otherwise the memory of the range is unmapped when the last pin is
/// dropped, and pages that are not pinned cannot be accessed meanwhile.
pub struct OwnedPin {
    pager: Arc<Pager>,
    pages: Range<u64>,
}

impl OwnedPin {
    pub(crate) fn new(pager: Arc<Pager>, range: Range<usize>) -> Result<Self, RangeError> {
        let pinned = pin(&pager, &range)?;
        let first = (range.start / PAGE_SIZE) as u64;
        let pages = first..(range.end.div_ceil(PAGE_SIZE) as u64).max(first);
        // The pages stay pinned: the value that would unpin them borrows the pager, and this one unpins them instead.
        std::mem::forget(pinned);
        Ok(OwnedPin { pager, pages })
    }
}

/// Pins a range for the program. Refuses a thread that blocks SIGBUS: its accesses to pages that are not pinned would end
/// the program without a line. The pin itself would work, but no other call of a thread notices the mistake.
pub(crate) fn pin<'a>(pager: &'a Pager, range: &Range<usize>) -> Result<Pinned<'a>, RangeError> {
    // A handler of another signal that touches the range must not interrupt this thread inside the engine.
    let masked = signal::mask_asynchronous();
    let is_blocked = masked.as_ref().is_ok_and(|masked| masked.had_blocked(libc::SIGBUS));
    if pager.service == Service::FaultingThread && is_blocked {
        return Err(RangeError::SigbusBlocked);
    }
    pager.pin(range.start, range.len())
}

impl Drop for OwnedPin {
    fn drop(&mut self) {
        self.pages.clone().for_each(|page| self.pager.word(PageIndex(page)).unpin());
    }
}

#[cfg(test)]
mod tests {
    use crate::{RangeError, Region, RegionConfig};

    #[test]
    fn owned_pins_keep_pages_until_they_are_dropped_in_any_thread() {
        let mut region = match Region::new(RegionConfig::new(16 << 20, 1 << 20)) {
            Ok(region) => region,
            Err(error) => return pagefold_testkit::skipped!("owned_pins: {error}"),
        };
        assert!(matches!(region.pin_owned(..1 << 20), Err(RangeError::OverLimit { .. })));
        assert!(matches!(region.pin_owned(..17 << 20), Err(RangeError::OutOfRange { .. })));
        let (first, second) = (region.pin_owned(5000..9000).unwrap(), region.pin_owned(8000..8001).unwrap());
        assert!(matches!(region.discard(..), Err(RangeError::Pinned { page: 1 })));
        std::thread::spawn(move || drop(first)).join().unwrap();
        region.discard(8192..).unwrap();
        assert!(matches!(region.discard(..), Err(RangeError::Pinned { page: 1 })));
        drop(second);
        region.discard(..).unwrap();
    }
}
