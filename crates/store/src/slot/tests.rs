//! Every transition from every state, marks, stamps, and the lock.

use super::*;

fn all_contents() -> Vec<Content> {
    vec![
        Content::Empty,
        Content::SameFilled(u64::MAX),
        Content::Folded { handle: (1 << 50) - 1, len_bytes: 1, priority: 0 },
        Content::Folded { handle: 7, len_bytes: 4095, priority: 3 },
        Content::Raw { handle: 9 },
        Content::Parked(Parked { location: u64::MAX, len_bytes: 4096, priority: 2 }),
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

const HERE: Parked = Parked { location: 5, len_bytes: 99, priority: 1 };
const THERE: Parked = Parked { location: 6, len_bytes: 99, priority: 1 };

#[test]
fn park_only_what_was_selected_and_is_unchanged() {
    let folded = Content::Folded { handle: 7, len_bytes: 99, priority: 1 };
    for content in all_contents() {
        let slot = Slot::new();
        slot.lock().publish(content);
        let mut guard = slot.lock();
        let (generation, is_object) = (guard.generation(), guard.select());
        assert_eq!(is_object, matches!(content, Content::Folded { .. } | Content::Raw { .. }));
        assert!(!guard.select());
        drop(guard);
        assert_eq!(slot.lock().park(generation, HERE), is_object.then_some(content));
        assert_eq!(slot.lock().content() == Content::Parked(HERE), is_object);
        assert_eq!(slot.lock().generation(), generation);
        assert!(!slot.lock().is_selected());
    }
    // Rewritten, and selected again: an old request's result is not taken.
    let slot = Slot::new();
    slot.lock().publish(folded);
    let old = slot.lock().generation();
    assert!(slot.lock().select());
    slot.lock().publish(folded);
    assert!(!slot.lock().is_selected());
    assert!(slot.lock().select());
    assert_eq!(slot.lock().park(old, HERE), None);
    assert!(slot.lock().is_selected());
    let new = slot.lock().generation();
    assert_eq!(slot.lock().park(new, HERE), Some(folded));
}

#[test]
fn parked_pages_move_and_come_back_only_from_where_they_are() {
    let slot = Slot::new();
    let folded = Content::Folded { handle: 7, len_bytes: 99, priority: 1 };
    slot.lock().publish(Content::Parked(HERE));
    let generation = slot.lock().generation();
    slot.lock().touch(Stamp::default());
    assert!(!slot.lock().move_parked(THERE, HERE));
    assert!(slot.lock().move_parked(HERE, THERE));
    assert!(!slot.lock().promote(HERE, folded));
    assert!(slot.lock().touch(Stamp::default()).is_some());
    assert!(slot.lock().promote(THERE, folded));
    assert_eq!(slot.lock().content(), folded);
    assert_eq!(slot.lock().generation(), generation);
}

#[test]
fn accesses_leave_their_time_and_end_idleness() {
    let slot = Slot::new();
    slot.lock().publish(Content::Raw { handle: 1 });
    let generation = slot.lock().generation();
    slot.lock().set_idle(true);
    assert!(slot.peek().is_idle());
    let (first, second) = (Stamp::from_halves(0xab, 0xcd), Stamp::from_halves(1, 2));
    assert_eq!(slot.lock().touch(first), None);
    assert_eq!(slot.lock().touch(second), Some(first));
    let seen = slot.peek();
    assert!(seen.stamp() == second && !seen.is_idle() && seen.is_accessed() && seen.is_raw());
    assert_eq!(slot.lock().generation(), generation);
    slot.lock().fill(3);
    assert!(slot.peek().stamp() == second && !slot.peek().is_accessed());
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
