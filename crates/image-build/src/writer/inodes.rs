//! Where inodes are placed, and appending them all.

use super::metabox::{Metabox, Position};
use super::{OpenFile, Writer};
use crate::Result;
use crate::compress::buffers::SharedBuffers;
use crate::compress::cutter::CutRules;
use crate::compress::workers::{Queue, ToCompress, Turn, Workers, compressor};
use crate::compression::Compression;
use crate::memory::Division;
use crate::metadata::space::Space;
use crate::table::Table;
use std::ops::Range;
use std::time::Duration;

/// Largest cluster of the metabox, bytes. Twice as much makes the metabox smaller by a twentieth, and slower to read.
const CLUSTER_BYTES_MAX: u32 = 8 << 10;
/// Bytes that a thread compresses at once.
const SEGMENT_BYTES: usize = 1 << 20;

impl Writer<'_> {
    /// Finds room for an inode with what follows it, `len_bytes`, of which the bytes `inline` lie within a block.
    /// `is_plain`: not in the metabox.
    pub(super) fn reserve(&mut self, len_bytes: u64, inline: Range<u64>, is_plain: bool) -> Result<Position> {
        Ok(match &mut self.metabox {
            Some(metabox) if !is_plain => Position::in_metabox(metabox.space.reserve(len_bytes, inline)?),
            _ => Position::plain(self.space.reserve(len_bytes, inline)?),
        })
    }

    /// Writes a part of an inode, `within` bytes after its beginning.
    pub(super) fn write_at(&mut self, place: Position, within: u64, bytes: &[u8]) {
        let space = match &mut self.metabox {
            Some(metabox) if place.is_in_metabox() => &mut metabox.space,
            _ => &mut self.space,
        };
        space.write(place.at() + within, bytes);
    }

    /// Appends the metabox, if there is one, and then the other inodes. Returns the first block of these, from which their
    /// numbers count, and the position of the metabox's inode.
    pub(super) fn put_inodes(&mut self) -> Result<(u64, Option<u64>)> {
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
        let space =
            std::mem::replace(&mut self.space, Space::new(self.tree.spill(), self.geometry.block_bytes));
        self.out.append_table(&space.into_bytes()?)?;
        Ok((block, metabox_place))
    }

    fn compress_inodes(&mut self, inodes: &Table<u8>, compression: Compression) -> Result<OpenFile> {
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
