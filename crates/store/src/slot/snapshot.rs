//! A slot's state, read without its lock.
//!
//! Used by walks that examine many slots and change few. A snapshot may be outdated, and its two words may belong to
//! different moments, so a thread that acts on it locks the slot and checks again.

use super::GENERATION_BITS;
use super::access_time::AccessTime;
use super::word::{Mark, State, Word};

/// A slot's word and last access, read without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSnapshot {
    word: Word,
    last_access: AccessTime,
}

impl SlotSnapshot {
    #[inline]
    pub(super) fn new(word: Word, generation: u32) -> Self {
        SlotSnapshot {
            word,
            last_access: AccessTime::from_halves(word.time_high(), (generation >> GENERATION_BITS) as u8),
        }
    }

    /// Whether the slot has no contents.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.word.state() == State::Empty
    }

    /// Whether the page is same-filled.
    #[inline]
    pub fn is_same_filled(&self) -> bool {
        self.word.state() == State::SameFilled
    }

    /// Whether the page is folded or raw, so an object in memory.
    #[inline]
    pub fn is_object(&self) -> bool {
        matches!(self.word.state(), State::Folded | State::Raw)
    }

    /// Whether the page is raw.
    #[inline]
    pub fn is_raw(&self) -> bool {
        self.word.state() == State::Raw
    }

    /// Which of the store's codecs made the object; 0 for a page that is not folded.
    #[inline]
    pub fn priority(&self) -> u8 {
        if self.word.state() == State::Folded { self.word.priority() } else { 0 }
    }

    /// Whether the codec of `priority` did not make the object smaller.
    #[inline]
    pub fn is_tried(&self, priority: u8) -> bool {
        self.is_object() && self.word.is_tried(priority)
    }

    /// Whether the page is written back.
    #[inline]
    pub fn is_written_back(&self) -> bool {
        self.word.state() == State::WrittenBack
    }

    /// The length and the codec's priority of the bytes of a written-back page on the backing.
    #[inline]
    pub fn written_back_form(&self) -> Option<(usize, u8)> {
        self.is_written_back().then(|| (usize::from(self.word.len_bytes()), self.word.priority()))
    }

    /// Whether the page is marked idle and was not accessed since.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.has(Mark::Idle)
    }

    /// Whether the page was read since it was stored or written back.
    #[inline]
    pub fn is_accessed(&self) -> bool {
        self.word.has(Mark::Accessed)
    }

    /// Time of the last access.
    #[inline]
    pub fn last_access(&self) -> AccessTime {
        self.last_access
    }

    /// Length of the object in bytes: compressed, or 4096 if raw; 0 if there is no object.
    #[inline]
    pub fn object_len_bytes(&self) -> usize {
        match self.word.state() {
            State::Folded => usize::from(self.word.len_bytes()),
            State::Raw => 4096,
            State::Empty | State::SameFilled | State::WrittenBack | State::Lost => 0,
        }
    }
}
