//! What a pass did, and how far it is.

use crate::parking::error::ParkError;

/// How far a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Slots looked at.
    pub seen_pages: u64,
    /// Slots to look at in all.
    pub total_pages: u64,
    /// Pages parked.
    pub parked_pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// What a pass did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParkReport {
    /// Pages parked.
    pub parked_pages: u64,
    /// Bytes of these as they were in memory, compressed.
    pub payload_bytes: u64,
    /// Bytes written, headers and padding included; the cleaner apart.
    pub written_bytes: u64,
    /// Pages that stayed in memory because their write failed.
    pub failed_pages: u64,
    /// Pages that were changed or freed while their write was in flight.
    pub changed_pages: u64,
    /// Why the pass ended early, or else the most recent error of a request.
    pub error: Option<ParkError>,
}

impl ParkReport {
    /// As zram's `writeback` answers: budget used up, backing full, or the most recent error.
    pub fn result(self) -> Result<ParkReport, ParkError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}
