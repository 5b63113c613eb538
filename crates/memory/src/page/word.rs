//! The bits of a page's word.

/// The state of a page; see the table in `page`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Zero: not touched since the region was made or the page was dropped.
    Untouched = 0,
    /// Mapped in the region.
    Resident = 1,
    /// Being moved out or dropped.
    Taken = 2,
    /// In a frame.
    Staged = 3,
    /// Being brought back from a frame.
    Returning = 4,
    /// Being brought in.
    Loading = 5,
    /// In the store.
    Folded = 6,
    /// In a chunk that the kernel fills by itself: mapped, or zero.
    Unregistered = 7,
}

/// A frame of the staging area, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Frame(pub u16);

/// The time at which a page was folded. It advances by [`EARLY_REFAULT_TICKS`](super::EARLY_REFAULT_TICKS) while as many
/// pages are folded as may be resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldTime(pub u16);

/// The most pins a page can have at once.
pub const PINS_MAX: u32 = 0xffff;

/// The bits: state 0-2, waited 3, folding 4, copy 5, recheck or protected 6, heat 8-9, chances 10-12, zeroed 13,
/// file hash 14, rewritten 15, payload 16-31. The payload is the frame of a staged or returning page, the fold time of a
/// folded page, and the pins of a resident or unregistered page (during a recheck too, which is a kind of loading).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word(pub(super) u32);

const STATE_MASK: u32 = 0b111;
const WAITED: u32 = 1 << 3;
const HEAT_SHIFT: u32 = 8;
const HEAT_MASK: u32 = 0b11 << HEAT_SHIFT;
const CHANCES_SHIFT: u32 = 10;
const CHANCES_MASK: u32 = 0b111 << CHANCES_SHIFT;
const PAYLOAD_SHIFT: u32 = 16;
const PAYLOAD_MASK: u32 = 0xffff << PAYLOAD_SHIFT;

impl Word {
    /// A thread is writing the page to the store.
    pub(super) const FOLDING: u32 = 1 << 4;
    /// The store has a copy.
    pub(super) const COPY: u32 = 1 << 5;
    /// The page is loading only for a recheck: the payload is its pins.
    pub(super) const RECHECK: u32 = 1 << 6;
    /// Of a resident or taken page: it is write-protected since it was loaded. It is the same bit, so that the end of a
    /// recheck clears it.
    pub(super) const PROTECTED: u32 = Self::RECHECK;
    /// The page was dropped: untouched, it is zero, even if a file has bytes for it.
    pub(super) const ZEROED: u32 = 1 << 13;
    /// The hash in the table is that of the bytes that the file has for the page.
    pub(super) const FILE_HASH: u32 = 1 << 14;
    /// The page was written between its last two foldings.
    pub(super) const REWRITTEN: u32 = 1 << 15;
    /// The most chances a page has.
    pub(super) const CHANCES_MAX: u32 = 7;

    pub(super) fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Untouched,
            1 => State::Resident,
            2 => State::Taken,
            3 => State::Staged,
            4 => State::Returning,
            5 => State::Loading,
            6 => State::Folded,
            _ => State::Unregistered,
        }
    }

    pub(super) fn with_state(self, state: State) -> Self {
        Word(self.0 & !STATE_MASK | state as u32)
    }

    pub(super) fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    pub(super) fn with(self, flag: u32) -> Self {
        Word(self.0 | flag)
    }

    pub(super) fn without(self, flag: u32) -> Self {
        Word(self.0 & !flag)
    }

    /// Returns whether a resident or taken page is write-protected since it was loaded.
    pub(super) fn is_protected(self) -> bool {
        matches!(self.state(), State::Resident | State::Taken) && self.has(Self::PROTECTED)
    }

    /// Returns whether a resident or taken page equals its copy because it is protected.
    pub(super) fn is_unwritten(self) -> bool {
        self.is_protected() && self.has(Self::COPY)
    }

    pub(super) fn is_waited(self) -> bool {
        self.has(WAITED)
    }

    pub(super) fn waited(self) -> Self {
        self.with(WAITED)
    }

    pub(super) fn unwaited(self) -> Self {
        self.without(WAITED)
    }

    /// Clears all bits but *waited*: an untouched page.
    pub(super) fn only_waited(self) -> Self {
        Word(self.0 & WAITED)
    }

    pub(super) fn heat(self) -> u32 {
        (self.0 & HEAT_MASK) >> HEAT_SHIFT
    }

    pub(super) fn with_heat(self, heat: u32) -> Self {
        Word(self.0 & !HEAT_MASK | heat << HEAT_SHIFT & HEAT_MASK)
    }

    pub(super) fn chances(self) -> u32 {
        (self.0 & CHANCES_MASK) >> CHANCES_SHIFT
    }

    pub(super) fn with_chances(self, chances: u32) -> Self {
        Word(self.0 & !CHANCES_MASK | chances << CHANCES_SHIFT & CHANCES_MASK)
    }

    pub(super) fn fold_time(self) -> FoldTime {
        FoldTime(self.payload() as u16)
    }

    pub(super) fn with_fold_time(self, time: FoldTime) -> Self {
        self.with_payload(time.0.into())
    }

    fn payload(self) -> u32 {
        (self.0 & PAYLOAD_MASK) >> PAYLOAD_SHIFT
    }

    pub(super) fn with_payload(self, payload: u32) -> Self {
        Word(self.0 & !PAYLOAD_MASK | payload << PAYLOAD_SHIFT)
    }

    /// Returns the pins of a resident or unregistered page, 0 for other pages.
    pub(super) fn pins(self) -> u32 {
        let is_mapped = matches!(self.state(), State::Resident | State::Unregistered);
        let is_rechecked = self.state() == State::Loading && self.has(Self::RECHECK);
        if is_mapped || is_rechecked { self.payload() } else { 0 }
    }

    pub(super) fn frame(self) -> Frame {
        Frame(self.payload() as u16)
    }

    pub(super) fn with_frame(self, frame: Frame) -> Self {
        self.with_payload(frame.0.into())
    }

    pub(super) fn is_staged_in(self, frame: Frame) -> bool {
        self.state() == State::Staged && self.frame() == frame
    }

    pub(super) fn is_returning_from(self, frame: Frame) -> bool {
        self.state() == State::Returning && self.frame() == frame
    }

    /// Returns whether the page is resident, not pinned and not being folded.
    pub(super) fn is_free_to_take(self) -> bool {
        self.state() == State::Resident && self.pins() == 0 && !self.has(Self::FOLDING)
    }
}
