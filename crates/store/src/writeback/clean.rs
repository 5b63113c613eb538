//! The cleaner of the log: empties sparse segments, so that there are free ones to write to.
//!
//! It runs inside a pass when a head needs a segment and few are free, and in maintenance; both hold the writer's
//! lock. It reads a segment as a whole, copies the live records to its own head, and updates the slots whose pages
//! have not changed in the meantime. Its head is separate from that of passes, because a record that has survived
//! cleaning will probably survive longer than a new one. Readers are not disturbed: they have pinned the segment,
//! which becomes free when they unpin it.
//!
//! A pass fails to get a segment only if no segment is worth cleaning, or there is no space for the live records, and
//! no reader is about to release an empty segment.

use crate::layout::{
    CLEANER_SPARE, FoundRecord, Log, LogPacker, PackedPage, Packer, SegmentIndex, Source, choose,
    live_max_bytes, scan,
};
use crate::slot::{BackingLocation, Content, SlotGuard};
use crate::writeback::pass::Pass;
use crate::writeback::stats::add;
use pagefold_page::PageIndex;
use std::time::Duration;

/// The interval at which a pass checks whether readers have unpinned segments without live records. Readers do not
/// notify it, because they may be signal handlers.
const READERS_POLL: Duration = Duration::from_millis(1);
/// How often it checks: for ten seconds, longer than a medium takes to answer. Not a time, because the process may be
/// stopped in between.
const READERS_POLLS: u32 = 10_000;

/// The result of cleaning a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleaned {
    /// It was cleaned, or deferred because it cannot be cleaned now. The caller may clean another.
    Yes,
    /// No segment is worth cleaning.
    NoVictim,
    /// There is no space for its live records, or the medium is full.
    Failed,
}

impl<'a> Pass<'a> {
    /// Cleans until a pass can open a segment. Returns false if that is impossible.
    pub(crate) fn clean_for_room(&mut self) -> bool {
        let Some(log) = self.writeback.layout.log() else { return false };
        self.writeback.drop_read_ahead();
        // Records in flight to a segment that was just closed would not be found in it.
        while self.control.is_busy() {
            self.complete(1);
        }
        let has_space = || log.segments.free_count() > CLEANER_SPARE;
        // At most once per segment: concurrent writers may keep up with the cleaner.
        for _ in 0..log.segments.count() {
            if has_space() {
                return true;
            }
            match self.clean_one(log, live_max_bytes(&log.segments)) {
                Cleaned::Yes => {}
                // A segment that readers release has space for the records that did not fit, too.
                Cleaned::NoVictim | Cleaned::Failed if !self.is_full && self.wait_for_readers(log) => {}
                Cleaned::NoVictim | Cleaned::Failed => break,
            }
        }
        has_space()
    }

    /// Waits until a reader unpins a segment without live records and it becomes free. Returns false if there is no
    /// such segment.
    fn wait_for_readers(&self, log: &Log) -> bool {
        let free_before = log.segments.free_count();
        for _ in 0..READERS_POLLS {
            if !log.segments.has_segments_kept_by_readers() {
                break;
            }
            // A finished read request puts its last read-ahead, with its pin, into the cache.
            self.writeback.drop_read_ahead();
            if log.segments.free_count() > free_before {
                return true;
            }
            std::thread::sleep(READERS_POLL);
        }
        log.segments.free_count() > free_before
    }

    /// Cleans the best segment of those with at most `live_max_bytes` live bytes.
    pub(crate) fn clean_one(&mut self, log: &'a Log, live_max_bytes: u32) -> Cleaned {
        let Some(victim) = choose(&log.segments, live_max_bytes) else { return Cleaned::NoVictim };
        if !log.segments.try_pin(victim) {
            // It became free by itself.
            return Cleaned::Yes;
        }
        let is_clean = self.move_live_records(log, victim);
        log.segments.unpin(victim);
        if is_clean { Cleaned::Yes } else { Cleaned::Failed }
    }

    /// Moves all live records out of a pinned segment. Returns false if there is no space for them.
    fn move_live_records(&mut self, log: &'a Log, victim: SegmentIndex) -> bool {
        let len = log.segments.segment_len() as usize;
        let start = log.segments.start(victim);
        let mut bytes = self.writeback.buffers().required(len);
        let read = self.writeback.backing().read_at(start, &mut bytes[..len]);
        add(&self.writeback.counters.cleaner_read_bytes, len as u64);
        if read.is_err() {
            log.segments.defer_cleaning(victim);
            return true;
        }
        let mut head = self.clean_head.take();
        let mut packer = LogPacker::new(&log.segments, log.id, &mut head, 0);
        let mut has_space = true;
        let failures_before = self.cleaner_failures;
        for found in scan(&bytes[..len], log.id, log.segments.sequence(victim)) {
            has_space = has_space && self.move_record(&mut packer, &bytes, start, &found);
        }
        self.finish(&mut packer);
        drop(packer);
        *self.clean_head = head;
        let failed = self.cleaner_failures > failures_before;
        // Failed writes may have used up the segments reserved for the cleaner, which could then never write again.
        // So bring the remaining records back to memory.
        if !has_space && log.segments.free_count() == 0 {
            let live = scan(&bytes[..len], log.id, log.segments.sequence(victim));
            has_space = live.iter().all(|found| self.promote_record(found, &bytes, start));
        }
        let is_empty = log.segments.live_bytes(victim) == 0;
        if is_empty {
            add(&self.writeback.counters.cleaned_segments, 1);
        } else if !failed && has_space {
            // The remaining live records were not found or are corrupt, and cleaning again would not help.
            log.segments.mark_stuck(victim);
        }
        // After a failed write the segment, or another, is tried again, but not without end.
        has_space && !self.is_full
    }

    /// Copies a record to the cleaner's head if a slot still points to it. Returns false if there is no space.
    fn move_record(
        &mut self,
        packer: &mut LogPacker,
        segment: &[u8],
        start: u64,
        found: &FoundRecord,
    ) -> bool {
        let header = &found.header;
        let Some((guard, from)) = self.lock_owner(found, start) else { return true };
        drop(guard);
        let index = PageIndex(header.slot);
        let payload = found.payload(segment);
        if self.prepare_write(packer, payload.len()).is_err() {
            return false;
        }
        packer.payload_buf()[..payload.len()].copy_from_slice(payload);
        packer.add(PackedPage {
            index,
            generation: header.generation,
            len_bytes: header.len_bytes,
            priority: header.priority,
            from: Source::WrittenBack(from),
            birth: Some(header.birth),
        });
        true
    }

    /// Locks the slot that points to a record, if there is one, and returns the record's location too.
    fn lock_owner(&self, found: &FoundRecord, start: u64) -> Option<(SlotGuard<'a>, BackingLocation)> {
        let FoundRecord { at, header } = found;
        let location = (start + *at as u64) / 8;
        let from = BackingLocation { location, len_bytes: header.len_bytes, priority: header.priority };
        if header.slot >= self.pages.table.page_count().0 {
            return None;
        }
        let guard = self.pages.table.get(PageIndex(header.slot))?.lock();
        let is_live =
            guard.generation() == header.generation && guard.content() == Content::WrittenBack(from);
        is_live.then_some((guard, from))
    }

    /// Promotes a record's page to memory if a slot still points to it. Returns false if no memory is ready.
    fn promote_record(&self, found: &FoundRecord, segment: &[u8], start: u64) -> bool {
        let Some((guard, from)) = self.lock_owner(found, start) else { return true };
        drop(guard);
        let (index, payload) = (PageIndex(found.header.slot), found.payload(segment));
        let Some(object) = self.pages.try_store_record(index, from, payload) else { return false };
        match self.lock_owner(found, start) {
            Some((guard, from)) => self.writeback.promote(self.pages, from, guard, object),
            None => self.pages.free(object),
        }
        true
    }
}
