//! Cuts the contents of a file into pieces for sequential reading, at the borders of clusters and holes.
//!
//! For tools that read whole files: a cluster that two pieces share would be decoded twice, and a hole need not be
//! read.

use crate::read::{Cursor, Layout};
use crate::work::WorkLimit;
use crate::{ImageError, Node, Result, runs};

/// A run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub start: u64,
    /// The first byte after it.
    pub end: u64,
    /// Whether the piece is a hole: zeroes for which nothing is stored.
    pub hole: bool,
}

/// Whether a file may have holes between its data. Compressed files without 48-bit addresses have none, except for a
/// fragment in a hole of the packed file.
fn may_have_holes(node: &Node) -> bool {
    let image = node.image();
    matches!(node.inode().layout, Layout::Chunks { .. })
        || image.superblock().wide_addresses
        || image.0.core.packed_may_have_holes()
}

/// Returns the piece that begins at `start`, which is before `end`: at most `most` bytes, and shorter if it would end
/// inside an extent that began in it. A hole may be longer. Fails if the index at `start` is corrupt; errors further
/// on end the piece.
/// A cursor serves the pieces of one file.
pub fn next(
    node: &Node,
    (start, end): (u64, u64),
    most: u64,
    cursor: &mut Cursor,
    work: &WorkLimit,
) -> Result<Piece> {
    let Some(first) = runs::at(node, start, cursor, work)? else {
        let what = format!("byte {start} requested of {}", node.len_bytes());
        return Err(ImageError::corrupt(node.inode().address, what));
    };
    let mut piece = Piece { start, end: first.end.min(end), hole: first.is_hole() };
    if piece.hole {
        return Ok(piece);
    }
    let limit = start.saturating_add(most).min(end);
    if may_have_holes(node) {
        while piece.end < limit
            && let Ok(Some(run)) = runs::at(node, piece.end, cursor, work)
            && !run.is_hole()
        {
            piece.end = run.end;
        }
        piece.end = piece.end.min(limit);
        return Ok(piece);
    }
    piece.end = limit;
    if limit < end
        && let Ok(Some(last)) = node.extent_near(limit - 1, cursor, work)
        && last.start > start
        && last.end() > limit
    {
        piece.end = last.start;
    }
    Ok(piece)
}
