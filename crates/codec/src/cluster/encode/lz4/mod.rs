//! LZ4 blocks: a fast encoder and a dense one.
//!
//! The fast one is liblz4's where its window will do. That is fixed when liblz4 is compiled, at the format's longest.
//! Images may declare a shorter one, so that readers need less memory. A source that is not longer than the window needs
//! no limit: as many clusters of 4 KiB hold less than 16 KiB, liblz4 is tried with that much first. For the others there
//! is [`greedy`].
//!
//! The dense one is [`optimal`] with any window and at all levels, over `matches`, the search, and [`plan`], the choice
//! of sequences. It takes 0.3 to 0.85 of the time of liblz4's dense encoder from level 6 on, and about its time at lower
//! levels. `block` writes the sequences of `greedy` and `optimal`.

mod block;
mod greedy;
mod library;
mod matches;
mod optimal;
mod plan;

use super::fit::Fit;
use crate::error::CodecError;
use greedy::Greedy;
use optimal::Optimal;

pub(super) const HIGH_NAME: &str = "lz4hc";

/// liblz4's window, the format's longest.
const LIBRARY_WINDOW: usize = 65535;
/// Most steps of a search at each level of the dense encoder. With these, the levels up to 10 write less than liblz4 at
/// the same level, and the two highest less than a thousandth more, in half of its time.
const DEPTHS: [usize; 12] = [2, 4, 6, 8, 12, 16, 20, 28, 40, 96, 256, 512];
/// An upper bound of the heap bytes of a dense encoder.
pub(super) const HIGH_BYTES: usize = Optimal::HEAP_BYTES;
/// liblz4 is not tried for clusters that hold more than its part of the source in any case.
const TRY_RATIO: usize = 2;

/// Returns an upper bound of the heap bytes of a fast encoder.
pub(super) fn fast_bytes(window_bytes: u32) -> usize {
    let is_short = (window_bytes as usize) < LIBRARY_WINDOW;
    library::HEAP_BYTES + if is_short { Greedy::HEAP_BYTES } else { 0 }
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
pub(super) struct High(Optimal);

impl High {
    pub(super) fn new(window_bytes: u32, level: i32) -> Self {
        let index = usize::try_from(level - 1).unwrap_or(0).min(DEPTHS.len() - 1);
        High(Optimal::new(window_bytes as usize, DEPTHS[index]))
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        self.0.fit(src, dst)
    }

    /// `None` if the result may be another one for a longer source that begins with `src`.
    pub(super) fn fit_of_part(&mut self, src: &[u8], dst: &mut [u8]) -> Option<Fit> {
        let fit = self.0.fit(src, dst);
        self.0.is_final().then_some(fit)
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        // Even an empty block has a byte.
        if dst.is_empty() { None } else { whole_of(self.0.fit(src, dst), src) }
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
