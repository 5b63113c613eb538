//! Layers for tests: faults, torn writes, traces and counters; and a clock that tests advance.
//!
//! Each is a [`Hook`] in the generic layer [`Layered`], which calls the hook before and after each request. A test
//! controls and reads the layer while it runs through the hook, which an `Arc` shares. Layers stack in any order.

mod clock;
mod error;
mod hooked;
mod stats;
mod torn;
mod trace;

pub use clock::ManualClock;
pub use error::{ErrorControl, ErrorLayer, FaultRule, When};
pub use hooked::{Hook, Layered};
pub use stats::{ActionStats, MediumStats, StatsControl, StatsLayer};
pub use torn::{Tear, TornControl, TornLayer, TornRule};
pub use trace::{TraceControl, TraceEntry, TraceLayer};

use super::{TimeSource, splitmix64};

/// The kind of a request to a medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// [`ByteSource::read_at`](crate::ByteSource::read_at), or a queued read.
    Read,
    /// [`Backing::write_at`](crate::Backing::write_at), or a queued write.
    Write,
    /// [`Backing::flush`](crate::Backing::flush).
    Flush,
    /// [`Backing::discard`](crate::Backing::discard).
    Discard,
}

/// One request, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// Its kind.
    pub action: Action,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// Number of bytes; 0 for a flush.
    pub len_bytes: u64,
}

impl Access {
    /// Whether the request overlaps this range.
    fn touches(&self, range: &std::ops::Range<u64>) -> bool {
        self.offset < range.end && range.start < self.offset.saturating_add(self.len_bytes)
    }

    /// The action's name in error messages.
    fn name(&self) -> &'static str {
        match self.action {
            Action::Read => "read",
            Action::Write => "write",
            Action::Flush => "flush",
            Action::Discard => "discard",
        }
    }

    /// The error of this request with the error number `errno`.
    fn failed(&self, errno: i32) -> crate::BackingError {
        let (offset, len_bytes) = (self.offset, self.len_bytes);
        crate::BackingError::Io { operation: self.name(), offset, len_bytes, errno }
    }
}
