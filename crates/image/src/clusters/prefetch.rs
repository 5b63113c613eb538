//! Read-ahead: threads that decode clusters into the cache before sequential readers want them.
//!
//! The queue has a limited length. A cluster that does not fit is dropped, and so is one for which the budget has no
//! room; both are counted, and the reader decodes such a cluster itself. After the budget had no room, read-ahead
//! pauses: more decoding would evict the clusters that were decoded ahead before, and take CPU time from readers. A panic
//! while a cluster is decoded has the same consequences.

use super::{ClusterExtent, Clusters};
use crate::queue::Queue;
use crate::source::Source;
use pagefold_backing::Demand;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Clusters in the queue at most.
const MAX_QUEUED: usize = 64;
/// How long read-ahead stops after the budget had no room.
const PAUSE: Duration = Duration::from_millis(100);

/// The queue and its threads. Dropping it empties the queue, and joins each thread after the cluster that it is
/// decoding.
pub(crate) struct Prefetcher {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Queue<ClusterExtent>,
    paused_until: Mutex<Option<Instant>>,
    has_ended: AtomicBool,
}

impl Shared {
    fn paused_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.paused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pause and empties the queue. Returns the number of clusters dropped.
    fn pause(&self) -> usize {
        *self.paused_until() = Some(Instant::now() + PAUSE);
        self.queue.clear()
    }

    fn is_paused(&self) -> bool {
        self.paused_until().is_some_and(|until| Instant::now() < until)
    }
}

impl Prefetcher {
    /// Starts `threads` threads. `demand` says whether they wait for room in the budget.
    pub(crate) fn start(
        clusters: &Arc<Clusters>,
        source: &Arc<Source>,
        threads: usize,
        demand: Demand,
    ) -> std::io::Result<Self> {
        let queue = Queue::new(MAX_QUEUED);
        let shared =
            Arc::new(Shared { queue, paused_until: Mutex::default(), has_ended: AtomicBool::new(false) });
        let mut prefetcher = Prefetcher { shared, threads: Vec::new() };
        for n in 0..threads {
            let (clusters, source, shared) = (clusters.clone(), source.clone(), prefetcher.shared.clone());
            let work = move || {
                while let Some(extent) = shared.queue.next() {
                    // A panic costs this cluster, as an error would. The panic hook has reported it.
                    let prefetch = AssertUnwindSafe(|| clusters.prefetch(&*source, &extent, demand));
                    if !catch_unwind(prefetch).unwrap_or(false) {
                        clusters.decoding.counters.readahead_dropped.add(1 + shared.pause() as u64);
                    }
                }
            };
            let thread = std::thread::Builder::new().name(format!("read-ahead {n}"));
            prefetcher.threads.push(thread.spawn(work)?);
        }
        Ok(prefetcher)
    }

    /// Ends read-ahead for as long as the image is open: the queue is emptied, and each thread ends after the cluster that it
    /// is decoding.
    pub(crate) fn end(&self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        self.shared.queue.close();
        self.shared.queue.clear();
    }

    /// Whether read-ahead has ended. A reader may see that a moment later.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Relaxed)
    }

    /// Queues a cluster; returns false if the queue is full or read-ahead pauses.
    pub(crate) fn push(&self, extent: ClusterExtent) -> bool {
        !self.shared.is_paused() && self.shared.queue.push(extent).is_none()
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.end();
        for thread in self.threads.drain(..) {
            // There is no result to lose.
            let _ = thread.join();
        }
    }
}
