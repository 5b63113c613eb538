//! A record of every request, for tests that ask what ever reached a medium.

use super::{Access, Hook, Layered};
use crate::{Backing, BackingError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A medium that notes its requests.
pub type LogLayer<B> = Layered<B, LogControl>;

/// One request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// What it was.
    pub access: Access,
    /// How it ended.
    pub result: Result<(), BackingError>,
    /// What it wrote, or read without an error, if data are kept.
    pub data: Option<Vec<u8>>,
}

/// The log of a [`LogLayer`], in the order in which requests ended.
#[derive(Debug)]
pub struct LogControl {
    keeps_data: bool,
    entries: Mutex<Vec<LogEntry>>,
}

impl LogControl {
    fn entries(&self) -> MutexGuard<'_, Vec<LogEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the entries out; the log is empty afterwards.
    pub fn take(&self) -> Vec<LogEntry> {
        std::mem::take(&mut *self.entries())
    }

    /// Shows every entry so far.
    pub fn for_each(&self, mut look: impl FnMut(&LogEntry)) {
        self.entries().iter().for_each(&mut look);
    }
}

impl<B: Backing> LogLayer<B> {
    /// An empty log over `inner`. Keeping the data takes as much memory as passes through.
    pub fn new(inner: B, keeps_data: bool) -> Self {
        Layered::over(inner, Arc::new(LogControl { keeps_data, entries: Mutex::default() }))
    }
}

impl Hook for LogControl {
    fn after(&self, access: Access, data: Option<&[u8]>, result: &Result<(), BackingError>) {
        let data = data.filter(|_| self.keeps_data).map(<[u8]>::to_vec);
        self.entries().push(LogEntry { access, result: result.clone(), data });
    }

    fn describe(&self) -> String {
        "logged".to_string()
    }
}
