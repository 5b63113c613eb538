//! LZ4 blocks, by liblz4 where it is the better encoder, and otherwise by this module.
//!
//! liblz4's window is fixed when it is compiled, at the format's longest. Images may declare a shorter one, so that
//! readers need less memory. A source that is not longer than the window needs no limit: as many clusters of 4 KiB hold
//! less than 16 KiB, liblz4 is tried with that much first. For the others there are [`greedy`] and [`optimal`], over
//! `matches`, the search, and `block`, which writes sequences.
//!
//! The two highest levels are [`optimal`]'s with any window: its trees find the longest match of a position in fewer
//! steps than liblz4's lists, and it takes two thirds of liblz4's time for as many bytes, within 0.05 %.

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
/// The lowest level at which liblz4 plans sequences as [`optimal`] does, and is slower.
const OPTIMAL_LEVEL_MIN: i32 = 11;
/// liblz4 is not tried for clusters that hold more than its part of the source in any case.
const TRY_RATIO: usize = 2;

/// Returns an upper bound of the heap bytes of a fast encoder.
pub(super) fn fast_bytes(window_bytes: u32) -> usize {
    let is_short = (window_bytes as usize) < LIBRARY_WINDOW;
    library::FAST_BYTES + if is_short { Greedy::HEAP_BYTES } else { 0 }
}

/// Returns an upper bound of the heap bytes of a dense encoder.
pub(super) fn high_bytes(window_bytes: u32, level: i32) -> usize {
    let window = window_bytes as usize;
    let library_bytes = if level < OPTIMAL_LEVEL_MIN { library::HIGH_BYTES } else { 0 };
    let is_optimal = level >= OPTIMAL_LEVEL_MIN || window < LIBRARY_WINDOW;
    library_bytes + if is_optimal { Optimal::heap_bytes(window) } else { 0 }
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
pub(super) struct High(Search);

/// The encoder or encoders of a level and a window.
enum Search {
    /// Low levels.
    Library(library::High),
    /// Low levels with a window that is shorter than liblz4's.
    Short { library: library::High, window: usize, optimal: Optimal },
    /// High levels.
    Optimal(Optimal),
}

impl High {
    pub(super) fn new(window_bytes: u32, level: i32) -> Result<Self, CodecError> {
        let window = window_bytes as usize;
        // A tree of positions needs a small part of the steps that liblz4's lists take at the same level.
        let depth = 1 << (level.clamp(1, 12) / 2 + 2);
        if level >= OPTIMAL_LEVEL_MIN {
            return Ok(High(Search::Optimal(Optimal::new(window, depth))));
        }
        let library = library::High::new(level)?;
        Ok(High(match window < LIBRARY_WINDOW {
            true => Search::Short { library, window, optimal: Optimal::new(window, depth) },
            false => Search::Library(library),
        }))
    }

    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Result<Fit, CodecError> {
        let (library, window, optimal) = match &mut self.0 {
            Search::Library(library) => return library.fit(src, dst),
            Search::Optimal(optimal) => return Ok(optimal.fit(src, dst)),
            Search::Short { library, window, optimal } => (library, *window, optimal),
        };
        if let Some(head) = head_to_try(src, dst, window) {
            let fit = library.fit(head, dst)?;
            if fit.consumed_bytes < head.len() || head.len() == src.len() {
                return Ok(fit);
            }
        }
        Ok(optimal.fit(src, dst))
    }

    pub(super) fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        match &mut self.0 {
            Search::Short { window, optimal, .. } if src.len() > *window => whole_by(optimal, src, dst),
            Search::Library(library) | Search::Short { library, .. } => library.whole(src, dst),
            Search::Optimal(optimal) => whole_by(optimal, src, dst),
        }
    }
}

fn whole_by(optimal: &mut Optimal, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // Even an empty block has a byte.
    if dst.is_empty() { None } else { whole_of(optimal.fit(src, dst), src) }
}

/// Returns the beginning of `src` in which no match can reach beyond the window, if it may be all that fits into `dst`.
fn head_to_try<'a>(src: &'a [u8], dst: &[u8], window: usize) -> Option<&'a [u8]> {
    let head = &src[..src.len().min(window)];
    (head.len() == src.len() || dst.len() * TRY_RATIO <= head.len()).then_some(head)
}

fn whole_of(fit: Fit, src: &[u8]) -> Option<usize> {
    (fit.consumed_bytes == src.len()).then_some(fit.written_bytes)
}
