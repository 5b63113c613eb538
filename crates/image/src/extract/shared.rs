//! State of an extraction that its threads share.

use super::limits::ExtractLimits;
use super::options::ExtractOptions;
use crate::counters::counters;
use crate::work::SharedWork;
use crate::{Finding, Findings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// State that all threads of an extraction share.
pub(super) struct Shared<'a> {
    pub(super) options: &'a ExtractOptions,
    pub(super) limits: ExtractLimits,
    pub(super) cancelled: &'a AtomicBool,
    pub(super) umask: u16,
    /// Whether the user is root, who may change owners.
    pub(super) root: bool,
    /// Owner and group of created files; `None` if the target's set-group-id bit makes them inherit a group.
    pub(super) made_as: Option<(u32, u32)>,
    pub(super) work: SharedWork,
    pub(super) findings: Mutex<Findings>,
    pub(super) counters: Counters,
}

counters! {
    /// Counts of an extraction.
    pub struct ExtractCounts of Counters {
        /// Files of all kinds created, hard links not included.
        files,
        /// Hard links created.
        links,
        /// Names that became copies, because the hard link was refused.
        copied_links,
        /// Bytes of contents written, without holes and long runs of zeroes.
        bytes,
        /// Bytes of contents that are done, with holes.
        content_bytes,
        /// Devices skipped because [`ExtractOptions::privileged`] was not set.
        skipped_devices,
        /// Files whose set-id bits were skipped for the same reason, or because the files do not have the owner or group of
        /// the image.
        skipped_set_id,
        /// Attributes skipped for the same reason.
        skipped_xattrs,
        /// Files whose owner or group the user namespace of this process does not map. Each has an error among the findings.
        unmapped_owners,
        /// Attributes that the target's file system does not support; one warning reports them.
        unsupported_xattrs,
    }
}

impl Shared<'_> {
    pub(super) fn finding(&self, finding: Finding) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }

    /// Whether the extraction was cancelled or exceeded a limit: no thread begins further work.
    pub(super) fn stopped(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.limits.exceeded().is_some()
    }
}
