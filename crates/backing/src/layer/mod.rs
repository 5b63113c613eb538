//! Layers: a medium over a medium, for faults, delays, rates, logs and counts.
//!
//! A layer implements [`Backing`](crate::Backing) over another and wraps its queues as well, so that
//! both ways in meet the same faults. Most are a [`Hook`] in the one generic layer
//! here, [`Layered`]: asked before a request, told after it. The delay layer decides
//! when a completion is seen, which a hook cannot, and stands by itself.
//!
//! Each layer has a control (the hook), shared by an `Arc`, through which a test or an
//! operator changes and reads it while it runs. Layers stack in any order.

mod delay;
mod error;
mod hooked;
mod log;
mod pace;
mod rate;
mod stats;
mod torn;

pub use delay::{DelayLayer, DelayOptions};
pub use error::{ErrorControl, ErrorLayer, FaultRule, When};
pub use hooked::{Hook, Layered};
pub use log::{LogControl, LogEntry, LogLayer};
pub use pace::{Clock, ManualClock, SystemClock};
pub use rate::{RateControl, RateLayer};
pub use stats::{ActionStats, MediumStats, StatsControl, StatsLayer};
pub use torn::{Tear, TornControl, TornLayer, TornRule};

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

/// A number that looks random, the same for the same seed and step (splitmix64, by Sebastiano Vigna).
fn mix(seed: u64, step: u64) -> u64 {
    let z = seed.wrapping_add(step.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
