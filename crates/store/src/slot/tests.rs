//! Every transition from every state, marks, access times, and the lock.

use super::*;

/// No slot outlives the process here.
const NONE: &Intents = &Intents::NONE;

fn all_contents() -> Vec<Content> {
    vec![
        Content::Empty,
        Content::SameFilled(u64::MAX),
        Content::Folded { handle: (1 << 50) - 1, len_bytes: 1, priority: 0 },
        Content::Folded { handle: 7, len_bytes: 4095, priority: 3 },
        Content::Raw { handle: 9 },
        Content::WrittenBack(BackingLocation { location: u64::MAX, len_bytes: 4096, priority: 2 }),
    ]
}

#[test]
fn publish_every_transition_returns_the_old_and_shows_the_new() {
    for from in all_contents() {
        for to in all_contents() {
            let slot = Slot::new();
            assert_eq!(slot.lock().publish(from, NONE), Content::Empty);
            let before = slot.lock().generation();
            assert_eq!(slot.lock().publish(to, NONE), from);
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
        slot.lock().publish(content, NONE);
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
    slot.lock().publish(Content::SameFilled(1), NONE);
    assert_eq!(slot.generation.load(Ordering::Relaxed), 0xab00_0000);
}

const HERE: BackingLocation = BackingLocation { location: 5, len_bytes: 99, priority: 1 };
const THERE: BackingLocation = BackingLocation { location: 6, len_bytes: 99, priority: 1 };

#[test]
fn write_back_only_what_is_marked_and_unchanged() {
    let folded = Content::Folded { handle: 7, len_bytes: 99, priority: 1 };
    for content in all_contents() {
        let slot = Slot::new();
        slot.lock().publish(content, NONE);
        let mut guard = slot.lock();
        let (generation, is_object) = (guard.generation(), guard.begin_writeback());
        assert_eq!(is_object, matches!(content, Content::Folded { .. } | Content::Raw { .. }));
        assert!(!guard.begin_writeback());
        drop(guard);
        assert_eq!(slot.lock().write_back(generation, HERE, NONE), is_object.then_some(content));
        assert_eq!(slot.lock().content() == Content::WrittenBack(HERE), is_object);
        assert_eq!(slot.lock().generation(), generation);
        assert!(!slot.lock().is_under_writeback());
    }
    // Rewritten, and marked again: an old request's result is not taken.
    let slot = Slot::new();
    slot.lock().publish(folded, NONE);
    let old = slot.lock().generation();
    assert!(slot.lock().begin_writeback());
    slot.lock().publish(folded, NONE);
    assert!(!slot.lock().is_under_writeback());
    assert!(slot.lock().begin_writeback());
    assert_eq!(slot.lock().write_back(old, HERE, NONE), None);
    assert!(slot.lock().is_under_writeback());
    let new = slot.lock().generation();
    assert_eq!(slot.lock().write_back(new, HERE, NONE), Some(folded));
}

#[test]
fn written_back_pages_move_and_come_back_only_from_where_they_are() {
    let slot = Slot::new();
    let folded = Content::Folded { handle: 7, len_bytes: 99, priority: 1 };
    slot.lock().publish(Content::WrittenBack(HERE), NONE);
    let generation = slot.lock().generation();
    slot.lock().touch(AccessTime::default());
    assert!(!slot.lock().move_written_back(THERE, HERE, NONE));
    assert!(slot.lock().move_written_back(HERE, THERE, NONE));
    assert!(!slot.lock().promote(HERE, folded, NONE));
    assert!(slot.lock().touch(AccessTime::default()).is_some());
    assert!(slot.lock().promote(THERE, folded, NONE));
    assert_eq!(slot.lock().content(), folded);
    assert_eq!(slot.lock().generation(), generation);
}

#[test]
fn accesses_leave_their_time_and_end_idleness() {
    let slot = Slot::new();
    slot.lock().publish(Content::Raw { handle: 1 }, NONE);
    let generation = slot.lock().generation();
    slot.lock().set_idle(true);
    assert!(slot.snapshot().is_idle());
    let (first, second) = (AccessTime::from_halves(0xab, 0xcd), AccessTime::from_halves(1, 2));
    assert_eq!(slot.lock().touch(first), None);
    assert_eq!(slot.lock().touch(second), Some(first));
    let seen = slot.snapshot();
    assert!(seen.last_access() == second && !seen.is_idle() && seen.is_accessed() && seen.is_raw());
    assert_eq!(slot.lock().generation(), generation);
    slot.lock().publish(Content::SameFilled(3), NONE);
    assert!(slot.snapshot().last_access() == second && !slot.snapshot().is_accessed());
}

#[test]
fn try_lock_held_is_refused_and_lock_waits_for_release() {
    let slot = Slot::new();
    let guard = slot.lock();
    assert!(slot.try_lock().is_none());
    std::thread::scope(|s| {
        let waiter = s.spawn(|| slot.lock().publish(Content::SameFilled(2), NONE));
        // The waiter announces itself in the word before it sleeps.
        while !Word(slot.word.load(Ordering::Relaxed)).is_awaited() {
            std::thread::yield_now();
        }
        assert_eq!(guard.publish(Content::SameFilled(1), NONE), Content::Empty);
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
                    guard.publish(Content::SameFilled(next), NONE);
                }
            });
        }
    });
    assert_eq!(slot.lock().content(), Content::SameFilled(80_000));
}

#[test]
fn recompress_only_an_unchanged_object_to_a_higher_priority() {
    let to = Content::Folded { handle: 70, len_bytes: 50, priority: 2 };
    for content in all_contents() {
        let slot = Slot::new();
        slot.lock().publish(content, NONE);
        slot.lock().set_idle(true);
        let generation = slot.lock().generation();
        let is_lower = match content {
            Content::Folded { priority, .. } => priority < 2,
            content => matches!(content, Content::Raw { .. }),
        };
        assert_eq!(slot.lock().recompress(generation, to, NONE), is_lower.then_some(content));
        assert_eq!(slot.lock().content(), if is_lower { to } else { content });
        assert_eq!(slot.lock().generation(), generation);
        assert_eq!(slot.lock().is_idle(), !is_lower);
        assert_eq!(slot.lock().recompress(generation, to, NONE), None, "the same priority again");
    }
    let (slot, raw) = (Slot::new(), Content::Raw { handle: 9 });
    slot.lock().publish(raw, NONE);
    let old = slot.lock().generation();
    slot.lock().publish(raw, NONE);
    assert_eq!(slot.lock().recompress(old, to, NONE), None, "rewritten");
    let new = slot.lock().generation();
    assert!(slot.lock().begin_writeback());
    assert_eq!(slot.lock().recompress(new, to, NONE), None, "under writeback");
    slot.lock().end_writeback();
    assert_eq!(slot.lock().recompress(new, Content::Raw { handle: 1 }, NONE), None, "no codec's object");
    assert_eq!(slot.lock().recompress(new, to, NONE), Some(raw));
}

/// The priorities that a slot's object was tried with.
fn tried(slot: &Slot) -> Vec<u8> {
    (0..4).filter(|&priority| slot.snapshot().is_tried(priority)).collect()
}

#[test]
fn every_codec_above_the_object_is_tried_by_itself() {
    for priority in 0..4 {
        for mask in 0..8u8 {
            let slot = Slot::new();
            slot.lock().publish(Content::Folded { handle: 7, len_bytes: 4095, priority }, NONE);
            let wanted: Vec<u8> = (1..4).filter(|to| mask & 1 << (to - 1) != 0).collect();
            wanted.iter().for_each(|&to| slot.lock().set_tried(to));
            let above: Vec<u8> = wanted.into_iter().filter(|&to| to > priority).collect();
            assert_eq!(tried(&slot), above);
            let seen = slot.snapshot();
            assert_eq!((seen.priority(), seen.object_len_bytes()), (priority, 4095));
        }
    }
}

#[test]
fn tried_codecs_stay_with_the_page_and_go_with_its_contents() {
    let slot = Slot::new();
    slot.lock().publish(Content::Raw { handle: 7 }, NONE);
    [1, 2, 3].iter().for_each(|&priority| slot.lock().set_tried(priority));
    slot.lock().touch(AccessTime::default());
    assert!(slot.lock().relocate(7, 8));
    assert!(slot.lock().begin_writeback());
    let place = BackingLocation { location: 5, len_bytes: 4096, priority: 0 };
    let generation = slot.lock().generation();
    assert!(slot.lock().write_back(generation, place, NONE).is_some());
    assert_eq!(slot.lock().content(), Content::WrittenBack(place));
    assert!(tried(&slot).is_empty(), "only an object is tried");
    let moved = BackingLocation { location: 6, ..place };
    assert!(slot.lock().move_written_back(place, moved, NONE));
    assert!(slot.lock().promote(moved, Content::Raw { handle: 9 }, NONE));
    assert_eq!(tried(&slot), [1, 2, 3]);
    slot.lock().recompress(generation, Content::Folded { handle: 10, len_bytes: 3000, priority: 1 }, NONE);
    assert_eq!((tried(&slot), slot.snapshot().priority()), (vec![2, 3], 1));
    slot.lock().publish(Content::Raw { handle: 9 }, NONE);
    assert_eq!((tried(&slot), slot.snapshot().object_len_bytes()), (vec![], 4096));
    for len_bytes in [1, 4095] {
        slot.lock().publish(Content::Folded { handle: 7, len_bytes, priority: 0 }, NONE);
        assert_eq!(slot.snapshot().object_len_bytes(), usize::from(len_bytes));
    }
}
