//! State of an extraction that its threads share.

use super::limits::ExtractLimits;
use super::options::ExtractOptions;
use crate::work::SharedWork;
use crate::{Finding, Findings};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    pub(super) files: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) content_bytes: AtomicU64,
    pub(super) skipped_set_id: AtomicU64,
    pub(super) skipped_xattrs: AtomicU64,
    /// Attributes that the target's file system does not support.
    pub(super) unsupported_xattrs: AtomicU64,
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
