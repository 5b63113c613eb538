//! The interface through which automatic writeback uses a store.
//!
//! It is narrow, so that tests can simulate a store, its medium and its clock.

use crate::error::WritebackError;
use crate::report::{Progress, WritebackReport};
use crate::slot::{AccessTime, SlotSnapshot};
use pagefold_page::{PageCount, PageIndex};
use std::ops::ControlFlow;
use std::time::Duration;

/// Memory used by objects, and the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes in use, as they are compared with the limit.
    pub(crate) used_bytes: u64,
    /// The limit; `u64::MAX` is none.
    pub(crate) limit_bytes: u64,
}

/// A part of a pass by age: moves the hand of a clock over the slots and writes back pages that are old enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Position of the hand.
    pub(crate) from: PageIndex,
    /// The most slots that the hand passes; after the last page it continues at the first.
    pub(crate) span: PageCount,
    /// The youngest age (`AccessTime::age_ticks`) that is written back.
    pub(crate) age_ticks_min: u16,
    /// Whether pages with the accessed mark are written back too; otherwise their mark is cleared and they stay.
    pub(crate) urgent: bool,
}

/// The result of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct SweepResult {
    /// Slots that the hand passed, including slots that are not allocated. Equal to the sweep's span if it ended by
    /// itself, and at least 1 if anything was submitted.
    pub(crate) seen: PageCount,
    /// The report of the pass.
    pub(crate) report: WritebackReport,
}

/// The operations of a store that the driver uses.
pub(crate) trait WritebackTarget {
    /// A monotonic clock.
    fn now(&self) -> Duration;

    /// The present as an access time of slots.
    fn access_time_now(&self) -> AccessTime;

    /// Memory used by objects now. Cheap: called during sweeps.
    fn memory(&self) -> Memory;

    /// Pages of the store, allocated or not.
    fn page_count(&self) -> PageCount;

    /// Visits snapshots of all allocated slots until `visit` returns `Break`.
    fn each_snapshot(&self, visit: &mut dyn FnMut(&SlotSnapshot) -> ControlFlow<()>);

    /// Writes back pages that are old enough. `on_progress` is called at least once per batch with the progress of
    /// this sweep, and ends the sweep by returning `Break`; writes in flight are then completed. Returns an error if
    /// the sweep could not begin.
    fn write_back_aged(
        &self,
        sweep: &Sweep,
        on_progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<SweepResult, WritebackError>;

    /// Periodic maintenance, called several times a second; `clean` permits the cleaner to write a little.
    fn run_maintenance(&self, clean: bool);

    /// Bytes written so far by all passes and by the cleaner.
    fn bytes_written(&self) -> u64;

    /// Bytes of the backing that are free now or would be after cleaning. A growth makes the driver retry a full
    /// backing early. Examines every segment.
    fn backing_room_bytes(&self) -> u64;

    /// Pages that `writeback_limit` still allows, if it is enabled.
    fn limit_left(&self) -> Option<u64>;
}
