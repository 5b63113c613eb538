//! The store as automatic parking sees it.
//!
//! Narrow, so that a test can stand in for a store, its medium and its clock.

use crate::parking::error::ParkError;
use crate::parking::report::{ParkReport, Progress};
use crate::slot::{Peek, Stamp};
use pagefold_page::{PageCount, PageIndex};
use std::ops::ControlFlow;
use std::time::Duration;

/// What objects use, and may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes in use, as the limit counts them.
    pub(crate) used_bytes: u64,
    /// The limit; `u64::MAX` is none.
    pub(crate) limit_bytes: u64,
}

/// A part of a pass by age: the hand of a clock that moves over the slots and parks those that are old enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sweep {
    /// Where the hand is.
    pub(crate) from: PageIndex,
    /// How far it moves at most; after the last page comes the first.
    pub(crate) span: PageCount,
    /// The youngest age (`ages::age_ticks`) that is parked.
    pub(crate) age_ticks_min: u16,
    /// Whether pages with the accessed mark go too; if not, they lose it and are passed over.
    pub(crate) urgent: bool,
}

/// What a sweep did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Swept {
    /// How far the hand moved, by index: slots that do not exist count too. The sweep's span if it was not
    /// broken off, and at least 1 if anything was submitted.
    pub(crate) seen: PageCount,
    /// What became of the pages.
    pub(crate) report: ParkReport,
}

/// What the driver needs of a store.
pub(crate) trait Engine {
    /// Time since some beginning; never goes back.
    fn now(&self) -> Duration;

    /// The time in which slots are stamped.
    fn stamp_now(&self) -> Stamp;

    /// What objects use now. Cheap: asked during sweeps.
    fn memory(&self) -> Memory;

    /// Pages of the store, written or not.
    fn page_count(&self) -> PageCount;

    /// Shows all slots that exist, without locks, until told to stop.
    fn peeks(&self, visit: &mut dyn FnMut(&Peek) -> ControlFlow<()>);

    /// Parks pages that are old enough. `goal` is called at least once per batch, with what this sweep has
    /// done so far, and breaks the sweep off; what is in flight then is completed. An error is returned if the
    /// sweep could not begin.
    fn park_aged(
        &self,
        sweep: &Sweep,
        goal: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Result<Swept, ParkError>;

    /// Regular upkeep, several times a second, whatever else happens; `clean` says whether the cleaner may
    /// write a little.
    fn tend(&self, clean: bool);

    /// Bytes written by passes, asked for or not, and by the cleaner, since the beginning.
    fn bytes_written(&self) -> u64;

    /// Bytes of the backing that are free now or would be after cleaning. Growth is taken for a reason to try a full
    /// backing again. Looks at every segment.
    fn backing_room_bytes(&self) -> u64;

    /// Pages that `writeback_limit` leaves, if it is enabled.
    fn limit_left(&self) -> Option<u64>;
}
