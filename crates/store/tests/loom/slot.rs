//! Model check of the production slot (run with `RUSTFLAGS="--cfg loom"`): its lock, and the protocol by
//! which a writer, a reader and the pool's compaction share one object.

use crate::check;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pagefold_store::slot::{BackingLocation, Content, Intents, Slot};

/// No slot outlives the process here.
const NONE: &Intents = &Intents::NONE;

/// A slot and three places for objects; loom reports any access to a place that races with a write.
struct Model {
    slot: Slot,
    places: [UnsafeCell<u64>; 3],
}

impl Model {
    /// Creates a slot with an object of value 10 at place 0.
    fn new() -> Arc<Model> {
        let model = Model {
            slot: Slot::new(),
            places: [UnsafeCell::new(10), UnsafeCell::new(0), UnsafeCell::new(0)],
        };
        model.slot.lock().publish(Content::Folded { handle: 0, len_bytes: 100, priority: 0 }, NONE);
        Arc::new(model)
    }

    fn write(&self, place: u64, value: u64) {
        // SAFETY: loom hands out a valid pointer and fails the model if the access races.
        self.places[place as usize].with_mut(|p| unsafe { *p = value });
    }

    fn read(&self, place: u64) -> u64 {
        // SAFETY: as in `write`.
        self.places[place as usize].with(|p| unsafe { *p })
    }

    /// Frees an object by overwriting its memory at once.
    fn free(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            self.write(handle, 666);
        }
    }

    /// Reads as `Store::read_page` does: copies under the lock.
    fn load(&self) -> Option<u64> {
        let guard = self.slot.lock();
        match guard.content() {
            Content::Folded { handle, .. } | Content::Raw { handle } => Some(self.read(handle)),
            Content::SameFilled(word) => Some(word),
            Content::Empty | Content::WrittenBack(_) | Content::Lost => None,
        }
    }
}

/// Starts a thread that writes the page: it replaces the object by one of value 20 at place 1.
fn overwriter(model: &Arc<Model>) -> thread::JoinHandle<()> {
    let model = model.clone();
    thread::spawn(move || {
        model.write(1, 20);
        let old = model.slot.lock().publish(Content::Folded { handle: 1, len_bytes: 100, priority: 0 }, NONE);
        model.free(old);
    })
}

#[test]
fn lock_excludes_and_wakes() {
    check(|| {
        let model = Model::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || {
                    let guard = model.slot.lock();
                    model.write(1, model.read(1) + 1);
                    drop(guard);
                })
            })
            .collect();
        let guard = model.slot.lock();
        model.write(1, model.read(1) + 1);
        drop(guard);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(model.read(1), 3);
    });
}

#[test]
fn overwrite_beside_a_read_frees_nothing_being_read() {
    check(|| {
        let model = Model::new();
        let writer = overwriter(&model);
        let seen = model.load();
        assert!(seen == Some(10) || seen == Some(20), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(model.load(), Some(20));
    });
}

#[test]
fn relocation_beside_a_read_and_an_overwrite_loses_nothing() {
    check(|| {
        let model = Model::new();
        // Compaction: copy the object from place 0 to place 2, then exchange the handle in the slot. Place 0 cannot
        // be freed in the meantime: the pool frees under its class lock, which compaction holds. Here the writer
        // leaves place 0 alone if it did not get it from the slot.
        let mover = {
            let model = model.clone();
            thread::spawn(move || match model.slot.try_lock() {
                Some(guard) => {
                    if matches!(guard.content(), Content::Folded { handle: 0, .. }) {
                        model.write(2, model.read(0));
                    }
                    guard.relocate(0, 2)
                }
                None => false,
            })
        };
        let writer = {
            let model = model.clone();
            thread::spawn(move || {
                model.write(1, 20);
                let old = model.slot.lock().publish(Content::Raw { handle: 1 }, NONE);
                model.free(old);
                old
            })
        };
        let seen = model.load();
        assert!(seen == Some(10) || seen == Some(20), "{seen:?}");
        let moved = mover.join().unwrap();
        let old = writer.join().unwrap();
        // The writer replaced the object at its place of that moment: exactly one of the two places.
        let expected = if moved { 2 } else { 0 };
        assert_eq!(old, Content::Folded { handle: expected, len_bytes: 100, priority: 0 });
        assert_eq!(model.load(), Some(20));
    });
}

#[test]
fn conditional_publish_never_overwrites_a_change() {
    check(|| {
        let model = Model::new();
        // Two partial writes, each of which adds one bit, as `Store::modify` does.
        let add = |model: &Model, bit: u64| loop {
            let (seen, value) = {
                let guard = model.slot.lock();
                let value = match guard.content() {
                    Content::SameFilled(word) => word,
                    _ => 0,
                };
                (guard.generation(), value)
            };
            let guard = model.slot.lock();
            if guard.generation() == seen {
                guard.publish(Content::SameFilled(value | bit), NONE);
                return;
            }
        };
        let other = {
            let model = model.clone();
            thread::spawn(move || add(&model, 1))
        };
        add(&model, 2);
        other.join().unwrap();
        assert_eq!(model.load(), Some(3));
    });
}

/// Recompresses as `recompress::page` does: copies under the lock, makes the new object at place 2 with no lock held,
/// and exchanges it if the page is the same. It frees the object that is in no slot afterwards.
fn recompress(model: &Model) -> bool {
    let guard = model.slot.lock();
    let generation = guard.generation();
    let Content::Folded { handle, priority: 0, .. } = guard.content() else { return false };
    let value = model.read(handle);
    drop(guard);
    model.write(2, value);
    let new = Content::Folded { handle: 2, len_bytes: 50, priority: 1 };
    match model.slot.lock().recompress(generation, new, NONE) {
        Some(old) => {
            model.free(old);
            true
        }
        None => {
            model.free(new);
            false
        }
    }
}

#[test]
fn recompression_beside_a_read_and_an_overwrite_loses_nothing() {
    check(|| {
        let model = Model::new();
        let recompressor = {
            let model = model.clone();
            thread::spawn(move || recompress(&model))
        };
        let writer = overwriter(&model);
        let seen = model.load();
        assert!(seen == Some(10) || seen == Some(20), "{seen:?}");
        let recompressed = recompressor.join().unwrap();
        writer.join().unwrap();
        // It may have recompressed the new page as well.
        assert_eq!(model.load(), Some(20), "{recompressed}");
    });
}

#[test]
fn recompression_beside_writeback_leaves_one_of_the_two() {
    check(|| {
        let model = Model::new();
        let recompressor = {
            let model = model.clone();
            thread::spawn(move || recompress(&model))
        };
        let mut guard = model.slot.lock();
        let generation = guard.generation();
        let began = guard.begin_writeback();
        drop(guard);
        assert!(began);
        let to = BackingLocation { location: 5, len_bytes: 100, priority: 0 };
        let written = model.slot.lock().write_back(generation, to, NONE);
        written.into_iter().for_each(|old| model.free(old));
        recompressor.join().unwrap();
        // The generation is the same, so writeback takes the page, in whatever form it is.
        assert_eq!(model.slot.lock().content(), Content::WrittenBack(to));
    });
}
