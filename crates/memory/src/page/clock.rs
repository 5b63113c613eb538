//! How hot a page is, and what the clock's hand makes of it.
//!
//! A page has *heat* 0 to 3 by how often in a row it came back soon after it was folded, and *chances*, given to it when it
//! comes in, of which the hand takes one at each visit. A page without any goes. Nothing here changes a page's word: who
//! makes a transition asks what it is to be (see `PageWord`).

use super::State;
use super::word::Word;

/// What is looked for by who moves pages out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Pages that have used up their chances.
    Cold,
    /// Any page that nobody pins.
    Any,
}

/// When a page was folded: a number of the region's own that advances [`SOON`] times while as many pages are folded as
/// may be resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldTime(pub u16);

/// A page that comes back within this time was folded too early.
pub const SOON: u16 = 64;

/// Heat beyond which no page gets hotter.
pub(super) const HEAT_MAX: u32 = 3;

/// Rounds of the clock's hand in which the hottest pages lose one chance.
pub const HOT_ROUNDS: u64 = 4;

/// Whether a page is among the hottest.
pub(super) fn is_hot(word: Word) -> bool {
    word.heat() == HEAT_MAX
}

/// Whether a page that comes from the store was folded too early.
pub(super) fn is_soon(word: Word, now: FoldTime) -> bool {
    word.has(Word::COPY) && now.0.wrapping_sub(word.fold_time().0) < SOON
}

/// A page that was wanted again soon.
pub(super) fn hotter(word: Word) -> Word {
    with_heat(word, (word.heat() + 1).min(HEAT_MAX))
}

/// A page that comes in for the first time, or after long.
pub(super) fn cold(word: Word) -> Word {
    with_heat(word, 0)
}

fn with_heat(word: Word, heat: u32) -> Word {
    word.with_heat(heat).with_chances((1 << heat) - 1)
}

/// What becomes of a resident page that the clock's hand passes.
pub(super) fn seen_by_hand(word: Word, is_written: Option<bool>, effort: Effort, round: u64) -> Word {
    let is_spared = is_hot(word) && !round.is_multiple_of(HOT_ROUNDS);
    match (word.has(Word::NEW), is_written) {
        _ if effort == Effort::Any => word.with_state(State::Taken),
        // It arrived after the hand looked for writes.
        (true, Some(false)) => word,
        (true, Some(true)) => word.without(Word::NEW),
        (false, Some(true)) => word.with_chances(word.chances().max(1)),
        _ if word.chances() > 0 && is_spared => word,
        _ if word.chances() > 0 => word.with_chances(word.chances() - 1),
        _ => word.with_state(State::Taken),
    }
}

/// What the clock's hand did with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// It is the caller's now.
    Taken,
    /// It stays for this time.
    Kept {
        /// It was written since the hand was here last, and a copy of it is of no use.
        is_rewritten: bool,
    },
    /// It is not resident, or is pinned or being folded.
    NotFree,
}
