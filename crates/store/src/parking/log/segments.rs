//! The segments of a log: which are free, what the others hold.
//!
//! A segment is counted, not indexed: what is in it is found by reading it. Its *holds*
//! are its live records, those whose write is in flight, readers that have it pinned,
//! and the head that writes to it. Who gives up the last hold makes the segment free,
//! at once and without looking at anything; until then it is never written anew. A
//! pin is taken under the lock of a slot that has a record there, so that a segment
//! with pins to come cannot be free.
//!
//! Free segments wait to be discarded, so that the medium learns of it; they can be
//! used before that.

use crate::parking::log::format::{DATA_START, Sequence};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use std::collections::VecDeque;
use std::ops::DerefMut;

/// The number of a segment, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentIndex(pub(crate) u32);

#[derive(Debug)]
struct Segment {
    /// Live records and those in flight, pins, and the head.
    holds: AtomicU32,
    /// Bytes of live records and those in flight.
    live_bytes: AtomicU32,
    /// When it was opened; 0 if never.
    sequence: AtomicU64,
    /// Bits below.
    flags: AtomicU32,
    /// Of a segment in `just_freed`, the one under it.
    under: AtomicU32,
}

/// The head writes to it, so that it is no business of the cleaner.
const OPEN: u32 = 1;
/// The cleaner could not empty it: what is live in it cannot be read.
const STUCK: u32 = 2;
/// The cleaner could not read it. It may next time.
const PUT_OFF: u32 = 4;

/// No segment; there are fewer.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
struct FreeList {
    /// Discarded, or never used.
    clean: VecDeque<SegmentIndex>,
    /// To be discarded.
    freed: VecDeque<SegmentIndex>,
}

/// All segments of a log.
#[derive(Debug)]
pub(crate) struct Segments {
    segment_len: u32,
    table: Box<[Segment]>,
    free: Mutex<FreeList>,
    /// The last of the segments that became free and are in no list yet, or `NONE`: a stack, pushed to
    /// without the lock, taken as a whole with it. Who ends a pin may be a thread that must not wait or
    /// allocate.
    just_freed: AtomicU32,
    next_sequence: AtomicU64,
}

/// What the cleaner weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) index: SegmentIndex,
    pub(crate) sequence: Sequence,
    pub(crate) live_bytes: u32,
}

impl Segments {
    /// `count` free segments.
    pub(crate) fn new(segment_len: u32, count: u32) -> Self {
        let segment = |_| Segment {
            holds: AtomicU32::new(0),
            live_bytes: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            under: AtomicU32::new(NONE),
        };
        let clean = (0..count).map(SegmentIndex).collect();
        Segments {
            segment_len,
            table: (0..count).map(segment).collect(),
            free: Mutex::new(FreeList { clean, freed: VecDeque::new() }),
            just_freed: AtomicU32::new(NONE),
            next_sequence: AtomicU64::new(1),
        }
    }

    pub(crate) fn segment_len(&self) -> u32 {
        self.segment_len
    }

    pub(crate) fn count(&self) -> u32 {
        self.table.len() as u32
    }

    /// Segments that hold nothing.
    pub(crate) fn free_count(&self) -> u32 {
        let free = self.free_list();
        (free.clean.len() + free.freed.len()) as u32
    }

    /// Where a segment begins on the medium, bytes.
    pub(crate) fn start(&self, index: SegmentIndex) -> u64 {
        DATA_START + u64::from(index.0) * u64::from(self.segment_len)
    }

    /// The segment that a byte of the medium is in.
    pub(crate) fn containing(&self, offset: u64) -> SegmentIndex {
        SegmentIndex((offset.saturating_sub(DATA_START) / u64::from(self.segment_len)) as u32)
    }

    fn segment(&self, index: SegmentIndex) -> &Segment {
        &self.table[index.0 as usize]
    }

    /// A free segment, now held by the caller as its head, unless that would leave fewer than `spare`.
    pub(crate) fn open(&self, spare: u32) -> Option<(SegmentIndex, Sequence)> {
        let mut free = self.free_list();
        if (free.clean.len() + free.freed.len()) as u32 <= spare {
            return None;
        }
        let index = free.clean.pop_front().or_else(|| free.freed.pop_front())?;
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let segment = self.segment(index);
        segment.holds.store(1, Ordering::Relaxed);
        segment.flags.store(OPEN, Ordering::Relaxed);
        segment.sequence.store(sequence, Ordering::Relaxed);
        Some((index, Sequence(sequence)))
    }

    /// The head has left the segment.
    pub(crate) fn close(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_and(!OPEN, Ordering::Relaxed);
        self.let_go(index);
    }

    /// A record is about to be written to a segment that the caller holds as its head.
    pub(crate) fn add_record(&self, index: SegmentIndex, len: u32) {
        let segment = self.segment(index);
        segment.live_bytes.fetch_add(len, Ordering::Relaxed);
        segment.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// A record is live no more, or never became so.
    pub(crate) fn drop_record(&self, index: SegmentIndex, len: u32) {
        self.segment(index).live_bytes.fetch_sub(len, Ordering::Relaxed);
        self.let_go(index);
    }

    /// Keeps the segment from being written anew. The caller has the lock of a slot with a record in it, or
    /// holds it otherwise.
    pub(crate) fn pin(&self, index: SegmentIndex) {
        self.segment(index).holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Pins a segment if anything holds it.
    pub(crate) fn try_pin(&self, index: SegmentIndex) -> bool {
        let more = |holds: u32| (holds > 0).then(|| holds + 1);
        self.segment(index).holds.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, index: SegmentIndex) {
        self.let_go(index);
    }

    /// Gives up one hold. Release and acquire: whoever writes the segment anew comes after all who had it.
    fn let_go(&self, index: SegmentIndex) {
        let segment = self.segment(index);
        if segment.holds.fetch_sub(1, Ordering::AcqRel) == 1 {
            let put_on = |top| {
                segment.under.store(top, Ordering::Relaxed);
                Some(index.0)
            };
            let _ = self.just_freed.fetch_update(Ordering::Release, Ordering::Relaxed, put_on);
        }
    }

    /// The lists, with the segments that became free since they were looked at.
    fn free_list(&self) -> impl DerefMut<Target = FreeList> + '_ {
        let mut free = self.free.lock();
        let mut top = self.just_freed.swap(NONE, Ordering::Acquire);
        while top != NONE {
            free.freed.push_back(SegmentIndex(top));
            top = self.segment(SegmentIndex(top)).under.load(Ordering::Relaxed);
        }
        free
    }

    /// Takes a freed segment out to discard it; to be given back with [`Segments::discarded`].
    pub(crate) fn take_freed(&self) -> Option<SegmentIndex> {
        self.free_list().freed.pop_front()
    }

    /// A segment from [`Segments::take_freed`] is free again.
    pub(crate) fn discarded(&self, index: SegmentIndex) {
        self.free.lock().clean.push_back(index);
    }

    /// The cleaner cannot empty this segment.
    pub(crate) fn give_up(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_or(STUCK, Ordering::Relaxed);
    }

    /// The cleaner is not to look at this segment before [`Segments::try_again`].
    pub(crate) fn put_off(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_or(PUT_OFF, Ordering::Relaxed);
    }

    /// The medium may be well again: what was put off may be cleaned.
    pub(crate) fn try_again(&self) {
        let put_off = |segment: &&Segment| segment.flags.load(Ordering::Relaxed) & PUT_OFF != 0;
        for segment in self.table.iter().filter(put_off) {
            segment.flags.fetch_and(!PUT_OFF, Ordering::Relaxed);
        }
    }

    /// Bytes of records that are live or in flight.
    pub(crate) fn live_bytes(&self, index: SegmentIndex) -> u32 {
        self.segment(index).live_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sequence(&self, index: SegmentIndex) -> Sequence {
        Sequence(self.segment(index).sequence.load(Ordering::Relaxed))
    }

    /// The number that the next segment opened will have.
    pub(crate) fn now(&self) -> Sequence {
        Sequence(self.next_sequence.load(Ordering::Relaxed))
    }

    /// Whether segments without a live record are kept from being free by readers only.
    pub(crate) fn are_readers_in_the_way(&self) -> bool {
        self.table.iter().any(|segment| {
            segment.flags.load(Ordering::Relaxed) & OPEN == 0
                && segment.live_bytes.load(Ordering::Relaxed) == 0
                && segment.holds.load(Ordering::Relaxed) > 0
        })
    }

    /// The segments that the cleaner may empty.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = Occupancy> + '_ {
        self.table.iter().enumerate().filter_map(|(i, segment)| {
            let is_closed = segment.flags.load(Ordering::Relaxed) == 0;
            (is_closed && segment.holds.load(Ordering::Relaxed) > 0).then(|| Occupancy {
                index: SegmentIndex(i as u32),
                sequence: Sequence(segment.sequence.load(Ordering::Relaxed)),
                live_bytes: segment.live_bytes.load(Ordering::Relaxed),
            })
        })
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_free_when_the_last_hold_goes_whichever_it_is() {
        let segments = Segments::new(4096, 3);
        assert!(segments.open(3).is_none());
        let (a, first) = segments.open(0).unwrap();
        segments.add_record(a, 100);
        segments.add_record(a, 50);
        segments.pin(a);
        assert_eq!(segments.occupied().count(), 0);
        segments.close(a);
        assert_eq!(segments.occupied().next().unwrap().live_bytes, 150);
        segments.drop_record(a, 100);
        segments.drop_record(a, 50);
        assert_eq!(segments.free_count(), 2);
        assert!(segments.try_pin(a));
        segments.unpin(a);
        segments.unpin(a);
        assert_eq!(segments.free_count(), 3);
        assert!(!segments.try_pin(a));
        assert_eq!(segments.take_freed(), Some(a));
        segments.discarded(a);
        let opened: Vec<_> = std::iter::from_fn(|| segments.open(0)).collect();
        assert_eq!(opened.len(), 3);
        assert!(opened.iter().all(|(_, sequence)| *sequence > first));
    }

    #[test]
    fn bytes_belong_to_the_segment_around_them() {
        let segments = Segments::new(1 << 20, 4);
        let last = SegmentIndex(3);
        assert_eq!(segments.containing(segments.start(last)), last);
        assert_eq!(segments.containing(segments.start(last) + (1 << 20) - 1), last);
    }
}
