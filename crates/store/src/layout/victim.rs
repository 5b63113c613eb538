//! Which segment the cleaner empties next.
//!
//! The cost-benefit policy of Rosenblum and Ousterhout, "The Design and Implementation of a Log-Structured File
//! System", 1992: the space gained, times the age of the segment, divided by the cost of reading it and writing its
//! live records. An old segment is cleaned at a higher fill level than a young one, because its remaining records
//! will probably stay, while a young segment will empty by itself.

use crate::layout::segments::{Occupancy, SegmentIndex, Segments};

/// A segment with more than this share live is not worth cleaning, in 1/16.
const LIVE_MAX_16THS: u64 = 15;

/// The most live bytes in a segment that is worth cleaning when room is needed.
pub(crate) fn live_max_bytes(segments: &Segments) -> u32 {
    (u64::from(segments.segment_len()) * LIVE_MAX_16THS / 16) as u32
}

/// Returns the segment with the greatest benefit among those with at most `live_max_bytes` live bytes.
///
/// A segment without a live record is never chosen: it becomes free when its last reader unpins it, and contains
/// nothing to move.
pub(crate) fn choose(segments: &Segments, live_max_bytes: u32) -> Option<SegmentIndex> {
    let len = u64::from(segments.segment_len());
    let now = segments.now().0;
    let worth = segments.occupied().filter(|o| (1..=live_max_bytes).contains(&o.live_bytes));
    let best = worth.max_by(|a, b| benefit(a, len, now).total_cmp(&benefit(b, len, now)));
    best.map(|o| o.index)
}

/// Bytes that would be free after cleaning all segments that are worth it.
pub(crate) fn reclaimable_bytes(segments: &Segments) -> u64 {
    let (len, max) = (segments.segment_len(), live_max_bytes(segments));
    let worth = segments.occupied().filter(|o| (1..=max).contains(&o.live_bytes));
    worth.map(|o| u64::from(len - o.live_bytes)).sum()
}

fn benefit(o: &Occupancy, len: u64, now: u64) -> f64 {
    let live = f64::from(o.live_bytes) / len as f64;
    let age = now.saturating_sub(o.sequence.0) as f64 + 1.0;
    (1.0 - live) * age / (1.0 + live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_old_segments_come_first_and_full_ones_never() {
        let segments = Segments::new(1000, 8);
        let fill = |live| {
            let (index, _) = segments.open(0).unwrap();
            segments.add_record(index, live);
            segments.close(index);
            index
        };
        let (_, old_half, young_half) = (fill(990), fill(500), fill(500));
        assert_eq!(choose(&segments, 937), Some(old_half));
        let sparse = fill(10);
        assert_eq!(choose(&segments, 937), Some(sparse));
        for done in [sparse, old_half, young_half] {
            segments.mark_stuck(done);
        }
        assert_eq!(choose(&segments, 937), None);
        let small = Segments::new(1000, 1);
        let (full, _) = small.open(0).unwrap();
        small.add_record(full, 960);
        small.add_record(full, 30);
        small.close(full);
        assert_eq!(choose(&small, 937), None);
        small.drop_record(full, 960);
        assert_eq!(choose(&small, 937), Some(full));
    }
    #[test]
    fn a_segment_kept_by_a_reader_only_is_not_chosen_or_counted() {
        let segments = Segments::new(1000, 4);
        let (read, _) = segments.open(0).unwrap();
        segments.add_record(read, 500);
        segments.pin(read);
        segments.close(read);
        assert_eq!((choose(&segments, 937), reclaimable_bytes(&segments)), (Some(read), 500));
        segments.drop_record(read, 500);
        assert_eq!((choose(&segments, 937), reclaimable_bytes(&segments)), (None, 0));
        assert!(segments.has_segments_kept_by_readers());
        segments.unpin(read);
        assert!(!segments.has_segments_kept_by_readers());
    }

    #[test]
    fn a_bound_passes_over_fuller_segments_however_old() {
        let segments = Segments::new(1000, 200);
        let fill = |live| {
            let (index, _) = segments.open(0).unwrap();
            segments.add_record(index, live);
            segments.close(index);
            index
        };
        let old = fill(600);
        (0..100).for_each(|_| {
            fill(1000);
        });
        let young = fill(500);
        assert_eq!(choose(&segments, live_max_bytes(&segments)), Some(old));
        assert_eq!(choose(&segments, 500), Some(young));
    }
}
