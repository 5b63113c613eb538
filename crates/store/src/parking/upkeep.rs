//! What is due now and then: time, idleness, discards, a little cleaning.
//!
//! Somebody calls [`Store::tend`] a few times a second: automatic parking does. Without
//! it, pages are parked and read back as well, but idle times stand still between
//! passes, freed segments are not discarded, and the cleaner runs only when a pass
//! needs room.

use crate::engine::Store;
use crate::parking::Parking;
use crate::parking::log::{self, Log};
use crate::parking::pass::Pass;
use crate::slot::{Peek, Slot, Stamp};
use pagefold_page::PageIndex;

/// Segments discarded in one go.
const DISCARDS_MAX: usize = 64;
/// Ticks between walks that keep old stamps from wrapping.
const CLAMP_TICKS: u16 = 1 << 13;
/// Upkeep cleans while fewer than one in so many segments are free.
const FREE_SHARE: u32 = 16;

impl Store {
    /// Does what is due. Short, but for a walk over the slots every half an hour. `clean` says whether the
    /// cleaner may write a little.
    pub fn tend(&self, clean: bool) {
        let Some(parking) = self.parking() else { return };
        let now = parking.clock.tick();
        if parking.clock.is_walk_due(CLAMP_TICKS) {
            self.clamp_stamps(now);
        }
        if let Some(log) = parking.log() {
            discard_freed(parking, log);
            if clean {
                self.clean_a_little(parking, log);
            }
        }
    }

    /// Marks as idle the pages held as objects whose last access was at least `age_s` seconds ago, and takes
    /// the mark from younger ones; with 0, marks all. An access takes the mark away.
    pub fn mark_idle(&self, age_s: u64) {
        let now = self.parking().map_or(Stamp::default(), |parking| parking.clock.tick());
        self.each_slot(|_, slot, seen| {
            if seen.is_object() {
                let mut guard = slot.lock();
                let idle = age_s == 0 || guard.stamp().age_s(now) >= age_s;
                guard.set_idle(idle);
            }
        });
    }

    /// All slots that exist, in order, seen without their locks.
    pub(crate) fn each_slot(&self, mut visit: impl FnMut(PageIndex, &Slot, &Peek)) {
        let mut index = PageIndex(0);
        loop {
            index = self.table.next_allocated(index);
            if index.0 >= self.table.page_count().0 {
                return;
            }
            if let Some(slot) = self.table.get(index) {
                visit(index, slot, &slot.peek());
            }
            index = PageIndex(index.0 + 1);
        }
    }

    /// Gives pages older than can be told the greatest age that can, so that none looks young again.
    fn clamp_stamps(&self, now: Stamp) {
        self.each_slot(|_, slot, seen| {
            if seen.stamp().age_ticks(now) > Stamp::AGE_MAX {
                let mut guard = slot.lock();
                if guard.stamp().age_ticks(now) > Stamp::AGE_MAX {
                    guard.set_stamp(now.before(Stamp::AGE_MAX));
                }
            }
        });
    }

    /// Cleans one segment, if few are free, one is at least half empty, and no pass is running.
    fn clean_a_little(&self, parking: &Parking, log: &Log) {
        let few = log.segments.count() / FREE_SHARE;
        if log.segments.free_count() >= few.max(log::CLEANER_SPARE + 1) {
            return;
        }
        let Some(mut heads) = parking.heads.try_lock() else { return };
        let half = log.segments.segment_len() / 2;
        // Looked for among the sparse ones: an older one that is fuller may be worth more, but not now.
        if log::choose(&log.segments, half).is_some()
            && let Ok(control) = parking.new_control()
        {
            Pass::new(self, parking, control, &mut heads.clean).clean_one(log, half);
        }
    }
}

/// Tells the medium what is free. A failure costs nothing: the segments are free all the same.
fn discard_freed(parking: &Parking, log: &Log) {
    for _ in 0..DISCARDS_MAX {
        let Some(segment) = log.segments.take_freed() else { return };
        let len = u64::from(log.segments.segment_len());
        let _ = parking.backing().discard(log.segments.start(segment), len);
        log.segments.discarded(segment);
    }
}
