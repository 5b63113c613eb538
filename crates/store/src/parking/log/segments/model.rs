//! Model check of the segments' counts with the production slot (`--cfg loom`): a segment is free exactly once,
//! never while a reader has it pinned, and whoever writes it anew comes after all who read it.

use super::{SegmentIndex, Segments};
use crate::slot::{Content, Parked, Slot};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const SEGMENT_LEN: u32 = 4096;
const RECORD_LEN: u32 = 100;

/// All schedules with up to three forced switches, as for the slot.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(model);
}

/// Two segments, each with one cell for its bytes; loom reports any access to one that races with a write.
struct World {
    segments: Segments,
    bytes: [UnsafeCell<u64>; 2],
    slot: Slot,
}

impl World {
    /// A slot with a record of contents 10 in segment 0, which is the head's if `is_open`.
    fn new(segment_count: u32, is_open: bool) -> Arc<World> {
        let segments = Segments::new(SEGMENT_LEN, segment_count);
        let world = World { segments, bytes: [UnsafeCell::new(0), UnsafeCell::new(0)], slot: Slot::new() };
        let (head, _) = world.segments.open(0).unwrap();
        world.segments.add_record(head, RECORD_LEN);
        world.write(head, 10);
        world.slot.lock().publish(Content::Parked(world.place(head)));
        if !is_open {
            world.segments.close(head);
        }
        Arc::new(world)
    }

    fn place(&self, segment: SegmentIndex) -> Parked {
        Parked { location: self.segments.start(segment) / 8, len_bytes: 76, priority: 0 }
    }

    fn segment_of(&self, parked: Parked) -> SegmentIndex {
        self.segments.containing(parked.location * 8)
    }

    fn write(&self, segment: SegmentIndex, value: u64) {
        // SAFETY: loom hands out a valid pointer and fails the model if the access races.
        self.bytes[segment.0 as usize].with_mut(|p| unsafe { *p = value });
    }

    fn read(&self, segment: SegmentIndex) -> u64 {
        // SAFETY: as in `write`.
        self.bytes[segment.0 as usize].with(|p| unsafe { *p })
    }

    /// What read-back does: pin under the slot's lock, read without it.
    fn read_back(&self) -> Option<u64> {
        let guard = self.slot.lock();
        let Content::Parked(parked) = guard.content() else { return None };
        let segment = self.segment_of(parked);
        self.segments.pin(segment);
        drop(guard);
        let value = self.read(segment);
        self.segments.unpin(segment);
        Some(value)
    }

    /// What a discard does.
    fn discard(&self) {
        let old = self.slot.lock().clear();
        if let Content::Parked(parked) = old {
            self.segments.drop_record(self.segment_of(parked), RECORD_LEN);
        }
    }

    /// Writes to a segment anew, if one is free.
    fn reuse(&self) -> Option<SegmentIndex> {
        let (segment, _) = self.segments.open(0)?;
        self.write(segment, 666);
        Some(segment)
    }
}

#[test]
fn a_segment_is_free_once_and_not_while_it_is_read() {
    check(|| {
        let world = World::new(1, true);
        let threads = [World::discard as fn(&World), |world| {
            let read = world.read_back();
            assert!(read.is_none_or(|value| value == 10), "{read:?}");
        }];
        let threads = threads.map(|run| {
            let world = world.clone();
            thread::spawn(move || run(&world))
        });
        // The head leaves, and the next one comes.
        world.segments.close(SegmentIndex(0));
        let early = world.reuse();
        threads.into_iter().for_each(|t| t.join().unwrap());
        if early.is_none() {
            assert_eq!(world.segments.free_count(), 1);
            assert_eq!(world.reuse(), Some(SegmentIndex(0)));
        }
        assert_eq!((world.segments.free_count(), world.segments.live_bytes(SegmentIndex(0))), (0, 0));
    });
}

#[test]
fn the_cleaner_moves_a_record_beside_a_reader_and_a_writer() {
    check(|| {
        let world = World::new(2, false);
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                let read = world.read_back();
                assert!(read.is_none_or(|value| value == 10), "{read:?}");
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.discard())
        };
        let victim = SegmentIndex(0);
        if world.segments.try_pin(victim) {
            let (head, _) = world.segments.open(0).unwrap();
            // The first to be free may have been the victim itself, but for the pin.
            assert_ne!(head, victim);
            world.write(head, world.read(victim));
            world.segments.add_record(head, RECORD_LEN);
            let (from, to) = (world.place(victim), world.place(head));
            let moved = world.slot.lock().move_parked(from, to);
            world.segments.drop_record(if moved { victim } else { head }, RECORD_LEN);
            world.segments.unpin(victim);
            world.segments.close(head);
        }
        let early = world.reuse();
        reader.join().unwrap();
        writer.join().unwrap();
        let late = world.reuse();
        assert!(early.is_none() || early != late);
        // Nothing is live: every segment is free or was taken above, none twice.
        let taken = u32::from(early.is_some()) + u32::from(late.is_some());
        assert_eq!(world.segments.free_count() + taken, 2);
    });
}

#[test]
fn a_discard_of_a_freed_segment_never_meets_its_next_head() {
    check(|| {
        let world = World::new(1, false);
        let upkeep = {
            let world = world.clone();
            thread::spawn(move || {
                if let Some(segment) = world.segments.take_freed() {
                    // The medium forgets it.
                    world.write(segment, 0);
                    world.segments.discarded(segment);
                }
            })
        };
        world.discard();
        let early = world.reuse();
        upkeep.join().unwrap();
        assert!(early.is_some() || world.reuse().is_some());
        assert_eq!(world.segments.free_count(), 0);
    });
}
