//! The cleaner: empties sparse segments, so that there are free ones to write to.
//!
//! It runs inside a pass, when a head needs a segment and few are free, and in upkeep. A
//! pass that needs a segment is refused only when no segment is worth cleaning, or there is
//! no room for what is live in it, and no reader is about to leave an empty one. A segment is
//! read whole, its live records are copied to the cleaner's own head, apart from what
//! is being parked, because what has survived once will survive again; and each slot
//! is told, unless its page has gone meanwhile. Readers are not disturbed: they have
//! the segment pinned.

use crate::parking::log::{self, CLEANER_SPARE, Found, Log, LogPacker, SegmentIndex};
use crate::parking::packer::{Packed, Packer};
use crate::parking::pass::Pass;
use crate::parking::request::Source;
use crate::parking::stats::add;
use crate::slot::{Content, Parked, SlotGuard};
use pagefold_page::PageIndex;
use std::time::{Duration, Instant};

/// How long a pass waits for readers to leave segments in which nothing is live: longer than a medium takes to answer.
const READERS_WAIT: Duration = Duration::from_secs(10);
/// How often it looks whether they have left. They may be threads that cannot notify anybody.
const READERS_LOOK: Duration = Duration::from_millis(1);

/// What became of an attempt to clean a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleaned {
    /// It was cleaned, or put aside as one that cannot be cleaned now: another may be.
    Yes,
    /// No segment is worth it.
    NoVictim,
    /// There is no room for what is live in it, or the medium is full.
    Failed,
}

impl<'a> Pass<'a> {
    /// Cleans until there is a segment to write to. False if that cannot be.
    pub(crate) fn clean_for_room(&mut self) -> bool {
        let Some(log) = self.parking.log() else { return false };
        self.parking.forget_read_ahead();
        // What is in flight to a segment that was just closed would not be found in it.
        while self.control.is_busy() {
            self.complete(1);
        }
        let has_room = || log.segments.free_count() > CLEANER_SPARE;
        // Each segment once: every cleaning leaves less to gain, but writers beside it may make up for that.
        for _ in 0..log.segments.count() {
            if has_room() {
                return true;
            }
            match self.clean_one(log, log::live_max_bytes(&log.segments)) {
                Cleaned::Yes => {}
                // What the readers leave is room for what did not fit, too.
                Cleaned::NoVictim | Cleaned::Failed if !self.is_full && self.wait_for_readers(log) => {}
                Cleaned::NoVictim | Cleaned::Failed => break,
            }
        }
        has_room()
    }

    /// Waits until a reader leaves a segment in which nothing is live. False if there is no such segment.
    fn wait_for_readers(&self, log: &Log) -> bool {
        let began = Instant::now();
        let free_before = log.segments.free_count();
        while log.segments.are_readers_in_the_way() && began.elapsed() < READERS_WAIT {
            // A request that ends leaves what it read last for the next one.
            self.parking.forget_read_ahead();
            if log.segments.free_count() > free_before {
                return true;
            }
            std::thread::sleep(READERS_LOOK);
        }
        log.segments.free_count() > free_before
    }

    /// Cleans the segment that is most worth it of those with at most so many live bytes.
    pub(crate) fn clean_one(&mut self, log: &'a Log, live_max_bytes: u32) -> Cleaned {
        let Some(victim) = log::choose(&log.segments, live_max_bytes) else { return Cleaned::NoVictim };
        if !log.segments.try_pin(victim) {
            // It has just become free by itself.
            return Cleaned::Yes;
        }
        let is_clean = self.empty(log, victim);
        log.segments.unpin(victim);
        if is_clean { Cleaned::Yes } else { Cleaned::Failed }
    }

    /// Moves all live records out of a segment that is pinned.
    fn empty(&mut self, log: &'a Log, victim: SegmentIndex) -> bool {
        let len = log.segments.segment_len() as usize;
        let start = log.segments.start(victim);
        let mut bytes = self.parking.buffers().required(len);
        let read = self.parking.backing().read_at(start, &mut bytes[..len]);
        add(&self.parking.counters().cleaner_read_bytes, len as u64);
        if read.is_err() {
            log.segments.put_off(victim);
            return true;
        }
        let mut head = self.clean_head.take();
        let mut packer = LogPacker::new(&log.segments, log.id, &mut head, 0);
        let mut has_room = true;
        let failures_before = self.cleaner_failures;
        for found in log::scan(&bytes[..len], log.id, log.segments.sequence(victim)) {
            has_room = has_room && self.move_record(&mut packer, &bytes, start, &found);
        }
        self.finish(&mut packer);
        drop(packer);
        *self.clean_head = head;
        let failed = self.cleaner_failures > failures_before;
        // Writes that failed may have used up what is kept for the cleaner; then it could never write again.
        if !has_room && log.segments.free_count() == 0 {
            let live = log::scan(&bytes[..len], log.id, log.segments.sequence(victim));
            has_room = live.iter().all(|found| self.bring_back(found, &bytes, start));
        }
        let is_empty = log.segments.live_bytes(victim) == 0;
        if is_empty {
            add(&self.parking.counters().cleaned_segments, 1);
        } else if !failed && has_room {
            // What is still live in it was not found or is corrupt, and will not be next time.
            log.segments.give_up(victim);
        }
        // A failure may be one of a kind: tried again, or another segment, but not for ever.
        has_room && !self.is_full
    }

    /// Copies a record to the cleaner's head if a slot still has it. False if there is no room.
    fn move_record(&mut self, packer: &mut LogPacker, segment: &[u8], start: u64, found: &Found) -> bool {
        let header = &found.header;
        let Some((guard, from)) = self.holder(found, start) else { return true };
        drop(guard);
        let index = PageIndex(header.slot);
        let payload = found.payload(segment);
        if self.make_room(packer, payload.len()).is_err() {
            return false;
        }
        packer.place()[..payload.len()].copy_from_slice(payload);
        packer.add(Packed {
            index,
            generation: header.generation,
            len_bytes: header.len_bytes,
            priority: header.priority,
            from: Source::Parked(from),
            birth: Some(header.birth),
        });
        true
    }

    /// The slot whose page this record is, locked, if there still is one; and where the slot has it.
    fn holder(&self, found: &Found, start: u64) -> Option<(SlotGuard<'a>, Parked)> {
        let Found { at, header } = found;
        let location = (start + *at as u64) / 8;
        let from = Parked { location, len_bytes: header.len_bytes, priority: header.priority };
        if header.slot >= self.store.table.page_count().0 {
            return None;
        }
        let guard = self.store.table.get(PageIndex(header.slot))?.lock();
        let is_live = guard.generation() == header.generation && guard.content() == Content::Parked(from);
        is_live.then_some((guard, from))
    }

    /// Brings a record's page back to memory if a slot still has it. False if there is no memory for it.
    fn bring_back(&self, found: &Found, segment: &[u8], start: u64) -> bool {
        let Some((guard, from)) = self.holder(found, start) else { return true };
        drop(guard);
        let (index, payload) = (PageIndex(found.header.slot), found.payload(segment));
        let Some(object) = self.store.object_of_record(index, from, payload) else { return false };
        match self.holder(found, start) {
            Some((guard, from)) => self.store.promote(self.parking, from, guard, object),
            None => self.store.release(object),
        }
        true
    }
}
