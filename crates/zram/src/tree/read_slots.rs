//! [`ReadSlots`], the bound of reads that call the servers of disks at once.
//!
//! Any user may read most files of the tree. Each such read has a thread here and a connection to a server, which serves a
//! limited number of them: without a bound, the readers of one user would keep the commands of root away.

use crate::disks::Errno;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The bound of a tree. A server serves several times as many connections.
pub const TREE: (usize, usize) = (16, 64);

/// A number of reads that may run, and a number of others that may wait for them.
pub struct ReadSlots {
    running_max: usize,
    waiting_max: usize,
    state: Mutex<State>,
    /// A read has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    waiting: usize,
}

impl ReadSlots {
    /// Slots for so many reads.
    pub fn new((running_max, waiting_max): (usize, usize)) -> Self {
        ReadSlots { running_max, waiting_max, state: Mutex::default(), ended: Condvar::new() }
    }

    /// Runs a read when there is a slot for it. Fails with EAGAIN if too many wait for one already.
    pub fn run<T>(&self, read: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let _slot = self.take()?;
        read()
    }

    fn take(&self) -> Result<Slot<'_>, Errno> {
        let mut state = self.lock();
        if state.running == self.running_max {
            if state.waiting == self.waiting_max {
                return Err(Errno(libc::EAGAIN));
            }
            state.waiting += 1;
            while state.running == self.running_max {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
        }
        state.running += 1;
        Ok(Slot(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of a read that runs.
struct Slot<'s>(&'s ReadSlots);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn reads_beyond_those_that_wait_are_refused() {
        let slots = ReadSlots::new((1, 2));
        let (end, may_end) = mpsc::channel::<()>();
        let (began, has_begun) = mpsc::channel();
        std::thread::scope(|s| {
            let slots = &slots;
            s.spawn(move || {
                slots.run(|| {
                    began.send(()).unwrap();
                    may_end.recv().map_err(|_| Errno(libc::EIO))
                })
            });
            has_begun.recv().unwrap();
            let waiting: Vec<_> = (0..2).map(|n| s.spawn(move || slots.run(|| Ok(n)))).collect();
            while slots.lock().waiting < 2 {
                std::thread::yield_now();
            }
            assert_eq!(slots.run(|| Ok(())), Err(Errno(libc::EAGAIN)));
            end.send(()).unwrap();
            assert_eq!(waiting.into_iter().map(|w| w.join().unwrap()).collect::<Vec<_>>(), [Ok(0), Ok(1)]);
        });
        assert_eq!(slots.run(|| Ok(7)), Ok(7));
        assert_eq!(slots.run(|| Err::<(), _>(Errno(libc::ENODEV))), Err(Errno(libc::ENODEV)));
        assert_eq!(slots.lock().running, 0);
    }
}
