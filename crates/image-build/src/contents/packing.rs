//! Filling the packed file while other files are compressed.
//!
//! A small file is packed when it is read, and the segments that it completes are written in the order of submission. The
//! end of another file is known when its last segment is compressed. The segment that it completes is compressed next,
//! before those that wait, and is written behind the file with which a fixed number of further bytes has been written:
//! the result has come by then, and the point does not depend on threads.

use super::packed::{Packed, PackedSegment};
use super::{Filled, Filler, Pending};
use crate::BuildError;
use crate::compress::buffers::Buffer;
use crate::compress::cutter::Cut;
use crate::compress::stored::Segment;
use crate::compress::workers::{Ticket, ToCompress, Turn};
use crate::compression::Compression;
use crate::options::{BLOCK_BYTES, Options};
use crate::plan::Planned;
use crate::table::Spill;
use crate::tree::Tree;
use crate::writer::OpenFile;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of files that are written between the end that completes a segment of the packed file and that segment.
const LATE_BYTES: u64 = 32 << 20;

/// A segment of the packed file that is written later.
enum Late {
    UnderWay(Ticket),
    Compressed(Segment, Duration),
}

/// The packed file, and its segments under way.
pub struct Packing {
    compression: Compression,
    /// A further compression of files whose ends it gets.
    light: Option<Compression>,
    /// Longest end of a file that is a fragment, bytes.
    len_bytes_max: usize,
    packed: Packed,
    /// The part of it that is written.
    file: OpenFile,
    /// Segments with when they are written, as bytes of files.
    late: VecDeque<(u64, Late)>,
}

impl Packing {
    /// Begins the packed file, with the table of prefixes of attribute names; `None` if the options say that the image has
    /// no fragments.
    pub fn new(options: &Options, prefixes: &[u8], spill: &Spill) -> Option<Self> {
        Some(Packing {
            compression: options.compression.filter(|_| options.fragments)?,
            light: options.light(),
            len_bytes_max: options.cluster_bytes as usize,
            packed: Packed::new(options.cluster_bytes, prefixes, spill),
            file: OpenFile::new(spill),
            late: VecDeque::new(),
        })
    }

    /// Longest end of a file with this compression that is a fragment, bytes; 0: none.
    pub fn fragment_bytes_max(&self, compression: Option<Compression>) -> usize {
        let is_packed = compression.is_some_and(|one| one == self.compression || Some(one) == self.light);
        if is_packed { self.len_bytes_max } else { 0 }
    }

    /// Whether a file is a fragment as a whole.
    pub fn is_small(&self, tree: &Tree, planned: &Planned, options: &Options) -> bool {
        let len_bytes = tree.content_bytes(planned.id);
        let compression = planned.rule(tree, &options.rules).unwrap_or(options.compression);
        compression == Some(self.compression)
            && len_bytes > 0
            && len_bytes <= u64::from(options.packed_bytes_max())
    }
}

impl<'a> Filler<'_, 'a, '_> {
    /// Packs a small file.
    pub(super) fn pack_file(&mut self, planned: Planned) -> Result<(), BuildError> {
        let content = self.writer.content(&planned);
        let (Some(packing), Some(content)) = (&mut self.packing, content) else { return Ok(()) };
        let mut reader = content.open()?;
        let data = reader.data_ranges()?;
        let mut filled = Filled::new(reader.as_mut(), data.as_deref(), self.writer.options.digests);
        let len_bytes = content.len_bytes();
        let src = filled.read(len_bytes as usize, Buffer::default())?;
        self.writer.add_digest(&planned, filled.digest())?;
        reader.finish()?;
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        let at = packing.packed.place(&src)?;
        self.writer.put_fragment(&planned, len_bytes, packing.compression, at)?;
        while let Some(segment) = self.next_packed() {
            self.make_room(segment.src.len())?;
            if let Some(ticket) = self.submit_packed(segment, Turn::Last) {
                self.pending.push_back(Pending::Packed(ticket));
            }
        }
        self.writer.report(len_bytes)
    }

    /// Packs the end of a file, if there is one. Returns its position in the packed file.
    pub(super) fn pack_end(&mut self, fragment: &[u8]) -> Result<Option<u64>, BuildError> {
        let Some(packing) = self.packing.as_mut().filter(|_| !fragment.is_empty()) else {
            return Ok(None);
        };
        let at = packing.packed.place(fragment)?;
        while let Some(segment) = self.next_packed() {
            let due = self.writer.done_bytes() + LATE_BYTES;
            let ticket = self.submit_packed(segment, Turn::First);
            self.packing
                .iter_mut()
                .for_each(|packing| packing.late.extend(ticket.map(|ticket| (due, Late::UnderWay(ticket)))));
        }
        Ok(Some(at))
    }

    /// Writes the segments of the packed file whose point has come.
    pub(super) fn write_due(&mut self) -> Result<(), BuildError> {
        let done_bytes = self.writer.done_bytes();
        let is_due = |(due, _): &mut (u64, Late)| *due <= done_bytes;
        while let Some((_, late)) =
            self.packing.as_mut().and_then(|packing| packing.late.pop_front_if(is_due))
        {
            self.write_late(late)?;
        }
        Ok(())
    }

    /// Waits for a segment that is written later, so that its source takes no room. Returns false if there is none.
    pub(super) fn finish_late(&mut self) -> Result<bool, BuildError> {
        let mut late = self.packing.iter_mut().flat_map(|packing| &mut packing.late);
        let Some((_, late)) = late.find(|(_, late)| matches!(late, Late::UnderWay(_))) else {
            return Ok(false);
        };
        if let Late::UnderWay(ticket) = *late {
            let done = self.workers.take(ticket, || self.writer.report(0))?;
            *late = Late::Compressed(done.output, done.elapsed);
        }
        Ok(true)
    }

    fn write_late(&mut self, late: Late) -> Result<(), BuildError> {
        match late {
            Late::UnderWay(ticket) => self.write_packed(ticket),
            Late::Compressed(segment, elapsed) => self.append_packed(segment, elapsed),
        }
    }

    /// Writes a segment of the packed file.
    pub(super) fn write_packed(&mut self, ticket: Ticket) -> Result<(), BuildError> {
        let done = self.workers.take(ticket, || self.writer.report(0))?;
        if let Some(src) = done.src {
            self.sources.keep(src);
        }
        self.append_packed(done.output, done.elapsed)
    }

    fn append_packed(&mut self, segment: Segment, elapsed: Duration) -> Result<(), BuildError> {
        if let Some(packing) = &mut self.packing {
            self.rooms.keep(self.writer.append_segment(&mut packing.file, segment, elapsed)?);
        }
        Ok(())
    }

    /// Writes the end of the packed file, and its inode. All other inodes have their numbers.
    pub(super) fn end_packed(&mut self) -> Result<(), BuildError> {
        if !self.writer.has_packed_directories() {
            let used = self.packing.as_mut().filter(|packing| packing.packed.stored.files > 0);
            let last = used.and_then(|packing| packing.packed.last_segment());
            self.write_rest(last)?;
            return self.put_packed(0);
        }
        let files = self.packing.as_mut().and_then(|packing| packing.packed.begin_directories());
        self.write_rest(files)?;
        let file_blocks = self.packing.as_ref().map_or(0, |packing| packing.file.blocks());
        self.pack_directories()?;
        let last = self.packing.as_mut().and_then(|packing| packing.packed.last_segment());
        self.write_rest(last)?;
        let blocks = self.packing.as_ref().map_or(0, |packing| packing.file.blocks());
        self.put_packed(blocks - file_blocks)
    }

    /// Writes the segments that were to be written later, and then a further one.
    fn write_rest(&mut self, last: Option<PackedSegment>) -> Result<(), BuildError> {
        let last = last.and_then(|segment| self.submit_packed(segment, Turn::First));
        let late = self.packing.as_mut().map(|packing| std::mem::take(&mut packing.late)).unwrap_or_default();
        for late in late.into_iter().map(|(_, late)| late).chain(last.map(Late::UnderWay)) {
            self.write_late(late)?;
        }
        Ok(())
    }

    /// Appends all directories to the packed file, in the order of the plan.
    fn pack_directories(&mut self) -> Result<(), BuildError> {
        let Some(packing) = &self.packing else { return Ok(()) };
        let (plan, tree) = (self.writer.plan, self.writer.tree);
        let numbers = self.writer.begin_packed_directories(packing.packed.len_bytes());
        for planned in plan.directories.iter() {
            let mut blocks = numbers.blocks(tree, &planned);
            let mut next = blocks.next_block();
            while let Some(mut block) = next {
                next = blocks.next_block();
                if next.is_some() {
                    block.resize(BLOCK_BYTES as usize, 0);
                }
                self.pack_block(&block)?;
            }
        }
        self.writer.end_packed_directories(numbers);
        self.drain()
    }

    /// Appends a block of a directory to the packed file, or its end.
    fn pack_block(&mut self, block: &[u8]) -> Result<(), BuildError> {
        self.packing.iter_mut().for_each(|packing| packing.packed.append_directory(block));
        while let Some(segment) = self.next_packed() {
            self.make_room(segment.src.len())?;
            let ticket = self.submit_packed(segment, Turn::Last);
            self.pending.extend(ticket.map(Pending::Packed));
            self.writer.report(0)?;
        }
        Ok(())
    }

    /// Writes the inode of the packed file, which has this many blocks of directories, if it is used.
    fn put_packed(&mut self, directory_blocks: u64) -> Result<(), BuildError> {
        let is_used = |packing: &Packing| packing.packed.stored.files > 0 || directory_blocks > 0;
        match self.packing.take().filter(is_used) {
            Some(Packing { compression, packed, file, .. }) => {
                let (len_bytes, fragments) = (packed.len_bytes(), packed.stored);
                self.writer.put_packed(len_bytes, fragments, compression, file, directory_blocks)
            }
            None => Ok(()),
        }
    }

    fn next_packed(&mut self) -> Option<PackedSegment> {
        self.packing.as_mut()?.packed.next_segment()
    }

    fn submit_packed(&mut self, segment: PackedSegment, turn: Turn) -> Option<Ticket> {
        let PackedSegment { start, src, cluster_bytes, is_last } = segment;
        let cut = Cut { start, is_last, cluster_bytes: cluster_bytes as usize, ..Cut::default() };
        let compression = self.packing.as_ref()?.compression;
        Some(self.workers.submit(src.into(), ToCompress { cut, compression: Some(compression) }, turn))
    }
}
