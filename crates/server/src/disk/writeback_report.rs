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
    WritebackStatus {
        path: medium.path.display().to_string(),
        medium: writeback.describe(),
        layout: match writeback.layout() {
            LayoutKind::Log => "log".to_string(),
            LayoutKind::Blocks => "blocks".to_string(),
        },
        created: medium.created,
        condition: writeback.condition().to_string(),
        pages: s.bd.bd_count,
        bytes: s.written_back_bytes,
        capacity_bytes: s.capacity_bytes,
        free_bytes: s.free_bytes,
        written_back_pages: s.bd.bd_writes,
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

/// Converts the progress of a pass.
pub fn progress(p: &Progress) -> PassProgress {
    PassProgress {
        seen_pages: p.seen_pages,
        total_pages: p.total_pages,
        done_pages: p.written_back_pages,
        done_bytes: p.written_bytes,
    }
}

/// Converts the report on a pass that took `elapsed`.
pub fn pass(report: WritebackReport, elapsed: Duration) -> PassReport {
    PassReport {
        written_back_pages: report.written_back_pages,
        payload_bytes: report.payload_bytes,
        written_bytes: report.written_bytes,
        failed_pages: report.failed_pages,
        changed_pages: report.changed_pages,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
        failure: report.error.as_ref().map(errors::of_writeback),
    }
}
