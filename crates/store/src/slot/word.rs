//! The bits of a slot's word.
//!
//! | bits  | meaning |
//! |-------|---------|
//! | 0     | locked |
//! | 1     | awaited: a thread may sleep on the lock |
//! | 2-4   | state; 0 empty, 1 same-filled, 2 folded, 3 raw, 4 written back, 5 lost; others to come (cluster) |
//! | 5-8   | codecs: the priority, of folded and of written back, and which codecs did not make the page smaller |
//! | 9-20  | stored length in bytes, minus 1, of folded and of written back |
//! | 21    | under writeback: a pass is writing this page (zram's post-processing flag) |
//! | 22    | idle: marked as idle, and not accessed since |
//! | 23    | accessed: read since it was stored or written back |
//! | 24-31 | upper half of the time of the last access (`AccessTime`) |
//!
//! *Codecs.* Only codecs of a higher priority are tried, so priority and tried codecs together have fifteen values.
//! With the first bit flipped, bits 8 to 5 stand for the priorities 0 to 3: the first set bit is the priority of the
//! object, and each set bit after it is a codec that was tried. A word of zeroes has priority 0 and no tried codec.

const LOCKED: u32 = 1;
const AWAITED: u32 = 1 << 1;
const STATE_SHIFT: u32 = 2;
const STATE_MASK: u32 = 0b111;
const CODECS_SHIFT: u32 = 5;
const CODECS_MASK: u32 = 0b1111;
/// Flipped in the word, so that zero is priority 0.
const CODECS_ZERO: u32 = 0b1000;
/// The highest priority of a codec for which the word has room.
pub const PRIORITY_MAX: u8 = 3;
const LEN_SHIFT: u32 = 9;
const LEN_MASK: u32 = (1 << 12) - 1;
const TIME_SHIFT: u32 = 24;

/// The flags that passes and accesses set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    UnderWriteback = 1 << 21,
    Idle = 1 << 22,
    Accessed = 1 << 23,
}

/// The states of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Empty = 0,
    SameFilled = 1,
    Folded = 2,
    Raw = 3,
    WrittenBack = 4,
    Lost = 5,
}

/// A slot's word, by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

/// The bit of a priority.
fn codec_bit(priority: u8) -> u32 {
    debug_assert!(priority <= PRIORITY_MAX);
    CODECS_ZERO >> (priority & PRIORITY_MAX)
}

impl Word {
    /// Creates an unlocked word of this state with all other fields zero.
    pub(super) fn new(state: State) -> Self {
        Word((state as u32) << STATE_SHIFT)
    }

    pub(super) fn with_len(self, len_bytes: u16) -> Self {
        debug_assert!((1..=4096).contains(&len_bytes));
        Word(self.0 | (u32::from(len_bytes.wrapping_sub(1)) & LEN_MASK) << LEN_SHIFT)
    }

    /// Replaces the priority; no codec is tried then.
    pub(super) fn with_priority(self, priority: u8) -> Self {
        self.with_codecs(codec_bit(priority))
    }

    /// The bits of the codecs: the first set one is the priority.
    fn codecs(self) -> u32 {
        self.0 >> CODECS_SHIFT & CODECS_MASK ^ CODECS_ZERO
    }

    fn with_codecs(self, codecs: u32) -> Self {
        let cleared = self.0 & !(CODECS_MASK << CODECS_SHIFT);
        Word(cleared | (codecs ^ CODECS_ZERO) << CODECS_SHIFT)
    }

    #[inline]
    pub(super) fn state(self) -> State {
        match self.0 >> STATE_SHIFT & STATE_MASK {
            1 => State::SameFilled,
            2 => State::Folded,
            3 => State::Raw,
            4 => State::WrittenBack,
            // Only this module creates words; memory of a dead process may contain others.
            5..=7 => State::Lost,
            _ => State::Empty,
        }
    }

    pub(super) fn len_bytes(self) -> u16 {
        (self.0 >> LEN_SHIFT & LEN_MASK) as u16 + 1
    }

    pub(super) fn priority(self) -> u8 {
        // One bit is always set; the last one stands in for it so that the compiler knows that too.
        PRIORITY_MAX - (self.codecs() | 1).ilog2() as u8
    }

    /// Adds a codec to the tried ones, if its priority is higher than the object's.
    pub(super) fn with_tried(self, priority: u8) -> Self {
        match priority > self.priority() {
            true => self.with_codecs(self.codecs() | codec_bit(priority)),
            false => self,
        }
    }

    /// Adds the tried codecs of `other` whose priorities are higher than this word's.
    pub(super) fn with_tried_of(self, other: Word) -> Self {
        let above = codec_bit(self.priority()) - 1;
        self.with_codecs(self.codecs() | other.codecs() & above)
    }

    /// Whether the codec of `priority` was tried.
    pub(super) fn is_tried(self, priority: u8) -> bool {
        priority > self.priority() && self.codecs() & codec_bit(priority) != 0
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
    pub(super) fn time_high(self) -> u8 {
        (self.0 >> TIME_SHIFT) as u8
    }

    #[inline]
    pub(super) fn with_time_high(self, high: u8) -> Self {
        Word(self.0 & !(0xff << TIME_SHIFT) | u32::from(high) << TIME_SHIFT)
    }

    pub(super) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(super) fn is_awaited(self) -> bool {
        self.0 & AWAITED != 0
    }

    /// The two bits of the lock.
    pub(super) fn lock_bits(self) -> u32 {
        self.0 & (LOCKED | AWAITED)
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
