//! The contents of a file in pieces that are good to read: whole clusters, and holes by themselves.

use crate::read::Layout;
use crate::{ImageError, Node, runs};

/// A run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// From this byte on.
    pub(crate) start: u64,
    /// The first byte behind it.
    pub(crate) end: u64,
    /// Whether there is nothing but zeroes, stored nowhere.
    pub(crate) hole: bool,
}

/// Whether a file may have holes in the middle of its data; compressed ones without 48-bit addresses have none, unless they
/// have a fragment in a hole of the packed file.
fn may_have_holes(node: &Node) -> bool {
    let image = node.image();
    matches!(node.inode().layout, Layout::Chunks { .. })
        || image.superblock().wide_addresses
        || image.0.core.packed_may_have_holes()
}

/// The piece that begins at `start`, which is before `end`: at most `most` bytes, ending where an extent does if one ends there.
/// Holes may be longer. Errors are of the index at `start`; what it says further on may still fail.
pub(crate) fn next(node: &Node, start: u64, end: u64, most: u64) -> Result<Piece, ImageError> {
    let Some(first) = runs::at(node, start)? else {
        let what = format!("byte {start} wanted of {}", node.len_bytes());
        return Err(ImageError::corrupt(node.inode().address, what));
    };
    let mut piece = Piece { start, end: first.end.min(end), hole: first.is_hole() };
    if piece.hole {
        return Ok(piece);
    }
    let limit = start.saturating_add(most).min(end);
    if may_have_holes(node) {
        while piece.end < limit
            && let Ok(Some(run)) = runs::at(node, piece.end)
            && !run.is_hole()
        {
            piece.end = run.end;
        }
        piece.end = piece.end.min(limit);
        return Ok(piece);
    }
    piece.end = limit;
    if limit < end
        && let Ok(Some(last)) = node.extent_at(limit - 1)
        && last.start > start
        && last.end() > limit
    {
        piece.end = last.start;
    }
    Ok(piece)
}
