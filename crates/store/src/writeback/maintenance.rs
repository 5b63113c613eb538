//! Periodic work: advancing the clock of access times, discards on the medium, a little cleaning.
//!
//! The writeback thread calls [`Writeback::run_maintenance`] a few times a second. Without it pages can be written
//! back and read back on request, but freed segments are not discarded, and the cleaner runs only when a pass needs
//! space. The clock then advances only when a pass begins, unless the thread of automatic recompression advances it.

use crate::layout::{CLEANER_SPARE, Log, choose};
use crate::pages::Pages;
use crate::writeback::pass::Pass;
use crate::writeback::{Writeback, Writer};

/// The most segments discarded per call.
const DISCARDS_MAX: usize = 64;
/// Maintenance cleans while less than 1/16 of the segments are free.
const FREE_SHARE: u32 = 16;

impl Writeback {
    /// Does the work that is due. Short, except for a walk over the slots every half an hour. `clean` permits the
    /// cleaner to write a little.
    pub(crate) fn run_maintenance(&self, pages: &Pages, clean: bool) {
        pages.tick();
        if let Some(log) = self.layout.log() {
            discard_freed(self, log);
            if clean {
                self.clean_a_little(pages, log);
            }
        }
    }

    /// Cleans one segment if few are free, one is at least half empty, and no pass is running.
    fn clean_a_little(&self, pages: &Pages, log: &Log) {
        let few = log.segments.count() / FREE_SHARE;
        if log.segments.free_count() >= few.max(CLEANER_SPARE + 1) {
            return;
        }
        let Some(mut writer) = self.writer.try_lock() else { return };
        let half = log.segments.segment_len() / 2;
        // Only sparse segments: an older, fuller one may be a better choice for a pass, but costs more.
        if choose(&log.segments, half).is_some() && self.prepare(&mut writer).is_ok() {
            let Writer { control, clean_head, .. } = &mut *writer;
            Pass::new(pages, self, control, clean_head).clean_one(log, half);
        }
    }
}

/// Discards freed segments on the medium. Errors are ignored, because the segments can be reused anyway.
fn discard_freed(writeback: &Writeback, log: &Log) {
    for _ in 0..DISCARDS_MAX {
        let Some(segment) = log.segments.take_freed() else { return };
        let len = u64::from(log.segments.segment_len());
        let _ = writeback.backing().discard(log.segments.start(segment.index), len);
    }
}
