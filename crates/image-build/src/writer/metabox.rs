//! The metabox: a compressed file that has the inodes of an image.
//!
//! Inodes are placed in it as in the uncompressed area. Some stay outside:
//!
//! - the root, which an old field of the superblock names, the packed file, and the metabox itself;
//! - files with contents or chunks behind the inode: the programs of erofs-utils 1.9.4 and earlier do not find them in a
//!   metabox, not even in images that `mkfs.erofs` of the same version has made.
//!
//! The blocks of directories are outside too. A reader decodes a cluster for the first inode of it; so clusters are short,
//! and images with few inodes have no metabox.

use super::{OpenFile, Writer};
use crate::BuildError;
use crate::compress::buffers::SharedBuffers;
use crate::compress::cutter::CutRules;
use crate::compress::workers::{Queue, ToCompress, Turn, Workers, compressor};
use crate::compression::Compression;
use crate::memory::Division;
use crate::metadata::space::Space;
use crate::options::Options;
use crate::table::{Spill, Table};
use std::ops::Range;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Largest cluster of the metabox, bytes. Twice as much makes the metabox smaller by a twentieth, and slower to read.
const CLUSTER_BYTES_MAX: u32 = 8 << 10;
/// Bytes that a thread compresses at once.
const SEGMENT_BYTES: usize = 1 << 20;

/// The inodes in the metabox while they are placed.
pub(super) struct Metabox {
    space: Space,
    compression: Compression,
}

/// Marks positions in the metabox.
const METABOX_BIT: u64 = 1 << 63;

/// Where an inode is placed: a byte of the area that is not compressed, or of the metabox.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub(super) struct Position(u64);

impl Position {
    /// A byte of the area that is not compressed.
    pub(super) fn plain(at: u64) -> Self {
        Position(at)
    }

    /// The byte.
    pub(super) fn at(self) -> u64 {
        self.0 & !METABOX_BIT
    }

    /// Whether it is one of the metabox.
    pub(super) fn is_in_metabox(self) -> bool {
        self.0 & METABOX_BIT != 0
    }
}

impl Metabox {
    /// Begins the metabox of an image of so many inodes, with the table of prefixes of attribute names, at the first inode's
    /// position; `None` if the image has none. Images of 16 TiB and more have none.
    pub(super) fn new(
        options: &Options,
        inodes: usize,
        is_large: bool,
        prefixes: &[u8],
        spill: &Spill,
    ) -> Result<Option<Self>, BuildError> {
        let is_wanted = options.compress_metadata && options.target.has_metabox() && !is_large;
        let is_worth = inodes > 1 && inodes >= options.metadata_inodes_min;
        let Some(compression) = options.compression.filter(|_| is_wanted && is_worth) else {
            return Ok(None);
        };
        let mut space = Space::new(spill);
        if !prefixes.is_empty() {
            let at = space.reserve(prefixes.len() as u64, 0..0)?;
            space.write(at, prefixes);
        }
        Ok(Some(Metabox { space, compression }))
    }

    /// Whether neither inodes nor prefixes are in it.
    pub(super) fn is_empty(&self) -> bool {
        self.space.is_empty()
    }
}

impl Writer<'_> {
    /// Finds room for an inode with what follows it, `len_bytes`, of which the bytes `inline` lie within a block.
    /// `is_plain`: not in the metabox.
    pub(super) fn reserve(
        &mut self,
        len_bytes: u64,
        inline: Range<u64>,
        is_plain: bool,
    ) -> Result<Position, BuildError> {
        Ok(match &mut self.metabox {
            Some(metabox) if !is_plain => Position(metabox.space.reserve(len_bytes, inline)? | METABOX_BIT),
            _ => Position::plain(self.space.reserve(len_bytes, inline)?),
        })
    }

    /// Writes a part of an inode, `within` bytes behind its beginning.
    pub(super) fn write_at(&mut self, place: Position, within: u64, bytes: &[u8]) {
        let space = match &mut self.metabox {
            Some(metabox) if place.is_in_metabox() => &mut metabox.space,
            _ => &mut self.space,
        };
        space.write(place.at() + within, bytes);
    }

    /// Appends the metabox, if there is one, and then the other inodes. Returns the first block of these, from which their
    /// numbers count, and the position of the metabox's inode.
    pub(super) fn put_inodes(&mut self) -> Result<(u64, Option<u64>), BuildError> {
        let metabox_place = match self.metabox.take() {
            Some(Metabox { space, compression }) => {
                let inodes = space.into_bytes()?;
                let file = self.compress_inodes(&inodes, compression)?;
                self.used.metabox = true;
                Some(self.put_hidden(inodes.len() as u64, compression, &file)?)
            }
            None => None,
        };
        let block = self.out.next_block();
        let space = std::mem::replace(&mut self.space, Space::new(self.tree.spill()));
        self.out.append_table(&space.into_bytes()?)?;
        Ok((block, metabox_place))
    }

    fn compress_inodes(
        &mut self,
        inodes: &Table<u8>,
        compression: Compression,
    ) -> Result<OpenFile, BuildError> {
        let cluster_bytes = self.options.cluster_bytes.min(CLUSTER_BYTES_MAX) as usize;
        let threads = Division::of(self.options)?.threads.min(inodes.len().div_ceil(SEGMENT_BYTES));
        let in_flight_bytes = 4 * threads * SEGMENT_BYTES;
        let (options, queue, blocks_memory) = (self.options, &Queue::default(), &SharedBuffers::new(0));
        let mut file = OpenFile::new(inodes.spill());
        std::thread::scope(|scope| {
            let compressor = move || compressor(options, queue, blocks_memory);
            let mut workers = Workers::start(scope, queue, threads, in_flight_bytes, compressor)?;
            let mut tickets = std::collections::VecDeque::new();
            for start in (0..inodes.len() as u64).step_by(SEGMENT_BYTES) {
                let segment = inodes.read_at(start..(inodes.len() as u64).min(start + SEGMENT_BYTES as u64));
                let cut = CutRules {
                    start,
                    is_last: start + segment.len() as u64 == inodes.len() as u64,
                    cluster_bytes,
                    ..CutRules::default()
                };
                while let Some(ticket) = tickets.pop_front_if(|_| !workers.has_capacity(segment.len())) {
                    let done = workers.take(ticket, || self.report(0))?;
                    self.append_segment(&mut file, done.output, Duration::ZERO)?;
                }
                tickets.push_back(workers.submit(
                    segment.into(),
                    ToCompress { cut, compression: Some(compression) },
                    Turn::Last,
                ));
            }
            for ticket in tickets {
                let done = workers.take(ticket, || self.report(0))?;
                self.append_segment(&mut file, done.output, Duration::ZERO)?;
            }
            Ok(file)
        })
    }
}
