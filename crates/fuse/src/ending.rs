//! [`Ending`]: why the first thread of a session ended, for the owner of the mount.
//!
//! Threads end when their connection does, and when they fail. A server whose threads have ended looks alive otherwise,
//! so each thread serves inside of [`Ending::watch`], which notes the reason of the first one and makes a descriptor
//! readable. This module neither ends threads nor waits for them.
//!
//! Of a [stateless](crate::FileSystem::IS_STATELESS) file system it counts the requests that panicked. A session that another
//! server can take over reports too many of them like the end of a thread, so that its owner ends the process.

use pagefold_sys::SysError;
use pagefold_sys::fusering::StopEvent;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The reason of a thread whose connection has ended.
pub(crate) const DISCONNECTED: &str = "its FUSE file system was unmounted, or its connection aborted";

/// The number of requests that panic before another server is to take the mount over: each may have lost memory.
pub(crate) const PANICS_MAX: u64 = 100;

/// The end of a session's threads.
#[derive(Debug)]
pub(crate) struct Ending {
    happened: StopEvent,
    reason: OnceLock<String>,
    panics: Arc<AtomicU64>,
}

impl Ending {
    /// That of threads that have not begun. Fails if the process may have no further descriptor.
    pub(crate) fn new() -> Result<Self, SysError> {
        Ok(Ending { happened: StopEvent::new()?, reason: OnceLock::new(), panics: Arc::default() })
    }

    /// The counter of requests that panicked and failed with EIO.
    pub(crate) fn panics(&self) -> Arc<AtomicU64> {
        self.panics.clone()
    }

    /// Counts a request that panicked. If another server can take over, the number [`PANICS_MAX`] is reported as a failure.
    pub(crate) fn count_panic(&self, is_kept: bool) {
        if self.panics.fetch_add(1, Ordering::Relaxed) + 1 == PANICS_MAX && is_kept {
            self.note(format!("{PANICS_MAX} requests panicked"));
        }
    }

    /// Notes the reason of the first end.
    fn note(&self, reason: String) {
        // Only the first is kept: the others may have ended because of it.
        let _ = self.reason.set(reason);
        self.happened.signal();
    }

    /// Calls `serve`, and notes why it ended, even if it panics.
    pub(crate) fn watch(&self, serve: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut noted = Noted { ending: self, reason: "a FUSE thread panicked".into() };
        let served = serve();
        noted.reason = match &served {
            Ok(()) => DISCONNECTED.into(),
            Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => DISCONNECTED.into(),
            Err(e) => format!("a FUSE thread failed: {e}"),
        };
        served
    }

    /// Why the first thread ended; `None` while all serve.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// A descriptor that is readable from the end of the first thread on, for `poll`.
    pub(crate) fn first(&self) -> BorrowedFd<'_> {
        self.happened.as_fd()
    }
}

/// Notes the reason when it is dropped.
struct Noted<'a> {
    ending: &'a Ending,
    reason: String,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.ending.note(std::mem::take(&mut self.reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn has_happened(ending: &Ending) -> bool {
        pagefold_sys::ready::wait([ending.first()], Some(Duration::ZERO)).unwrap()[0]
    }

    #[test]
    fn the_reason_is_that_of_the_first_end() {
        let ending = Ending::new().unwrap();
        assert!(ending.reason().is_none() && !has_happened(&ending));
        let failed = ending.watch(|| {
            assert!(ending.reason().is_none() && !has_happened(&ending));
            Err(io::Error::from_raw_os_error(libc::ENOMEM))
        });
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        ending.watch(|| Ok(())).unwrap();
        let reason = ending.reason().unwrap();
        assert!(reason.contains("failed") && reason.contains("memory"), "{reason}");
        assert!(has_happened(&ending));
    }

    #[test]
    fn an_aborted_connection_and_a_panic_are_reasons_too() {
        let aborted = Ending::new().unwrap();
        let _ = aborted.watch(|| Err(io::Error::from_raw_os_error(libc::ECONNABORTED)));
        assert_eq!(aborted.reason(), Some(DISCONNECTED));
        let panicked = Ending::new().unwrap();
        std::thread::scope(|scope| {
            assert!(scope.spawn(|| panicked.watch(|| panic!("a panic of this test"))).join().is_err());
        });
        assert!(panicked.reason().unwrap().contains("panicked") && has_happened(&panicked));
    }
}
