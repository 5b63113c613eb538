//! Model check of the segments' reference counts with the production slot (`--cfg loom`): a segment becomes free
//! exactly once, never while a reader has it pinned, and its next writer is ordered after all its readers.

use super::{SegmentIndex, Segments};
use crate::slot::{BackingLocation, Content, Intents, Slot};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// No slot outlives the process here.
const NONE: &Intents = &Intents::NONE;

const SEGMENT_LEN: u32 = 4096;
const RECORD_LEN: u32 = 100;

/// Checks all schedules with up to three preemptions, as for the slot.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(model);
}

/// Two segments, each with one cell for its bytes; loom reports any access to one that races with a write.
struct Model {
    segments: Segments,
    bytes: [UnsafeCell<u64>; 2],
    slot: Slot,
}

impl Model {
    /// Creates a slot with a record of value 10 in segment 0, which the head has open if `is_open`.
    fn new(segment_count: u32, is_open: bool) -> Arc<Model> {
        let segments = Segments::new(SEGMENT_LEN, segment_count);
        let model = Model { segments, bytes: [UnsafeCell::new(0), UnsafeCell::new(0)], slot: Slot::new() };
        let (head, _) = model.segments.open(0).unwrap();
        model.segments.add_record(head, RECORD_LEN);
        model.write(head, 10);
        model.slot.lock().publish(Content::WrittenBack(model.place(head)), NONE);
        if !is_open {
            model.segments.close(head);
        }
        Arc::new(model)
    }

    fn place(&self, segment: SegmentIndex) -> BackingLocation {
        BackingLocation { location: self.segments.start(segment) / 8, len_bytes: 76, priority: 0 }
    }

    fn segment_of(&self, written_back: BackingLocation) -> SegmentIndex {
        self.segments.containing(written_back.location * 8)
    }

    fn write(&self, segment: SegmentIndex, value: u64) {
        // SAFETY: loom hands out a valid pointer and fails the model if the access races.
        self.bytes[segment.0 as usize].with_mut(|p| unsafe { *p = value });
    }

    fn read(&self, segment: SegmentIndex) -> u64 {
        // SAFETY: as in `write`.
        self.bytes[segment.0 as usize].with(|p| unsafe { *p })
    }

    /// Reads as read-back does: pins under the slot's lock, and reads without it.
    fn read_back(&self) -> Option<u64> {
        let guard = self.slot.lock();
        let Content::WrittenBack(written_back) = guard.content() else { return None };
        let segment = self.segment_of(written_back);
        self.segments.pin(segment);
        drop(guard);
        let value = self.read(segment);
        self.segments.unpin(segment);
        Some(value)
    }

    /// Empties the slot, as a discard does.
    fn discard(&self) {
        let old = self.slot.lock().publish(Content::Empty, NONE);
        if let Content::WrittenBack(written_back) = old {
            self.segments.drop_record(self.segment_of(written_back), RECORD_LEN);
        }
    }

    /// Opens and writes a free segment, if there is one.
    fn reuse(&self) -> Option<SegmentIndex> {
        let (segment, _) = self.segments.open(0)?;
        self.write(segment, 666);
        Some(segment)
    }
}

#[test]
fn a_segment_is_free_once_and_not_while_it_is_read() {
    check(|| {
        let model = Model::new(1, true);
        let threads = [Model::discard as fn(&Model), |model| {
            let read = model.read_back();
            assert!(read.is_none_or(|value| value == 10), "{read:?}");
        }];
        let threads = threads.map(|run| {
            let model = model.clone();
            thread::spawn(move || run(&model))
        });
        // Close the segment and try to open the next one.
        model.segments.close(SegmentIndex(0));
        let early = model.reuse();
        threads.into_iter().for_each(|t| t.join().unwrap());
        if early.is_none() {
            assert_eq!(model.segments.free_count(), 1);
            assert_eq!(model.reuse(), Some(SegmentIndex(0)));
        }
        assert_eq!((model.segments.free_count(), model.segments.live_bytes(SegmentIndex(0))), (0, 0));
    });
}

#[test]
fn the_cleaner_moves_a_record_beside_a_reader_and_a_writer() {
    check(|| {
        let model = Model::new(2, false);
        let reader = {
            let model = model.clone();
            thread::spawn(move || {
                let read = model.read_back();
                assert!(read.is_none_or(|value| value == 10), "{read:?}");
            })
        };
        let writer = {
            let model = model.clone();
            thread::spawn(move || model.discard())
        };
        let victim = SegmentIndex(0);
        if model.segments.try_pin(victim) {
            let (head, _) = model.segments.open(0).unwrap();
            // The free segment is never the victim, because of the pin.
            assert_ne!(head, victim);
            model.write(head, model.read(victim));
            model.segments.add_record(head, RECORD_LEN);
            let (from, to) = (model.place(victim), model.place(head));
            let moved = model.slot.lock().move_written_back(from, to, NONE);
            model.segments.drop_record(if moved { victim } else { head }, RECORD_LEN);
            model.segments.unpin(victim);
            model.segments.close(head);
        }
        let early = model.reuse();
        reader.join().unwrap();
        writer.join().unwrap();
        let late = model.reuse();
        assert!(early.is_none() || early != late);
        // No record is live: each segment is free or was opened above, none twice.
        let taken = u32::from(early.is_some()) + u32::from(late.is_some());
        assert_eq!(model.segments.free_count() + taken, 2);
    });
}

#[test]
fn a_discard_of_a_freed_segment_never_races_with_its_next_head() {
    check(|| {
        let model = Model::new(1, false);
        let maintenance = {
            let model = model.clone();
            thread::spawn(move || {
                if let Some(segment) = model.segments.take_freed() {
                    // The discard on the medium.
                    model.write(segment.index, 0);
                }
            })
        };
        model.discard();
        // The segment is free, discarded or not.
        assert!(model.reuse().is_some());
        maintenance.join().unwrap();
        assert_eq!(model.segments.free_count(), 0);
    });
}
