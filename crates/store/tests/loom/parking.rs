//! Model check of the production slot on its way to the medium and back (run with `RUSTFLAGS="--cfg loom"`): a pass,
//! a writer, a reader and the cleaner share one page.

use crate::check;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pagefold_store::slot::{Content, Parked, Slot};

/// Objects in memory and records on the medium; loom reports any access to one that races with a write.
struct World {
    slot: Slot,
    memory: [UnsafeCell<u64>; 3],
    medium: [UnsafeCell<u64>; 2],
}

fn parked(location: u64) -> Parked {
    Parked { location, len_bytes: 100, priority: 0 }
}

fn put(cell: &UnsafeCell<u64>, value: u64) {
    // SAFETY: loom hands out a valid pointer and fails the model if the access races.
    cell.with_mut(|p| unsafe { *p = value });
}

fn get(cell: &UnsafeCell<u64>) -> u64 {
    // SAFETY: as in `put`.
    cell.with(|p| unsafe { *p })
}

impl World {
    /// A slot with an object of contents 10 at place 0.
    fn new() -> Arc<World> {
        let cell = || UnsafeCell::new(0);
        let world = World { slot: Slot::new(), memory: [cell(), cell(), cell()], medium: [cell(), cell()] };
        put(&world.memory[0], 10);
        world.slot.lock().fold(0, 100, 0);
        Arc::new(world)
    }

    /// A freed object's memory is reused at once.
    fn free(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            put(&self.memory[handle as usize], 666);
        }
    }

    /// What a pass does with one page. Returns whether it is parked.
    fn park(&self, to: u64) -> bool {
        let mut guard = self.slot.lock();
        let Content::Folded { handle, .. } = guard.content() else { return false };
        if !guard.select() {
            return false;
        }
        let (copy, generation) = (get(&self.memory[handle as usize]), guard.generation());
        drop(guard);
        put(&self.medium[to as usize], copy);
        let old = self.slot.lock().park(generation, parked(to));
        old.inspect(|old| self.free(*old)).is_some()
    }

    fn overwrite(&self, place: u64, value: u64) -> Content {
        put(&self.memory[place as usize], value);
        let old = self.slot.lock().fold(place, 100, 0);
        self.free(old);
        old
    }

    /// What a read does: in memory under the lock, on the medium without it, and then it looks again.
    fn load(&self) -> u64 {
        loop {
            let guard = self.slot.lock();
            let generation = guard.generation();
            match guard.content() {
                Content::Folded { handle, .. } => return get(&self.memory[handle as usize]),
                Content::Parked(at) => {
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
fn parking_beside_a_writer_and_a_reader() {
    check(|| {
        let world = World::new();
        let pass = {
            let world = world.clone();
            thread::spawn(move || world.park(0))
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.overwrite(1, 20))
        };
        let seen = world.load();
        assert!(seen == 10 || seen == 20, "{seen}");
        let is_parked = pass.join().unwrap();
        let old = writer.join().unwrap();
        // The old page was freed by one of the two, never by both: parked before, the writer finds it there. A
        // pass that came after the writer has parked the new page.
        match world.slot.lock().content() {
            Content::Folded { handle, .. } => {
                assert_eq!((handle, matches!(old, Content::Parked(_))), (1, is_parked))
            }
            content => assert!(is_parked && content == Content::Parked(parked(0))),
        }
        assert_eq!(world.load(), 20);
        assert!(!world.slot.lock().is_selected(), "no mark is left");
    });
}

#[test]
fn an_old_request_never_parks_a_page_that_was_selected_again() {
    check(|| {
        let world = World::new();
        let pass = {
            let world = world.clone();
            thread::spawn(move || world.park(0))
        };
        world.overwrite(1, 20);
        let again = world.park(1);
        let first = pass.join().unwrap();
        let content = world.slot.lock().content();
        match content {
            Content::Parked(at) => assert!(if at.location == 1 { again } else { first }),
            Content::Folded { handle, .. } => assert!(handle == 1 && !again),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.load(), 20);
    });
}

#[test]
fn moving_a_record_beside_a_reader_and_a_writer() {
    check(|| {
        let world = World::new();
        assert!(world.park(0));
        let cleaner = {
            let world = world.clone();
            thread::spawn(move || {
                // The old record stays readable while somebody has its segment: here, always.
                let copy = get(&world.medium[0]);
                put(&world.medium[1], copy);
                world.slot.lock().move_parked(parked(0), parked(1))
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.overwrite(1, 20))
        };
        let seen = world.load();
        assert!(seen == 10 || seen == 20, "{seen}");
        let moved = cleaner.join().unwrap();
        assert_eq!(writer.join().unwrap(), Content::Parked(parked(u64::from(moved))));
        assert_eq!(world.load(), 20);
    });
}

#[test]
fn promotion_beside_the_cleaner_and_a_writer() {
    check(|| {
        let world = World::new();
        assert!(world.park(0));
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                put(&world.memory[2], get(&world.medium[0]));
                world
                    .slot
                    .lock()
                    .promote(parked(0), Content::Folded { handle: 2, len_bytes: 100, priority: 0 })
            })
        };
        let cleaner = {
            let world = world.clone();
            thread::spawn(move || {
                put(&world.medium[1], get(&world.medium[0]));
                world.slot.lock().move_parked(parked(0), parked(1))
            })
        };
        let old = world.overwrite(1, 20);
        let (promoted, moved) = (reader.join().unwrap(), cleaner.join().unwrap());
        assert!(!(promoted && moved), "the page is in one place");
        let expected = match (promoted, moved) {
            (true, _) => Content::Folded { handle: 2, len_bytes: 100, priority: 0 },
            (_, moved) => Content::Parked(parked(u64::from(moved))),
        };
        assert_eq!(old, expected);
        assert_eq!(world.load(), 20);
    });
}
