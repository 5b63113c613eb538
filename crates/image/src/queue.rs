//! Work for several threads: a queue of bounded length that workers wait at.
//!
//! What does not fit is given back to who brought it, to be done there or not at all. Once closed, the queue hands out what it
//! still has, and then nothing, so that workers end. It starts no threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tasks that wait for a worker.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    changed: Condvar,
    capacity: usize,
}

struct Waiting<T> {
    tasks: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    /// A queue of at most `capacity` tasks.
    pub(crate) fn new(capacity: usize) -> Self {
        let waiting = Waiting { tasks: VecDeque::new(), closed: false };
        Queue { waiting: Mutex::new(waiting), changed: Condvar::new(), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task, or gives it back if there is no room.
    pub(crate) fn push(&self, task: T) -> Option<T> {
        let mut waiting = self.lock();
        if waiting.tasks.len() >= self.capacity {
            return Some(task);
        }
        waiting.tasks.push_back(task);
        drop(waiting);
        self.changed.notify_one();
        None
    }

    /// A task, if there is one.
    pub(crate) fn try_next(&self) -> Option<T> {
        self.lock().tasks.pop_front()
    }

    /// A task, waited for; `None` when the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        loop {
            if let Some(task) = waiting.tasks.pop_front() {
                return Some(task);
            }
            if waiting.closed {
                return None;
            }
            waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Forgets the tasks that wait, and returns how many those were.
    pub(crate) fn clear(&self) -> usize {
        self.lock().tasks.drain(..).len()
    }

    /// Lets the workers end when they have done what is queued.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Closes the queue when the guard is dropped, however that comes about.
    pub(crate) fn close_on_drop(&self) -> CloseOnDrop<'_, T> {
        CloseOnDrop(self)
    }
}

/// While it lives, workers wait for more.
pub(crate) struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_handed_out_once_and_in_order_and_then_workers_end() {
        let queue = Queue::new(3);
        assert_eq!([1, 2, 3, 4].map(|task| queue.push(task)), [None, None, None, Some(4)]);
        assert_eq!(queue.try_next(), Some(1));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| std::iter::from_fn(|| queue.next()).collect::<Vec<_>>());
            drop(queue.close_on_drop());
            assert_eq!(worker.join().unwrap(), [2, 3]);
        });
        assert_eq!((queue.push(5), queue.clear(), queue.next()), (None, 1, None));
    }
}
