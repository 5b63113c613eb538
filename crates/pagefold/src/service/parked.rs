//! What is known about parking: the part of `disk show` about it, and how a pass went.
//! Documented in `docs/json.md`; names end in their unit, values are exact.

use super::disk::{Disk, Medium};
use crate::failure::{Exit, Failure};
use pagefold_store::parking::{LayoutKind, ParkError, ParkReport, Parking, Progress};
use pagefold_store::slot::Stamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The longest age that pages are told apart by, seconds: what is older has at least this one.
pub const AGE_MAX_S: u64 = Stamp::AGE_MAX as u64 / 4;

/// The backing of a disk, and what is parked there. Pages and bytes since the disk was created, unless
/// said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ParkingReport {
    /// The file or device.
    pub path: String,
    /// What it is and how it is reached, for people.
    pub medium: String,
    /// `log` or `blocks`.
    pub layout: String,
    /// Whether the file was made for the disk, and so is removed with it.
    pub created: bool,
    /// What parking does now, or why it does nothing, for people.
    pub condition: String,
    /// Pages parked now.
    pub pages: u64,
    /// What they take on the medium, headers not counted.
    pub bytes: u64,
    /// Usable bytes of the medium.
    pub capacity_bytes: u64,
    /// Bytes of it that hold nothing.
    pub free_bytes: u64,
    /// Pages parked.
    pub parked_pages: u64,
    /// Bytes of these as they were in memory.
    pub payload_bytes: u64,
    /// Bytes written for these, headers and padding included.
    pub written_bytes: u64,
    /// `written_bytes` by `payload_bytes`; absent while nothing was parked.
    pub write_ratio: Option<f64>,
    /// Bytes that the cleaner wrote.
    pub cleaned_bytes: u64,
    /// Segments that the cleaner emptied.
    pub cleaned_segments: u64,
    /// Write requests, the cleaner's included.
    pub writes: u64,
    /// Pages read back.
    pub read_pages: u64,
    /// Bytes read back.
    pub read_bytes: u64,
    /// Read requests.
    pub reads: u64,
    /// Pages read back with a neighbour's request.
    pub read_ahead_hits: u64,
    /// Reads repeated because the page changed meanwhile.
    pub read_repeats: u64,
    /// Pages that came back to memory because they were read twice.
    pub promoted_pages: u64,
    /// Pages that stayed in memory because their write failed.
    pub failed_pages: u64,
    /// Pages that were changed or freed while their write was in flight.
    pub changed_pages: u64,
    /// Reads of parked pages that failed because the medium did.
    pub unreadable_pages: u64,
    /// Reads of parked pages that failed because what was read is corrupt.
    pub corrupt_pages: u64,
    /// Writes that waited at the memory limit for pages to be parked.
    pub throttled_writes: u64,
    /// How long these waited in all.
    pub throttled_ns: u64,
    /// Pages that may still be parked; absent while there is no such limit.
    pub limit_left_pages: Option<u64>,
    /// Most bytes a second that automatic parking writes; absent for no bound.
    pub rate_bytes_per_s: Option<u64>,
    /// Most bytes that automatic parking writes within 24 hours; absent for no bound.
    pub daily_bytes: Option<u64>,
}

impl ParkingReport {
    /// The figures of `disk` now, if it has a backing. Waits for nothing.
    pub fn of(disk: &Disk) -> Option<Self> {
        Some(ParkingReport::new(disk.backing()?, disk.store().parking()?))
    }

    fn new(medium: &Medium, parking: &Parking) -> Self {
        let s = parking.stats();
        let (settings, policy) = (parking.settings(), parking.policy());
        let bound = |n: u64| (n > 0).then_some(n);
        ParkingReport {
            path: medium.path.display().to_string(),
            medium: parking.describe(),
            layout: match parking.layout() {
                LayoutKind::Log => "log".to_string(),
                LayoutKind::Blocks => "blocks".to_string(),
            },
            created: medium.created,
            condition: parking.condition().to_string(),
            pages: s.bd.bd_count,
            bytes: s.parked_bytes,
            capacity_bytes: s.capacity_bytes,
            free_bytes: s.free_bytes,
            parked_pages: s.bd.bd_writes,
            payload_bytes: s.payload_bytes,
            written_bytes: s.written_bytes,
            write_ratio: bound(s.payload_bytes).map(|payload| s.written_bytes as f64 / payload as f64),
            cleaned_bytes: s.cleaned_bytes,
            cleaned_segments: s.cleaned_segments,
            writes: s.writes,
            read_pages: s.bd.bd_reads,
            read_bytes: s.read_bytes,
            reads: s.reads,
            read_ahead_hits: s.read_ahead_hits,
            read_repeats: s.read_repeats,
            promoted_pages: s.promoted_pages,
            failed_pages: s.failed_pages,
            changed_pages: s.changed_pages,
            unreadable_pages: s.unreadable_pages,
            corrupt_pages: s.corrupt_pages,
            throttled_writes: policy.throttled().writes,
            throttled_ns: policy.throttled().time_us.saturating_mul(1000),
            limit_left_pages: settings.writeback_limit_enabled().then(|| settings.writeback_limit()),
            rate_bytes_per_s: bound(policy.rate_bytes_per_s()),
            daily_bytes: bound(policy.daily_bytes()),
        }
    }
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassProgress {
    /// Pages looked at.
    pub seen_pages: u64,
    /// Pages to look at in all; 0 while it is not known.
    pub total_pages: u64,
    /// Pages parked.
    pub parked_pages: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl From<&Progress> for PassProgress {
    fn from(p: &Progress) -> Self {
        PassProgress {
            seen_pages: p.seen_pages,
            total_pages: p.total_pages,
            parked_pages: p.parked_pages,
            written_bytes: p.written_bytes,
        }
    }
}

/// How a pass went: the JSON of `disk park`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassReport {
    /// Pages parked.
    pub parked_pages: u64,
    /// Bytes of these as they were in memory.
    pub payload_bytes: u64,
    /// Bytes written, headers and padding included.
    pub written_bytes: u64,
    /// Pages that stayed because their write failed.
    pub failed_pages: u64,
    /// Pages that stayed because they were changed or freed meanwhile.
    pub changed_pages: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// Why it ended early, or else the most recent error of a write.
    pub failure: Option<Failure>,
}

impl PassReport {
    /// What the engine says of a pass that took `elapsed`.
    pub fn new(report: ParkReport, elapsed: Duration) -> Self {
        PassReport {
            parked_pages: report.parked_pages,
            payload_bytes: report.payload_bytes,
            written_bytes: report.written_bytes,
            failed_pages: report.failed_pages,
            changed_pages: report.changed_pages,
            elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            failure: report.error.as_ref().map(failure),
        }
    }
}

/// Why pages were not parked, with the error number that zram would answer.
pub fn failure(e: &ParkError) -> Failure {
    let exit = match e {
        ParkError::NoBacking => Exit::Unavailable,
        ParkError::Selection(_) => Exit::Usage,
        ParkError::Budget | ParkError::Full | ParkError::Io(_) | ParkError::Stopped => Exit::Failed,
    };
    let advice = match e {
        ParkError::NoBacking => "; create the disk with --backing",
        ParkError::Full => {
            "; discard what is not needed, make room in that file system, or create a disk with a larger backing"
        }
        _ => "",
    };
    Failure::new(exit, format!("{}{advice}", with_errno(e, e.errno())))
}

/// A sentence with the name of its error number behind it.
pub fn with_errno(sentence: impl fmt::Display, errno: i32) -> String {
    let name = match errno {
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::EINTR => "EINTR",
        libc::ENODEV => "ENODEV",
        libc::ENOMEM => "ENOMEM",
        libc::ENOSPC => "ENOSPC",
        libc::ERANGE => "ERANGE",
        other => return format!("{sentence} (error {other})"),
    };
    format!("{sentence} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_store::parking::SelectionError;

    #[test]
    fn failures_have_an_exit_code_and_zrams_error_number() {
        for (error, exit, name) in [
            (ParkError::NoBacking, Exit::Unavailable, "(ENODEV)"),
            (ParkError::Selection(SelectionError::Nothing), Exit::Usage, "(EINVAL)"),
            (
                ParkError::Selection(SelectionError::OutOfRange { index: 9, page_count: 5 }),
                Exit::Usage,
                "(ERANGE)",
            ),
            (ParkError::Budget, Exit::Failed, "(EIO)"),
            (ParkError::Full, Exit::Failed, "(ENOSPC)"),
            (ParkError::Stopped, Exit::Failed, "(EINTR)"),
        ] {
            let failure = failure(&error);
            assert_eq!(failure.exit, exit, "{failure}");
            assert!(failure.message.contains(name), "{failure}");
        }
    }
}
