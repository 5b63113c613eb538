//! Maps of files with holes, for GNU's sparse format 1.0: a map in decimal digits precedes the data.
//!
//! A range that the file's index or the image's size shows to be unreadable becomes a hole too, and a finding. Writing
//! zeroes instead would not end: an image can claim 2^62 bytes.

use super::header::BLOCK_BYTES;
use crate::read::Cursor;
use crate::work::WorkLimit;
use crate::{Finding, Node, runs};
use std::ops::Range;

/// Limit of data runs in one map. The rest of the file is written in full.
const MAX_DATA_RUNS: usize = 1 << 16;
/// Limit of runs that are searched for holes. The rest of the file is written in full.
const MAX_SCANNED_RUNS: u64 = 1 << 22;
/// Findings of one file after which the rest of it becomes a hole.
const MAX_FINDINGS: u32 = 64;

/// The map of a file, while it is built.
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

    /// Records an unreadable range as a hole, and reports it.
    fn report_hole(&mut self, finding: Finding, report: &mut dyn FnMut(Finding)) {
        self.holes = true;
        self.findings += 1;
        report(finding);
    }
}

/// Returns the data ranges of a file with holes; `None` if the file is to be written in full. Reports unreadable
/// ranges.
pub(super) fn map(
    node: &Node,
    path: &[u8],
    work: &WorkLimit,
    report: &mut dyn FnMut(Finding),
) -> Option<Vec<Range<u64>>> {
    let (mut map, mut at, len, mut cursor) = (Map::default(), 0, node.len_bytes(), Cursor::default());
    let describe = |range: Range<u64>, what: &str| {
        format!("bytes {} to {}, a hole instead: {what}", range.start, range.end)
    };
    for _ in 0..MAX_SCANNED_RUNS {
        if map.data.len() >= MAX_DATA_RUNS || map.findings >= MAX_FINDINGS {
            break;
        }
        let run = match runs::at(node, at, &mut cursor, work) {
            Ok(Some(run)) => run,
            Ok(None) => break,
            Err(error) => {
                let finding = Finding::of(path, &error).described(|what| describe(at..len, what));
                map.report_hole(finding.starting_at(at), report);
                at = len;
                break;
            }
        };
        match run.beyond(node) {
            Some(beyond) => {
                let what = describe(at..run.end, &beyond.what);
                map.report_hole(Finding::error(path, Some(beyond.at), what).starting_at(at), report);
            }
            None if run.is_hole() => map.holes = true,
            None => map.add(at..run.end),
        }
        at = run.end;
    }
    if at < len && map.findings >= MAX_FINDINGS {
        let what = describe(at..len, "too many faults in this file");
        map.report_hole(Finding::error(path, None, what).starting_at(at), report);
    } else if at < len {
        map.add(at..len);
    }
    if !map.holes {
        return None;
    }
    // The format marks a hole at the end of the file by an empty run.
    if map.data.last().is_none_or(|last| last.end < len) {
        map.data.push(len..len);
    }
    Some(map.data)
}

/// Formats the map as it precedes the data, padded with zeroes to a whole block.
pub(super) fn text(map: &[Range<u64>]) -> Vec<u8> {
    let mut text = format!("{}\n", map.len());
    for run in map {
        text.push_str(&format!("{}\n{}\n", run.start, run.end - run.start));
    }
    let mut text = text.into_bytes();
    text.resize(text.len().next_multiple_of(BLOCK_BYTES), 0);
    text
}
