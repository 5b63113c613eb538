//! The result of a pass, and its progress while it runs.

use crate::error::WritebackError;

/// The progress of a running pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Slots examined so far.
    pub seen_pages: u64,
    /// Slots to examine in total.
    pub total_pages: u64,
    /// Pages written back.
    pub written_back_pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// The result of a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WritebackReport {
    /// Pages written back.
    pub written_back_pages: u64,
    /// Bytes of these as they were in memory, compressed.
    pub payload_bytes: u64,
    /// Bytes written, including headers and padding, without the cleaner's writes.
    pub written_bytes: u64,
    /// Pages that stayed in memory because their write failed.
    pub failed_pages: u64,
    /// Pages that were changed or freed while their write was in flight.
    pub changed_pages: u64,
    /// The reason why the pass ended early, or else the most recent error of a request.
    pub error: Option<WritebackError>,
}

impl WritebackReport {
    /// Converts the report to the result of zram's `writeback` attribute: an error if the budget was used up, the
    /// backing was full, or a request failed.
    pub fn result(self) -> Result<WritebackReport, WritebackError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}
