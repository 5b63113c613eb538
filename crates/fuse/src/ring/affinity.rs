//! Which of a queue's threads runs on the CPU of the queue, and where the others run.
//!
//! A request that is served on the CPU that made it needs no other CPU to wake up, which takes longer than the request.
//! Several requests at a time are served sooner on several CPUs. So one thread of a queue, the near one, runs on the CPU
//! of the queue, and the others run on the other CPUs.
//!
//! The kernel gives a request to the entry that was committed last, so that a caller with one request at a time is
//! served by the same thread again and again. If that is not the near thread, it becomes the near one after
//! [`ALONE_MAX`] times.

use pagefold_sys::cpu;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often in a row a thread that is not near serves alone before it becomes the near one. Moving a thread costs
/// about as much as a few wake-ups of another CPU.
const ALONE_MAX: u32 = 8;

/// The state that the threads of a queue share.
#[derive(Debug, Default)]
pub(crate) struct QueueAffinity {
    /// The number of the near thread among the threads of the queue.
    near: AtomicUsize,
    /// Threads that serve requests at the moment.
    serving: AtomicUsize,
}

/// A thread's view of its queue.
#[derive(Debug)]
pub(crate) struct ThreadAffinity<'a> {
    queue_affinity: &'a QueueAffinity,
    /// The number of this thread among the threads of the queue.
    number: usize,
    /// The CPU of the queue; the allowed ones if it is not allowed.
    near_cpus: Vec<usize>,
    /// The CPUs for a thread that is not near.
    far_cpus: Vec<usize>,
    is_near: bool,
    alone: u32,
}

impl<'a> ThreadAffinity<'a> {
    /// Moves the calling thread to its CPUs. Where the kernel refuses that, such as for a CPU that is offline, requests
    /// are served nevertheless.
    pub(crate) fn new(queue_affinity: &'a QueueAffinity, number: usize, cpu: usize) -> Self {
        let allowed = cpu::allowed();
        let far_cpus: Vec<_> = allowed.iter().copied().filter(|allowed| *allowed != cpu).collect();
        let is_near = queue_affinity.near.load(Ordering::Relaxed) == number;
        let near_cpus = if allowed.contains(&cpu) { vec![cpu] } else { allowed.clone() };
        let far_cpus = if far_cpus.is_empty() { allowed } else { far_cpus };
        let affinity = ThreadAffinity { queue_affinity, number, near_cpus, far_cpus, is_near, alone: 0 };
        affinity.go();
        affinity
    }

    /// Notes that this thread begins to serve requests, and moves it if its CPUs have changed.
    pub(crate) fn begin(&mut self) {
        let others = self.queue_affinity.serving.fetch_add(1, Ordering::Relaxed);
        let is_near = self.queue_affinity.near.load(Ordering::Relaxed) == self.number;
        self.alone = if is_near || others > 0 { 0 } else { self.alone + 1 };
        let takes_over = self.alone > ALONE_MAX;
        if takes_over {
            self.queue_affinity.near.store(self.number, Ordering::Relaxed);
        }
        if self.is_near != (is_near || takes_over) {
            self.is_near = !self.is_near;
            self.go();
        }
    }

    /// Notes that this thread has served its requests.
    pub(crate) fn end(&self) {
        self.queue_affinity.serving.fetch_sub(1, Ordering::Relaxed);
    }

    fn go(&self) {
        cpu::run_on(if self.is_near { &self.near_cpus } else { &self.far_cpus });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a thread of a queue of CPU 0 serve alone for a number of times.
    fn serve(affinity: &mut ThreadAffinity<'_>, times: u32) {
        for _ in 0..times {
            affinity.begin();
            affinity.end();
        }
    }

    #[test]
    fn a_thread_that_serves_alone_becomes_the_near_one() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let queue_affinity = QueueAffinity::default();
                let (mut first, mut second) =
                    (ThreadAffinity::new(&queue_affinity, 0, 0), ThreadAffinity::new(&queue_affinity, 1, 0));
                assert!(first.is_near && !second.is_near);
                serve(&mut second, ALONE_MAX);
                assert!(!second.is_near);
                serve(&mut second, 1);
                assert!(second.is_near);
                // The other moves when it serves again.
                serve(&mut first, 1);
                assert!(!first.is_near);
                serve(&mut first, ALONE_MAX);
                assert!(first.is_near);
            });
        });
    }

    #[test]
    fn a_thread_that_serves_beside_another_stays_where_it_is() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let queue_affinity = QueueAffinity::default();
                let (mut first, mut second) =
                    (ThreadAffinity::new(&queue_affinity, 0, 0), ThreadAffinity::new(&queue_affinity, 1, 0));
                serve(&mut second, ALONE_MAX);
                first.begin();
                serve(&mut second, 2 * ALONE_MAX);
                first.end();
                assert!(first.is_near && !second.is_near);
                // It counts from the beginning.
                serve(&mut second, ALONE_MAX);
                assert!(!second.is_near);
            });
        });
    }

    #[test]
    fn threads_run_on_their_places() {
        let cpus = cpu::allowed();
        let (Some(first), Some(last)) = (cpus.first().copied(), cpus.last().copied()) else { return };
        std::thread::scope(|scope| {
            let at = |number| {
                let queue_affinity = QueueAffinity::default();
                ThreadAffinity::new(&queue_affinity, number, first);
                cpu::allowed()
            };
            assert_eq!(scope.spawn(move || at(0)).join().unwrap(), [first]);
            let far = scope.spawn(move || at(1)).join().unwrap();
            assert!(far.contains(&last) && (cpus.len() == 1 || !far.contains(&first)));
        });
    }
}
