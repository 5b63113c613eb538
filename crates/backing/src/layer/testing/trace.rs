//! A trace of every request, for tests that check which requests reached a medium.

use super::{Access, Hook, Layered};
use crate::{Backing, BackingError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A medium that records its requests.
pub type TraceLayer<B> = Layered<B, TraceControl>;

/// One request that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEntry {
    /// The request.
    pub access: Access,
    /// Its result.
    pub result: Result<(), BackingError>,
    /// The bytes that it wrote, or read without an error, if the layer records data.
    pub data: Option<Vec<u8>>,
}

/// The entries of a [`TraceLayer`], in the order in which requests ended.
#[derive(Debug)]
pub struct TraceControl {
    keeps_data: bool,
    entries: Mutex<Vec<TraceEntry>>,
}

impl TraceControl {
    fn entries(&self) -> MutexGuard<'_, Vec<TraceEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries and empties the trace.
    pub fn take(&self) -> Vec<TraceEntry> {
        std::mem::take(&mut *self.entries())
    }

    /// Calls `visit` with every entry so far.
    pub fn for_each(&self, mut visit: impl FnMut(&TraceEntry)) {
        self.entries().iter().for_each(&mut visit);
    }
}

impl<B: Backing> TraceLayer<B> {
    /// Makes an empty trace over `inner`. With `keeps_data`, it takes as much memory as is read and written.
    pub fn new(inner: B, keeps_data: bool) -> Self {
        Layered::over(inner, Arc::new(TraceControl { keeps_data, entries: Mutex::default() }))
    }
}

impl Hook for TraceControl {
    fn after(&self, access: Access, data: Option<&[u8]>, result: &Result<(), BackingError>) {
        let data = data.filter(|_| self.keeps_data).map(<[u8]>::to_vec);
        self.entries().push(TraceEntry { access, result: result.clone(), data });
    }

    fn describe(&self) -> String {
        "logged".to_string()
    }
}
