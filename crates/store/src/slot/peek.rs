//! A slot seen without its lock.
//!
//! For walks that look at many slots and work on few: what they see may be old, or
//! half of one moment and half of another, so whoever acts on it locks the slot and
//! looks again.

use super::GENERATION_BITS;
use super::stamp::Stamp;
use super::word::{Mark, State, Word};

/// What was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peek {
    word: Word,
    stamp: Stamp,
}

impl Peek {
    #[inline]
    pub(super) fn new(word: Word, generation: u32) -> Self {
        Peek { word, stamp: Stamp::from_halves(word.stamp_high(), (generation >> GENERATION_BITS) as u8) }
    }

    /// Folded or raw: an object in memory.
    #[inline]
    pub fn is_object(&self) -> bool {
        matches!(self.word.state(), State::Folded | State::Raw)
    }

    /// Raw.
    #[inline]
    pub fn is_raw(&self) -> bool {
        self.word.state() == State::Raw
    }

    /// Parked.
    #[inline]
    pub fn is_parked(&self) -> bool {
        self.word.state() == State::Parked
    }

    /// Marked idle, and not accessed since.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.word.has(Mark::Idle)
    }

    /// Read since it was stored or parked.
    #[inline]
    pub fn is_accessed(&self) -> bool {
        self.word.has(Mark::Accessed)
    }

    /// Time of the last access.
    #[inline]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Bytes of the object: its compressed length, or a page if raw; 0 if there is no object.
    #[inline]
    pub fn object_len_bytes(&self) -> usize {
        match self.word.state() {
            State::Folded => usize::from(self.word.len_bytes()),
            State::Raw => 4096,
            State::Empty | State::SameFilled | State::Parked => 0,
        }
    }
}
