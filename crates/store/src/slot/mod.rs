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
mod word;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use lock::Locked;
use word::{State, Word};

/// The place of one page.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    word: AtomicU32,
    /// Advances whenever the contents change. The upper 8 bits are kept free for an age.
    generation: AtomicU32,
    /// Fill word, or pool handle.
    payload: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 16 && align_of::<Slot>() == 8);

const GENERATION_MASK: u32 = (1 << 24) - 1;

/// How often a slot's contents have changed, modulo 2^24.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u32);

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

    /// Any of the four transitions above, by the contents to come.
    pub fn publish(self, content: Content) -> Content {
        match content {
            Content::Empty => self.clear(),
            Content::SameFilled(fill_word) => self.fill(fill_word),
            Content::Folded { handle, len_bytes, priority } => self.fold(handle, len_bytes, priority),
            Content::Raw { handle } => self.keep_raw(handle),
        }
    }

    /// Transition: folded or raw stays what it is, its object having moved from `old` to `new`.
    ///
    /// Returns whether the slot held `old`; if not, nothing changes. The generation stays, because the
    /// contents do.
    pub fn relocate(self, old: u64, new: u64) -> bool {
        let holds_old = match self.content() {
            Content::Folded { handle, .. } | Content::Raw { handle } => handle == old,
            Content::Empty | Content::SameFilled(_) => false,
        };
        if holds_old {
            self.slot.payload.store(new, Ordering::Relaxed);
        }
        holds_old
    }

    /// The one place where contents change.
    fn exchange(self, word: Word, payload: u64) -> Content {
        let old = self.content();
        self.slot.payload.store(payload, Ordering::Relaxed);
        let generation = self.slot.generation.load(Ordering::Relaxed);
        let next = (generation & !GENERATION_MASK) | (generation.wrapping_add(1) & GENERATION_MASK);
        self.slot.generation.store(next, Ordering::Relaxed);
        self.locked.release_with(word);
        old
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn all_contents() -> Vec<Content> {
        vec![
            Content::Empty,
            Content::SameFilled(u64::MAX),
            Content::Folded { handle: (1 << 50) - 1, len_bytes: 1, priority: 0 },
            Content::Folded { handle: 7, len_bytes: 4095, priority: 3 },
            Content::Raw { handle: 9 },
        ]
    }

    #[test]
    fn publish_every_transition_returns_the_old_and_shows_the_new() {
        for from in all_contents() {
            for to in all_contents() {
                let slot = Slot::new();
                assert_eq!(slot.lock().publish(from), Content::Empty);
                let before = slot.lock().generation();
                assert_eq!(slot.lock().publish(to), from);
                assert_eq!(slot.lock().content(), to);
                assert_ne!(slot.lock().generation(), before);
                assert_eq!(slot.is_empty(), to == Content::Empty);
            }
        }
    }

    #[test]
    fn relocate_only_what_is_held_and_keeps_the_generation() {
        for content in all_contents() {
            let slot = Slot::new();
            slot.lock().publish(content);
            let before = slot.lock().generation();
            assert!(!slot.lock().relocate(12345, 1));
            assert_eq!(slot.lock().content(), content);
            let moved = match content {
                Content::Folded { handle, len_bytes, priority } => {
                    assert!(slot.lock().relocate(handle, 77));
                    Content::Folded { handle: 77, len_bytes, priority }
                }
                Content::Raw { handle } => {
                    assert!(slot.lock().relocate(handle, 77));
                    Content::Raw { handle: 77 }
                }
                other => other,
            };
            assert_eq!(slot.lock().content(), moved);
            assert_eq!(slot.lock().generation(), before);
        }
    }

    #[test]
    fn generation_wraps_without_touching_the_bits_above() {
        let slot = Slot::new();
        slot.generation.store(0xab00_0000 | GENERATION_MASK, Ordering::Relaxed);
        slot.lock().fill(1);
        assert_eq!(slot.generation.load(Ordering::Relaxed), 0xab00_0000);
    }

    #[test]
    fn try_lock_held_is_refused_and_lock_waits_for_release() {
        let slot = Slot::new();
        let guard = slot.lock();
        assert!(slot.try_lock().is_none());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| slot.lock().fill(2));
            // The waiter announces itself in the word before it sleeps.
            while !Word(slot.word.load(Ordering::Relaxed)).is_awaited() {
                std::thread::yield_now();
            }
            assert_eq!(guard.fill(1), Content::Empty);
            assert_eq!(waiter.join().unwrap(), Content::SameFilled(1));
        });
        assert_eq!(slot.word.load(Ordering::Relaxed), Word::new(State::SameFilled).0);
    }

    #[test]
    fn lock_excludes_many_threads() {
        let slot = Slot::new();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..20_000 {
                        let guard = slot.lock();
                        let next = match guard.content() {
                            Content::SameFilled(n) => n + 1,
                            _ => 1,
                        };
                        guard.fill(next);
                    }
                });
            }
        });
        assert_eq!(slot.lock().content(), Content::SameFilled(80_000));
    }
}
