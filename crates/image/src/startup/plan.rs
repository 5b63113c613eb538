//! The stored bytes of what a list names, and the pieces in which they are fetched.

use crate::core::{Core, FileReader};
use crate::read::{Cursor, Mapping};
use crate::{Address, Result, Space};
use std::ops::Range;

/// Most ranges of one entry: a hostile index could have a million for each megabyte.
const RANGES_MAX: usize = 1 << 16;

/// A range of stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    /// 0: the image itself; its devices are numbered from 1.
    pub(super) medium: usize,
    pub(super) range: Range<u64>,
}

/// Adds the stored ranges of a range of a file to `ranges`, except those among metadata. The range ends inside the file.
pub(super) fn stored_ranges(file: FileReader<'_>, range: Range<u64>, ranges: &mut Vec<Stored>) -> Result<()> {
    let core = file.core;
    let (mut at, mut cursor, most) = (range.start, Cursor::default(), ranges.len() + RANGES_MAX);
    while at < range.end && ranges.len() < most {
        let extent = file.extent_near(at, &mut cursor)?;
        let end = extent.end().min(range.end);
        let (within, len_bytes) = (at - extent.start, end - at);
        match extent.mapping {
            Mapping::Hole => {}
            Mapping::Plain(from) => push(core, ranges, from, within, len_bytes),
            Mapping::Interlaced { at: from, len_bytes } => push(core, ranges, from, 0, len_bytes.into()),
            Mapping::Compressed(cluster) => push(core, ranges, cluster.at, 0, cluster.len_bytes.into()),
            Mapping::Fragment { offset } => {
                if let Some(start) = offset.checked_add(within) {
                    // The packed file has no fragments itself.
                    let packed = FileReader { contents: core.packed_for(&file.contents.inode)?, ..file };
                    stored_ranges(packed, start..start.saturating_add(len_bytes), ranges)?;
                }
            }
        }
        at = end;
    }
    Ok(())
}

fn push(core: &Core, ranges: &mut Vec<Stored>, at: Address, within: u64, len_bytes: u64) {
    let offset = at.offset.checked_add(within).filter(|_| at.space != Space::Metabox);
    let Some(at) = offset.map(|offset| Address { offset, ..at }) else { return };
    let (Ok((medium, start)), Ok(left_bytes)) = (core.source.own_address(at), core.source.bytes_left_at(at))
    else {
        return;
    };
    let end = start.saturating_add(len_bytes.min(left_bytes));
    match ranges.last_mut() {
        // Extents of a cluster, and clusters of a file, follow each other.
        Some(last) if last.medium == medium && (last.range.start..=last.range.end).contains(&start) => {
            last.range.end = last.range.end.max(end);
        }
        _ if end > start => ranges.push(Stored { medium, range: start..end }),
        _ => {}
    }
}

/// Joins ranges of one medium whose distance is at most `gap_bytes`. The pieces are in the order in which the first of
/// their ranges was.
pub(super) fn coalesced(ranges: &[Stored], gap_bytes: u64) -> Vec<Stored> {
    let mut order: Vec<usize> = (0..ranges.len()).collect();
    order.sort_by_key(|&n| (ranges[n].medium, ranges[n].range.start));
    let mut pieces: Vec<(usize, Stored)> = Vec::new();
    for n in order {
        let next = &ranges[n];
        match pieces.last_mut() {
            Some((first, piece))
                if piece.medium == next.medium
                    && next.range.start <= piece.range.end.saturating_add(gap_bytes) =>
            {
                *first = (*first).min(n);
                piece.range.end = piece.range.end.max(next.range.end);
            }
            _ => pieces.push((n, next.clone())),
        }
    }
    pieces.sort_by_key(|(first, _)| *first);
    pieces.into_iter().map(|(_, piece)| piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slow twin: joins any two pieces that are near, until there are none.
    fn coalesced_slowly(ranges: &[Stored], gap_bytes: u64) -> Vec<Stored> {
        let mut pieces = ranges.to_vec();
        let near = |a: &Stored, b: &Stored| {
            a.medium == b.medium
                && a.range.start <= b.range.end + gap_bytes
                && b.range.start <= a.range.end + gap_bytes
        };
        loop {
            let pairs =
                (0..pieces.len()).flat_map(|first| (first + 1..pieces.len()).map(move |next| (first, next)));
            let mut pairs = pairs.filter(|(first, next)| near(&pieces[*first], &pieces[*next]));
            let Some((first, next)) = pairs.next() else { return pieces };
            let other = pieces.remove(next);
            let range = &mut pieces[first].range;
            *range = range.start.min(other.range.start)..range.end.max(other.range.end);
        }
    }

    proptest! {
        #[test]
        fn near_ranges_are_joined_in_the_order_of_first_use(
            ranges in proptest::collection::vec((0..2_usize, 0..1000_u64, 1..50_u64), 0..30),
            gap_bytes in 0..20_u64,
        ) {
            let stored = |(medium, start, len)| Stored { medium, range: start..start + len };
            let ranges: Vec<Stored> = ranges.into_iter().map(stored).collect();
            prop_assert_eq!(coalesced(&ranges, gap_bytes), coalesced_slowly(&ranges, gap_bytes));
        }
    }
}
