//! Interrupted requests: which ones nobody waits for any more.
//!
//! The kernel sends INTERRUPT, with the number of a request, when a signal arrives at the program that waits for it. Another
//! thread than the one that serves the request receives it, and notes the number here. A file system that
//! [can be interrupted](crate::FileSystem::CAN_BE_INTERRUPTED) asks [`is_interrupted`] while it works.
//!
//! The table has a place for each number modulo its length. Numbers are never used twice, so an old one is harmless. A number that
//! another one has replaced is lost: the program waits until its request is served.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Places of the table.
const PLACES: usize = 64;

/// The numbers of interrupted requests of a mount. 0 is no number of a request.
#[derive(Debug)]
pub(crate) struct Interrupts([AtomicU64; PLACES]);

/// The request that a thread serves at the moment, or number 0.
struct Current {
    id: u64,
    interrupts: Option<Arc<Interrupts>>,
}

thread_local! {
    static CURRENT: RefCell<Current> = const { RefCell::new(Current { id: 0, interrupts: None }) };
}

/// Whether the request that this thread serves was interrupted, so that a reply with EINTR is as good as any. A signal
/// that does not end a program interrupts its requests too, and programs do not expect EINTR of files: ask this only after
/// a time in which an ordinary request is served.
pub fn is_interrupted() -> bool {
    CURRENT.with_borrow(|current| {
        let interrupts = current.interrupts.as_ref().filter(|_| current.id != 0);
        interrupts
            .is_some_and(|interrupts| interrupts.place(current.id).load(Ordering::Relaxed) == current.id)
    })
}

impl Interrupts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Interrupts([const { AtomicU64::new(0) }; PLACES]))
    }

    /// Notes that a request was interrupted.
    pub(crate) fn add(&self, id: u64) {
        self.place(id).store(id, Ordering::Relaxed);
    }

    /// Serves a request by `run`, in which [`is_interrupted`] is about this request.
    pub(crate) fn serve<T>(self: &Arc<Self>, id: u64, run: impl FnOnce() -> T) -> T {
        CURRENT.with_borrow_mut(|current| {
            current.id = id;
            // A thread serves one mount: the count of references is changed once.
            if !current.interrupts.as_ref().is_some_and(|known| Arc::ptr_eq(known, self)) {
                current.interrupts = Some(self.clone());
            }
        });
        let result = run();
        CURRENT.with_borrow_mut(|current| current.id = 0);
        result
    }

    /// The place of a number. The kernel's numbers are even.
    fn place(&self, id: u64) -> &AtomicU64 {
        &self.0[(id / 2) as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_request_with_that_number_is_interrupted() {
        let (interrupts, others) = (Interrupts::new(), Interrupts::new());
        assert!(!is_interrupted());
        interrupts.serve(6, || {
            others.add(6);
            interrupts.add(8);
            interrupts.add(6 + 2 * PLACES as u64);
            assert!(!is_interrupted());
            interrupts.add(6);
            assert!(is_interrupted());
            std::thread::scope(|scope| scope.spawn(|| assert!(!is_interrupted())).join().unwrap());
        });
        assert!(!is_interrupted());
        // An interruption that overtakes its request counts.
        interrupts.add(10);
        assert!(interrupts.serve(10, is_interrupted));
        assert!(!others.serve(10, is_interrupted));
    }
}
