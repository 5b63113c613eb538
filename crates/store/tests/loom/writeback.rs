//! Model check of the production slot during writeback and read-back (run with `RUSTFLAGS="--cfg loom"`): a pass,
//! a writer, a reader and the cleaner access one page.

use crate::check;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pagefold_store::slot::{BackingLocation, Content, Intents, Slot};

/// No slot outlives the process here.
const NONE: &Intents = &Intents::NONE;

/// Objects in memory and records on the medium; loom reports any access to one that races with a write.
struct Model {
    slot: Slot,
    memory: [UnsafeCell<u64>; 3],
    medium: [UnsafeCell<u64>; 2],
}

fn written_back(location: u64) -> BackingLocation {
    BackingLocation { location, len_bytes: 100, priority: 0 }
}

fn put(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: loom hands out a valid pointer and fails the model if the access races.
    cell.with_mut(|p| unsafe { *p = value });
}

fn get(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: as in `put`.
    cell.with(|p| unsafe { *p })
}

impl Model {
    /// Creates a slot with an object of value 10 at place 0.
    fn new() -> Arc<Model> {
        let cell = || UnsafeCell::new(0);
        let model = Model { slot: Slot::new(), memory: [cell(), cell(), cell()], medium: [cell(), cell()] };
        put(&model.memory[0], 10);
        model.slot.lock().publish(Content::Folded { handle: 0, len_bytes: 100, priority: 0 }, NONE);
        Arc::new(model)
    }

    /// Frees an object by overwriting its memory at once.
    fn free(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            put(&self.memory[handle as usize], 666);
        }
    }

    /// Writes one page back, as a pass does. Returns whether it is written back.
    fn write_back(&self, to: u64) -> bool {
        let mut guard = self.slot.lock();
        let Content::Folded { handle, .. } = guard.content() else { return false };
        if !guard.begin_writeback() {
            return false;
        }
        let (copy, generation) = (get(&self.memory[handle as usize]), guard.generation());
        drop(guard);
        put(&self.medium[to as usize], copy);
        let old = self.slot.lock().write_back(generation, written_back(to), NONE);
        old.inspect(|old| self.free(*old)).is_some()
    }

    fn overwrite(&self, place: u64, value: u64) -> Content {
        put(&self.memory[place as usize], value);
        let old =
            self.slot.lock().publish(Content::Folded { handle: place, len_bytes: 100, priority: 0 }, NONE);
        self.free(old);
        old
    }

    /// Reads as `Store::read_page` does: in memory under the lock, on the medium without it, and then checks again.
    fn load(&self) -> u64 {
        loop {
            let guard = self.slot.lock();
            let generation = guard.generation();
            match guard.content() {
                Content::Folded { handle, .. } => return get(&self.memory[handle as usize]),
                Content::WrittenBack(at) => {
                    drop(guard);
                    let value = get(&self.medium[at.location as usize]);
                    if self.slot.lock().generation() == generation {
                        return value;
                    }
                    thread::yield_now();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn writeback_beside_a_writer_and_a_reader() {
    check(|| {
        let model = Model::new();
        let pass = {
            let model = model.clone();
            thread::spawn(move || model.write_back(0))
        };
        let writer = {
            let model = model.clone();
            thread::spawn(move || model.overwrite(1, 20))
        };
        let seen = model.load();
        assert!(seen == 10 || seen == 20, "{seen}");
        let is_written_back = pass.join().unwrap();
        let old = writer.join().unwrap();
        // The old page was freed by exactly one of the two. If it was written back first, the writer finds it there.
        // A pass that came after the writer has written back the new page.
        match model.slot.lock().content() {
            Content::Folded { handle, .. } => {
                assert_eq!((handle, matches!(old, Content::WrittenBack(_))), (1, is_written_back))
            }
            content => assert!(is_written_back && content == Content::WrittenBack(written_back(0))),
        }
        assert_eq!(model.load(), 20);
        assert!(!model.slot.lock().is_under_writeback(), "no mark is left");
    });
}

#[test]
fn an_old_request_never_writes_back_a_page_that_was_selected_again() {
    check(|| {
        let model = Model::new();
        let pass = {
            let model = model.clone();
            thread::spawn(move || model.write_back(0))
        };
        model.overwrite(1, 20);
        let again = model.write_back(1);
        let first = pass.join().unwrap();
        let content = model.slot.lock().content();
        match content {
            Content::WrittenBack(at) => assert!(if at.location == 1 { again } else { first }),
            Content::Folded { handle, .. } => assert!(handle == 1 && !again),
            other => panic!("{other:?}"),
        }
        assert_eq!(model.load(), 20);
    });
}

#[test]
fn moving_a_record_beside_a_reader_and_a_writer() {
    check(|| {
        let model = Model::new();
        assert!(model.write_back(0));
        let cleaner = {
            let model = model.clone();
            thread::spawn(move || {
                // The old record stays readable while its segment is pinned: here, always.
                let copy = get(&model.medium[0]);
                put(&model.medium[1], copy);
                model.slot.lock().move_written_back(written_back(0), written_back(1), NONE)
            })
        };
        let writer = {
            let model = model.clone();
            thread::spawn(move || model.overwrite(1, 20))
        };
        let seen = model.load();
        assert!(seen == 10 || seen == 20, "{seen}");
        let moved = cleaner.join().unwrap();
        assert_eq!(writer.join().unwrap(), Content::WrittenBack(written_back(u64::from(moved))));
        assert_eq!(model.load(), 20);
    });
}

#[test]
fn promotion_beside_the_cleaner_and_a_writer() {
    check(|| {
        let model = Model::new();
        assert!(model.write_back(0));
        let reader = {
            let model = model.clone();
            thread::spawn(move || {
                put(&model.memory[2], get(&model.medium[0]));
                model.slot.lock().promote(
                    written_back(0),
                    Content::Folded { handle: 2, len_bytes: 100, priority: 0 },
                    NONE,
                )
            })
        };
        let cleaner = {
            let model = model.clone();
            thread::spawn(move || {
                put(&model.medium[1], get(&model.medium[0]));
                model.slot.lock().move_written_back(written_back(0), written_back(1), NONE)
            })
        };
        let old = model.overwrite(1, 20);
        let (promoted, moved) = (reader.join().unwrap(), cleaner.join().unwrap());
        assert!(!(promoted && moved), "the page is in one place");
        let expected = match (promoted, moved) {
            (true, _) => Content::Folded { handle: 2, len_bytes: 100, priority: 0 },
            (_, moved) => Content::WrittenBack(written_back(u64::from(moved))),
        };
        assert_eq!(old, expected);
        assert_eq!(model.load(), 20);
    });
}
