//! [`EndWatch`]: logs the end of an export that nobody requested.
//!
//! A thread of an export can end alone, while others serve on; usually all end together. The descriptor of the export
//! reports the first end only, so the threads that serve on are looked at again at intervals. This module ends nothing:
//! the main thread serves on, so that commands can report the end.

use crate::export::Export;
use crate::log;
use pagefold_control::instance::InstanceName;
use pagefold_fuse::SessionEnd;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// How long the threads of an export may take to end after the first of them, for the log.
const ENDING_TIME: Duration = Duration::from_millis(500);
/// How often an export is looked at whose first thread has ended.
const INTERVAL: Duration = Duration::from_secs(1);

/// The end of an export that the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logged {
    /// None: all threads serve, as far as is known.
    Nothing,
    /// That of a thread, while others serve on.
    Partial,
    /// That of all threads.
    Complete,
}

/// Watches the threads of an export. Logs once that the first of them has ended if others serve on, and once that all
/// have ended.
pub(super) struct EndWatch<'a> {
    export: &'a dyn Export,
    name: &'a InstanceName,
    logged: Logged,
}

impl<'a> EndWatch<'a> {
    /// Watches `export`, that of the disk `name`.
    pub(super) fn new(export: &'a dyn Export, name: &'a InstanceName) -> Self {
        EndWatch { export, name, logged: Logged::Nothing }
    }

    /// The descriptor to poll, after which [`EndWatch::check`] has something to do; `None` if that is to be called at
    /// intervals, or not any more.
    pub(super) fn first_end(&self) -> Option<BorrowedFd<'a>> {
        self.export.first_end().filter(|_| self.logged == Logged::Nothing)
    }

    /// After which time [`EndWatch::check`] is to be called again; `None` if only after the descriptor is readable.
    pub(super) fn interval(&self) -> Option<Duration> {
        (self.logged == Logged::Partial).then_some(INTERVAL)
    }

    /// Logs an end that the log does not have yet.
    pub(super) fn check(&mut self) {
        if self.logged == Logged::Complete || self.export.end().is_none() {
            return;
        }
        if self.logged == Logged::Nothing {
            self.wait_for_the_others();
        }
        let Some(SessionEnd { reason, is_complete, .. }) = self.export.end() else { return };
        let name = self.name;
        match (self.logged, is_complete) {
            (Logged::Nothing, false) => {
                log::warning(format_args!(
                    "a thread of the export has ended, because {reason}; others serve on"
                ));
                self.logged = Logged::Partial;
            }
            (Logged::Nothing, true) => {
                log::error(format_args!(
                    "the export has ended, because {reason}: every request fails; remove the disk: disk remove {name}"
                ));
                self.logged = Logged::Complete;
            }
            (Logged::Partial, true) => {
                log::error(format_args!(
                    "the other threads of the export have ended too; the first ended because {reason}: every request \
                     fails; remove the disk: disk remove {name}"
                ));
                self.logged = Logged::Complete;
            }
            _ => {}
        }
    }

    /// Waits a moment for the other threads to end, after the first of them.
    fn wait_for_the_others(&self) {
        let deadline = Instant::now() + ENDING_TIME;
        let is_partial = |end: &SessionEnd| !end.is_complete;
        while self.export.end().as_ref().is_some_and(is_partial) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
