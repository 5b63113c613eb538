//! Files with holes, in GNU's sparse format 1.0: a map in decimal digits before the data.
//!
//! Bytes that cannot be had, by what the index of the file or the size of the image says, are holes too, and each such range
//! is reported: there may be 2^62 of them.

use super::header::BLOCK_BYTES;
use crate::finding::with_causes;
use crate::{Finding, Node, runs};
use std::ops::Range;

/// Runs of data of one file; what is behind that many is written in full.
const MAX_RUNS: usize = 1 << 16;
/// Runs of one file that are looked at for holes; what is behind them is written in full.
const MAX_LOOKED_AT: u64 = 1 << 22;
/// Findings of one file; then the rest of it is a hole.
const MAX_FINDINGS: u32 = 64;

/// Where a file's data is.
#[derive(Default)]
struct Map {
    data: Vec<Range<u64>>,
    holes: bool,
    findings: u32,
}

impl Map {
    fn add(&mut self, run: Range<u64>) {
        match self.data.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => self.data.push(run),
        }
    }

    /// Makes a range a hole because it cannot be read.
    fn give_up(&mut self, finding: Finding, report: &mut dyn FnMut(Finding)) {
        self.holes = true;
        self.findings += 1;
        report(finding);
    }
}

/// Where a file's data is, if it has holes. `None`: it is written in full. What cannot be had is reported.
pub(super) fn map(node: &Node, path: &[u8], report: &mut dyn FnMut(Finding)) -> Option<Vec<Range<u64>>> {
    let (mut map, mut at, len) = (Map::default(), 0, node.len_bytes());
    let shown = |range: Range<u64>, what: &str| {
        format!("bytes {} to {}, a hole instead: {what}", range.start, range.end)
    };
    for _ in 0..MAX_LOOKED_AT {
        if map.data.len() >= MAX_RUNS || map.findings >= MAX_FINDINGS {
            break;
        }
        let run = match runs::at(node, at) {
            Ok(Some(run)) => run,
            Ok(None) => break,
            Err(error) => {
                let what = shown(at..len, &with_causes(&error));
                map.give_up(Finding::error(path, error.address(), what).starting_at(at), report);
                at = len;
                break;
            }
        };
        match run.beyond(node) {
            Some(beyond) => {
                let what = shown(at..run.end, &beyond.what);
                map.give_up(Finding::error(path, Some(beyond.at), what).starting_at(at), report);
            }
            None if run.is_hole() => map.holes = true,
            None => map.add(at..run.end),
        }
        at = run.end;
    }
    if at < len && map.findings >= MAX_FINDINGS {
        let what = shown(at..len, "too much is wrong with this file");
        map.give_up(Finding::error(path, None, what).starting_at(at), report);
    } else if at < len {
        map.add(at..len);
    }
    if !map.holes {
        return None;
    }
    // A file that ends with a hole has an empty run there.
    if map.data.last().is_none_or(|last| last.end < len) {
        map.data.push(len..len);
    }
    Some(map.data)
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
