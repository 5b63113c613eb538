//! Which segment to clean next: the sparse ones, oldest and emptiest first.
//!
//! Cost and benefit after Rosenblum and Ousterhout, "The Design and Implementation of a
//! Log-Structured File System", 1992: free space gained, times the age of what is in
//! it, by the work of reading the segment and writing what is live. Old segments are
//! cleaned when they are still fuller than young ones, because what is left in them
//! will stay, while young ones will empty by themselves.

use crate::parking::log::segments::{Occupancy, SegmentIndex, Segments};

/// A segment with more than this share live is not worth cleaning, in 1/16.
const LIVE_MAX_16THS: u64 = 15;

/// The most live bytes in a segment that is worth cleaning when room is needed.
pub(crate) fn live_max_bytes(segments: &Segments) -> u32 {
    (u64::from(segments.segment_len()) * LIVE_MAX_16THS / 16) as u32
}

/// The segment that is most worth cleaning of those with at most so many live bytes.
///
/// One without a live record is never chosen: it is free as soon as its last reader has left, and there is nothing in
/// it to move.
pub(crate) fn choose(segments: &Segments, live_max_bytes: u32) -> Option<SegmentIndex> {
    let len = u64::from(segments.segment_len());
    let now = segments.now().0;
    let worth = segments.occupied().filter(|o| (1..=live_max_bytes).contains(&o.live_bytes));
    let best = worth.max_by(|a, b| benefit(a, len, now).total_cmp(&benefit(b, len, now)));
    best.map(|o| o.index)
}

/// Bytes that cleaning all segments that are worth it would make free.
pub(crate) fn gain_bytes(segments: &Segments) -> u64 {
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
            segments.give_up(done);
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
    fn a_segment_that_only_a_reader_holds_is_not_chosen_and_no_gain() {
        let segments = Segments::new(1000, 4);
        let (read, _) = segments.open(0).unwrap();
        segments.add_record(read, 500);
        segments.pin(read);
        segments.close(read);
        assert_eq!((choose(&segments, 937), gain_bytes(&segments)), (Some(read), 500));
        segments.drop_record(read, 500);
        assert_eq!((choose(&segments, 937), gain_bytes(&segments)), (None, 0));
        assert!(segments.are_readers_in_the_way());
        segments.unpin(read);
        assert!(!segments.are_readers_in_the_way());
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
