//! Fetches blocks before a reader wants them: threads, for objects that are read in order.
//!
//! A reader of a block of a sequence offers the next missing runs after it, before it waits and after it has read. In
//! a long sequence, a thread that has fetched a run goes on with the next one by itself. A thread that waits takes it;
//! if all are busy, the link is, and nobody fetches ahead. A run that cannot be fetched by one attempt is missing
//! again, and its readers ask for it themselves, until their deadlines.
//!
//! The threads end when the [`ReadAhead`] is dropped. Nobody joins them, because they may wait for a server.

use crate::blocks::{Fetch, Loaded};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Fetches the bytes of a run, by one attempt; `None` if it fails.
pub(crate) type Load = dyn Fn(&Range<u64>) -> Option<Loaded> + Send + Sync;

/// Threads that fetch ahead.
pub(crate) struct ReadAhead {
    idle: SyncSender<Fetch>,
}

impl ReadAhead {
    /// Starts up to `threads` threads; `None` if none is wanted or can be started.
    pub(crate) fn start(threads: usize, load: Arc<Load>) -> Option<Self> {
        // Without a buffer: a run is taken by a thread that waits, or by none.
        let (idle, runs) = sync_channel::<Fetch>(0);
        let runs = Arc::new(Mutex::new(runs));
        let start = |n| {
            let (runs, load) = (runs.clone(), load.clone());
            let work = move || {
                // Ends when no more can come.
                let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok();
                while let Some(run) = next() {
                    let fetch = || {
                        let mut following = Some(run);
                        while let Some(run) = following.take() {
                            let chained = run.next();
                            if let Some(loaded) = load(run.blocks()) {
                                run.complete(loaded);
                                following = chained();
                            }
                        }
                    };
                    // After a panic the blocks are missing again, as after an error. The panic hook has reported it.
                    let _ = catch_unwind(AssertUnwindSafe(fetch));
                }
            };
            std::thread::Builder::new().name(format!("fetch-ahead {n}")).spawn(work).is_ok()
        };
        let started = (0..threads).filter(|n| start(*n)).count();
        (started > 0).then_some(ReadAhead { idle })
    }

    /// Hands a run to a thread that waits for one. Otherwise drops the run, so that its blocks are missing again, and
    /// returns false.
    pub(crate) fn offer(&self, run: Fetch) -> bool {
        self.idle.try_send(run).is_ok()
    }
}
