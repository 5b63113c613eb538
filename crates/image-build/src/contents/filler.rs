//! [`Filler`]: the state of the thread that reads and writes.

use super::choice::Chooser;
use super::packing::Packing;
use super::scan::Scan;
use crate::chunks::Reference;
use crate::compress::buffers::{Buffers, SharedBuffers};
use crate::compress::stored::Segment;
use crate::compress::workers::{Ticket, ToCompress, Workers};
use crate::compression::Compression;
use crate::duplicates::Duplicates;
use crate::plan::Planned;
use crate::tree::InodeId;
use crate::writer::{OpenFile, Writer};
use std::collections::VecDeque;

/// A piece of work whose result is written next, or after those before it.
pub(super) enum Pending {
    /// An inode without contents in blocks of compressed data.
    Bare(Planned),
    /// A file with the contents of another one, which was added before.
    Duplicate { planned: Planned, original: InodeId },
    /// A segment of a file that a thread compresses.
    Segment(PendingSegment),
    /// A part of a file that lies elsewhere.
    Reference(PendingReference),
    /// A segment of the packed file.
    Packed(Ticket),
}

pub(super) struct PendingSegment {
    pub(super) ticket: Ticket,
    pub(super) planned: Planned,
    pub(super) len: usize,
    pub(super) is_last: bool,
    /// `None`: it is stored plain.
    pub(super) compression: Option<Compression>,
    /// Whether later files may have the contents of its file.
    pub(super) is_original: bool,
    /// Whether its file has references, or cuts for those of others.
    pub(super) is_divided: bool,
}

/// A file that is being read.
pub(super) struct Source {
    pub(super) planned: Planned,
    pub(super) len_bytes: u64,
    pub(super) compression: Option<Compression>,
}

/// A part of a file that lies elsewhere.
pub(super) struct PendingReference {
    pub(super) planned: Planned,
    pub(super) compression: Compression,
    pub(super) reference: Reference,
    /// The hash of its bytes without the last block, if they were read.
    pub(super) hash: Option<u128>,
    /// The bytes of its last block.
    pub(super) last: Vec<u8>,
}

/// Reads files, has them compressed, and writes the results in the order of submission.
pub(super) struct Filler<'w, 'a, 's> {
    pub(super) writer: &'w mut Writer<'a>,
    pub(super) workers: Workers<'s, ToCompress, Segment>,
    pub(super) duplicates: Duplicates,
    pub(super) scan: Scan,
    pub(super) packing: Packing,
    pub(super) chooser: Chooser,
    pub(super) pending: VecDeque<Pending>,
    /// The file whose segments are being written.
    pub(super) file: OpenFile,
    /// The bytes of that file before a reference that could not be stored without those of the reference.
    pub(super) not_stored: Vec<u8>,
    /// Bytes of all files that are not read yet.
    pub(super) left_bytes: u64,
    /// The references that wait, each with a block.
    pub(super) pending_references: usize,
    /// Memory for sources of segments.
    pub(super) sources: Buffers,
    /// Memory for their blocks.
    pub(super) blocks_memory: &'s SharedBuffers,
}
