//! Fills in the reports on writeback: a part of `disk show`, and the report on a pass.

use super::{Medium, RunningDisk};
use crate::errors;
use pagefold_control::report::writeback::{PassProgress, PassReport, WritebackStatus};
use pagefold_store::writeback::{LayoutKind, Progress, Writeback, WritebackReport};
use std::time::Duration;

/// The present figures of a disk; `None` without a backing. Does not block.
pub fn status(live: &RunningDisk) -> Option<WritebackStatus> {
    Some(status_of(live.medium.as_ref()?, live.store.writeback()?))
}

fn status_of(medium: &Medium, writeback: &Writeback) -> WritebackStatus {
    let s = writeback.stats();
    let (settings, policy) = (writeback.settings(), writeback.policy());
    let bound = |n: u64| (n > 0).then_some(n);
    copied! {
        WritebackStatus from s:
        capacity_bytes free_bytes payload_bytes written_bytes cleaned_bytes cleaned_segments writes read_bytes reads
        read_ahead_hits read_repeats promoted_pages failed_pages changed_pages unreadable_pages corrupt_pages;
        path: medium.path.display().to_string(),
        medium: writeback.describe(),
        layout: match writeback.layout() {
            LayoutKind::Log => "log".to_string(),
            LayoutKind::Blocks => "blocks".to_string(),
        },
        created: medium.created.is_some(),
        condition: writeback.condition().to_string(),
        pages: s.bd.bd_count,
        bytes: s.written_back_bytes,
        written_back_pages: s.bd.bd_writes,
        write_ratio: bound(s.payload_bytes).map(|payload| s.written_bytes as f64 / payload as f64),
        read_pages: s.bd.bd_reads,
        throttled_writes: policy.throttled().writes,
        throttled_ns: policy.throttled().time_us.saturating_mul(1000),
        limit_left_pages: settings.writeback_limit_enabled.load().then(|| settings.writeback_limit.load()),
        rate_bytes_per_s: bound(policy.rate_bytes_per_s.load()),
        daily_bytes: bound(policy.daily_bytes.load()),
    }
}

/// Converts the progress of a pass.
pub fn progress(p: &Progress) -> PassProgress {
    copied! {
        PassProgress from p: seen_pages total_pages; done_pages: p.written_back_pages, done_bytes: p.written_bytes
    }
}

/// Converts the report on a pass that took `elapsed`.
pub fn pass(report: WritebackReport, elapsed: Duration) -> PassReport {
    copied! {
        PassReport from report: written_back_pages payload_bytes written_bytes failed_pages changed_pages;
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        failure: report.error.as_ref().map(errors::of_writeback),
    }
}
