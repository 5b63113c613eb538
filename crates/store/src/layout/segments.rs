//! The segments of a log: their reference counts, and the lists of free ones.
//!
//! A segment has no table of its records; the cleaner finds them by reading it. It has a count of *references*: its
//! live records, records in flight, readers that have pinned it, and the head that writes to it. Dropping the last
//! reference frees the segment at once; before that it is never overwritten. A reader takes its pin under the lock of
//! a slot that points to a record in the segment, so the count cannot be zero then.
//!
//! Dropping a reference takes no lock and does not allocate, because a signal handler may end a pin: it pushes the
//! segment to a lock-free stack, which the next user of the free lists empties under their mutex.
//!
//! Free segments wait in a list to be discarded on the medium; they can be reused before that. One that is being
//! discarded is free as well, and a head that finds no other waits until it is.

use crate::layout::format::{DATA_START, Sequence};
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
#[cfg(not(loom))]
use pagefold_sys::mem::Reservation;
use std::collections::VecDeque;

/// The number of a segment, by its position on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentIndex(pub(crate) u32);

#[derive(Debug)]
struct Segment {
    /// The number of live records, records in flight, pins, and heads.
    references: AtomicU32,
    /// Bytes of live records and records in flight.
    live_bytes: AtomicU32,
    /// The number of its last opening; 0 if it was never open.
    sequence: AtomicU64,
    /// `OPEN`, `STUCK`, `DEFERRED`.
    flags: AtomicU32,
    /// The next segment of the stack `just_freed`.
    next_free: AtomicU32,
}

/// A head writes to it: the cleaner ignores it.
const OPEN: u32 = 1;
/// The cleaner could not empty it, because live records in it cannot be read: the cleaner ignores it until it is
/// reused.
const STUCK: u32 = 2;
/// The cleaner could not read it, and ignores it until the next pass.
const DEFERRED: u32 = 4;

/// No segment: the number of segments is smaller.
const NONE: u32 = u32::MAX;

#[derive(Debug, Default)]
struct FreeList {
    /// Discarded, or never used.
    discarded: VecDeque<SegmentIndex>,
    /// Not discarded yet.
    freed: VecDeque<SegmentIndex>,
    /// Number of those that are being discarded, which are in no list.
    discarding: u32,
}

impl FreeList {
    fn count(&self) -> u32 {
        (self.discarded.len() + self.freed.len()) as u32 + self.discarding
    }
}

/// A free segment that its holder discards on the medium. When it is dropped, the segment can be reused.
#[derive(Debug)]
pub(crate) struct Discarding<'a> {
    segments: &'a Segments,
    pub(crate) index: SegmentIndex,
}

impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        let mut free = self.segments.free.lock();
        free.discarding -= 1;
        free.discarded.push_back(self.index);
        self.segments.discarded.notify_all();
    }
}

/// All segments of a log.
#[derive(Debug)]
pub(crate) struct Segments {
    segment_len: u32,
    table: Box<[Segment]>,
    free: Mutex<FreeList>,
    /// Signalled when a segment has been discarded.
    discarded: Condvar,
    /// The top of the stack of segments that became free and are in no list yet, or `NONE`. Pushed to without a lock,
    /// and emptied under the lock of `free`.
    just_freed: AtomicU32,
    next_sequence: AtomicU64,
    /// The sequence numbers again, in memory that outlives the process.
    #[cfg(not(loom))]
    kept: Option<Reservation>,
}

/// The properties of a segment by which the cleaner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Occupancy {
    pub(crate) index: SegmentIndex,
    pub(crate) sequence: Sequence,
    pub(crate) live_bytes: u32,
}

impl Segments {
    /// Creates `count` free segments.
    pub(crate) fn new(segment_len: u32, count: u32) -> Self {
        let segment = |_| Segment {
            references: AtomicU32::new(0),
            live_bytes: AtomicU32::new(0),
            sequence: AtomicU64::new(0),
            flags: AtomicU32::new(0),
            next_free: AtomicU32::new(NONE),
        };
        let clean = (0..count).map(SegmentIndex).collect();
        Segments {
            segment_len,
            table: (0..count).map(segment).collect(),
            free: Mutex::new(FreeList { discarded: clean, ..FreeList::default() }),
            discarded: Condvar::new(),
            just_freed: AtomicU32::new(NONE),
            next_sequence: AtomicU64::new(1),
            #[cfg(not(loom))]
            kept: None,
        }
    }

    /// Keeps the sequence numbers in memory that outlives the process, a `u64` for each segment, and takes those that are
    /// there.
    #[cfg(not(loom))]
    pub(crate) fn keep_sequences(&mut self, sequences: Reservation) {
        assert!(sequences.len_bytes() >= self.table.len() * size_of::<u64>());
        let mut last = 0;
        for (index, segment) in self.table.iter().enumerate() {
            let sequence = kept_sequence(&sequences, index).load(Ordering::Relaxed);
            segment.sequence.store(sequence, Ordering::Relaxed);
            last = last.max(sequence);
        }
        self.next_sequence = AtomicU64::new(last.saturating_add(1));
        self.kept = Some(sequences);
    }

    /// Puts the segments without records into the lists of free ones, those that were used to be discarded first.
    #[cfg(not(loom))]
    pub(crate) fn recovered(&mut self) {
        let mut free = FreeList::default();
        for (index, segment) in self.table.iter().enumerate() {
            if segment.references.load(Ordering::Relaxed) == 0 {
                let is_new = segment.sequence.load(Ordering::Relaxed) == 0;
                let list = if is_new { &mut free.discarded } else { &mut free.freed };
                list.push_back(SegmentIndex(index as u32));
            }
        }
        *self.free.lock() = free;
    }

    #[cfg(not(loom))]
    fn note_sequence(&self, index: SegmentIndex, sequence: u64) {
        if let Some(kept) = &self.kept {
            kept_sequence(kept, index.0 as usize).store(sequence, Ordering::Relaxed);
        }
    }

    #[cfg(loom)]
    fn note_sequence(&self, _: SegmentIndex, _: u64) {}

    pub(crate) fn segment_len(&self) -> u32 {
        self.segment_len
    }

    pub(crate) fn count(&self) -> u32 {
        self.table.len() as u32
    }

    /// The number of free segments, those that are being discarded included.
    pub(crate) fn free_count(&self) -> u32 {
        self.free_list().count()
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

    /// Opens a free segment for the caller's head, which has a reference to it. Returns `None` if that would leave
    /// fewer than `spare` free segments. Waits while all free segments are being discarded.
    pub(crate) fn open(&self, spare: u32) -> Option<(SegmentIndex, Sequence)> {
        let mut free = self.free_list();
        let index = loop {
            if free.count() <= spare {
                return None;
            }
            match free.discarded.pop_front().or_else(|| free.freed.pop_front()) {
                Some(index) => break index,
                None => self.discarded.wait(&mut free),
            }
        };
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        let segment = self.segment(index);
        segment.references.store(1, Ordering::Relaxed);
        segment.flags.store(OPEN, Ordering::Relaxed);
        segment.sequence.store(sequence, Ordering::Relaxed);
        self.note_sequence(index, sequence);
        Some((index, Sequence(sequence)))
    }

    /// Closes a segment: drops the head's reference.
    pub(crate) fn close(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_and(!OPEN, Ordering::Relaxed);
        self.put_ref(index);
    }

    /// Counts a record that will be written to a segment that the caller has open.
    pub(crate) fn add_record(&self, index: SegmentIndex, len: u32) {
        let segment = self.segment(index);
        segment.live_bytes.fetch_add(len, Ordering::Relaxed);
        segment.references.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a record that is no longer live, or was not written.
    pub(crate) fn drop_record(&self, index: SegmentIndex, len: u32) {
        self.segment(index).live_bytes.fetch_sub(len, Ordering::Relaxed);
        self.put_ref(index);
    }

    /// Pins a segment, so that it is not overwritten. The caller holds the lock of a slot that points to a record in
    /// it, or has another reference.
    pub(crate) fn pin(&self, index: SegmentIndex) {
        self.segment(index).references.fetch_add(1, Ordering::Relaxed);
    }

    /// Pins a segment if it is not free. Returns false if it is.
    pub(crate) fn try_pin(&self, index: SegmentIndex) -> bool {
        let more = |count: u32| (count > 0).then(|| count + 1);
        self.segment(index).references.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self, index: SegmentIndex) {
        self.put_ref(index);
    }

    /// Drops one reference, and frees the segment if it was the last. Release and acquire: all accesses of earlier
    /// users happen before the next writer's.
    fn put_ref(&self, index: SegmentIndex) {
        let segment = self.segment(index);
        if segment.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            let push = |top| {
                segment.next_free.store(top, Ordering::Relaxed);
                Some(index.0)
            };
            let _ = self.just_freed.fetch_update(Ordering::Release, Ordering::Relaxed, push);
        }
    }

    /// Locks the free lists and moves the segments of the stack `just_freed` to them.
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        let mut free = self.free.lock();
        let mut top = self.just_freed.swap(NONE, Ordering::Acquire);
        while top != NONE {
            free.freed.push_back(SegmentIndex(top));
            top = self.segment(SegmentIndex(top)).next_free.load(Ordering::Relaxed);
        }
        free
    }

    /// Takes a freed segment out of the list, to discard it.
    pub(crate) fn take_freed(&self) -> Option<Discarding<'_>> {
        let mut free = self.free_list();
        let index = free.freed.pop_front()?;
        free.discarding += 1;
        Some(Discarding { segments: self, index })
    }

    /// Marks a segment that the cleaner cannot empty.
    pub(crate) fn mark_stuck(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_or(STUCK, Ordering::Relaxed);
    }

    /// Makes the cleaner ignore a segment until [`Segments::clear_deferred`].
    pub(crate) fn defer_cleaning(&self, index: SegmentIndex) {
        self.segment(index).flags.fetch_or(DEFERRED, Ordering::Relaxed);
    }

    /// Lets the cleaner consider deferred segments again, because the medium may work now.
    pub(crate) fn clear_deferred(&self) {
        let is_deferred = |segment: &&Segment| segment.flags.load(Ordering::Relaxed) & DEFERRED != 0;
        for segment in self.table.iter().filter(is_deferred) {
            segment.flags.fetch_and(!DEFERRED, Ordering::Relaxed);
        }
    }

    /// Bytes of records that are live or in flight.
    pub(crate) fn live_bytes(&self, index: SegmentIndex) -> u32 {
        self.segment(index).live_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sequence(&self, index: SegmentIndex) -> Sequence {
        Sequence(self.segment(index).sequence.load(Ordering::Relaxed))
    }

    /// The sequence number that the next opening will have.
    pub(crate) fn now(&self) -> Sequence {
        Sequence(self.next_sequence.load(Ordering::Relaxed))
    }

    /// Whether there is a segment without live records that only readers' pins keep from being free.
    pub(crate) fn has_segments_kept_by_readers(&self) -> bool {
        self.table.iter().any(|segment| {
            segment.flags.load(Ordering::Relaxed) & OPEN == 0
                && segment.live_bytes.load(Ordering::Relaxed) == 0
                && segment.references.load(Ordering::Relaxed) > 0
        })
    }

    /// The segments that the cleaner may empty.
    pub(crate) fn occupied(&self) -> impl Iterator<Item = Occupancy> + '_ {
        self.table.iter().enumerate().filter_map(|(i, segment)| {
            let is_closed = segment.flags.load(Ordering::Relaxed) == 0;
            (is_closed && segment.references.load(Ordering::Relaxed) > 0).then(|| Occupancy {
                index: SegmentIndex(i as u32),
                sequence: Sequence(segment.sequence.load(Ordering::Relaxed)),
                live_bytes: segment.live_bytes.load(Ordering::Relaxed),
            })
        })
    }
}

/// The sequence number of a segment in memory that outlives the process, and is long enough.
#[cfg(not(loom))]
fn kept_sequence(sequences: &Reservation, index: usize) -> &AtomicU64 {
    // SAFETY: inside the mapping, which is long enough.
    let at = unsafe { sequences.base().cast::<u64>().add(index) };
    // SAFETY: aligned, only accessed as an atomic, and mapped as long as the value lives.
    unsafe { AtomicU64::from_ptr(at.as_ptr()) }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_last_reference_of_any_kind_frees_a_segment() {
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
        let discarding = segments.take_freed().unwrap();
        assert_eq!((discarding.index, segments.free_count()), (a, 3));
        drop(discarding);
        let opened: Vec<_> = std::iter::from_fn(|| segments.open(0)).collect();
        assert_eq!(opened.len(), 3);
        assert!(opened.iter().all(|(_, sequence)| *sequence > first));
    }

    #[test]
    fn a_head_waits_for_the_only_free_segment_to_be_discarded() {
        let segments = Segments::new(4096, 1);
        let (index, _) = segments.open(0).unwrap();
        segments.close(index);
        let discarding = segments.take_freed().unwrap();
        std::thread::scope(|scope| {
            let head = scope.spawn(|| segments.open(0).map(|(index, _)| index));
            std::thread::yield_now();
            drop(discarding);
            assert_eq!(head.join().unwrap(), Some(index));
        });
        assert!(segments.open(0).is_none(), "there is none to wait for");
    }

    #[test]
    fn bytes_belong_to_the_segment_around_them() {
        let segments = Segments::new(1 << 20, 4);
        let last = SegmentIndex(3);
        assert_eq!(segments.containing(segments.start(last)), last);
        assert_eq!(segments.containing(segments.start(last) + (1 << 20) - 1), last);
    }
}
