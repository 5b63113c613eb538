//! The clock algorithm with several chances: how hot a page is, and the effect of a visit of the clock hand.
//!
//! The *heat* of a page, 0 to 3, counts how often in a row it came back soon after it was folded (an early refault;
//! the kernel's `mm/workingset.c` uses the same idea). A page that becomes resident gets `2^heat - 1` *chances*. Each
//! visit of the hand takes one chance; a page without chances is evicted. The functions here compute new words; the
//! transitions of `PageWord` store them.

use super::State;
use super::word::{FoldTime, Word};

/// The pages that an evictor accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidates {
    /// Pages without chances.
    Cold,
    /// Any page that is not pinned.
    Any,
}

/// A page that comes back within this time was folded too early.
pub const EARLY_REFAULT_TICKS: u16 = 64;

/// The highest heat.
pub(super) const HEAT_MAX: u32 = 3;

/// The hottest pages lose a chance only in one of so many rounds of the hand.
pub const HOT_ROUNDS: u64 = 4;

/// Returns whether a page has the highest heat.
pub(super) fn is_hot(word: Word) -> bool {
    word.heat() == HEAT_MAX
}

/// Returns whether a page that comes from the store was folded too early.
fn is_early_refault(word: Word, now: FoldTime) -> bool {
    word.has(Word::COPY) && now.0.wrapping_sub(word.fold_time().0) < EARLY_REFAULT_TICKS
}

/// Returns the word of a page that was used again soon.
pub(super) fn hotter(word: Word) -> Word {
    with_heat(word, (word.heat() + 1).min(HEAT_MAX))
}

/// Returns the word of a page that comes in for the first time, or after a long time.
fn cold(word: Word) -> Word {
    with_heat(word, 0)
}

/// With which others a page comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Alone, or with pages of a stream.
    Plain,
    /// With pages of other rows, in a sweep over parts of rows.
    InRow {
        /// Whether the page is one of those that stay longer.
        is_kept: bool,
    },
}

/// The heat of a page that comes in with those of other rows. The next parts of its row lie in it in general, so that it is
/// used again with each of the next sweeps, of which only the first one that misses it would show.
const ROW_HEAT: u32 = 2;

/// Returns the word of a loading page that becomes resident.
///
/// Sweeps over more rows than can be resident bring in all pages again and again. If all of them became hot, none would
/// stay until it is used again; so only those do that are to be kept.
pub(super) fn loaded(word: Word, now: FoldTime, arrival: Arrival) -> Word {
    let word = match (arrival, is_early_refault(word, now)) {
        (Arrival::Plain, false) => cold(word),
        (Arrival::Plain, true) => hotter(word),
        (Arrival::InRow { is_kept: true }, true) => hotter(word.with_heat(word.heat().max(ROW_HEAT))),
        (Arrival::InRow { .. }, _) => with_heat(word, ROW_HEAT),
    };
    word.with_state(State::Resident).with_payload(0)
}

fn with_heat(word: Word, heat: u32) -> Word {
    word.with_heat(heat).with_chances((1 << heat) - 1)
}

/// Returns the word of a resident page after a visit of the clock hand.
pub(super) fn after_visit(word: Word, candidates: Candidates, round: u64) -> Word {
    let is_spared = is_hot(word) && !round.is_multiple_of(HOT_ROUNDS);
    match word.chances() {
        _ if candidates == Candidates::Any => word.with_state(State::Taken),
        0 => word.with_state(State::Taken),
        _ if is_spared => word,
        chances => word.with_chances(chances - 1),
    }
}

/// The result of a visit of the clock hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// The caller owns the page, which is taken.
    Taken,
    /// The page stays resident.
    Kept,
    /// The page is not resident, or is pinned or being folded.
    NotFree,
}
