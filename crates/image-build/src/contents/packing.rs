//! [`Packing`]: the packed file, and which files it gets.

use super::packed::Packed;
use crate::compress::stored::Segment;
use crate::compress::workers::Ticket;
use crate::compression::Compression;
use crate::options::Options;
use crate::plan::Planned;
use crate::tree::Tree;
use crate::writer::{OpenFile, Writer};
use std::collections::VecDeque;
use std::time::Duration;

/// A segment of the packed file that is written later.
pub(super) enum Late {
    UnderWay(Ticket),
    Compressed(Segment, Duration),
}

/// The packed file, and its segments under way.
pub struct Packing {
    /// The compression of the packed file; `None`: the image has none.
    pub(super) compression: Option<Compression>,
    /// A further compression of files whose ends it gets.
    light: Option<Compression>,
    /// Longest end of a file that is a fragment, bytes.
    len_bytes_max: usize,
    pub(super) packed: Packed,
    /// The part of it that is written.
    pub(super) file: OpenFile,
    /// Segments with when they are written, as bytes of files.
    pub(super) late: VecDeque<(u64, Late)>,
}

impl Packing {
    /// Begins the packed file of an image, unless its options say that it has no fragments.
    pub fn new(writer: &Writer<'_>) -> Self {
        let (options, spill) = (writer.options, writer.tree.spill());
        Packing {
            compression: options.compression.filter(|_| options.fragments && writer.can_share()),
            light: options.light(),
            len_bytes_max: options.cluster_bytes as usize,
            packed: Packed::new(options.cluster_bytes, &writer.prefixes(), spill),
            file: OpenFile::new(spill),
            late: VecDeque::new(),
        }
    }

    /// Longest end of a file with this compression that is a fragment, bytes; 0: none.
    pub fn fragment_bytes_max(&self, compression: Option<Compression>) -> usize {
        let is_packed =
            compression.is_some() && (compression == self.compression || compression == self.light);
        if is_packed && self.compression.is_some() { self.len_bytes_max } else { 0 }
    }

    /// Whether a file is a fragment as a whole.
    pub fn is_small(&self, tree: &Tree, planned: &Planned, options: &Options) -> bool {
        if self.compression.is_none() {
            return false;
        }
        let compression = planned.rule(tree, &options.rules).unwrap_or(options.compression);
        compression == self.compression
            && (1..=u64::from(options.packed_bytes_max())).contains(&tree.content_bytes(planned.id))
    }
}
