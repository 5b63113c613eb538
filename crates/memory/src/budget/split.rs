//! How a limit is divided among the regions that share it.
//!
//! The sum of all limits is never more than the total. A region that asks for more gets, in this order: what no region
//! has; half of what another region has and does not use; and later a part of the limit of the region that brings back
//! fewer pages for its size, once that has folded them. The last needs a memory of who brings back how much: *heat*,
//! the pages of the last intervals, each interval counting half of the next.
//!
//! It is generic so that tests can divide among regions that are only numbers.

use crate::region_budget::{LIMIT_MIN_BYTES, high_watermark_of};
use pagefold_page::PAGE_SIZE;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The least limit of a region, pages.
pub(crate) const MIN_PAGES: u64 = LIMIT_MIN_BYTES / PAGE_SIZE as u64;
/// Limits move between busy regions at most once in this time.
const HEAT_INTERVAL: Duration = Duration::from_millis(100);
/// Pages of heat below which a region is not worth a transfer.
const HEAT_MIN: u64 = 64;

/// A region, as far as a budget knows it.
pub(crate) trait Sharer {
    /// Pages that count against its limit.
    fn in_use_pages(&self) -> u64;
    /// Faults so far that brought in a folded page, and pages read from the region's file again. Its first reads do not
    /// count: the page was not taken from the program before.
    fn page_ins(&self) -> u64;
    /// Sets its limit. If that is lower than what is in use, the region folds the difference from now on.
    fn set_limit_pages(&self, pages: u64);
}

/// A region that shares a limit.
pub(crate) type Region = dyn Sharer + Send + Sync;

/// Names a region within its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShareId(u64);

struct Share<S: ?Sized> {
    id: ShareId,
    region: Arc<S>,
    limit: u64,
    /// The most that it may have.
    max_pages: u64,
    /// Page-ins at the last look.
    page_ins: u64,
    heat: u64,
}

impl<S: Sharer + ?Sized> Share<S> {
    fn set_limit(&mut self, pages: u64) {
        if self.limit != pages {
            self.limit = pages;
            self.region.set_limit_pages(pages);
        }
    }

    /// The part of its limit that it does not use, without the pages that its evictors leave free.
    fn unused(&self) -> u64 {
        let used = self.region.in_use_pages() + high_watermark_of(self.limit);
        self.limit.saturating_sub(used.max(MIN_PAGES))
    }

    /// Like [`Share::unused`], without a little more that it may need at once.
    fn idle(&self) -> u64 {
        self.unused().saturating_sub((self.limit / 32).max(MIN_PAGES))
    }
}

/// All regions of a budget.
pub(crate) struct Split<S: ?Sized> {
    total: u64,
    parts: Vec<Share<S>>,
    next_id: u64,
    heat_at: Option<Instant>,
}

impl<S: Sharer + ?Sized> Split<S> {
    /// Makes a limit of so many pages, which no region has.
    pub(crate) fn new(total_pages: u64) -> Self {
        Split { total: total_pages, parts: Vec::new(), next_id: 0, heat_at: None }
    }

    pub(crate) fn total_pages(&self) -> u64 {
        self.total
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn in_use_pages(&self) -> u64 {
        self.parts.iter().map(|share| share.region.in_use_pages()).sum()
    }

    /// Pages of the limits that evictors leave free when they are woken.
    pub(crate) fn watermark_pages(&self) -> u64 {
        self.parts.iter().map(|share| high_watermark_of(share.limit)).sum()
    }

    /// Pages that all regions have brought back so far.
    pub(crate) fn page_ins(&self) -> u64 {
        self.parts.iter().map(|share| share.region.page_ins()).sum()
    }

    /// Returns what no region has. A region whose limit was lowered has its pages until it has folded them.
    fn free(&self) -> u64 {
        let held = |share: &Share<S>| share.limit.max(share.region.in_use_pages());
        self.total.saturating_sub(self.parts.iter().map(held).sum())
    }

    /// Adds a region that may have up to `max_pages`: it gets half of what is free, so that the next one finds some.
    /// `None` if the least limit for each region is more than there is.
    pub(crate) fn join(&mut self, region: Arc<S>, max_pages: u64) -> Option<ShareId> {
        if self.total < MIN_PAGES * (self.len() as u64 + 1) {
            return None;
        }
        let max_pages = max_pages.max(MIN_PAGES);
        let limit = (self.free() / 2).clamp(MIN_PAGES, max_pages);
        self.lower_all_to(self.total - limit);
        let id = ShareId(self.next_id);
        self.next_id += 1;
        region.set_limit_pages(limit);
        let page_ins = region.page_ins();
        self.parts.push(Share { id, region, limit, max_pages, page_ins, heat: 0 });
        Some(id)
    }

    /// Removes a region and returns it.
    pub(crate) fn leave(&mut self, id: ShareId) -> Option<Arc<S>> {
        let at = self.position(id)?;
        Some(self.parts.swap_remove(at).region)
    }

    /// Changes the total, to at least the least limit for each region.
    pub(crate) fn set_total_pages(&mut self, pages: u64) {
        self.total = pages.max(MIN_PAGES * self.len() as u64);
        self.lower_all_to(self.total);
    }

    /// Changes the most that a region may have.
    pub(crate) fn set_max(&mut self, id: ShareId, max_pages: u64) {
        let Some(at) = self.position(id) else { return };
        let share = &mut self.parts[at];
        share.max_pages = max_pages.max(MIN_PAGES);
        share.set_limit(share.limit.min(share.max_pages));
    }

    /// Gives a region a higher limit, if there is any. Returns whether it got one.
    pub(crate) fn grow(&mut self, id: ShareId, now: Instant) -> bool {
        let Some(at) = self.position(id) else { return false };
        let wanted = self.parts[at].max_pages.saturating_sub(self.parts[at].limit);
        if wanted == 0 {
            return false;
        }
        if self.free() < (self.parts[at].limit / 4).min(wanted) {
            self.take_idle(at);
        }
        if self.give_free(at, wanted) {
            return true;
        }
        if self.heat_at.is_none_or(|then| now.saturating_duration_since(then) >= HEAT_INTERVAL) {
            self.heat_at = Some(now);
            self.update_heat();
            self.take_from_cooler(at);
        }
        false
    }

    /// A region doubles its limit at most, and leaves half of what is free to others, if there are others and that is
    /// not little.
    fn give_free(&mut self, at: usize, wanted: u64) -> bool {
        let free = self.free();
        let part = if self.len() == 1 { free } else { (free / 2).max(MIN_PAGES).min(free) };
        let share = &mut self.parts[at];
        let given = part.min(share.limit).min(wanted);
        share.set_limit(share.limit + given);
        given > 0
    }

    /// Lowers the limits of all others by half of what they do not use.
    fn take_idle(&mut self, at: usize) {
        for share in self.parts.iter_mut().enumerate().filter(|(i, _)| *i != at).map(|(_, share)| share) {
            let taken = share.idle() / 2;
            if taken >= MIN_PAGES {
                share.set_limit(share.limit - taken);
            }
        }
    }

    fn update_heat(&mut self) {
        for share in &mut self.parts {
            let page_ins = share.region.page_ins();
            share.heat = share.heat / 2 + page_ins.saturating_sub(share.page_ins);
            share.page_ins = page_ins;
        }
    }

    /// Lowers the limit of the region with the least heat for its size, if that is less than half of this one's.
    fn take_from_cooler(&mut self, at: usize) {
        let (heat, limit) = (self.parts[at].heat, self.parts[at].limit);
        if heat < HEAT_MIN {
            return;
        }
        // `a.heat / a.limit < b.heat / b.limit` with multiplications only.
        let product = |heat: u64, limit: u64| u128::from(heat) * u128::from(limit);
        let others = self.parts.iter().enumerate().filter(|(i, s)| *i != at && s.limit > MIN_PAGES);
        let coolest = others.min_by(|(_, a), (_, b)| product(a.heat, b.limit).cmp(&product(b.heat, a.limit)));
        let Some((donor, _)) = coolest else { return };
        let share = &mut self.parts[donor];
        if 2 * product(share.heat, limit) < product(heat, share.limit) {
            let taken = (share.limit / 16).max(MIN_PAGES).min(share.limit - MIN_PAGES);
            share.set_limit(share.limit - taken);
        }
    }

    /// Lowers limits until their sum is at most `pages`, which is enough for the least limit of each: first by the
    /// pages that regions do not use, and then in proportion.
    fn lower_all_to(&mut self, pages: u64) {
        let mut sum: u64 = self.parts.iter().map(|share| share.limit).sum();
        for share in &mut self.parts {
            let taken = share.unused().min(sum.saturating_sub(pages));
            share.set_limit(share.limit - taken);
            sum -= taken;
        }
        if sum <= pages {
            return;
        }
        let least = MIN_PAGES * self.len() as u64;
        let (above, room) = (u128::from(sum - least), u128::from(pages.saturating_sub(least)));
        for share in &mut self.parts {
            let part = u128::from(share.limit - MIN_PAGES) * room / above;
            share.set_limit(MIN_PAGES + part as u64);
        }
    }

    fn position(&self, id: ShareId) -> Option<usize> {
        self.parts.iter().position(|share| share.id == id)
    }
}

#[cfg(test)]
mod tests;
