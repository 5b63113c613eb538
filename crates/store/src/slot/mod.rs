//! The place of one page: 16 bytes, its lock, and the transitions between its states.
//!
//! A slot is a word (lock, state, length: see `word`), a generation that every
//! change of contents advances, and a payload that depends on the state. All of it is
//! read and written under the slot's own lock, which is two bits of the word and
//! sleeps when taken (`lock`). States change only through the functions of
//! [`SlotGuard`] in this module, each named for its transition, each of which
//! releases the lock and hands back what was there before, so that "drop the old,
//! publish the new" is one step and nobody can free a page that is still to be seen.
//!
//! A slot with all bits zero is empty and unlocked, so zeroed memory is a table of
//! empty slots.

mod lock;
mod peek;
mod stamp;
mod word;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use lock::Locked;
pub use peek::Peek;
pub use stamp::Stamp;
use word::{Mark, State, Word};

/// The place of one page.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    word: AtomicU32,
    /// Lower 24 bits: advances whenever the contents change. Upper 8: the lower half of the time of the
    /// last access, whose upper half is in the word, because neither has 16 bits to spare.
    generation: AtomicU32,
    /// Fill word, pool handle, or location on the backing.
    payload: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 8);

const GENERATION_BITS: u32 = 24;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

fn parked_word(parked: Parked) -> Word {
    Word::new(State::Parked).with_len(parked.len_bytes).with_priority(parked.priority)
}

/// How often a slot's contents have changed, modulo 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// The generation of this number, modulo 2^24.
    pub fn from_bits(bits: u32) -> Self {
        Generation(bits & GENERATION_MASK)
    }

    /// The number, below 2^24, as it stands in records.
    pub fn to_bits(self) -> u32 {
        self.0
    }
}

/// What a slot holds. Handles are the pool's, as numbers, because the slot does not look into them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing was written, or it was discarded; reads as zeroes.
    Empty,
    /// The word that the page repeats.
    SameFilled(u64),
    /// A compressed object.
    Folded {
        /// Pool handle.
        handle: u64,
        /// Compressed length, 1 to 4095 bytes.
        len_bytes: u16,
        /// Which of the store's codecs made it, 0 to 3.
        priority: u8,
    },
    /// The page as it is, as an object of 4096 bytes.
    Raw {
        /// Pool handle.
        handle: u64,
    },
    /// Moved to the backing.
    Parked(Parked),
}

/// Where and how a page is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parked {
    /// What the backing's layout made of the place; not looked into here.
    pub location: u64,
    /// Bytes there, 1 to 4096; 4096 is the page as it is.
    pub len_bytes: u16,
    /// Which of the store's codecs made them, 0 to 3.
    pub priority: u8,
}

/// A locked slot. Unlocks when dropped.
#[derive(Debug)]
pub struct SlotGuard<'a> {
    slot: &'a Slot,
    locked: Locked<'a>,
}

impl Slot {
    /// An empty slot.
    pub fn new() -> Self {
        Slot { word: AtomicU32::new(0), generation: AtomicU32::new(0), payload: AtomicU64::new(0) }
    }

    /// Locks the slot; sleeps while another thread has it.
    #[inline]
    pub fn lock(&self) -> SlotGuard<'_> {
        SlotGuard { slot: self, locked: Locked::acquire(&self.word) }
    }

    /// Locks the slot if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<SlotGuard<'_>> {
        Some(SlotGuard { slot: self, locked: Locked::try_acquire(&self.word)? })
    }

    /// What can be seen without the lock, for walks over many slots.
    #[inline]
    pub fn peek(&self) -> Peek {
        Peek::new(Word(self.word.load(Ordering::Relaxed)), self.generation.load(Ordering::Relaxed))
    }

    /// The object that the slot seems to hold, as the pool's handle and its length in bytes; for hints. Without the
    /// lock the handle may be old, or no handle at all but what was in its place a moment before or after.
    #[inline]
    pub fn peek_object(&self) -> Option<(u64, usize)> {
        let len_bytes = self.peek().object_len_bytes();
        (len_bytes > 0).then(|| (self.payload.load(Ordering::Relaxed), len_bytes))
    }

    /// Whether the slot is empty at this moment; needs no lock, because an empty slot has no payload.
    #[inline]
    pub fn is_empty(&self) -> bool {
        Word(self.word.load(Ordering::Acquire)).state() == State::Empty
    }
}

impl Default for Slot {
    fn default() -> Self {
        Slot::new()
    }
}

impl SlotGuard<'_> {
    /// What the slot holds.
    #[inline]
    pub fn content(&self) -> Content {
        let payload = self.slot.payload.load(Ordering::Relaxed);
        let word = self.locked.word();
        match word.state() {
            State::Empty => Content::Empty,
            State::SameFilled => Content::SameFilled(payload),
            State::Folded => {
                Content::Folded { handle: payload, len_bytes: word.len_bytes(), priority: word.priority() }
            }
            State::Raw => Content::Raw { handle: payload },
            State::Parked => Content::Parked(Parked {
                location: payload,
                len_bytes: word.len_bytes(),
                priority: word.priority(),
            }),
        }
    }

    /// The number of the contents: equal means unchanged since.
    #[inline]
    pub fn generation(&self) -> Generation {
        Generation(self.slot.generation.load(Ordering::Relaxed) & GENERATION_MASK)
    }

    /// Transition: any state to empty. Returns what was held.
    pub fn clear(self) -> Content {
        self.exchange(Word::new(State::Empty), 0)
    }

    /// Transition: any state to same-filled. Returns what was held.
    pub fn fill(self, fill_word: u64) -> Content {
        self.exchange(Word::new(State::SameFilled), fill_word)
    }

    /// Transition: any state to folded. Returns what was held.
    pub fn fold(self, handle: u64, len_bytes: u16, priority: u8) -> Content {
        self.exchange(Word::new(State::Folded).with_len(len_bytes).with_priority(priority), handle)
    }

    /// Transition: any state to raw. Returns what was held.
    pub fn keep_raw(self, handle: u64) -> Content {
        self.exchange(Word::new(State::Raw), handle)
    }

    /// Any of the four transitions above, or to parked contents that were elsewhere, by the contents to come.
    pub fn publish(self, content: Content) -> Content {
        match content {
            Content::Empty => self.clear(),
            Content::SameFilled(fill_word) => self.fill(fill_word),
            Content::Folded { handle, len_bytes, priority } => self.fold(handle, len_bytes, priority),
            Content::Raw { handle } => self.keep_raw(handle),
            Content::Parked(parked) => self.exchange(parked_word(parked), parked.location),
        }
    }

    /// Transition: folded or raw stays what it is, its object having moved from `old` to `new`.
    ///
    /// Returns whether the slot held `old`; if not, nothing changes. The generation stays, because the
    /// contents do.
    pub fn relocate(self, old: u64, new: u64) -> bool {
        let holds_old = match self.content() {
            Content::Folded { handle, .. } | Content::Raw { handle } => handle == old,
            Content::Empty | Content::SameFilled(_) | Content::Parked(_) => false,
        };
        if holds_old {
            self.slot.payload.store(new, Ordering::Relaxed);
        }
        holds_old
    }

    /// Transition: a page in memory that a pass selected, and that is unchanged since, to parked.
    ///
    /// Returns what was held, to be freed; `None`, and nothing changes but the mark, which is cleared, if
    /// the page is not the one that was selected. The generation stays, because the contents do.
    pub fn park(mut self, selected: Generation, to: Parked) -> Option<Content> {
        let old = self.content();
        if !self.is_selected() || self.generation() != selected {
            return None;
        }
        self.deselect();
        if !matches!(old, Content::Folded { .. } | Content::Raw { .. }) {
            return None;
        }
        self.replace(parked_word(to), to.location);
        Some(old)
    }

    /// Transition: parked at `from` to the same page in memory. Returns whether it was there; if not, nothing
    /// changes. The generation stays, because the contents do.
    pub fn promote(self, from: Parked, to: Content) -> bool {
        let word = match (self.content() == Content::Parked(from), to) {
            (true, Content::Folded { len_bytes, priority, .. }) => {
                Word::new(State::Folded).with_len(len_bytes).with_priority(priority)
            }
            (true, Content::Raw { .. }) => Word::new(State::Raw),
            _ => return false,
        };
        let (Content::Folded { handle, .. } | Content::Raw { handle }) = to else { return false };
        self.replace(word, handle);
        true
    }

    /// Transition: parked at `from` to parked at `to`, the record having been copied. Returns whether it was at
    /// `from`; if not, nothing changes. Generation and marks stay.
    pub fn move_parked(self, from: Parked, to: Parked) -> bool {
        let is_there = self.content() == Content::Parked(from);
        if is_there {
            let keep = |mark, word: Word| if self.locked.word().has(mark) { word.with(mark) } else { word };
            let word = keep(Mark::Idle, keep(Mark::Accessed, parked_word(to)));
            self.replace(word, to.location);
        }
        is_there
    }

    /// Marks the page as one that a pass works on. False if it is already, or is not an object in memory.
    pub fn select(&mut self) -> bool {
        let word = self.locked.word();
        let is_free = matches!(word.state(), State::Folded | State::Raw) && !word.has(Mark::Selected);
        if is_free {
            self.locked.set_word(word.with(Mark::Selected));
        }
        is_free
    }

    /// Clears the mark of a pass.
    pub fn deselect(&mut self) {
        self.locked.set_word(self.locked.word().without(Mark::Selected));
    }

    /// Whether a pass works on the page.
    pub fn is_selected(&self) -> bool {
        self.locked.word().has(Mark::Selected)
    }

    /// Notes an access: its time, and that the page is not idle. Returns when the page was last read since it
    /// was stored or parked, if it was.
    #[inline]
    pub fn touch(&mut self, now: Stamp) -> Option<Stamp> {
        let word = self.locked.word();
        let last = word.has(Mark::Accessed).then(|| self.stamp());
        self.locked.set_word(word.without(Mark::Idle).with(Mark::Accessed));
        self.set_stamp(now);
        last
    }

    /// The time of the last access.
    pub fn stamp(&self) -> Stamp {
        let low = self.slot.generation.load(Ordering::Relaxed) >> GENERATION_BITS;
        Stamp::from_halves(self.locked.word().stamp_high(), low as u8)
    }

    /// Sets the time of the last access.
    #[inline]
    pub fn set_stamp(&mut self, stamp: Stamp) {
        let (high, low) = stamp.halves();
        let generation = self.slot.generation.load(Ordering::Relaxed) & GENERATION_MASK;
        self.slot.generation.store(generation | u32::from(low) << GENERATION_BITS, Ordering::Relaxed);
        self.locked.set_word(self.locked.word().with_stamp_high(high));
    }

    /// Marks the page idle, or not.
    pub fn set_idle(&mut self, idle: bool) {
        let word = self.locked.word();
        self.locked.set_word(if idle { word.with(Mark::Idle) } else { word.without(Mark::Idle) });
    }

    /// Forgets that the page was accessed: its second chance is used up.
    pub fn clear_accessed(&mut self) {
        self.locked.set_word(self.locked.word().without(Mark::Accessed));
    }

    /// The same page in another form: no new generation.
    fn replace(self, word: Word, payload: u64) {
        self.slot.payload.store(payload, Ordering::Relaxed);
        let word = word.with_stamp_high(self.locked.word().stamp_high());
        self.locked.release_with(word);
    }

    /// The one place where contents change. Marks are cleared: they were about what was there before.
    fn exchange(self, word: Word, payload: u64) -> Content {
        let old = self.content();
        let word = word.with_stamp_high(self.locked.word().stamp_high());
        self.slot.payload.store(payload, Ordering::Relaxed);
        let generation = self.slot.generation.load(Ordering::Relaxed);
        let next = (generation & !GENERATION_MASK) | (generation.wrapping_add(1) & GENERATION_MASK);
        self.slot.generation.store(next, Ordering::Relaxed);
        self.locked.release_with(word);
        old
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
