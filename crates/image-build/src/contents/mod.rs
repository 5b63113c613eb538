//! Reads the contents of files, has them compressed, and passes them to the writer.
//!
//! One thread reads and writes; the others compress. A file is cut into segments, which are compressed by any thread; a
//! bounded number of bytes of them is under way. Small files come first: they are fragments of the packed file (`packed`,
//! `packing`, `packed_file`). The others follow; if equal parts are to be shared, they were read once before (`scan`), and `parts` has
//! what such a file stores itself, and its references. [`Sort`](super::sort::Sort) is the order in each of the two groups.
//!
//! The image must not depend on the number of threads. So nothing depends on when a result comes: segments are written in
//! the order of submission, or at a point that the bytes written so far decide.

mod choice;
mod filled;
mod filler;
mod packed;
mod packed_file;
mod packing;
mod parts;
mod sample;
mod scan;

use super::chunk_files;
use super::compress::buffers::{Buffer, Buffers, SharedBuffers};
use super::compress::segment::{SEGMENT_BYTES_MAX, next_segment_bytes};
use super::compress::workers::{self, Done, Queue, Workers};
use super::content::Content;
use super::duplicates::{Duplicates, Hasher};
use super::error::path_of;
use super::index_files;
use super::plan::Planned;
use super::sort::Order;
use super::sparse;
use super::table::Table;
use super::tree::InodeId;
use super::writer::{OpenFile, Writer};
use crate::{BuildError, Result};
use choice::Chooser;
use filled::Filled;
use filler::{Filler, Pending, PendingSegment, Source};
pub use packed::segment_bytes as packed_segment_bytes;
use packing::Packing;
use parts::OwnPart;
pub use sample::sampler_bytes;
use std::collections::VecDeque;
use std::time::Duration;

/// Most pieces of work that wait to be written.
const PENDING_MAX: usize = 4096;
/// Memory of sources that waits for another segment at most, if the memory of the build is limited.
const LIMITED_BUFFER_BYTES: usize = 2 * SEGMENT_BYTES_MAX;
/// Bytes that are read at once to hash a file.
const HASH_BYTES: usize = 1 << 20;

/// Appends the contents of all inodes that are no directories. Segments of up to `in_flight_bytes` are under way at once.
pub fn fill(writer: &mut Writer<'_>, order: &Order, threads: usize, in_flight_bytes: usize) -> Result<()> {
    let (plan, options) = (writer.plan, writer.options);
    let queue = &Queue::default();
    // Results that are written last may have kept all the memory that there is.
    let blocks_memory = &SharedBuffers::new(if options.memory_bytes.is_some() { 0 } else { in_flight_bytes });
    std::thread::scope(|scope| {
        let duplicates = match writer.can_share() {
            true => Duplicates::new(writer.tree, plan, options)?,
            false => Duplicates::none(writer.tree.spill()),
        };
        let packing = Packing::new(writer);
        let mut chooser = Chooser::new(options, writer.tree.spill())?;
        let (mut small, mut others) = (Table::new(writer.tree.spill()), Table::new(writer.tree.spill()));
        for planned in plan.others.iter() {
            let is_small = packing.is_small(writer.tree, &planned, options);
            let group = if is_small { &mut small } else { &mut others };
            group.push(planned)?;
        }
        order.sort_small(writer.tree, &mut small)?;
        order.sort_others(&mut others)?;
        let scan = scan::scan(writer, &others, threads, in_flight_bytes, &mut chooser, |compression| {
            packing.fragment_bytes_max(Some(compression))
        })?;
        let compressor = move || workers::compressor(options, queue, blocks_memory);
        let workers = Workers::start(scope, queue, threads, in_flight_bytes, compressor)?;
        let mut filler = Filler {
            workers,
            duplicates,
            scan,
            packing,
            chooser,
            pending: VecDeque::new(),
            file: OpenFile::new(writer.tree.spill()),
            not_stored: Vec::new(),
            left_bytes: writer.total_bytes(),
            pending_references: 0,
            sources: match options.memory_bytes {
                Some(_) => Buffers::limited(LIMITED_BUFFER_BYTES),
                None => Buffers::new(in_flight_bytes),
            },
            blocks_memory,
            writer,
        };
        for planned in small.iter() {
            filler.pack_file(planned)?;
        }
        for planned in others.iter() {
            filler.add(planned)?;
        }
        filler.drain()?;
        filler.end_packed()
    })
}

impl<'a> Filler<'_, 'a, '_> {
    fn add(&mut self, planned: Planned) -> Result<()> {
        if self.writer.tree.content_bytes(planned.id) > 0
            && let Some(content) = self.writer.content(&planned)
        {
            return self.add_file(planned, content.as_ref());
        }
        self.pending.push_back(Pending::Bare(planned));
        self.write_ready()
    }

    fn add_file(&mut self, planned: Planned, content: &dyn Content) -> Result<()> {
        let options = self.writer.options;
        let len_bytes = content.len_bytes();
        if let Some(original) = self.scan.original(planned.id) {
            self.writer.copy_digest(&planned, original)?;
            self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
            self.pending.push_back(Pending::Duplicate { planned, original });
            return self.write_ready();
        }
        if self.writer.geometry.is_index() {
            return self.refer(&planned, content);
        }
        if let Some(at) = content.in_image() {
            return self.take_placed(&planned, content, at);
        }
        let mut reader = content.open()?;
        let data = reader.data_ranges()?;
        if let Some(form) = options.form.chunks {
            self.drain()?;
            self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
            chunk_files::write(self.writer, &planned, len_bytes, data.as_deref(), reader.as_ref(), form)?;
            return reader.finish();
        }
        if let Some(ranges) =
            data.as_deref().filter(|ranges| sparse::is_worth(options.target, len_bytes, ranges))
        {
            self.drain()?;
            self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
            sparse::write(self.writer, &planned, len_bytes, ranges, reader.as_ref())?;
            return reader.finish();
        }
        let compression = self.chooser.choose(self.writer, &planned, content)?;
        let file = Source { planned, len_bytes, compression };
        // The hash of the first reading, if other files have contents of this one because of it.
        let mut first_digest = self.scan.digest(planned.id).filter(|_| self.scan.is_original(planned.id));
        let mut is_original = false;
        let is_scanned = self.scan.has(planned.id);
        if !is_scanned && self.duplicates.may_have(len_bytes, compression) && !self.is_one_segment(&file) {
            // There is no memory for all of it, so it is read twice.
            let mut first = Filled::new(reader.as_ref(), data.as_deref(), true);
            let original = self.find_original(&file, &mut first)?;
            let digest = first.digest();
            reader.finish()?;
            if let Some(original) = original {
                self.writer.add_digest(&planned, digest.filter(|_| options.digests))?;
                self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
                self.pending.push_back(Pending::Duplicate { planned, original });
                return self.write_ready();
            }
            (is_original, first_digest) = (true, digest);
            reader = content.open()?;
        }
        let has_digest = options.digests || first_digest.is_some();
        let mut filled = Filled::new(reader.as_ref(), data.as_deref(), has_digest);
        match compression {
            Some(compression) if is_scanned => self.submit_scanned(&file, compression, &mut filled)?,
            _ => self.submit(&file, is_original, &mut filled)?,
        }
        let digest = filled.digest();
        // Its time may be the same: a process that has mapped the file changes it without a new one.
        if first_digest.is_some() && first_digest != digest {
            return Err(BuildError::Changed { path: path_of(&planned.path(self.writer.tree)) });
        }
        self.writer.add_digest(&planned, digest.filter(|_| options.digests))?;
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        reader.finish()
    }

    /// Ends a file whose contents lie in the image from a byte on. They are read only if the image is to be verified.
    fn take_placed(&mut self, planned: &Planned, content: &dyn Content, at: u64) -> Result<()> {
        self.drain()?;
        let len_bytes = content.len_bytes();
        if self.writer.options.digests {
            let reader = content.open()?;
            let mut filled = Filled::new(reader.as_ref(), None, true);
            filled.skip(len_bytes, || self.writer.report(0))?;
            self.writer.add_digest(planned, filled.digest())?;
        }
        self.writer.put_placed(planned, at, len_bytes)?;
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        self.writer.report(len_bytes)
    }

    /// Writes a file whose contents stay on a device.
    fn refer(&mut self, planned: &Planned, content: &dyn Content) -> Result<()> {
        self.drain()?;
        let tree = self.writer.tree;
        let device = tree.stored(planned.id).zip(tree.contents());
        let (Some((file, contents)), Some(runs)) = (device, content.device_runs()?) else {
            return Err(BuildError::refused(&planned.path(tree), index_files::NOT_ON_DEVICE));
        };
        // There are no more devices than numbers for them.
        let device = contents.device_of(&file) as u16 + 1;
        index_files::write(self.writer, planned, content.len_bytes(), &runs, device)?;
        self.left_bytes = self.left_bytes.saturating_sub(content.len_bytes());
        Ok(())
    }

    /// Whether all of a file is compressed by one thread, so that it can be hashed before.
    fn is_one_segment(&self, file: &Source) -> bool {
        let left_bytes = self.left_bytes.max(file.len_bytes);
        next_segment_bytes(file.len_bytes, left_bytes) as u64 == file.len_bytes
    }

    /// Reads a file to its end, and looks for an earlier one with the same contents.
    fn find_original(&mut self, file: &Source, reader: &mut Filled<'_>) -> Result<Option<InodeId>> {
        let mut hasher = Hasher::default();
        let mut bytes = Buffer::default();
        for start in (0..file.len_bytes).step_by(HASH_BYTES) {
            bytes = reader.read((file.len_bytes - start).min(HASH_BYTES as u64) as usize, bytes)?;
            hasher.write(&bytes);
            self.writer.report(0)?;
        }
        self.duplicates.find(file.planned.id, &hasher.finish(file.len_bytes, file.compression))
    }

    /// Passes a file to the threads, unless it is a segment whose contents an earlier file has.
    fn submit(&mut self, file: &Source, is_original: bool, reader: &mut Filled<'_>) -> Result<()> {
        let may_be_duplicate = !is_original && self.duplicates.may_have(file.len_bytes, file.compression);
        if !may_be_duplicate {
            let whole = OwnPart::whole(file.len_bytes, is_original);
            return self.submit_part(file, &whole, reader);
        }
        let len = file.len_bytes as usize;
        self.wait_for_capacity(len)?;
        let src = reader.read(len, self.sources.take(len))?;
        let mut hasher = Hasher::default();
        hasher.write(&src);
        let key = hasher.finish(file.len_bytes, file.compression);
        if let Some(original) = self.duplicates.find(file.planned.id, &key)? {
            self.pending.push_back(Pending::Duplicate { planned: file.planned, original });
            self.sources.keep(src);
            return self.write_ready();
        }
        let whole = OwnPart::whole(file.len_bytes, true);
        self.submit_segment(file, &whole, 0, src.into());
        Ok(())
    }

    /// Writes results until another segment of this length may be submitted, and a thread will soon want it.
    fn wait_for_capacity(&mut self, src_bytes: usize) -> Result<()> {
        loop {
            match (self.workers.has_capacity(src_bytes), self.pending.is_empty()) {
                (true, _) if !self.workers.has_enough() => return Ok(()),
                (true, _) if !self.is_next_done() => self.workers.wait(|| self.writer.report(0))?,
                (_, false) => self.write_next()?,
                // Late segments are written at a point that must not depend on the room; waiting for one makes room too.
                (_, true) if !self.finish_late()? => return Ok(()),
                (_, true) => {}
            }
        }
    }

    /// Whether what is written next waits for no thread.
    fn is_next_done(&self) -> bool {
        match self.pending.front() {
            Some(Pending::Segment(PendingSegment { ticket, .. }) | Pending::Packed(ticket)) => {
                self.workers.is_done(*ticket)
            }
            next => next.is_some(),
        }
    }

    /// Writes what needs no thread and is next, and what is next if much waits.
    fn write_ready(&mut self) -> Result<()> {
        while matches!(self.pending.front(), Some(Pending::Bare(_) | Pending::Duplicate { .. }))
            || self.pending.len() > PENDING_MAX
        {
            self.write_next()?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        while !self.pending.is_empty() {
            self.write_next()?;
        }
        Ok(())
    }

    fn write_next(&mut self) -> Result<()> {
        match self.pending.pop_front() {
            None => Ok(()),
            Some(Pending::Bare(planned)) => self.writer.put_bare(&planned),
            Some(Pending::Duplicate { planned, original }) => {
                let len_bytes = self.writer.tree.content_bytes(planned.id);
                self.writer.put_duplicate(&planned, original)?;
                self.writer.report(len_bytes)
            }
            Some(Pending::Segment(segment)) => self.write_segment(&segment),
            Some(Pending::Reference(reference)) => {
                self.pending_references -= 1;
                self.write_reference(&reference)
            }
            Some(Pending::Packed(ticket)) => self.write_packed(ticket),
        }
    }

    fn write_segment(&mut self, segment: &PendingSegment) -> Result<()> {
        let &PendingSegment { ticket, planned, len, is_last, compression, is_original, is_divided } = segment;
        let Done { output: mut segment, elapsed, src } =
            self.workers.take(ticket, || self.writer.report(0))?;
        // Copying is not reported as compression.
        let elapsed = compression.map_or(Duration::ZERO, |_| elapsed);
        self.not_stored = std::mem::take(&mut segment.left);
        if let Some(src) = src {
            self.sources.keep(src);
        }
        let fragment = self.pack_end(&segment.fragment)?;
        self.file.is_cut |= is_divided;
        self.blocks_memory.keep(self.writer.append_segment(&mut self.file, segment, elapsed)?);
        if is_last {
            let next = OpenFile::new(self.writer.tree.spill());
            let mut file = std::mem::replace(&mut self.file, next);
            file.fragment = fragment;
            self.writer.put_file(&planned, compression, file, is_original)?;
        }
        self.writer.report(len as u64)?;
        if is_last { self.write_due() } else { Ok(()) }
    }
}
