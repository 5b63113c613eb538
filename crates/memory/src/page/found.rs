//! What the transitions of a page's word find.

#[cfg(doc)]
use super::PageWord;
use super::{Frame, State};

/// What a thread that touched a page is to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// Nothing that the word knows of: the page is resident.
    There,
    /// The page is now loading, by the caller: give it zeroes.
    Zero,
    /// The page is now loading, by the caller: bring it from the store.
    Load,
    /// The page is now returning, by the caller: bring it from this frame.
    Return {
        /// Where the page's bytes are.
        frame: Frame,
        /// Another thread is reading the frame, which must keep its memory.
        is_folding: bool,
    },
    /// Another thread is at it: wait, then look again.
    Busy(Seen),
}

/// What a word was, to be waited for to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen(pub(super) u32);

/// What became of a page that was being folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folded {
    /// It is folded; its frame is free.
    Yes,
    /// Somebody is bringing it back, or has: [`PageWord::begin_fold`] tells when its frame is free.
    Returned,
}

/// What [`PageWord::refuse_fold`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The page is returning, by the caller.
    BringBack,
    /// Somebody is bringing it back, or has: [`PageWord::begin_fold`] tells when its frame is free.
    Returned,
}

/// What [`PageWord::take_to_drop`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drop {
    /// The page is taken, by the caller.
    Taken {
        /// What it was.
        was: State,
        /// The store has a copy.
        has_copy: bool,
    },
    /// It is untouched: there is nothing to drop.
    Nothing,
    /// It is pinned.
    Pinned,
    /// Another thread is at it: wait, then try again.
    Busy(Seen),
}
