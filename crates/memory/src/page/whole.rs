//! Transitions of pages that are copied whole, to a buffer or from one, without becoming resident.
//!
//! A copy to a buffer needs no ownership of a page that only the store has: the store hands out one version of it, which
//! was the page's at some moment of the call. A staged page is owned while its frame is read, as by a fault that finds no
//! memory. A copy from a buffer owns the page, as loading or returning, until the store has the new version.

use super::word::{Frame, State, Word};
use super::{FoldTime, PageWord};

/// Where the bytes of a page are at a moment, which another thread may change at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// Nowhere: the page is zero. In a region with a file, `is_zeroed` says so; else it has the file's bytes.
    Nowhere {
        /// The page was dropped.
        is_zeroed: bool,
    },
    /// In a frame of the staging area.
    Frame,
    /// In the store only.
    Store,
    /// In the range, or on the way there or from there: an access finds them, after a fault if necessary.
    Range,
}

/// A page that the caller owns to overwrite it: where its old bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverwriteClaim {
    /// Nowhere; the page is loading.
    Untouched,
    /// In the store; the page is loading.
    Folded,
    /// In a frame; the page is returning.
    Staged {
        /// Whether the store has a copy, perhaps of an older version.
        has_copy: bool,
    },
}

impl PageWord {
    /// Returns where the page's bytes are at this moment.
    pub fn whereabouts(&self) -> Whereabouts {
        let word = self.load();
        match word.state() {
            State::Untouched => Whereabouts::Nowhere { is_zeroed: word.has(Word::ZEROED) },
            State::Staged => Whereabouts::Frame,
            State::Folded => Whereabouts::Store,
            _ => Whereabouts::Range,
        }
    }

    /// Transition of a copy to a buffer: staged to returning, and back by [`PageWord::abandon_return`]. Another thread may
    /// be reading the frame, to fold the page. `None` if the page is not staged.
    pub fn claim_frame(&self) -> Option<Frame> {
        let claim = |word: Word| (word.state() == State::Staged).then(|| word.with_state(State::Returning));
        self.change(claim).ok().map(Word::frame)
    }

    /// Transition of a copy from a buffer to the whole page: folded to loading, staged to returning unless the page is
    /// being folded, and with `takes_untouched` untouched to loading. `None` if the page is in another state.
    pub fn begin_overwrite(&self, takes_untouched: bool) -> Option<OverwriteClaim> {
        let old = self.change(|word| match word.state() {
            State::Folded => Some(word.with_state(State::Loading)),
            State::Untouched if takes_untouched => Some(word.with_state(State::Loading)),
            State::Staged if !word.has(Word::FOLDING) => Some(word.with_state(State::Returning)),
            _ => None,
        });
        old.ok().map(|old| match old.state() {
            State::Untouched => OverwriteClaim::Untouched,
            State::Folded => OverwriteClaim::Folded,
            _ => OverwriteClaim::Staged { has_copy: old.has(Word::COPY) },
        })
    }

    /// Transition: loading or returning, after [`PageWord::begin_overwrite`], to folded: the store has the new version.
    /// The frame of a page that was staged is free when an evictor comes to it.
    pub fn finish_overwrite(&self, now: FoldTime) {
        let folded = |word: Word| word.with_state(State::Folded).with(Word::COPY).with_fold_time(now);
        self.change_owned(|word| folded(word).without(Word::ZEROED).without(Word::REWRITTEN));
    }

    /// Transition: loading or returning, after [`PageWord::begin_overwrite`], back to the state before: the store did not
    /// take the new version.
    pub fn abandon_overwrite(&self, claim: OverwriteClaim) {
        match claim {
            OverwriteClaim::Staged { .. } => self.abandon_return(),
            OverwriteClaim::Untouched | OverwriteClaim::Folded => self.abandon_load(),
        }
    }
}
