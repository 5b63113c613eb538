//! Counters of a medium's requests.

use super::{Access, Action, Hook, Layered};
use crate::{Backing, BackingError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A medium that counts its requests.
pub type StatsLayer<B> = Layered<B, StatsControl>;

/// Requests of one kind that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActionStats {
    /// Number of requests, failed ones included.
    pub requests: u64,
    /// Bytes of the requests that did not fail.
    pub bytes: u64,
    /// Number of requests that failed.
    pub errors: u64,
}

/// Requests that have ended, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediumStats {
    /// Reads.
    pub reads: ActionStats,
    /// Writes.
    pub writes: ActionStats,
    /// Flushes; they have no bytes.
    pub flushes: ActionStats,
    /// Discards.
    pub discards: ActionStats,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Counters {
    fn stats(&self) -> ActionStats {
        let Counters { requests, bytes, errors } = self;
        ActionStats {
            requests: requests.load(Relaxed),
            bytes: bytes.load(Relaxed),
            errors: errors.load(Relaxed),
        }
    }
}

/// The counters of a [`StatsLayer`].
#[derive(Debug, Default)]
pub struct StatsControl {
    reads: Counters,
    writes: Counters,
    flushes: Counters,
    discards: Counters,
}

impl StatsControl {
    /// The counters now. They are read one by one, so requests that end meanwhile may be counted in part.
    pub fn stats(&self) -> MediumStats {
        MediumStats {
            reads: self.reads.stats(),
            writes: self.writes.stats(),
            flushes: self.flushes.stats(),
            discards: self.discards.stats(),
        }
    }
}

impl<B: Backing> StatsLayer<B> {
    /// Makes a layer over `inner` with all counters at zero.
    pub fn new(inner: B) -> Self {
        Layered::over(inner, Arc::default())
    }
}

impl Hook for StatsControl {
    fn after(&self, access: Access, _: Option<&[u8]>, result: &Result<(), BackingError>) {
        let counters = match access.action {
            Action::Read => &self.reads,
            Action::Write => &self.writes,
            Action::Flush => &self.flushes,
            Action::Discard => &self.discards,
        };
        counters.requests.fetch_add(1, Relaxed);
        match result {
            Ok(()) => counters.bytes.fetch_add(access.len_bytes, Relaxed),
            Err(_) => counters.errors.fetch_add(1, Relaxed),
        };
    }

    fn describe(&self) -> String {
        "counted".to_string()
    }
}
