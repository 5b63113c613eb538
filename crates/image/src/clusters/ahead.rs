//! Threads that decode what sequential readers will want next.
//!
//! Work comes in a queue of bounded length; what does not fit is dropped, as is a cluster for which the budget has no
//! room. Both are counted, and a later read gets the cluster itself. When the budget had no room there is a pause: what
//! were decoded ahead then would push out what was decoded ahead before, and take the processor from readers.

use super::{Clusters, Unit};
use crate::queue::Queue;
use crate::source::Source;
use pagefold_backing::Demand;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clusters that may wait in the queue.
const MAX_QUEUED: usize = 64;
/// How long nothing is decoded ahead after the budget had no room.
const PAUSE: Duration = Duration::from_millis(100);

/// The queue and its threads. Dropping it lets each thread end the cluster that it is at, and joins it.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Queue<Unit>,
    paused_until: Mutex<Option<Instant>>,
}

impl Shared {
    fn paused_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pause, and forgets what is queued. Returns how many clusters that were.
    fn pause(&self) -> usize {
        *self.paused_until() = Some(Instant::now() + PAUSE);
        self.queue.clear()
    }

    fn is_paused(&self) -> bool {
        self.paused_until().is_some_and(|until| Instant::now() < until)
    }
}

impl Ahead {
    /// Starts `threads` threads.
    pub(crate) fn start(
        clusters: &Arc<Clusters>,
        raw: &Arc<Source>,
        threads: usize,
        demand: Demand,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queue: Queue::new(MAX_QUEUED), paused_until: Mutex::default() });
        let mut ahead = Ahead { shared, threads: Vec::new() };
        for n in 0..threads {
            let (clusters, raw, shared) = (clusters.clone(), raw.clone(), ahead.shared.clone());
            let work = move || {
                while let Some(unit) = shared.queue.next() {
                    if !clusters.prefetch(&*raw, &unit, demand) {
                        clusters.counters.readahead_dropped.add(1 + shared.pause() as u64);
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("read-ahead {n}"));
            ahead.threads.push(thread.spawn(work)?);
        }
        Ok(ahead)
    }

    /// Queues a cluster; false if the queue is full, or paused.
    pub(crate) fn push(&self, unit: Unit) -> bool {
        !self.shared.is_paused() && self.shared.queue.push(unit).is_none()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.queue.clear();
        self.shared.queue.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing to hand over.
            let _ = thread.join();
        }
    }
}
