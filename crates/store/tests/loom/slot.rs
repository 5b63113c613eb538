//! Model check of the production slot (run with `RUSTFLAGS="--cfg loom"`): its lock, and the protocol by
//! which a writer, a reader and the pool's compaction share one object.

use crate::check;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use pagefold_store::slot::{Content, Slot};

/// Three places for objects; loom reports any access to one that races with a write.
struct World {
    slot: Slot,
    places: [UnsafeCell<u64>; 3],
}

impl World {
    /// A slot that holds an object with contents 10 at place 0.
    fn new() -> Arc<World> {
        let world = World {
            slot: Slot::new(),
            places: [UnsafeCell::new(10), UnsafeCell::new(0), UnsafeCell::new(0)],
        };
        world.slot.lock().fold(0, 100, 0);
        Arc::new(world)
    }

    fn write(&self, place: u64, value: u64) {
        // SAFETY: loom hands out a valid pointer and fails the model if the access races.
        self.places[place as usize].with_mut(|p| unsafe { *p = value });
    }

    fn read(&self, place: u64) -> u64 {
        // SAFETY: as in `write`.
        self.places[place as usize].with(|p| unsafe { *p })
    }

    /// A freed object's memory is reused at once.
    fn free(&self, content: Content) {
        if let Content::Folded { handle, .. } | Content::Raw { handle } = content {
            self.write(handle, 666);
        }
    }

    /// What `Store::unfold` does: copy under the lock.
    fn load(&self) -> Option<u64> {
        let guard = self.slot.lock();
        match guard.content() {
            Content::Folded { handle, .. } | Content::Raw { handle } => Some(self.read(handle)),
            Content::SameFilled(word) => Some(word),
            Content::Empty | Content::Parked(_) => None,
        }
    }
}

#[test]
fn lock_excludes_and_wakes() {
    check(|| {
        let world = World::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    let guard = world.slot.lock();
                    world.write(1, world.read(1) + 1);
                    drop(guard);
                })
            })
            .collect();
        let guard = world.slot.lock();
        world.write(1, world.read(1) + 1);
        drop(guard);
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(world.read(1), 3);
    });
}

#[test]
fn overwrite_beside_a_read_frees_nothing_being_read() {
    check(|| {
        let world = World::new();
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                world.write(1, 20);
                let old = world.slot.lock().fold(1, 100, 0);
                world.free(old);
            })
        };
        let seen = world.load();
        assert!(seen == Some(10) || seen == Some(20), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(world.load(), Some(20));
    });
}

#[test]
fn relocation_beside_a_read_and_an_overwrite_loses_nothing() {
    check(|| {
        let world = World::new();
        // Compaction: copy the object from place 0 to place 2, then ask the slot. The copy is allowed
        // because place 0 cannot be freed meanwhile: the pool frees under its class lock, which
        // compaction holds. Here the writer leaves place 0 alone if it did not get it from the slot.
        let mover = {
            let world = world.clone();
            thread::spawn(move || match world.slot.try_lock() {
                Some(guard) => {
                    if matches!(guard.content(), Content::Folded { handle: 0, .. }) {
                        world.write(2, world.read(0));
                    }
                    guard.relocate(0, 2)
                }
                None => false,
            })
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                world.write(1, 20);
                let old = world.slot.lock().keep_raw(1);
                world.free(old);
                old
            })
        };
        let seen = world.load();
        assert!(seen == Some(10) || seen == Some(20), "{seen:?}");
        let moved = mover.join().unwrap();
        let old = writer.join().unwrap();
        // The writer replaced the object where it was by then: never both places, never neither.
        let expected = if moved { 2 } else { 0 };
        assert_eq!(old, Content::Folded { handle: expected, len_bytes: 100, priority: 0 });
        assert_eq!(world.load(), Some(20));
    });
}

#[test]
fn conditional_publish_never_overwrites_a_change() {
    check(|| {
        let world = World::new();
        // Two partial writes, each adding its own bit, as `Store::modify` does.
        let add = |world: &World, bit: u64| loop {
            let (seen, value) = {
                let guard = world.slot.lock();
                let value = match guard.content() {
                    Content::SameFilled(word) => word,
                    _ => 0,
                };
                (guard.generation(), value)
            };
            let guard = world.slot.lock();
            if guard.generation() == seen {
                guard.fill(value | bit);
                return;
            }
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || add(&world, 1))
        };
        add(&world, 2);
        other.join().unwrap();
        assert_eq!(world.load(), Some(3));
    });
}
