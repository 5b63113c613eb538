//! The limit that several regions share, and the limit that follows the pressure on memory.
//!
//! | module | what is in it |
//! |---|---|
//! | `split` | how the limit is divided among the regions |
//! | `pressure` | how large the limit is without a fixed one |
//! | `watcher` | the thread that reads the pressure |
//!
//! Each region has its own [`RegionBudget`](crate::region_budget::RegionBudget), which faults charge. This module only
//! moves limits between those: an evictor that would have to evict first asks for a higher limit, and gets it from the
//! part that no region has, from the part that another region does not use, or from a region that uses its pages less.
//! So faults cost the same with a shared limit as with a private one.
//!
//! Its gain: a region that is read at random beside one of the same size that rests gets more than three quarters of the
//! limit, where two fixed limits would leave it a half (`the_region_in_use_takes_from_the_one_that_rests`, in the tests of
//! this crate).

pub(crate) mod pressure;
pub(crate) mod split;
mod watcher;

use crate::error::RegionError;
use crate::region_budget::LIMIT_MIN_BYTES;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::signal;
use parking_lot::Mutex;
pub use pressure::PressurePolicy;
use split::{Region, ShareId, Split};
use std::sync::Arc;
use watcher::Watcher;

const PAGE: u64 = PAGE_SIZE as u64;

/// A limit on resident memory that several regions share.
///
/// A region that needs more gets memory that the others do not use. If all of it is in use, the region that brings
/// pages back more often takes from the one that does so less. A region that joins a full budget begins with the least
/// limit, and grows when it is used.
///
/// ```
/// # use pagefold_memory::{Region, RegionConfig, ResidentBudget};
/// # if pagefold_sys::uffd::kernel_features().is_err() { return Ok(()); }
/// let budget = ResidentBudget::new(8 << 20)?;
/// let mut one = Region::new(RegionConfig::in_budget(64 << 20, &budget))?;
/// let mut two = Region::new(RegionConfig::in_budget(64 << 20, &budget))?;
/// one.bytes_mut().fill(1);
/// two.bytes_mut().fill(2);
/// assert!(one.stats().memory.resident + two.stats().memory.resident <= 8 << 20);
/// # Ok::<(), pagefold_memory::RegionError>(())
/// ```
///
/// Clones are the same budget. In a forked child it cannot be used.
#[derive(Clone)]
pub struct ResidentBudget {
    split: Arc<Mutex<Split<Region>>>,
    /// Without a fixed limit. It ends with the last clone.
    watcher: Option<Arc<Watcher>>,
}

pub(crate) fn check_limit(limit_bytes: u64) -> Result<(), RegionError> {
    match limit_bytes {
        LIMIT_MIN_BYTES.. => Ok(()),
        _ => Err(RegionError::LimitTooSmall { limit_bytes, min_bytes: LIMIT_MIN_BYTES }),
    }
}

impl ResidentBudget {
    /// Makes a budget of `limit_bytes`, at least [`RegionConfig::LIMIT_MIN_BYTES`](crate::RegionConfig) for each region
    /// that is going to use it.
    pub fn new(limit_bytes: u64) -> Result<Self, RegionError> {
        check_limit(limit_bytes)?;
        let split = Arc::new(Mutex::new(Split::new(limit_bytes / PAGE)));
        Ok(ResidentBudget { split, watcher: None })
    }

    /// Makes a budget without a fixed limit: its regions may take what the machine, and the memory groups of this
    /// process, have available, and give it back when that becomes short. A thread reads this once a second, ten times a
    /// second when memory is short, and up to fifty times while regions fold pages.
    pub fn by_pressure(policy: PressurePolicy) -> Result<Self, RegionError> {
        let split = Arc::new(Mutex::new(Split::new(0)));
        let watcher = Watcher::start(policy, &split).map_err(RegionError::Thread)?;
        Ok(ResidentBudget { split, watcher: Some(Arc::new(watcher)) })
    }

    /// Returns whether it has no fixed limit.
    pub fn follows_pressure(&self) -> bool {
        self.watcher.is_some()
    }

    /// Returns the limit now, bytes.
    pub fn limit_bytes(&self) -> u64 {
        let _masked = signal::mask_asynchronous();
        self.split.lock().total_pages() * PAGE
    }

    /// Returns the resident memory of all regions, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let _masked = signal::mask_asynchronous();
        self.split.lock().in_use_pages() * PAGE
    }

    /// Returns the number of regions that share it.
    pub fn region_count(&self) -> usize {
        let _masked = signal::mask_asynchronous();
        self.split.lock().len()
    }

    /// Changes the limit. If more is resident, the excess is folded from now on, in the background. A budget that
    /// follows the pressure sets its limit itself at its next reading.
    pub fn set_limit(&self, limit_bytes: u64) -> Result<(), RegionError> {
        check_limit(limit_bytes)?;
        let _masked = signal::mask_asynchronous();
        self.split.lock().set_total_pages(limit_bytes / PAGE);
        Ok(())
    }

    /// Adds a region, which may have at most `max_bytes` of the limit.
    pub(crate) fn join(&self, region: Arc<Region>, max_bytes: u64) -> Result<RegionShare, RegionError> {
        let _masked = signal::mask_asynchronous();
        let mut split = self.split.lock();
        let full = |split: &Split<_>| RegionError::BudgetFull {
            limit_bytes: split.total_pages() * PAGE,
            regions: split.len(),
        };
        let id = split.join(region, max_bytes / PAGE).ok_or_else(|| full(&split))?;
        Ok(RegionShare { budget: self.clone(), id })
    }
}

impl std::fmt::Debug for ResidentBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResidentBudget").field("limit_bytes", &self.limit_bytes()).finish_non_exhaustive()
    }
}

/// A region's place in a budget.
pub(crate) struct RegionShare {
    budget: ResidentBudget,
    id: ShareId,
}

impl RegionShare {
    /// Asks for a higher limit. Returns whether the region got one. Allocates nothing and waits for nothing.
    pub(crate) fn grow(&self) -> bool {
        if let Some(watcher) = &self.budget.watcher {
            watcher.wake();
        }
        let split = self.budget.split.try_lock();
        split.is_some_and(|mut split| split.grow(self.id, std::time::Instant::now()))
    }

    /// Changes how much of the limit the region may have at most.
    pub(crate) fn set_max_bytes(&self, max_bytes: u64) {
        let _masked = signal::mask_asynchronous();
        self.budget.split.lock().set_max(self.id, max_bytes / PAGE);
    }

    /// Removes the region, whose limit the others can have.
    pub(crate) fn leave(&self) {
        let _masked = signal::mask_asynchronous();
        // The region is dropped after the lock is released.
        let _region = self.budget.split.lock().leave(self.id);
    }
}
