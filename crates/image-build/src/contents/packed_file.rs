//! Filling the packed file while other files are compressed.
//!
//! A small file is packed when it is read, and the segments that it completes are written in the order of submission. The
//! end of another file is known when its last segment is compressed. The segment that it completes is compressed next,
//! before those that wait, and is written after the file with which a fixed number of further bytes has been written:
//! the result has come by then, and the point does not depend on threads.

use super::filled::Filled;
use super::filler::{Filler, Pending};
use super::packed::PackedSegment;
use super::packing::{Late, Packing};
use crate::Result;
use crate::compress::buffers::Buffer;
use crate::compress::cutter::CutRules;
use crate::compress::stored::Segment;
use crate::compress::workers::{Ticket, ToCompress, Turn};
use crate::options::BLOCK_BYTES;
use crate::plan::Planned;
use std::time::Duration;

/// Bytes of files that are written between the end that completes a segment of the packed file and that segment.
const LATE_BYTES: u64 = 32 << 20;

impl<'a> Filler<'_, 'a, '_> {
    /// Packs a small file.
    pub(super) fn pack_file(&mut self, planned: Planned) -> Result<()> {
        let content = self.writer.content(&planned);
        let (Some(compression), Some(content)) = (self.packing.compression, content) else { return Ok(()) };
        let reader = content.open()?;
        let data = reader.data_ranges()?;
        let mut filled = Filled::new(reader.as_ref(), data.as_deref(), self.writer.options.digests);
        let len_bytes = content.len_bytes();
        let src = filled.read(len_bytes as usize, Buffer::default())?;
        self.writer.add_digest(&planned, filled.digest())?;
        reader.finish()?;
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        let at = self.packing.packed.place(&src)?;
        self.writer.put_fragment(&planned, compression, at)?;
        self.submit_complete()?;
        self.writer.report(len_bytes)
    }

    /// Packs the end of a file, if there is one. Returns its position in the packed file.
    pub(super) fn pack_end(&mut self, fragment: &[u8]) -> Result<Option<u64>> {
        if fragment.is_empty() {
            return Ok(None);
        }
        let at = self.packing.packed.place(fragment)?;
        while let Some(segment) = self.packing.packed.next_segment() {
            let due = self.writer.done_bytes() + LATE_BYTES;
            let late = Late::UnderWay(self.submit_packed(segment, Turn::First));
            self.packing.late.push_back((due, late));
        }
        Ok(Some(at))
    }

    /// Writes the segments of the packed file whose point has come.
    pub(super) fn write_due(&mut self) -> Result<()> {
        let done_bytes = self.writer.done_bytes();
        while let Some((_, late)) = self.packing.late.pop_front_if(|(due, _)| *due <= done_bytes) {
            self.write_late(late)?;
        }
        Ok(())
    }

    /// Waits for a segment that is written later, so that its source takes no memory. Returns false if there is none.
    pub(super) fn finish_late(&mut self) -> Result<bool> {
        for (_, late) in &mut self.packing.late {
            if let Late::UnderWay(ticket) = *late {
                let done = self.workers.take(ticket, || self.writer.report(0))?;
                *late = Late::Compressed(done.output, done.elapsed);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn write_late(&mut self, late: Late) -> Result<()> {
        match late {
            Late::UnderWay(ticket) => self.write_packed(ticket),
            Late::Compressed(segment, elapsed) => self.append_packed(segment, elapsed),
        }
    }

    /// Writes a segment of the packed file.
    pub(super) fn write_packed(&mut self, ticket: Ticket) -> Result<()> {
        let done = self.workers.take(ticket, || self.writer.report(0))?;
        if let Some(src) = done.src {
            self.sources.keep(src);
        }
        self.append_packed(done.output, done.elapsed)
    }

    fn append_packed(&mut self, segment: Segment, elapsed: Duration) -> Result<()> {
        self.blocks_memory.keep(self.writer.append_segment(&mut self.packing.file, segment, elapsed)?);
        Ok(())
    }

    /// Writes the end of the packed file, and its inode, if it is used. All other inodes have their numbers.
    pub(super) fn end_packed(&mut self) -> Result<()> {
        let mut directory_blocks = 0;
        let has_files = self.packing.packed.stored.files > 0;
        if self.writer.has_packed_directories() {
            let files = self.packing.packed.begin_directories();
            self.write_rest(files)?;
            let file_blocks = self.packing.file.blocks();
            self.pack_directories()?;
            let last = self.packing.packed.last_segment();
            self.write_rest(last)?;
            directory_blocks = self.packing.file.blocks() - file_blocks;
        } else if has_files {
            let last = self.packing.packed.last_segment();
            self.write_rest(last)?;
        }
        let Packing { compression, packed, file, .. } = &self.packing;
        match compression {
            Some(compression) if has_files || directory_blocks > 0 => {
                let (len_bytes, fragments) = (packed.len_bytes(), packed.stored);
                self.writer.put_packed(len_bytes, fragments, *compression, file, directory_blocks)
            }
            _ => Ok(()),
        }
    }

    /// Writes the segments that were to be written later, and then a further one.
    fn write_rest(&mut self, last: Option<PackedSegment>) -> Result<()> {
        let last = last.map(|segment| self.submit_packed(segment, Turn::First));
        while let Some((_, late)) = self.packing.late.pop_front() {
            self.write_late(late)?;
        }
        last.map_or(Ok(()), |ticket| self.write_packed(ticket))
    }

    /// Appends all directories to the packed file, in the order of the plan.
    fn pack_directories(&mut self) -> Result<()> {
        let (plan, tree) = (self.writer.plan, self.writer.tree);
        let numbers = self.writer.begin_packed_directories(self.packing.packed.len_bytes());
        for planned in plan.directories.iter() {
            let mut blocks = numbers.blocks(tree, &planned);
            let mut next = blocks.next_block();
            while let Some(mut block) = next {
                next = blocks.next_block();
                if next.is_some() {
                    block.resize(BLOCK_BYTES as usize, 0);
                }
                self.packing.packed.append_directory(&block);
                if self.submit_complete()? {
                    self.writer.report(0)?;
                }
            }
        }
        self.writer.end_packed_directories(numbers);
        self.drain()
    }

    /// Passes the segments of the packed file that are complete to the threads. Returns whether there was one.
    fn submit_complete(&mut self) -> Result<bool> {
        let mut is_any = false;
        while let Some(segment) = self.packing.packed.next_segment() {
            self.wait_for_capacity(segment.src.len())?;
            let ticket = self.submit_packed(segment, Turn::Last);
            self.pending.push_back(Pending::Packed(ticket));
            is_any = true;
        }
        Ok(is_any)
    }

    fn submit_packed(&mut self, segment: PackedSegment, turn: Turn) -> Ticket {
        let PackedSegment { start, src, cluster_bytes, is_last } = segment;
        let cut = CutRules { start, is_last, cluster_bytes: cluster_bytes as usize, ..CutRules::default() };
        self.workers.submit(src.into(), ToCompress { cut, compression: self.packing.compression }, turn)
    }
}
