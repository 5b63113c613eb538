//! Layers for tests: faults, torn writes, logs, counts, bounded rates; and a clock that tests move.
//!
//! All are a [`Hook`] in the one generic layer here, [`Layered`]: asked before a request, told after it. Each has a control
//! (the hook), shared by an `Arc`, through which a test changes and reads it while it runs. Layers stack in
//! any order.

mod clock;
mod error;
mod hooked;
mod log;
mod rate;
mod stats;
mod torn;

pub use clock::ManualClock;
pub use error::{ErrorControl, ErrorLayer, FaultRule, When};
pub use hooked::{Hook, Layered};
pub use log::{LogControl, LogEntry, LogLayer};
pub use rate::{RateControl, RateLayer};
pub use stats::{ActionStats, MediumStats, StatsControl, StatsLayer};
pub use torn::{Tear, TornControl, TornLayer, TornRule};

use super::delay::transfer_time;
use super::{Clock, mix};

/// What a medium is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Make durable.
    Flush,
    /// Give back.
    Discard,
}

/// One request, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access {
    /// What.
    pub action: Action,
    /// First byte; 0 for a flush.
    pub offset: u64,
    /// How many; 0 for a flush.
    pub len_bytes: u64,
}

impl Access {
    /// Whether it touches one of these bytes.
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

    /// Its failure with this number.
    fn failed(&self, errno: i32) -> crate::BackingError {
        let (offset, len_bytes) = (self.offset, self.len_bytes);
        crate::BackingError::Io { operation: self.name(), offset, len_bytes, errno }
    }
}
