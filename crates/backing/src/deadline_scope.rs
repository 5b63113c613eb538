//! Reads of one thread that share a deadline: those of one request of a program.
//!
//! A request for a file may read an index, then stored bytes, and each of these reads may wait for a server. Sources with a
//! deadline count from the start of the scope, so that the program waits for one deadline and not for several. The start is
//! a property of the thread, because the code between the request and the source knows nothing of deadlines. Threads that
//! work for a request of another thread have no scope, and each of their reads has a separate deadline.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::Instant;

thread_local! {
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The reads of this thread share a deadline until this is dropped.
#[derive(Debug)]
pub struct DeadlineScope {
    /// The start of the scope around this one.
    outer: Option<Instant>,
    /// A scope stays in its thread.
    _not_send: PhantomData<*const ()>,
}

impl DeadlineScope {
    /// Begins a scope. Inside another one, that one's start stays.
    #[must_use]
    pub fn begin() -> Self {
        let outer = BEGUN.get();
        BEGUN.set(outer.or_else(|| Some(Instant::now())));
        DeadlineScope { outer, _not_send: PhantomData }
    }

    /// Begins the scope of another thread or process, for which this one works; `begun` is its start, if it has one.
    #[must_use]
    pub fn begin_for(begun: Option<Instant>) -> Self {
        let outer = BEGUN.replace(begun);
        DeadlineScope { outer, _not_send: PhantomData }
    }

    /// The start of this thread's scope; `None` if it has none.
    pub fn begun() -> Option<Instant> {
        BEGUN.get()
    }
}

impl Drop for DeadlineScope {
    fn drop(&mut self) {
        BEGUN.set(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_that_of_the_outermost_scope_of_the_thread() {
        let pause = || std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(DeadlineScope::begun(), None);
        let outer = DeadlineScope::begin();
        let begun = DeadlineScope::begun();
        assert!(begun.is_some_and(|begun| begun <= Instant::now()));
        pause();
        let inner = DeadlineScope::begin();
        assert_eq!(DeadlineScope::begun(), begun);
        drop(inner);
        assert_eq!(DeadlineScope::begun(), begun);
        assert_eq!(std::thread::spawn(DeadlineScope::begun).join().unwrap(), None);
        drop(outer);
        assert_eq!(DeadlineScope::begun(), None);
    }
}
