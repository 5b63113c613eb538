//! Fills in the reports on recompression: a part of `disk show`, and the report on a pass.

use super::RunningDisk;
use pagefold_control::report::recompress::{FurtherCodec, RecompressPassReport, RecompressStatus};
use pagefold_control::report::writeback::PassProgress;
use pagefold_store::recompress::{RecompressProgress, RecompressReport};
use std::time::Duration;

/// The present figures of a disk; `None` if it has no further codecs. Does not block.
pub fn status(live: &RunningDisk) -> Option<RecompressStatus> {
    let s = live.store.stats().recompress;
    let codec = |priority: u8| {
        let (name, level) = live.store.codec_of(priority)?;
        let pages = s.pages_now[usize::from(priority) - 1];
        Some(FurtherCodec {
            priority,
            name: name.into(),
            level,
            pages,
            after_s: live.recompressed_after_s(priority),
        })
    };
    let codecs: Vec<FurtherCodec> = (1..=3).filter_map(codec).collect();
    (!codecs.is_empty())
        .then_some(copied!(RecompressStatus from s: recompressed_pages saved_bytes not_smaller_pages; codecs))
}

/// Converts the progress of a pass.
pub fn progress(p: &RecompressProgress) -> PassProgress {
    copied! {
        PassProgress from p: seen_pages total_pages; done_pages: p.recompressed_pages, done_bytes: p.saved_bytes
    }
}

/// Converts the report on a pass that took `elapsed`.
pub fn pass(report: RecompressReport, elapsed: Duration) -> RecompressPassReport {
    copied! {
        RecompressPassReport from report:
        recompressed_pages old_bytes new_bytes not_smaller_pages changed_pages no_memory_pages failed_pages;
        interrupted: report.stopped,
        elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
    }
}
