//! The entry of a logical cluster, as the full and the compact form decode it.

use crate::format::zmap::{EntryType, advise};

/// The storage of an extent: plain, or compressed with the first or the second algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKind {
    Plain,
    First,
    Second,
}

impl HeadKind {
    /// Converts the type of an entry; `None` if it is not a head.
    pub(super) fn of(kind: EntryType) -> Option<Self> {
        match kind {
            EntryType::Plain => Some(HeadKind::Plain),
            EntryType::Head1 => Some(HeadKind::First),
            EntryType::Head2 => Some(HeadKind::Second),
            EntryType::NonHead => None,
        }
    }

    /// The flag of the header that allows clusters of more than one block.
    pub(super) fn big_advice(self) -> u16 {
        match self {
            HeadKind::First => advise::BIG_CLUSTER_1,
            HeadKind::Plain | HeadKind::Second => advise::BIG_CLUSTER_2,
        }
    }
}

/// A head: the entry of a logical cluster in which an extent begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) kind: HeadKind,
    /// Offset of the extent in the logical cluster, bytes.
    pub(super) lcluster_offset: u32,
    pub(super) partial: bool,
}

/// A decoded entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    Head(Head),
    /// The entry after a head, with the number of blocks of that head's cluster.
    Blocks(u16),
    /// Another entry inside an extent, with the distance back to the head or to an entry nearer to it.
    Inside {
        back: u16,
    },
}
