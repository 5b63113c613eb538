//! LZ4 blocks, by liblz4 where its window will do and by this module where the window must be shorter.
//!
//! liblz4's window is fixed when it is compiled, at the format's longest. Images may declare a shorter one, so that
//! readers need less memory. A source that is not longer than the window needs no limit: as many clusters of 4 KiB hold
//! less than 16 KiB, liblz4 is tried with that much first. For the others there are [`greedy`] and [`optimal`], over
//! `matches`, the search, and `block`, which writes sequences.

mod block;
mod greedy;
mod library;
mod matches;
mod optimal;

use super::Fit;
use crate::error::CodecError;
use greedy::Greedy;
use optimal::Optimal;

pub(super) const HIGH_NAME: &str = "lz4hc";

/// liblz4's window, the format's longest.
const LIBRARY_WINDOW: usize = 65535;
/// liblz4 is not tried for clusters that hold more than its part of the source in any case.
const TRY_RATIO: usize = 2;

/// Returns an upper bound of the heap bytes of a fast encoder.
pub(super) fn fast_bytes(window_bytes: u32) -> usize {
    let is_short = (window_bytes as usize) < LIBRARY_WINDOW;
    library::FAST_BYTES + if is_short { Greedy::HEAP_BYTES } else { 0 }
}

/// Returns an upper bound of the heap bytes of a dense encoder.
pub(super) fn high_bytes(window_bytes: u32) -> usize {
    let window = window_bytes as usize;
    library::HIGH_BYTES + if window < LIBRARY_WINDOW { Optimal::heap_bytes(window) } else { 0 }
}

/// The fast encoder.
pub(super) struct Fast {
    library: library::Fast,
    window: usize,
    /// For windows shorter than liblz4's.
    greedy: Option<Greedy>,
}

impl Fast {
    pub(super) fn new(window_bytes: u32) -> Result<Self, CodecError> {
        let window = window_bytes as usize;
        let greedy = (window < LIBRARY_WINDOW).then(|| Greedy::new(window));
        Ok(Fast { library: library::Fast::new()?, window, greedy })
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let Some(greedy) = &mut self.greedy else { return self.library.fit(src, dst) };
        if let Some(head) = head_to_try(src, dst, self.window) {
            let fit = self.library.fit(head, dst)?;
            if fit.consumed_bytes < head.len() || head.len() == src.len() {
                return Ok(fit);
            }
        }
        Ok(greedy.fit(src, dst))
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        match &mut self.greedy {
            Some(greedy) if src.len() > self.window && !dst.is_empty() => whole_of(greedy.fit(src, dst), src),
            _ => self.library.whole(src, dst),
        }
    }
}

/// The dense encoder.
pub(super) struct High {
    library: library::High,
    window: usize,
    /// For windows shorter than liblz4's.
    optimal: Option<Optimal>,
}

impl High {
    pub(super) fn new(window_bytes: u32, level: i32) -> Result<Self, CodecError> {
        let window = window_bytes as usize;
        // A tree of positions needs a small part of the steps that liblz4's lists take at the same level.
        let depth = 1 << (level.clamp(1, 12) / 2 + 2);
        let optimal = (window < LIBRARY_WINDOW).then(|| Optimal::new(window, depth));
        Ok(High { library: library::High::new(level)?, window, optimal })
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let Some(optimal) = &mut self.optimal else { return self.library.fit(src, dst) };
        if let Some(head) = head_to_try(src, dst, self.window) {
            let fit = self.library.fit(head, dst)?;
            if fit.consumed_bytes < head.len() || head.len() == src.len() {
                return Ok(fit);
            }
        }
        Ok(optimal.fit(src, dst))
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        match &mut self.optimal {
            Some(optimal) if src.len() > self.window && !dst.is_empty() => {
                whole_of(optimal.fit(src, dst), src)
            }
            _ => self.library.whole(src, dst),
        }
    }
}

/// Returns the beginning of `src` in which no match can reach beyond the window, if it may be all that fits into `dst`.
fn head_to_try<'a>(src: &'a [u8], dst: &[u8], window: usize) -> Option<&'a [u8]> {
    let head = &src[..src.len().min(window)];
    (head.len() == src.len() || dst.len() * TRY_RATIO <= head.len()).then_some(head)
}

fn whole_of(fit: Fit, src: &[u8]) -> Option<usize> {
    (fit.consumed_bytes == src.len()).then_some(fit.written_bytes)
}
