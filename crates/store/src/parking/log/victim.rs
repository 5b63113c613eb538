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

/// The best segment to clean, if any is worth it.
pub(crate) fn choose(segments: &Segments) -> Option<SegmentIndex> {
    let len = u64::from(segments.segment_len());
    let now = segments.now().0;
    let worth = segments.occupied().filter(|o| u64::from(o.live_bytes) * 16 <= len * LIVE_MAX_16THS);
    let best = worth.max_by(|a, b| benefit(a, len, now).total_cmp(&benefit(b, len, now)));
    best.map(|o| o.index)
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
        assert_eq!(choose(&segments), Some(old_half));
        let sparse = fill(10);
        assert_eq!(choose(&segments), Some(sparse));
        for done in [sparse, old_half, young_half] {
            segments.give_up(done);
        }
        assert_eq!(choose(&segments), None);
        let small = Segments::new(1000, 1);
        let (full, _) = small.open(0).unwrap();
        small.add_record(full, 960);
        small.add_record(full, 30);
        small.close(full);
        assert_eq!(choose(&small), None);
        small.drop_record(full, 960);
        assert_eq!(choose(&small), Some(full));
    }
}
