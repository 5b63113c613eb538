//! A bounded queue of tasks for worker threads.
//!
//! A full queue returns the task to the caller, which runs it or drops it. Workers sleep while the queue is empty.
//! After [`Queue::close`] workers drain the queue and then end. The queue starts no threads; its one mutex is held for
//! one operation.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Tasks that wait for a worker thread.
pub struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    capacity: usize,
}

struct State<T> {
    tasks: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    /// Makes a queue of at most `capacity` tasks.
    pub fn new(capacity: usize) -> Self {
        let state = State { tasks: VecDeque::new(), closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new(), capacity }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task, or returns it if the queue is full.
    pub fn push(&self, task: T) -> Option<T> {
        let mut state = self.lock();
        if state.tasks.len() >= self.capacity {
            return Some(task);
        }
        state.tasks.push_back(task);
        drop(state);
        self.changed.notify_one();
        None
    }

    /// Adds a task that is taken before all others, even if the queue is full.
    pub fn push_first(&self, task: T) {
        self.lock().tasks.push_front(task);
        self.changed.notify_one();
    }

    /// Takes a task, if there is one.
    pub fn try_next(&self) -> Option<T> {
        self.lock().tasks.pop_front()
    }

    /// Takes a task, and waits for one if the queue is empty; `None` if it is closed and empty.
    pub fn next(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drops the queued tasks, and returns their number.
    pub fn clear(&self) -> usize {
        self.lock().tasks.drain(..).len()
    }

    /// Makes the workers end after the tasks in the queue.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Returns a guard that closes the queue when it is dropped, after an error or a panic too.
    pub fn close_on_drop(&self) -> CloseOnDrop<'_, T> {
        CloseOnDrop(self)
    }
}

/// Closes the queue on drop.
pub struct CloseOnDrop<'a, T>(&'a Queue<T>);

impl<T> Drop for CloseOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_come_out_once_and_in_order_and_workers_end_after_close() {
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
