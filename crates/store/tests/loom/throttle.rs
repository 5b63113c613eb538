//! Model check of the throttle (run with `RUSTFLAGS="--cfg loom"`): no wake-up is lost in any interleaving of the
//! writeback thread, the writers and the end of writeback. In loom, waits have no timeout, so a lost wake-up is a
//! deadlock, which loom reports.

use crate::check;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;
use pagefold_store::throttle::Throttle;
use std::time::Duration;

/// Longer than a model runs.
const FOREVER: Duration = Duration::from_secs(3600);

struct Model {
    throttle: Throttle,
    room: AtomicU32,
}

impl Model {
    fn new() -> Arc<Model> {
        let throttle = Throttle::with_timeouts(FOREVER, FOREVER);
        assert!(throttle.register_thread());
        Arc::new(Model { throttle, room: AtomicU32::new(0) })
    }

    fn wait(&self) -> bool {
        self.throttle.wait_for_room(4096, &mut || self.room.load(Relaxed) > 0)
    }
}

#[test]
fn two_writers_and_the_writeback_thread_find_each_other() {
    check(|| {
        let model = Model::new();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || assert!(model.wait()))
            })
            .collect();
        // Sleeps until a writer requests work; a writer that finds memory does not.
        model.throttle.wait_for_work(FOREVER);
        model.room.store(2, Relaxed);
        model.throttle.report_progress();
        writers.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn a_waiting_writer_gives_up_when_writeback_ends() {
    check(|| {
        let model = Model::new();
        let writer = {
            let model = model.clone();
            thread::spawn(move || model.wait())
        };
        let writeback_thread = {
            let model = model.clone();
            thread::spawn(move || {
                while !model.throttle.is_stopping() {
                    model.throttle.wait_for_work(FOREVER);
                }
                model.throttle.unregister_thread();
            })
        };
        model.throttle.stop();
        writeback_thread.join().unwrap();
        assert!(!writer.join().unwrap());
    });
}

#[test]
fn a_waiting_writer_gives_up_when_writeback_cannot_free_memory() {
    check(|| {
        let model = Model::new();
        let writer = {
            let model = model.clone();
            thread::spawn(move || model.wait())
        };
        model.throttle.wait_for_work(FOREVER);
        model.throttle.end_round(false);
        assert!(!writer.join().unwrap());
    });
}
