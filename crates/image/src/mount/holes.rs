//! The holes of files, for programs that copy them: SEEK_DATA and SEEK_HOLE, and `st_blocks`, which makes them look for holes.
//!
//! A program may always take a hole for data. So where finding out costs more than a request may, the rest of the file is
//! data. Reference: lseek(2).

use crate::read::{Cursor, Layout};
use crate::runs::{self, Run, Stored};
use crate::work::WorkLimit;
use crate::{ImageError, Node, Result};
use pagefold_fuse::{Errno, Seek};

/// Returns where the next data or hole begins, at `offset` or after it; ENXIO if there is none. The end of a file counts as a
/// hole.
pub(super) fn seek(node: &Node, offset: u64, wanted: Seek, work: &WorkLimit) -> Result<u64, Errno> {
    let len = node.len_bytes();
    if offset >= len {
        return Err(Errno(libc::ENXIO));
    }
    let mut at = offset;
    for run in (Runs { node, at, cursor: Cursor::default(), work }) {
        let Ok(Run { start, end, stored }) = run else {
            // Reading says what is wrong. The data begin after the holes that were passed: a program that got the same position
            // again and again would never end.
            return Ok(if wanted == Seek::Data { at } else { len });
        };
        at = end;
        if (stored == Stored::Nothing) == (wanted == Seek::Hole) {
            return Ok(start);
        }
    }
    match wanted {
        Seek::Data => Err(Errno(libc::ENXIO)),
        Seek::Hole => Ok(len),
    }
}

/// The bytes of a file that are not holes. `None` for a file that is stored as a whole, or if that cannot be found out.
pub(super) fn data_bytes(node: &Node, work: &WorkLimit) -> Option<u64> {
    if !matches!(node.inode().layout, Layout::Chunks { .. }) {
        return None;
    }
    let runs = Runs { node, at: 0, cursor: Cursor::default(), work };
    let lengths = runs.map(|run| {
        let run = run.ok()?;
        Some(if run.stored == Stored::Nothing { 0 } else { run.end - run.start })
    });
    lengths.sum()
}

/// The runs of a file from a position on. Ends after an error.
struct Runs<'a> {
    node: &'a Node,
    at: u64,
    cursor: Cursor,
    work: &'a WorkLimit,
}

impl Iterator for Runs<'_> {
    type Item = Result<Run, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        let run = runs::at(self.node, self.at, &mut self.cursor, self.work).transpose()?;
        self.at = run.as_ref().map_or(u64::MAX, |run| run.end);
        Some(run)
    }
}
