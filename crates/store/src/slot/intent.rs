//! Changes of slots that outlive their process.
//!
//! The contents of a slot are a word, a generation and a payload: three stores. If the process dies between them, and the
//! slot is in memory that outlives it, the next process finds the slot locked and a mixture. So the new contents are noted
//! before the first of these stores, and the note is cleared after the last of them, before the slot is unlocked. The next
//! process completes all noted changes, whether they have begun or not. The kernel takes the stores of a dead process in the
//! order of its instructions; releases keep the compiler from changing that order.
//!
//! An object that is overwritten in its place is noted with its new bytes (`len_bytes`), of which there is one copy: its
//! user locks it.
//!
//! A store without such memory has no notes, and its slots are changed as before.

use super::word::Word;
use super::{GENERATION_MASK, Slot};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A note of the contents that a slot gets.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Intent {
    /// Where the slot lies, in bytes from the first frame, plus 1; 0 if nothing is noted. Stored last.
    slot: AtomicU64,
    payload: AtomicU64,
    word: AtomicU32,
    generation: AtomicU32,
    /// Length of the bytes that the object of the payload gets; 0 if it has them already.
    len_bytes: AtomicU32,
    /// Whether a thread uses this note.
    is_taken: AtomicBool,
}

/// The notes of a store, if it has any.
#[derive(Debug, Clone, Copy)]
pub struct Intents {
    notes: Option<NonNull<[Intent]>>,
    /// The address of the first frame.
    base: usize,
}

// SAFETY: the notes are atomics, in memory that lives as long as this value is used (`Intents::in_memory`).
unsafe impl Send for Intents {}
// SAFETY: as above.
unsafe impl Sync for Intents {}

/// A noted change, or none in a store without notes. It is over when this is dropped.
#[derive(Debug)]
pub struct Noted<'a>(Option<&'a Intent>);

/// A change that a dead process has noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unfinished {
    /// Where the slot lies, in bytes from the first frame.
    pub slot: u64,
    /// The payload: the handle of an object that gets `len_bytes` noted bytes, unless these are 0.
    pub payload: u64,
    /// See `payload`.
    pub len_bytes: u32,
    word: u32,
    generation: u32,
}

impl Intents {
    /// Those of a store whose slots do not outlive the process.
    pub const NONE: Intents = Intents { notes: None, base: 0 };

    /// The notes in a range of memory, for slots that lie behind `base`.
    ///
    /// # Safety
    /// The notes are zeroes or were notes before, and live as long as the value and its copies are used.
    pub unsafe fn in_memory(notes: NonNull<[Intent]>, base: usize) -> Self {
        Intents { notes: Some(notes), base }
    }

    fn notes(&self) -> &[Intent] {
        // SAFETY: they live as long as this value is used, and all their fields are atomics.
        self.notes.map_or(&[], |notes| unsafe { notes.as_ref() })
    }

    /// Notes the contents that a locked slot gets.
    #[inline]
    pub(super) fn note(
        &self,
        slot: &Slot,
        word: Word,
        generation: u32,
        payload: u64,
        len_bytes: u32,
    ) -> Noted<'_> {
        let notes = self.notes();
        if notes.is_empty() {
            return Noted(None);
        }
        let at = (std::ptr::from_ref(slot).addr() - self.base) as u64;
        // Threads change different slots as a rule, and a thread holds one note for some stores only.
        let mut next = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % notes.len();
        let note = loop {
            let note = &notes[next];
            if !note.is_taken.swap(true, Ordering::Acquire) {
                break note;
            }
            next = (next + 1) % notes.len();
        };
        note.payload.store(payload, Ordering::Relaxed);
        note.word.store(word.0, Ordering::Relaxed);
        note.generation.store(generation, Ordering::Relaxed);
        note.len_bytes.store(len_bytes, Ordering::Relaxed);
        note.slot.store(at + 1, Ordering::Release);
        Noted(Some(note))
    }

    /// The changes that a dead process has noted, and forgets who used the notes.
    pub fn unfinished(&self) -> Vec<Unfinished> {
        let read = |note: &Intent| {
            note.is_taken.store(false, Ordering::Relaxed);
            let slot = note.slot.load(Ordering::Relaxed).checked_sub(1)?;
            Some(Unfinished {
                slot,
                payload: note.payload.load(Ordering::Relaxed),
                len_bytes: note.len_bytes.load(Ordering::Relaxed),
                word: note.word.load(Ordering::Relaxed),
                generation: note.generation.load(Ordering::Relaxed),
            })
        };
        self.notes().iter().filter_map(read).collect()
    }

    /// Clears all notes, after [`Unfinished::complete`].
    pub fn clear(&self) {
        self.notes().iter().for_each(|note| note.slot.store(0, Ordering::Release));
    }
}

impl Noted<'_> {
    /// Whether the slot outlives the process.
    pub(super) fn is_shared(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Noted<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(note) = self.0 {
            note.slot.store(0, Ordering::Release);
            note.is_taken.store(false, Ordering::Release);
        }
    }
}

impl Unfinished {
    /// Gives the slot the noted contents. Can be repeated.
    pub fn complete(&self, slot: &Slot) {
        slot.payload.store(self.payload, super::Ordering::Relaxed);
        let times = slot.generation.load(super::Ordering::Relaxed) & !GENERATION_MASK;
        slot.generation.store(times | self.generation & GENERATION_MASK, super::Ordering::Relaxed);
        slot.word.store(Word(self.word).unlocked().0, super::Ordering::Release);
    }
}
