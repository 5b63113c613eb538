//! Finding the objects of a pool in the memory of a process that has died, at any moment.
//!
//! The owners know the handles of their objects. Everything else follows from these and the links `prev` of the frames:
//! a frame of a class gets its link before an object is in it, and keeps it as long as it is in the chain; so the way back
//! from an object's frame is the part of the chain before it. An object that continues in another frame needs the link
//! `next` of its first frame too, which is as old. Places without an owner are holes, whatever they contain: an object that
//! was about to be stored or has just been freed. Frames behind the last object, and frames of no chain, are free.
//!
//! The memory may contain anything. An object that contradicts others is refused; the first one counts. Each frame is
//! visited once, so the work is bounded.

use crate::arena::Arena;
use crate::class::{Class, word};
use crate::error::SourceError;
use crate::frame::{FRAME_LEN, FrameId, Handle, Pos};
use crate::owner::Owner;
use crate::pool::Pool;
use crate::size_class::{CLASS_COUNT, OWNER_LEN, stride};
use crate::source::Purpose;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The use of a frame, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Unknown,
    Slots,
    /// On the way back from an object of the class.
    Visited {
        class: u16,
    },
    /// The frame of this number in the chain of the class.
    Chain {
        class: u16,
        number: u32,
    },
    /// Links that cannot be: nothing in the frame counts.
    Bad,
}

/// The known parts of a class.
#[derive(Debug, Default)]
struct Found {
    chain: Vec<FrameId>,
    /// A bit for each place that is an object.
    live: Vec<u64>,
    /// One more than the number of the last object's place.
    end: u64,
}

/// The objects found so far.
pub struct Recovery {
    arena: Arc<Arena>,
    uses: Vec<Use>,
    /// One more than the highest number of a frame in use.
    end: u32,
    classes: Vec<Found>,
    /// The frames of one way back.
    way: Vec<FrameId>,
}

impl Recovery {
    /// Begins with an arena in the memory of a process that has died, which nobody uses.
    pub fn new(arena: Arc<Arena>) -> Self {
        let classes = (0..CLASS_COUNT).map(|_| Found::default()).collect();
        Recovery { arena, uses: Vec::new(), end: 0, classes, way: Vec::new() }
    }

    fn use_of(&mut self, frame: FrameId) -> &mut Use {
        let at = frame.0 as usize;
        if at >= self.uses.len() {
            self.uses.resize(at + 1, Use::Unknown);
        }
        &mut self.uses[at]
    }

    /// The frame of a table of slots, by its number. `None` if there is none, or it has another use.
    pub fn claim_slots(&mut self, number: u32) -> Option<FrameId> {
        let frame = FrameId(number);
        if !self.arena.contains(frame) || *self.use_of(frame) != Use::Unknown {
            return None;
        }
        *self.use_of(frame) = Use::Slots;
        self.end = self.end.max(number + 1);
        Some(frame)
    }

    /// Notes an object of `len_bytes` bytes. Returns false if it is none of `owner`, or contradicts those found before.
    pub fn claim_object(&mut self, handle: Handle, len_bytes: usize, owner: Owner) -> bool {
        let (class, pos) = (handle.class_index(), handle.pos());
        if class >= CLASS_COUNT || pos.is_nil() || !self.arena.contains(pos.frame()) {
            return false;
        }
        let stride = stride(class);
        if len_bytes + OWNER_LEN > stride || handle.to_bits() >> Handle::BITS != 0 {
            return false;
        }
        // Before the frame is known to belong to the class: the word lies in the arena in any case.
        if word(&self.arena, pos).load(Relaxed) != owner.to_bits() {
            return false;
        }
        self.claim_place(class as u16, stride, pos)
    }

    fn claim_place(&mut self, class: u16, stride: usize, pos: Pos) -> bool {
        let Some(number) = self.place(class, pos.frame()) else { return false };
        let at = u64::from(number) * FRAME_LEN as u64 + pos.offset() as u64;
        if !at.is_multiple_of(stride as u64) {
            return false;
        }
        if pos.offset() + stride > FRAME_LEN {
            let next = self.arena.next(pos.frame());
            if self.place(class, next) != Some(number + 1) {
                return false;
            }
        }
        let found = &mut self.classes[usize::from(class)];
        let place = at / stride as u64;
        let (element, bit) = ((place / 64) as usize, 1 << (place % 64));
        if element >= found.live.len() {
            found.live.resize(element + 1, 0);
        }
        let is_new = found.live[element] & bit == 0;
        found.live[element] |= bit;
        found.end = found.end.max(place + 1);
        is_new
    }

    /// The number of a frame in the chain of a class, which the way back from it shows. `None` if it is none of the class.
    fn place(&mut self, class: u16, frame: FrameId) -> Option<u32> {
        let mut at = frame;
        // Where the way meets the known part of the chain.
        let number = loop {
            if at.is_nil() {
                break Some(0);
            }
            if !self.arena.contains(at) {
                break None;
            }
            match *self.use_of(at) {
                Use::Unknown => {
                    *self.use_of(at) = Use::Visited { class };
                    self.way.push(at);
                    at = self.arena.prev(at);
                }
                Use::Chain { class: of, number } if of == class => break Some(number + 1),
                // Visited: the way leads back to itself.
                Use::Chain { .. } | Use::Visited { .. } | Use::Slots | Use::Bad => break None,
            }
        };
        if self.way.is_empty() {
            return number?.checked_sub(1).filter(|_| !frame.is_nil());
        }
        let chain = &mut self.classes[usize::from(class)].chain;
        // Otherwise there is another frame already at the place of the way's first frame.
        let is_next = number == Some(chain.len() as u32);
        for at in self.way.drain(..).rev() {
            let number = chain.len() as u32;
            self.uses[at.0 as usize] = if is_next { Use::Chain { class, number } } else { Use::Bad };
            if is_next {
                chain.push(at);
            }
        }
        is_next.then(|| chain.len() as u32 - 1)
    }

    /// The pool of the objects found, in the arena, in which all other frames are free then. Returns all memory that
    /// nothing uses to the kernel.
    pub fn finish(mut self) -> Result<Pool, SourceError> {
        for (index, found) in self.classes.iter_mut().enumerate() {
            let frames = (found.end * stride(index) as u64).div_ceil(FRAME_LEN as u64) as usize;
            for unused in found.chain.drain(frames..) {
                self.uses[unused.0 as usize] = Use::Unknown;
            }
            self.end = found.chain.iter().map(|frame| frame.0 + 1).fold(self.end, u32::max);
        }
        let Recovery { arena, uses, end, classes, .. } = self;
        let purpose = |frame: FrameId| match uses.get(frame.0 as usize) {
            Some(Use::Slots) => Some(Purpose::Slots),
            Some(Use::Chain { .. }) => Some(Purpose::Objects),
            _ => None,
        };
        // SAFETY: the objects found are in frames of chains, and the slots in their frames. Both are owned by the pool, and
        // by the table of slots, as before.
        unsafe { arena.take_used(end, purpose) }?;
        let recovered = |(index, found): (usize, Found)| match found.end.checked_sub(1) {
            None => Class::new(stride(index)),
            Some(last) => {
                let is_live = |place: u64| found.live[(place / 64) as usize] >> (place % 64) & 1 == 1;
                Class::recovered(stride(index), &arena, &found.chain, last, is_live)
            }
        };
        let classes: Vec<_> = classes.into_iter().enumerate().map(recovered).collect();
        Ok(Pool::of(classes.into_iter(), arena))
    }
}
