//! The bits of a slot's word.
//!
//! | bits  | meaning |
//! |-------|---------|
//! | 0     | locked |
//! | 1     | awaited: somebody may sleep for the lock |
//! | 2-4   | state; 0 empty, 1 same-filled, 2 folded, 3 raw, 4 parked; others to come (cluster) |
//! | 5-6   | codec priority, of folded and of parked |
//! | 7-19  | stored length in bytes, of folded and of parked |
//! | 20    | selected: a pass works on this page (post-processing mark) |
//! | 21    | idle: marked so, and not accessed since |
//! | 22    | accessed: read since it was stored or parked |
//! | 23    | zero |
//! | 24-31 | upper half of the time of the last access (`Stamp`) |

const LOCKED: u32 = 1;
const AWAITED: u32 = 1 << 1;
const STATE_SHIFT: u32 = 2;
const STATE_MASK: u32 = 0b111;
const PRIORITY_SHIFT: u32 = 5;
const PRIORITY_MASK: u32 = 0b11;
const LEN_SHIFT: u32 = 7;
const LEN_MASK: u32 = (1 << 13) - 1;
const STAMP_SHIFT: u32 = 24;

/// Marks that passes and accesses leave on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Selected = 1 << 20,
    Idle = 1 << 21,
    Accessed = 1 << 22,
}

/// The states of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Empty = 0,
    SameFilled = 1,
    Folded = 2,
    Raw = 3,
    Parked = 4,
}

/// A slot's word, by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

impl Word {
    /// An unlocked word of this state, other fields zero.
    pub(super) fn new(state: State) -> Self {
        Word((state as u32) << STATE_SHIFT)
    }

    pub(super) fn with_len(self, len_bytes: u16) -> Self {
        debug_assert!((1..=4096).contains(&len_bytes));
        Word(self.0 | (u32::from(len_bytes) & LEN_MASK) << LEN_SHIFT)
    }

    pub(super) fn with_priority(self, priority: u8) -> Self {
        debug_assert!(u32::from(priority) <= PRIORITY_MASK);
        Word(self.0 | (u32::from(priority) & PRIORITY_MASK) << PRIORITY_SHIFT)
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 >> STATE_SHIFT & STATE_MASK {
            1 => State::SameFilled,
            2 => State::Folded,
            3 => State::Raw,
            4 => State::Parked,
            // Only this module makes words, and only of the five states.
            _ => State::Empty,
        }
    }

    pub(super) fn len_bytes(self) -> u16 {
        (self.0 >> LEN_SHIFT & LEN_MASK) as u16
    }

    pub(super) fn priority(self) -> u8 {
        (self.0 >> PRIORITY_SHIFT & PRIORITY_MASK) as u8
    }

    #[inline]
    pub(super) fn has(self, mark: Mark) -> bool {
        self.0 & mark as u32 != 0
    }

    #[inline]
    pub(super) fn with(self, mark: Mark) -> Self {
        Word(self.0 | mark as u32)
    }

    #[inline]
    pub(super) fn without(self, mark: Mark) -> Self {
        Word(self.0 & !(mark as u32))
    }

    #[inline]
    pub(super) fn stamp_high(self) -> u8 {
        (self.0 >> STAMP_SHIFT) as u8
    }

    #[inline]
    pub(super) fn with_stamp_high(self, high: u8) -> Self {
        Word(self.0 & !(0xff << STAMP_SHIFT) | u32::from(high) << STAMP_SHIFT)
    }

    pub(super) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(super) fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    pub(super) fn locked(self) -> Self {
        Word(self.0 | LOCKED)
    }

    pub(super) fn awaited(self) -> Self {
        Word(self.0 | AWAITED)
    }

    pub(super) fn unlocked(self) -> Self {
        Word(self.0 & !(LOCKED | AWAITED))
    }
}
