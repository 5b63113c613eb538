//! The contents of a file by what is stored for them: holes, bytes as they are, and all else; fragments are looked up.
//!
//! An extent in the packed file does not say whether anything is stored for it: the packed file may have a hole there, or end
//! beyond the image. A tool that takes it for data would write 2^62 zeroes of an image of 12 KiB. So tools that go through
//! whole files ask here. Readers of single ranges need not: they read what they asked for, and no more.

use crate::read::Place;
use crate::{Address, ImageError, Node};

/// What is stored for a run of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Nothing: they are zeroes.
    Nothing,
    /// The bytes as they are, from this address on.
    Plain(Address),
    /// Something to be decoded.
    Encoded,
}

/// A run of a file's bytes that are stored in one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// From this byte of the file on: the one that was asked for.
    pub(crate) start: u64,
    /// The first byte behind it.
    pub(crate) end: u64,
    pub(crate) stored: Stored,
}

/// Plain bytes that no device has.
pub(crate) struct Beyond {
    /// Where they should be.
    pub(crate) at: Address,
    /// In words.
    pub(crate) what: String,
}

/// The run that begins at byte `start`; `None` at or behind the end of the file. Errors are of the indexes.
pub(crate) fn at(node: &Node, start: u64) -> Result<Option<Run>, ImageError> {
    let Some(extent) = node.extent_at(start)? else { return Ok(None) };
    let (within, end) = (start - extent.start, extent.end());
    let Place::Fragment { offset } = extent.place else {
        return Ok(Some(Run { start, end, stored: stored(node, extent.place, within)? }));
    };
    // Past all numbers is past the end of the packed file too.
    let position = offset.saturating_add(within);
    let packed = node.image().0.core.packed_extent_at(node.inode(), position)?;
    let end = end.min(start.saturating_add(packed.end() - position));
    Ok(Some(Run { start, end, stored: stored(node, packed.place, position - packed.start)? }))
}

fn stored(node: &Node, place: Place, within: u64) -> Result<Stored, ImageError> {
    match place {
        Place::Hole => Ok(Stored::Nothing),
        Place::Plain(at) => match at.checked_add(within) {
            Some(at) => Ok(Stored::Plain(at)),
            None => Err(ImageError::corrupt(node.inode().address, "contents beyond all addresses")),
        },
        Place::Interlaced { .. } | Place::Compressed(_) | Place::Fragment { .. } => Ok(Stored::Encoded),
    }
}

impl Run {
    /// Whether it is a hole.
    pub(crate) fn is_hole(&self) -> bool {
        self.stored == Stored::Nothing
    }

    /// Why it cannot be read, if its plain bytes lie beyond what there is. An inode may give any length to what is stored as
    /// it is; what is encoded is short.
    pub(crate) fn beyond(&self, node: &Node) -> Option<Beyond> {
        let (Stored::Plain(at), len) = (self.stored, self.end - self.start) else { return None };
        let room = node.image().0.core.room_at(at).ok()?;
        let what = || format!("{len} bytes at {at}, and {room} are there");
        (len > room).then(|| Beyond { at, what: what() })
    }
}
