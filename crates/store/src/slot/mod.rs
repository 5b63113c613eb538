//! The state of one page: 16 bytes with a lock, and the transitions between states.
//!
//! A slot consists of a word (lock, state, length: see `word`), a generation that advances with every change of the
//! contents, and a payload whose meaning depends on the state. All three are accessed under the slot's own lock, two
//! bits of the word on which waiting threads sleep by futex (`lock`). The state changes only through the functions of
//! [`SlotGuard`], one per transition. Each releases the lock and returns the old contents, so exchanging is one step,
//! and no thread frees contents that another thread can still reach through the slot.
//!
//! The slot does not free anything: the caller of a transition frees the old object or location. The holder of a
//! slot's lock takes no other lock.
//!
//! A slot with all bits zero is empty and unlocked, so zeroed memory is a table of
//! empty slots.

mod access_time;
mod intent;
mod lock;
mod snapshot;
mod word;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
pub use access_time::{AccessTime, ticks};
pub use intent::{Intent, Intents, Noted, Unfinished};
use lock::Locked;
pub use snapshot::SlotSnapshot;
pub use word::PRIORITY_MAX;
use word::{Mark, State, Word};

/// The state of one page.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    word: AtomicU32,
    /// Lower 24 bits: the generation, which advances whenever the contents change. Upper 8: the lower half of the
    /// time of the last access, whose upper half is in the word, because neither field has 16 bits to spare.
    generation: AtomicU32,
    /// Fill word, pool handle, or location on the backing.
    payload: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 8);

const GENERATION_BITS: u32 = 24;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

fn written_back_word(written_back: BackingLocation) -> Word {
    Word::new(State::WrittenBack).with_len(written_back.len_bytes).with_priority(written_back.priority)
}

/// How often a slot's contents have changed, modulo 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

impl Generation {
    /// Makes a generation from a number, modulo 2^24.
    pub fn from_bits(bits: u32) -> Self {
        Generation(bits & GENERATION_MASK)
    }

    /// The number, below 2^24, as it is stored in records.
    pub fn to_bits(self) -> u32 {
        self.0
    }
}

/// The contents of a slot. Pool handles are plain numbers here, because the slot does not interpret them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The page was never written, or was discarded; it reads as zeroes.
    Empty,
    /// The page repeats this word.
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
    WrittenBack(BackingLocation),
    /// Lost: a process has died, and left it inconsistent.
    Lost,
}

impl Content {
    /// The contents of a page whose object has `len_bytes` bytes, made by the primary codec: raw if it has 4096.
    pub fn object(handle: u64, len_bytes: usize) -> Self {
        match len_bytes {
            4096 => Content::Raw { handle },
            _ => Content::Folded { handle, len_bytes: len_bytes as u16, priority: 0 },
        }
    }

    /// The pool handle, if there is an object.
    #[inline]
    pub fn handle(self) -> Option<u64> {
        match self {
            Content::Folded { handle, .. } | Content::Raw { handle } => Some(handle),
            Content::Empty | Content::SameFilled(_) | Content::WrittenBack(_) | Content::Lost => None,
        }
    }
}

/// The location of a written-back page on the backing, with its length and codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackingLocation {
    /// The place as the layout encodes it; not interpreted here.
    pub location: u64,
    /// Bytes there, 1 to 4096; 4096 is the page as it is.
    pub len_bytes: u16,
    /// Which of the store's codecs made them, 0 to 3.
    pub priority: u8,
}

/// A locked slot; unlocks on drop.
#[derive(Debug)]
pub struct SlotGuard<'a> {
    slot: &'a Slot,
    locked: Locked<'a>,
}

impl Slot {
    /// Creates an empty slot.
    pub fn new() -> Self {
        Slot { word: AtomicU32::new(0), generation: AtomicU32::new(0), payload: AtomicU64::new(0) }
    }

    /// Locks the slot; sleeps while another thread holds the lock.
    #[inline]
    pub fn lock(&self) -> SlotGuard<'_> {
        SlotGuard { slot: self, locked: Locked::acquire(&self.word) }
    }

    /// Locks the slot if it is not locked.
    #[inline]
    pub fn try_lock(&self) -> Option<SlotGuard<'_>> {
        Some(SlotGuard { slot: self, locked: Locked::try_acquire(&self.word)? })
    }

    /// Reads the state without the lock, for walks over many slots.
    #[inline]
    pub fn snapshot(&self) -> SlotSnapshot {
        SlotSnapshot::new(Word(self.word.load(Ordering::Relaxed)), self.generation.load(Ordering::Relaxed))
    }

    /// Returns the pool handle and the length of the slot's object, for prefetch hints. It takes no lock, so the
    /// handle may be outdated, or may be another state's payload.
    #[inline]
    pub fn object_hint(&self) -> Option<(u64, usize)> {
        let len_bytes = self.snapshot().object_len_bytes();
        (len_bytes > 0).then(|| (self.payload.load(Ordering::Relaxed), len_bytes))
    }

    /// Forgets the threads of a dead process: the lock, and a pass that was about to write the page back. Returns the
    /// contents.
    pub fn recover(&self) -> Content {
        let word = Word(self.word.load(Ordering::Relaxed)).unlocked().without(Mark::UnderWriteback);
        self.word.store(word.0, Ordering::Relaxed);
        self.lock().content()
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
    /// The contents of the slot.
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
            State::WrittenBack => Content::WrittenBack(BackingLocation {
                location: payload,
                len_bytes: word.len_bytes(),
                priority: word.priority(),
            }),
            State::Lost => Content::Lost,
        }
    }

    /// The generation of the contents: while it is the same, so are the contents.
    #[inline]
    pub fn generation(&self) -> Generation {
        Generation(self.slot.generation.load(Ordering::Relaxed) & GENERATION_MASK)
    }

    /// Transition: any state to `content`, with a new generation. Returns the old contents. Writeback does not use it:
    /// its transitions ([`SlotGuard::write_back`], `move_written_back`) keep the generation. Tests publish written-back
    /// contents.
    pub fn publish(self, content: Content, intents: &Intents) -> Content {
        let noted = self.note_publish(content, 0, intents);
        self.publish_noted(content, noted)
    }

    /// Notes in `intents` that the slot gets `content` as [`SlotGuard::publish`] does, and its object `len_bytes` bytes
    /// before, if they are not 0.
    pub fn note_publish<'i>(&self, content: Content, len_bytes: u32, intents: &'i Intents) -> Noted<'i> {
        let (word, payload) = parts(content);
        intents.note(self.slot, self.timed(word), self.next_generation(), payload, len_bytes)
    }

    /// Publishes `content`, which is noted.
    pub fn publish_noted(self, content: Content, noted: Noted<'_>) -> Content {
        let old = self.content();
        let (word, payload) = parts(content);
        let (word, next) = (self.timed(word), self.next_generation());
        self.slot.payload.store(payload, Ordering::Release);
        self.slot.generation.store(next, Ordering::Release);
        self.locked.release_noted(word, noted);
        old
    }

    /// The word of new contents. It has no marks: they described the old contents.
    fn timed(&self, word: Word) -> Word {
        word.with_time_high(self.locked.word().time_high())
    }

    /// The next generation, with the time beside it.
    fn next_generation(&self) -> u32 {
        let generation = self.slot.generation.load(Ordering::Relaxed);
        (generation & !GENERATION_MASK) | (generation.wrapping_add(1) & GENERATION_MASK)
    }

    /// Transition: folded or raw to the same state, after the object was moved from `old` to `new`.
    ///
    /// Returns false, and changes nothing, if the slot does not contain `old`. The contents and so the generation
    /// stay the same.
    pub fn relocate(self, old: u64, new: u64) -> bool {
        let is_old = self.content().handle() == Some(old);
        if is_old {
            // After the copy of the bytes, also in memory that outlives the process.
            self.slot.payload.store(new, Ordering::Release);
        }
        is_old
    }

    /// Transition: a page in memory that is under writeback, unchanged since generation `begun`, to written back.
    ///
    /// Returns the old contents, which the caller frees. Returns `None` if the page is not under writeback or its
    /// generation differs; then the contents stay. The contents of the page and so the generation stay the same.
    pub fn write_back(
        mut self,
        begun: Generation,
        to: BackingLocation,
        intents: &Intents,
    ) -> Option<Content> {
        let old = self.content();
        if !self.is_under_writeback() || self.generation() != begun {
            return None;
        }
        self.end_writeback();
        if !matches!(old, Content::Folded { .. } | Content::Raw { .. }) {
            return None;
        }
        self.replace(written_back_word(to), to.location, intents);
        Some(old)
    }

    /// Transition: written back at `from` to the same page in memory. Returns false, and changes nothing, if the page
    /// is not written back at `from`. The generation stays the same.
    pub fn promote(self, from: BackingLocation, to: Content, intents: &Intents) -> bool {
        let word = match (self.content() == Content::WrittenBack(from), to) {
            (true, Content::Folded { len_bytes, priority, .. }) => {
                Word::new(State::Folded).with_len(len_bytes).with_priority(priority)
            }
            (true, Content::Raw { .. }) => Word::new(State::Raw),
            _ => return false,
        };
        let (Content::Folded { handle, .. } | Content::Raw { handle }) = to else { return false };
        self.replace(word, handle, intents);
        true
    }

    /// Transition: written back at `from` to written back at `to`, after the record was copied. Returns false, and
    /// changes nothing, if the page is not written back at `from`. Generation and marks stay the same.
    pub fn move_written_back(self, from: BackingLocation, to: BackingLocation, intents: &Intents) -> bool {
        let is_there = self.content() == Content::WrittenBack(from);
        if is_there {
            let word = self.copy_marks(written_back_word(to));
            self.replace(word, to.location, intents);
        }
        is_there
    }

    /// Whether the codec of `priority` did not make the page smaller since the page was stored.
    pub fn is_tried(&self, priority: u8) -> bool {
        self.locked.word().is_tried(priority)
    }

    /// Records that the codec of `priority` did not make the page smaller. Any change of the contents clears it;
    /// another form of the same page keeps it. Does nothing if the object has that priority or a higher one.
    pub fn set_tried(&mut self, priority: u8) {
        self.locked.set_word(self.locked.word().with_tried(priority));
    }

    /// Whether the page is marked idle and was not accessed since.
    pub fn is_idle(&self) -> bool {
        self.locked.word().has(Mark::Idle)
    }

    /// Transition: an object in memory to the same page as another object, that of a codec of a higher priority.
    ///
    /// Returns the old contents, which the caller frees. Returns `None`, and changes nothing, if the generation is not
    /// `begun`, the page is not an object of a lower priority than `to`, or is under writeback. The generation and the
    /// accessed mark stay the same; the idle mark is cleared, as in zram.
    pub fn recompress(self, begun: Generation, to: Content, intents: &Intents) -> Option<Content> {
        let old = self.content();
        let Content::Folded { handle, len_bytes, priority } = to else { return None };
        let is_lower = match old {
            Content::Folded { priority: present, .. } => present < priority,
            Content::Raw { .. } => true,
            Content::Empty | Content::SameFilled(_) | Content::WrittenBack(_) | Content::Lost => false,
        };
        if !is_lower || self.generation() != begun || self.is_under_writeback() {
            return None;
        }
        let word = Word::new(State::Folded).with_len(len_bytes).with_priority(priority);
        let word = self.copy_marks(word).without(Mark::Idle);
        self.replace(word, handle, intents);
        Some(old)
    }

    /// Marks the page as under writeback by a pass. Returns false if it is so already, or is not an object in memory.
    pub fn begin_writeback(&mut self) -> bool {
        let word = self.locked.word();
        let is_free = matches!(word.state(), State::Folded | State::Raw) && !word.has(Mark::UnderWriteback);
        if is_free {
            self.locked.set_word(word.with(Mark::UnderWriteback));
        }
        is_free
    }

    /// Clears the mark of [`SlotGuard::begin_writeback`].
    pub fn end_writeback(&mut self) {
        self.locked.set_word(self.locked.word().without(Mark::UnderWriteback));
    }

    /// Whether the page is under writeback.
    pub fn is_under_writeback(&self) -> bool {
        self.locked.word().has(Mark::UnderWriteback)
    }

    /// Records an access: sets its time and the accessed mark, and clears the idle mark. Returns the time of the
    /// previous read since the page was stored or written back, if there was one.
    #[inline]
    pub fn touch(&mut self, now: AccessTime) -> Option<AccessTime> {
        let word = self.locked.word();
        let last = word.has(Mark::Accessed).then(|| self.last_access());
        self.locked.set_word(word.without(Mark::Idle).with(Mark::Accessed));
        self.set_last_access(now);
        last
    }

    /// The time of the last access.
    pub fn last_access(&self) -> AccessTime {
        let low = self.slot.generation.load(Ordering::Relaxed) >> GENERATION_BITS;
        AccessTime::from_halves(self.locked.word().time_high(), low as u8)
    }

    /// Sets the time of the last access.
    #[inline]
    pub fn set_last_access(&mut self, time: AccessTime) {
        let (high, low) = time.halves();
        let generation = self.slot.generation.load(Ordering::Relaxed) & GENERATION_MASK;
        self.slot.generation.store(generation | u32::from(low) << GENERATION_BITS, Ordering::Relaxed);
        self.locked.set_word(self.locked.word().with_time_high(high));
    }

    /// Sets or clears the idle mark.
    pub fn set_idle(&mut self, idle: bool) {
        let word = self.locked.word();
        self.locked.set_word(if idle { word.with(Mark::Idle) } else { word.without(Mark::Idle) });
    }

    /// Clears the accessed mark: the page has used its second chance (clock algorithm).
    pub fn clear_accessed(&mut self) {
        self.locked.set_word(self.locked.word().without(Mark::Accessed));
    }

    /// Adds the slot's idle and accessed marks to `word`.
    fn copy_marks(&self, word: Word) -> Word {
        let copy = |mark, word: Word| if self.locked.word().has(mark) { word.with(mark) } else { word };
        copy(Mark::Idle, copy(Mark::Accessed, word))
    }

    /// Replaces word and payload by another form of the same page; the generation and the tried codecs stay the same.
    fn replace(self, word: Word, payload: u64, intents: &Intents) {
        let word = word.with_time_high(self.locked.word().time_high()).with_tried_of(self.locked.word());
        let generation = self.slot.generation.load(Ordering::Relaxed);
        let noted = intents.note(self.slot, word, generation, payload, 0);
        self.slot.payload.store(payload, Ordering::Release);
        self.locked.release_noted(word, noted);
    }
}

/// Word and payload of contents.
fn parts(content: Content) -> (Word, u64) {
    match content {
        Content::Empty => (Word::new(State::Empty), 0),
        Content::SameFilled(fill_word) => (Word::new(State::SameFilled), fill_word),
        Content::Folded { handle, len_bytes, priority } => {
            (Word::new(State::Folded).with_len(len_bytes).with_priority(priority), handle)
        }
        Content::Raw { handle } => (Word::new(State::Raw), handle),
        Content::WrittenBack(to) => (written_back_word(to), to.location),
        Content::Lost => (Word::new(State::Lost), 0),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
