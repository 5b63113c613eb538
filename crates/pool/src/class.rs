//! One size class: a chain of frames packed with objects of one stride.
//!
//! Objects fill the chain from its front without gaps and may straddle two neighbouring frames. An object freed in
//! the middle becomes a hole, in a doubly linked list whose links lie in the holes; an object freed at the end
//! shortens the chain. [`Class::move_last`] moves the last object into a hole.
//!
//! The first word of each place is the owner word of an object (whose kind is never 0), or a hole's link to the next
//! hole shifted left over kind 0.

use crate::arena::Arena;
use crate::error::SourceError;
use crate::frame::{FRAME_LEN, Frame, FrameId, Frames, Pos};
use crate::owner::Owner;
use crate::source::{FrameSource, Purpose, Take};
use std::sync::atomic::{AtomicU64, Ordering};

/// The chain and the hole list of a class; guarded by the class's lock.
#[derive(Debug)]
pub(crate) struct Class {
    stride: usize,
    tail: FrameId,
    /// Bytes used of the tail frame, 1 to [`FRAME_LEN`]; meaningless without a tail.
    tail_end: usize,
    frames: u64,
    live: u64,
    holes: u64,
    first_hole: Pos,
}

/// A class could not grow by the `frames` frames that it needs.
pub(crate) struct GrowError {
    pub(crate) frames: usize,
    /// The reason; `None` if too few are ready.
    pub(crate) source: Option<SourceError>,
}

/// The result of moving the last object into a hole.
pub(crate) enum MoveResult {
    /// The object was moved: there is one hole fewer.
    Moved,
    /// There is no object, or no hole.
    NothingToMove,
    /// The last object cannot be moved now: it is being written, or its owner refused.
    Busy,
}

impl Class {
    pub(crate) fn new(stride: usize) -> Self {
        Class { stride, tail: FrameId::NIL, tail_end: 0, frames: 0, live: 0, holes: 0, first_hole: Pos::NIL }
    }

    /// A class whose objects are known, in an arena in which nothing else uses their frames: `chain` are its frames in
    /// their order, and `is_live` says whether the place of a number is an object. The last place, of number `last`, is one.
    /// It needs all of the frames. All other places become holes.
    ///
    /// Writes to holes and links only, so that it can be repeated if the process dies.
    pub(crate) fn recovered(
        stride: usize,
        arena: &Arena,
        chain: &[FrameId],
        last: u64,
        is_live: impl Fn(u64) -> bool,
    ) -> Self {
        let mut class = Class::new(stride);
        for pair in chain.windows(2) {
            arena.set_next(pair[0], pair[1]);
        }
        let Some(tail) = chain.last() else { return class };
        arena.set_next(*tail, FrameId::NIL);
        class.tail = *tail;
        class.tail_end = (((last + 1) * stride as u64 - 1) % FRAME_LEN as u64) as usize + 1;
        class.frames = chain.len() as u64;
        // Holes are used from the front.
        for place in (0..=last).rev() {
            match is_live(place) {
                true => class.live += 1,
                false => {
                    let at = place * stride as u64;
                    let (frame, offset) = (at / FRAME_LEN as u64, at % FRAME_LEN as u64);
                    class.link_hole(arena, Pos::new(chain[frame as usize], offset as usize));
                }
            }
        }
        class
    }

    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    pub(crate) fn holes(&self) -> u64 {
        self.holes
    }

    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Allocates a place for a new object, marked busy. Frames come from `backed` first, then from `source`.
    pub(crate) fn allocate(
        &mut self,
        source: &dyn FrameSource,
        backed: &mut Frames,
    ) -> Result<Pos, GrowError> {
        let arena = source.arena();
        let pos = if self.first_hole.is_nil() {
            self.grow(source, backed)?
        } else {
            let pos = self.first_hole;
            self.unlink_hole(arena, pos);
            pos
        };
        set_word(arena, pos, Owner::BUSY.to_bits());
        self.live += 1;
        Ok(pos)
    }

    /// Makes an object's place a hole. Call [`Class::trim`] afterwards.
    pub(crate) fn release(&mut self, arena: &Arena, pos: Pos) {
        self.live -= 1;
        self.link_hole(arena, pos);
    }

    /// Removes holes from the end of the chain and releases the frames that become empty. Returns their number.
    pub(crate) fn trim(&mut self, source: &dyn FrameSource) -> u64 {
        let arena = source.arena();
        let before = self.frames;
        while let Some(last) = self.last(arena) {
            if !is_hole(word(arena, last).load(Ordering::Relaxed)) {
                break;
            }
            self.unlink_hole(arena, last);
            self.cut(source, last);
        }
        before - self.frames
    }

    /// Moves the last object into a hole, if its owner permits. Call [`Class::trim`] afterwards.
    ///
    /// `exchange(owner, old, new)` is called with the bytes already copied.
    pub(crate) fn move_last(
        &mut self,
        arena: &Arena,
        exchange: &mut dyn FnMut(Owner, Pos, Pos) -> bool,
    ) -> MoveResult {
        let (Some(old), new) = (self.last(arena), self.first_hole) else { return MoveResult::NothingToMove };
        if new.is_nil() {
            return MoveResult::NothingToMove;
        }
        // Acquire pairs with the release in `Pool::try_put_from`: an owner word that is not "busy" means that
        // the object's bytes are written.
        let owner = Owner::from_bits(word(arena, old).load(Ordering::Acquire));
        if is_hole(owner.to_bits()) {
            return MoveResult::NothingToMove;
        }
        if owner == Owner::BUSY {
            return MoveResult::Busy;
        }
        self.unlink_hole(arena, new);
        copy_object(arena, old, new, self.stride);
        if !exchange(owner, old, new) {
            self.link_hole(arena, new);
            return MoveResult::Busy;
        }
        self.link_hole(arena, old);
        MoveResult::Moved
    }

    /// Allocates the place behind the last object, with the frames that it needs.
    fn grow(&mut self, source: &dyn FrameSource, backed: &mut Frames) -> Result<Pos, GrowError> {
        let fresh_start = self.tail.is_nil() || self.tail_end == FRAME_LEN;
        let start = if fresh_start { 0 } else { self.tail_end };
        let end = start + self.stride;
        let need = end.div_ceil(FRAME_LEN) - usize::from(!fresh_start);
        let mut fresh = if need <= backed.len() {
            Frames::none()
        } else {
            match source.try_take(Purpose::Objects, need - backed.len()) {
                Take::Frames(fresh) => fresh,
                Take::NotReady => return Err(GrowError { frames: need, source: None }),
                Take::Failed(e) => return Err(GrowError { frames: need, source: Some(e) }),
            }
        };
        let mut first = if fresh_start { FrameId::NIL } else { self.tail };
        for frame in std::iter::from_fn(|| backed.pop().or_else(|| fresh.pop())).take(need) {
            let id = self.append(source.arena(), frame);
            first = if first.is_nil() { id } else { first };
        }
        self.tail_end = (end - 1) % FRAME_LEN + 1;
        Ok(Pos::new(first, start))
    }

    /// Appends a frame to the chain, which owns it from then on.
    fn append(&mut self, arena: &Arena, frame: Frame) -> FrameId {
        let frame = arena.take_id(frame);
        if !self.tail.is_nil() {
            arena.set_next(self.tail, frame);
        }
        arena.set_prev(frame, self.tail);
        arena.set_next(frame, FrameId::NIL);
        self.tail = frame;
        self.frames += 1;
        frame
    }

    /// The last object or hole of the chain.
    fn last(&self, arena: &Arena) -> Option<Pos> {
        if self.tail.is_nil() {
            None
        } else if self.tail_end >= self.stride {
            Some(Pos::new(self.tail, self.tail_end - self.stride))
        } else {
            Some(Pos::new(arena.prev(self.tail), FRAME_LEN + self.tail_end - self.stride))
        }
    }

    /// Ends the chain where its last place, already unlinked, begins.
    fn cut(&mut self, source: &dyn FrameSource, last: Pos) {
        while self.tail != last.frame() {
            self.drop_tail(source);
        }
        self.tail_end = last.offset();
        if self.tail_end == 0 {
            self.drop_tail(source);
            self.tail_end = FRAME_LEN;
        }
    }

    fn drop_tail(&mut self, source: &dyn FrameSource) {
        let (frame, arena) = (self.tail, source.arena());
        self.tail = arena.prev(frame);
        self.frames -= 1;
        // SAFETY: the chain owned the frame since `append`, which checked its arena, and no longer contains it; no
        // object is left in it.
        let frame = unsafe { Frame::new(frame, arena.number()) };
        source.release(frame, Purpose::Objects);
    }

    fn link_hole(&mut self, arena: &Arena, pos: Pos) {
        let next = self.first_hole;
        set_word(arena, pos, next.to_bits() << Owner::KIND_BITS);
        set_hole_prev(arena, pos, Pos::NIL);
        if !next.is_nil() {
            set_hole_prev(arena, next, pos);
        }
        self.first_hole = pos;
        self.holes += 1;
    }

    fn unlink_hole(&mut self, arena: &Arena, pos: Pos) {
        let next = Pos::from_bits(word(arena, pos).load(Ordering::Relaxed) >> Owner::KIND_BITS);
        let prev = Pos::from_bits(hole_prev(arena, pos).load(Ordering::Relaxed));
        if prev.is_nil() {
            self.first_hole = next;
        } else {
            set_word(arena, prev, next.to_bits() << Owner::KIND_BITS);
        }
        if !next.is_nil() {
            set_hole_prev(arena, next, prev);
        }
        self.holes -= 1;
    }
}

fn is_hole(word: u64) -> bool {
    word & ((1 << Owner::KIND_BITS) - 1) == 0
}

/// The first word of the object or hole at `pos`.
pub(crate) fn word(arena: &Arena, pos: Pos) -> &AtomicU64 {
    // SAFETY: the offset is below FRAME_LEN and a multiple of 8, so the word lies inside the frame.
    let at = unsafe { arena.frame_ptr(pos.frame()).add(pos.offset()) };
    // SAFETY: aligned as said; first words are only accessed as atomics once the place belongs to a
    // class; the memory lives as long as the arena.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn set_word(arena: &Arena, pos: Pos, value: u64) {
    word(arena, pos).store(value, Ordering::Relaxed);
}

/// The second word of the hole at `pos`, which may begin the next frame.
fn hole_prev(arena: &Arena, pos: Pos) -> &AtomicU64 {
    let second = match pos.offset() + 8 {
        FRAME_LEN => Pos::new(arena.next(pos.frame()), 0),
        offset => Pos::new(pos.frame(), offset),
    };
    word(arena, second)
}

fn set_hole_prev(arena: &Arena, pos: Pos, prev: Pos) {
    hole_prev(arena, pos).store(prev.to_bits(), Ordering::Relaxed);
}

/// The one or two pieces of `len` bytes that begin `skip` bytes behind `pos`.
pub(crate) fn pieces(arena: &Arena, pos: Pos, skip: usize, len: usize) -> [(*mut u8, usize); 2] {
    let (mut frame, mut offset) = (pos.frame(), pos.offset() + skip);
    if offset >= FRAME_LEN {
        frame = arena.next(frame);
        offset -= FRAME_LEN;
    }
    let here = len.min(FRAME_LEN - offset);
    // SAFETY: the offset is below FRAME_LEN, so this is inside the frame.
    let first = unsafe { arena.frame_ptr(frame).add(offset) };
    let second = if here < len { arena.frame_ptr(arena.next(frame)) } else { std::ptr::null_mut() };
    [(first, here), (second, len - here)]
}

/// The same as [`pieces`] if there is an object; otherwise arbitrary addresses inside the arena, or none. For
/// prefetch hints, which take no lock. `skip` and `len` are those of an object.
#[inline]
pub(crate) fn likely_pieces(arena: &Arena, pos: Pos, skip: usize, len: usize) -> [(*const u8, usize); 2] {
    const NOTHING: (*const u8, usize) = (std::ptr::null(), 0);
    let frame_at = |frame| arena.contains(frame).then(|| arena.frame_ptr(frame).cast_const());
    let Some(first) = frame_at(pos.frame()) else { return [NOTHING; 2] };
    let (start, end) = (pos.offset() + skip, pos.offset() + skip + len);
    let here = (first.wrapping_add(start), end.min(FRAME_LEN).saturating_sub(start));
    if end <= FRAME_LEN {
        return [here, NOTHING];
    }
    let first_there = start.saturating_sub(FRAME_LEN);
    let there = frame_at(arena.next(pos.frame()))
        .map_or(NOTHING, |next| (next.wrapping_add(first_there), end - FRAME_LEN - first_there));
    [here, there]
}

/// Copies a whole object, owner word included.
fn copy_object(arena: &Arena, from: Pos, to: Pos, stride: usize) {
    let mut bytes = [0u8; crate::OBJECT_LEN_MAX + crate::size_class::OWNER_LEN];
    let bytes = &mut bytes[..stride];
    let mut at = 0;
    for (piece, len) in pieces(arena, from, 0, stride) {
        if len > 0 {
            // SAFETY: the object is live and complete (its owner word says so) and cannot be freed or
            // changed while the class's lock is held; the piece is `len` bytes inside a frame.
            unsafe { std::ptr::copy_nonoverlapping(piece, bytes[at..at + len].as_mut_ptr(), len) };
        }
        at += len;
    }
    at = 0;
    for (piece, len) in pieces(arena, to, 0, stride) {
        if len > 0 {
            // SAFETY: the destination is a hole taken off its list, which no other thread accesses; the piece is
            // `len` bytes inside a frame.
            unsafe { std::ptr::copy_nonoverlapping(bytes[at..at + len].as_ptr(), piece, len) };
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size_class::{OBJECT_LEN_MAX, OWNER_LEN};
    use proptest::prelude::*;

    /// The pieces that have bytes.
    fn filled<P: Copy + Into<*const u8>>(pieces: [(P, usize); 2]) -> Vec<(*const u8, usize)> {
        pieces.iter().filter(|(_, len)| *len > 0).map(|(at, len)| ((*at).into(), *len)).collect()
    }

    #[test]
    fn likely_pieces_of_objects_are_their_pieces() {
        let arena = Arena::new(1 << 20).unwrap();
        let (frame, next) = (FrameId(7), FrameId(3));
        arena.set_next(frame, next);
        for offset in (0..FRAME_LEN).step_by(8) {
            for len in [1, 7, 8, 64, 1000, FRAME_LEN - 8, OBJECT_LEN_MAX] {
                let pos = Pos::new(frame, offset);
                let is = pieces(&arena, pos, OWNER_LEN, len).map(|(at, len)| (at.cast_const(), len));
                assert_eq!(filled(likely_pieces(&arena, pos, OWNER_LEN, len)), filled(is), "{pos:?} {len}");
            }
        }
    }

    proptest! {
        #[test]
        fn likely_pieces_of_no_object_lie_in_the_arena(
            bits: u64,
            frame in 0..300u32,
            next in prop_oneof![Just(u32::MAX), 0..300u32],
            len in 1..=OBJECT_LEN_MAX,
        ) {
            let arena = Arena::new(1 << 20).unwrap();
            let (first, capacity) = (arena.frame_ptr(FrameId(0)).addr(), arena.capacity() as usize);
            if arena.contains(FrameId(frame)) {
                arena.set_next(FrameId(frame), FrameId(next));
            }
            for pos in [Pos::from_bits(bits), Pos::from_bits(u64::from(frame) << 9 | bits & 511)] {
                for (at, len) in filled(likely_pieces(&arena, pos, OWNER_LEN, len)) {
                    prop_assert!(at.addr() >= first && at.addr() + len <= first + capacity * FRAME_LEN);
                }
            }
        }
    }
}
