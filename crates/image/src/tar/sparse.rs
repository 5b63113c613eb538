//! Files with holes, in GNU's sparse format 1.0: a map in decimal digits before the data.

use super::header::BLOCK_BYTES;
use crate::Node;
use crate::read::Place;
use std::ops::Range;

/// Runs of data of one file; one with more is written in full.
const MAX_RUNS: usize = 1 << 16;
/// Extents of one file that are looked at for holes.
const MAX_EXTENTS: u64 = 1 << 22;

/// Where a file's data is, if it has holes. `None`: it is written in full.
pub(super) fn map(node: &Node) -> Option<Vec<Range<u64>>> {
    let (mut runs, mut at, mut holes): (Vec<Range<u64>>, u64, bool) = (Vec::new(), 0, false);
    for _ in 0..MAX_EXTENTS {
        let Ok(Some(extent)) = node.extent_at(at) else { break };
        at = extent.end();
        match (extent.place, runs.last_mut()) {
            (Place::Hole, _) => holes = true,
            (_, Some(last)) if last.end == extent.start => last.end = extent.end(),
            _ => runs.push(extent.start..extent.end()),
        }
        if runs.len() > MAX_RUNS {
            return None;
        }
    }
    if !holes || at < node.len_bytes() {
        return None;
    }
    // A file that ends with a hole has an empty run there.
    if runs.last().is_none_or(|last| last.end < node.len_bytes()) {
        runs.push(node.len_bytes()..node.len_bytes());
    }
    Some(runs)
}

/// The map as it stands before the data, zeroes up to a whole block behind it.
pub(super) fn text(map: &[Range<u64>]) -> Vec<u8> {
    let mut text = format!("{}\n", map.len());
    for run in map {
        text.push_str(&format!("{}\n{}\n", run.start, run.end - run.start));
    }
    let mut text = text.into_bytes();
    text.resize(text.len().next_multiple_of(BLOCK_BYTES), 0);
    text
}
