//! Reads the contents of files, has them compressed, and passes them to the writer in the order of the plan.
//!
//! One thread reads and writes; the others compress. A file is cut into segments, which are compressed by any thread; a
//! bounded number of bytes of them is under way.

use super::BuildError;
use super::compress::segment::{self, Cut, SEGMENT_BYTES_MAX, next_segment_bytes};
use super::compress::workers::{Queue, Workers};
use super::content::{Content, Reader};
use super::options::Compression;
use super::plan::Planned;
use super::sparse;
use super::tree::Body;
use super::writer::{OpenFile, Writer, content_bytes};
use std::collections::VecDeque;
use std::ops::Range;
use twox_hash::XxHash3_128;

/// Most buffers that wait for another segment.
const BUFFERS_MAX: usize = 2;
/// Shorter buffers are not worth it.
const BUFFER_BYTES_MIN: usize = 1 << 20;

/// A piece of work whose result is written next, or after those before it.
enum Pending<'a> {
    /// An inode without blocks of contents.
    Small(&'a Planned),
    /// A segment that a thread compresses.
    Segment { planned: &'a Planned, len: usize, is_last: bool, compression: Compression },
}

/// Appends the contents of all inodes that are no directories.
pub fn fill(writer: &mut Writer<'_>, threads: usize) -> Result<(), BuildError> {
    let (plan, options) = (writer.plan, writer.options);
    let queue = Queue::default();
    std::thread::scope(|scope| {
        let workers = Workers::start(scope, options, &queue, threads)?;
        let left_bytes = writer.total_bytes();
        let (pending, file, buffers) = (VecDeque::new(), OpenFile::default(), Vec::new());
        let mut filler = Filler { writer, workers, pending, file, left_bytes, buffers };
        for planned in &plan.others {
            filler.add(planned)?;
        }
        filler.drain()
    })
}

struct Filler<'w, 'a> {
    writer: &'w mut Writer<'a>,
    workers: Workers,
    pending: VecDeque<Pending<'a>>,
    /// The file whose segments are being written.
    file: OpenFile,
    /// Bytes of all files that are not read yet.
    left_bytes: u64,
    /// Memory of segments that are written, to be used again: new memory would cost a fault for each page.
    buffers: Vec<Vec<u8>>,
}

impl<'a> Filler<'_, 'a> {
    fn add(&mut self, planned: &'a Planned) -> Result<(), BuildError> {
        let tree = self.writer.tree;
        match &tree.inode(planned.id).body {
            Body::Regular(content) if content.len_bytes() > 0 => self.add_file(planned, content.as_ref()),
            _ => {
                self.pending.push_back(Pending::Small(planned));
                self.write_ready()
            }
        }
    }

    fn add_file(&mut self, planned: &'a Planned, content: &dyn Content) -> Result<(), BuildError> {
        let options = self.writer.options;
        let len_bytes = content.len_bytes();
        let mut reader = content.open()?;
        let data = reader.data_ranges()?;
        if let Some(ranges) =
            data.as_deref().filter(|ranges| sparse::is_worth(options.target, len_bytes, ranges))
        {
            self.drain()?;
            self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
            sparse::write(self.writer, planned, len_bytes, ranges, reader.as_mut())?;
            return reader.finish();
        }
        let hash = options.digests.then(XxHash3_128::new);
        let mut reader = Filled { reader: reader.as_mut(), data: data.as_deref(), at: 0, hash };
        match options.rules.choose(&planned.path, options.compression) {
            Some(compression) => self.submit(planned, len_bytes, compression, &mut reader)?,
            None => self.copy(planned, len_bytes, &mut reader)?,
        }
        self.writer.add_digest(planned, reader.hash.map(|hash| hash.finish_128()));
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        reader.reader.finish()
    }

    /// Passes a file to the threads that compress.
    fn submit(
        &mut self,
        planned: &'a Planned,
        len_bytes: u64,
        compression: Compression,
        reader: &mut Filled<'_>,
    ) -> Result<(), BuildError> {
        let options = self.writer.options;
        let later_bytes = self.left_bytes.saturating_sub(len_bytes);
        let mut start = 0;
        while start < len_bytes {
            let file_left = len_bytes - start;
            let segment_bytes = next_segment_bytes(file_left, file_left + later_bytes);
            self.make_room(segment_bytes)?;
            let src = reader.read(segment_bytes, self.buffers.pop().unwrap_or_default())?;
            let is_last = segment_bytes as u64 == file_left;
            self.pending.push_back(Pending::Segment { planned, len: src.len(), is_last, compression });
            let cluster_bytes = options.cluster_bytes as usize;
            let cut = Cut { start, is_last, cluster_bytes, tail_packing: options.tail_packing };
            self.workers.submit(src, cut, compression);
            start += segment_bytes as u64;
        }
        Ok(())
    }

    /// Writes a file plain, after everything before it.
    fn copy(
        &mut self,
        planned: &'a Planned,
        len_bytes: u64,
        reader: &mut Filled<'_>,
    ) -> Result<(), BuildError> {
        self.drain()?;
        let mut file = OpenFile::default();
        let mut src = Vec::new();
        for start in (0..len_bytes).step_by(SEGMENT_BYTES_MAX) {
            src = reader.read((len_bytes - start).min(SEGMENT_BYTES_MAX as u64) as usize, src)?;
            self.writer.append_segment(&mut file, segment::plain(&src), std::time::Duration::ZERO)?;
            self.writer.report(src.len() as u64)?;
        }
        self.writer.put_file(planned, len_bytes, None, file)
    }

    /// Writes results until another segment of this length may be submitted.
    fn make_room(&mut self, src_bytes: usize) -> Result<(), BuildError> {
        while !self.workers.has_room(src_bytes) {
            self.write_next()?;
        }
        Ok(())
    }

    /// Writes what needs no thread and is next.
    fn write_ready(&mut self) -> Result<(), BuildError> {
        while let Some(Pending::Small(_)) = self.pending.front() {
            self.write_next()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), BuildError> {
        while !self.pending.is_empty() {
            self.write_next()?;
        }
        Ok(())
    }

    fn write_next(&mut self) -> Result<(), BuildError> {
        match self.pending.pop_front() {
            None => Ok(()),
            Some(Pending::Small(planned)) => self.writer.put_small(planned),
            Some(Pending::Segment { planned, len, is_last, compression }) => {
                let done = self.workers.take()?;
                if self.buffers.len() < BUFFERS_MAX && done.src.len() >= BUFFER_BYTES_MIN {
                    self.buffers.push(done.src);
                }
                self.writer.append_segment(&mut self.file, done.segment, done.elapsed)?;
                if is_last {
                    let file = std::mem::take(&mut self.file);
                    let len_bytes = content_bytes(self.writer.tree, planned.id);
                    self.writer.put_file(planned, len_bytes, Some(compression), file)?;
                }
                self.writer.report(len as u64)
            }
        }
    }
}

/// Contents whose holes are filled with zeroes.
struct Filled<'r> {
    reader: &'r mut dyn Reader,
    data: Option<&'r [Range<u64>]>,
    at: u64,
    /// The hash of what was read, if it is wanted.
    hash: Option<XxHash3_128>,
}

impl Filled<'_> {
    /// Reads the next `len` bytes into a buffer, whose contents are replaced.
    fn read(&mut self, len: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>, BuildError> {
        bytes.resize(len, 0);
        let mut done = 0;
        while done < len {
            let left = (len - done) as u64;
            let (is_data, run) = self.run();
            let now = run.min(left) as usize;
            match is_data {
                true => self.reader.read_exact(&mut bytes[done..done + now])?,
                false => {
                    bytes[done..done + now].fill(0);
                    self.reader.skip(now as u64)?;
                }
            }
            done += now;
            self.at += now as u64;
        }
        if let Some(hash) = &mut self.hash {
            hash.write(&bytes);
        }
        Ok(bytes)
    }

    /// Whether the next bytes are data, and how many are alike.
    fn run(&self) -> (bool, u64) {
        let Some(ranges) = self.data else { return (true, u64::MAX) };
        match ranges.get(ranges.partition_point(|range| range.end <= self.at)) {
            Some(range) if range.start <= self.at => (true, range.end - self.at),
            Some(range) => (false, range.start - self.at),
            None => (false, u64::MAX),
        }
    }
}
