//! Splits the contents of a file into runs by the kind of storage: hole, plain bytes or encoded. Fragments are
//! resolved.
//!
//! A [`Mapping::Fragment`] does not say whether bytes are stored for it: the packed file may have a hole there, or end
//! after the end of the image. A tool that took such a fragment for data would write 2^62 zeroes from an image of 12
//! KiB. So tools that process whole files use runs. Reads of single ranges do not need them: their length is the
//! caller's.

use crate::read::{Cursor, Mapping};
use crate::work::WorkLimit;
use crate::{Address, ImageError, Node, Result};

/// The kind of storage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// Nothing is stored: the bytes are zeroes.
    Nothing,
    /// The bytes are stored unchanged, from this address on.
    Plain(Address),
    /// The bytes have to be decoded.
    Encoded,
}

/// A run of a file's bytes that are stored in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First byte: the one that the caller passed.
    pub start: u64,
    /// The first byte after it.
    pub end: u64,
    /// How they are stored.
    pub stored: Stored,
}

/// A run of plain bytes that lies after the end of its device.
pub struct Beyond {
    /// The address of its first byte.
    pub at: Address,
    /// The lengths, in words.
    pub what: String,
}

/// Returns the run that begins at byte `start`; `None` at or after the end of the file. Fails if an index is corrupt. A
/// cursor serves the runs of one file.
pub fn at(node: &Node, start: u64, cursor: &mut Cursor, work: &WorkLimit) -> Result<Option<Run>> {
    let Some(extent) = node.extent_near(start, cursor, work)? else { return Ok(None) };
    let (within, end) = (start - extent.start, extent.end());
    let Mapping::Fragment { offset } = extent.mapping else {
        return Ok(Some(Run { start, end, stored: stored(node, extent.mapping, within)? }));
    };
    // A saturated sum is after the end of the packed file too.
    let position = offset.saturating_add(within);
    let packed = node.image().0.core.packed_extent_at(node.inode(), position, work)?;
    let end = end.min(start.saturating_add(packed.end() - position));
    Ok(Some(Run { start, end, stored: stored(node, packed.mapping, position - packed.start)? }))
}

fn stored(node: &Node, mapping: Mapping, within: u64) -> Result<Stored> {
    match mapping {
        Mapping::Hole => Ok(Stored::Nothing),
        Mapping::Plain(at) => match at.checked_add(within) {
            Some(at) => Ok(Stored::Plain(at)),
            None => Err(ImageError::corrupt(node.inode().address, "contents beyond all addresses")),
        },
        Mapping::Interlaced { .. } | Mapping::Compressed(_) | Mapping::Fragment { .. } => Ok(Stored::Encoded),
    }
}

impl Run {
    /// Whether the run is a hole.
    pub fn is_hole(&self) -> bool {
        self.stored == Stored::Nothing
    }

    /// Checks whether plain bytes lie after the end of their device. An inode may claim any length for plain bytes;
    /// encoded extents have a limited length.
    pub fn beyond(&self, node: &Node) -> Option<Beyond> {
        let (Stored::Plain(at), len) = (self.stored, self.end - self.start) else { return None };
        let left_bytes = node.image().0.core.bytes_left_at(at).ok()?;
        let what = || format!("{len} bytes at {at}, of which {left_bytes} are there");
        (len > left_bytes).then(|| Beyond { at, what: what() })
    }
}
