//! Model check of the place where writers wait for room (run with `RUSTFLAGS="--cfg loom"`): no wake-up is lost,
//! however the parker, the writers and the end of parking meet. In loom, waiting has no time-out, so a wake-up
//! that is lost is a deadlock, which loom reports.

use crate::check;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use pagefold_store::throttle::Throttle;
use std::time::Duration;

/// Never over while a model runs.
const FOREVER: Duration = Duration::from_secs(3600);

struct World {
    throttle: Throttle,
    room: AtomicU32,
}

impl World {
    fn new() -> Arc<World> {
        let throttle = Throttle::with_patience(FOREVER, FOREVER);
        assert!(throttle.begin());
        Arc::new(World { throttle, room: AtomicU32::new(0) })
    }

    fn wait(&self) -> bool {
        self.throttle.wait_for_room(4096, &mut || self.room.load(Relaxed) > 0)
    }
}

#[test]
fn two_writers_and_the_parker_find_each_other() {
    check(|| {
        let world = World::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || assert!(world.wait()))
            })
            .collect();
        // Sleeps until called; a writer that finds room does not call.
        world.throttle.wait_for_work(FOREVER);
        world.room.store(2, Relaxed);
        world.throttle.tell_of_room();
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn a_writer_is_let_go_when_parking_ends() {
    check(|| {
        let world = World::new();
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.wait())
        };
        let parker = {
            let world = world.clone();
            thread::spawn(move || {
                while !world.throttle.is_stopping() {
                    world.throttle.wait_for_work(FOREVER);
                }
                world.throttle.end();
            })
        };
        world.throttle.stop();
        parker.join().unwrap();
        assert!(!writer.join().unwrap());
    });
}

#[test]
fn a_writer_is_let_go_when_hope_ends() {
    check(|| {
        let world = World::new();
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.wait())
        };
        world.throttle.wait_for_work(FOREVER);
        world.throttle.set_open(false);
        assert!(!writer.join().unwrap());
    });
}
