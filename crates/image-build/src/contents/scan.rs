//! Reads the contents of files a first time, to find out what they have in common.
//!
//! The threads cut segments into chunks and hash them. This thread collects the chunks of one file after another, in the
//! order in which the files are written, so that the result does not depend on the number of threads. Files whose contents
//! are not compressed, or mostly holes, are left out.

use super::choice::Chooser;
use super::filled::Filled;
use crate::Result;
use crate::chunks::{ChunkIndex, ChunkSizes, Divided, Divisions, File, FoundChunk, chunk_sizes};
use crate::compress::buffers::Buffer;
use crate::compress::input::SegmentInput;
use crate::compress::segment::SEGMENT_BYTES_MAX;
use crate::compress::workers::{Queue, Ticket, Turn, Workers};
use crate::compression::Compression;
use crate::content::Content;
use crate::duplicates::{Duplicates, Hasher};
use crate::options::{BLOCK_BYTES, Dedupe};
use crate::plan::Planned;
use crate::sparse;
use crate::table::{Hashes, Spill, Table};
use crate::tree::InodeId;
use crate::verify::Digests;
use crate::writer::Writer;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use pagefold_image::format::config::LZ4_WINDOW_BYTES_DEFAULT;
use pagefold_image::format::features::incompat;
use std::collections::VecDeque;
use std::ops::Range;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Least average length of chunks, bytes.
const CHUNK_BYTES_MIN: usize = 1024;
/// Bytes that sharing a part saves at least: its two cuts cost nearly as many.
const SAVED_BYTES_MIN: u64 = 6 << 10;
/// To estimate what sharing would save, one sample is compressed in this many bytes.
const SAMPLE_STEP_BYTES: usize = 32 << 10;
/// Length of a sample, bytes.
const SAMPLE_BYTES: usize = 4 << 10;

/// Facts on files before they are compressed.
#[derive(Debug)]
pub struct Scan {
    /// The files that were looked at, and the hashes of what was read.
    read: Digests,
    /// For each inode the number of the earlier one with its contents, counted from 1, or 0.
    duplicates: Table<u32>,
    /// For each inode whether later files have its contents: 1, or 0.
    originals: Table<u8>,
    /// How files are divided into their own bytes and references.
    pub divided: Divided,
}

impl Scan {
    /// Knows nothing so far.
    fn new(spill: &Spill) -> Self {
        Scan {
            read: Digests::new(spill),
            duplicates: Table::new(spill),
            originals: Table::new(spill),
            divided: Divided::none(spill),
        }
    }

    /// Whether the scan looked at the file.
    pub fn has(&self, id: InodeId) -> bool {
        self.digest(id).is_some()
    }

    /// The hash of the contents that the scan has read, if it looked at the file.
    pub fn digest(&self, id: InodeId) -> Option<u128> {
        self.read.get(id)
    }

    /// The earlier file with the same contents.
    pub fn original(&self, id: InodeId) -> Option<InodeId> {
        (self.duplicates.get_or(id.index(), 0) as usize).checked_sub(1).map(InodeId::at)
    }

    /// Whether later files have the contents of this one, all or a part.
    pub fn is_original(&self, id: InodeId) -> bool {
        self.originals.get_or(id.index(), 0) != 0
    }

    fn add_duplicate(&mut self, id: InodeId, original: InodeId) -> Result<()> {
        self.duplicates.put(id.index(), original.index() as u32 + 1, 0)?;
        self.add_original(original)
    }

    fn add_original(&mut self, id: InodeId) -> Result<()> {
        self.originals.put(id.index(), 1, 0)
    }
}

/// Looks at the contents of files in this order. `fragment_bytes_max` is the longest end of a file with a compression that
/// goes into the packed file.
pub fn scan(
    writer: &mut Writer<'_>,
    files: &Table<Planned>,
    threads: usize,
    in_flight_bytes: usize,
    chooser: &mut Chooser,
    fragment_bytes_max: impl Fn(Compression) -> usize,
) -> Result<Scan> {
    let options = writer.options;
    let is_wanted =
        options.dedupe == Dedupe::Chunks && options.target.has(incompat::DEDUPE) && writer.can_share();
    if !is_wanted {
        return Ok(Scan::new(writer.tree.spill()));
    }
    let sizes = chunk_sizes(CHUNK_BYTES_MIN, writer.total_bytes());
    let queue = Queue::default();
    std::thread::scope(|scope| {
        let workers = Workers::start(scope, &queue, threads, in_flight_bytes, move || chunker(sizes))?;
        let (tree, spill) = (writer.tree, writer.tree.spill());
        let mut scanner = Scanner {
            writer,
            workers,
            pending: VecDeque::new(),
            chunks: Table::new(spill),
            index: ChunkIndex::new(spill),
            scan: Scan::new(spill),
            divisions: Divisions::new(options.cluster_bytes, spill),
            duplicates: Duplicates::none(spill),
            buffers: Vec::new(),
            pending_bytes: 0,
            done_bytes: 0,
            total_bytes: files.iter().map(|planned| tree.content_bytes(planned.id)).sum(),
        };
        let compressions = options.compressions();
        for planned in files.iter() {
            let len_bytes = tree.content_bytes(planned.id);
            scanner.pending_bytes += len_bytes;
            scanner.report()?;
            let Some(content) = scanner.writer.content(&planned).filter(|_| len_bytes > BLOCK) else {
                continue;
            };
            let compression = chooser.choose(scanner.writer, &planned, content.as_ref())?;
            let Some(compression) = compression else { continue };
            let seed = compressions.iter().position(|one| *one == compression).unwrap_or(0) as u8;
            let fragment_bytes = fragment_bytes_max(compression) as u64;
            scanner.read(&planned, content.as_ref(), compression, seed, fragment_bytes)?;
        }
        while scanner.take_next()? {}
        // The last files may be such that nothing is searched in them.
        scanner.done_bytes += scanner.pending_bytes;
        scanner.report()?;
        Ok(Scan { divided: scanner.divisions.finish()?, ..scanner.scan })
    })
}

/// Makes the function with which a thread cuts segments into chunks and hashes them. Chunks of files with different
/// compressions, and so with different seeds, are different.
fn chunker(sizes: ChunkSizes) -> impl FnMut(&mut SegmentInput<'_>, u8) -> Result<Vec<FoundChunk>> {
    let mut estimator = None;
    move |input, seed| {
        let src = input.all()?;
        let estimator = match &mut estimator {
            Some(made) => made,
            none => none.insert(Estimator::new()?),
        };
        estimator.begin();
        let (mut found, mut start) = (Vec::with_capacity(src.len() / CHUNK_BYTES_MIN), 0);
        for chunk in sizes.chunks(src) {
            let stored_bytes = estimator.stored_bytes(src, start..start + chunk.len())?;
            let hash = Hashes::key_of_bytes(&[&[seed], chunk]);
            found.push(FoundChunk { hash, len_bytes: chunk.len() as u32, stored_bytes });
            start += chunk.len();
        }
        Ok(found)
    }
}

/// Estimates what contents take when they are compressed, from samples.
struct Estimator {
    encoder: Encoder,
    /// Room for a compressed sample.
    room: Vec<u8>,
    /// Begin and compressed length of the sample that was compressed last.
    sample: (usize, usize),
}

impl Estimator {
    fn new() -> Result<Self> {
        let encoder = Encoder::new(&EncoderConfig::Lz4 { window_bytes: LZ4_WINDOW_BYTES_DEFAULT })?;
        Ok(Estimator { encoder, room: vec![0; 2 * SAMPLE_BYTES], sample: (usize::MAX, 0) })
    }

    /// Forgets the sample, before another segment.
    fn begin(&mut self) {
        self.sample.0 = usize::MAX;
    }

    /// Estimates the stored length of a part of a segment.
    fn stored_bytes(&mut self, src: &[u8], part: Range<usize>) -> Result<u32> {
        let at = part.start / SAMPLE_STEP_BYTES * SAMPLE_STEP_BYTES;
        let sample = &src[at..src.len().min(at + SAMPLE_BYTES)];
        if self.sample.0 != at {
            let written_bytes = self.encoder.fit(sample, &mut self.room)?.written_bytes;
            self.sample = (at, written_bytes.min(sample.len()));
        }
        Ok((part.len() * self.sample.1 / sample.len()) as u32)
    }
}

/// A segment that a thread hashes.
struct PendingSegment {
    ticket: Ticket,
    /// Its file, if it is the last segment of it.
    ends: Option<EndedFile>,
    /// Its bytes, and those of files before it that were left out.
    counted_bytes: u64,
}

struct EndedFile {
    file: File,
    compression: Compression,
}

struct Scanner<'w, 'a, 's> {
    writer: &'w mut Writer<'a>,
    workers: Workers<'s, u8, Vec<FoundChunk>>,
    pending: VecDeque<PendingSegment>,
    /// The chunks so far of the file whose segments are taken.
    chunks: Table<FoundChunk>,
    index: ChunkIndex,
    scan: Scan,
    divisions: Divisions,
    duplicates: Duplicates,
    buffers: Vec<Buffer>,
    /// Bytes of the files so far that no segment under way has: the caller hears of them with the next one.
    pending_bytes: u64,
    /// Bytes that were looked at, or left out.
    done_bytes: u64,
    total_bytes: u64,
}

impl Scanner<'_, '_, '_> {
    /// Reads a file and passes it to the threads.
    fn read(
        &mut self,
        planned: &Planned,
        content: &dyn Content,
        compression: Compression,
        seed: u8,
        fragment_bytes: u64,
    ) -> Result<()> {
        let len_bytes = content.len_bytes();
        let reader = content.open()?;
        let data = reader.data_ranges()?;
        if data.as_deref().is_some_and(|data| sparse::is_worth(self.writer.options.target, len_bytes, data)) {
            return Ok(());
        }
        let limit = match fragment_bytes {
            0 => (len_bytes - 1) / BLOCK * BLOCK,
            // The rest is not longer than a fragment.
            bytes => {
                len_bytes.saturating_sub(bytes).next_multiple_of(BLOCK).min((len_bytes - 1) / BLOCK * BLOCK)
            }
        };
        let file = File { id: planned.id, len_bytes, limit };
        let mut filled = Filled::new(reader.as_ref(), data.as_deref(), true);
        let mut start = 0;
        while start < len_bytes {
            let segment_bytes = (len_bytes - start).min(SEGMENT_BYTES_MAX as u64);
            while !self.workers.has_capacity(segment_bytes as usize) {
                self.take_next()?;
            }
            let src = filled.read(segment_bytes as usize, self.buffers.pop().unwrap_or_default())?;
            start += segment_bytes;
            let counted_bytes = std::mem::take(&mut self.pending_bytes) - (len_bytes - start);
            self.pending_bytes = len_bytes - start;
            let ends = (start == len_bytes).then_some(EndedFile { file, compression });
            let ticket = self.workers.submit(src.into(), seed, Turn::Last);
            self.pending.push_back(PendingSegment { ticket, ends, counted_bytes });
        }
        if let Some(digest) = filled.digest() {
            self.scan.read.insert(planned.id, digest)?;
        }
        reader.finish()
    }

    fn report(&mut self) -> Result<()> {
        self.writer.report_scan(self.done_bytes, self.total_bytes)
    }

    /// Takes the chunks of the next segment; false if there is none.
    fn take_next(&mut self) -> Result<bool> {
        let Some(PendingSegment { ticket, ends, counted_bytes }) = self.pending.pop_front() else {
            return Ok(false);
        };
        let (done_bytes, total_bytes) = (self.done_bytes, self.total_bytes);
        let done = self.workers.take(ticket, || self.writer.report_scan(done_bytes, total_bytes))?;
        self.done_bytes += counted_bytes;
        self.report()?;
        if self.buffers.is_empty() {
            self.buffers.extend(done.src);
        }
        for chunk in done.output {
            self.chunks.push(chunk)?;
        }
        if let Some(ended) = ends {
            self.end_file(&ended)?;
        }
        Ok(true)
    }

    /// Compares a file, all of whose chunks are known, with those before.
    fn end_file(&mut self, ended: &EndedFile) -> Result<()> {
        let &EndedFile { file, compression } = ended;
        let mut hasher = Hasher::default();
        self.chunks.iter().for_each(|chunk| hasher.write(&chunk.hash));
        match self.duplicates.find(file.id, &hasher.finish(file.len_bytes, Some(compression)))? {
            Some(original) => self.scan.add_duplicate(file.id, original)?,
            None => {
                let runs = self.index.add_file(file.id, &self.chunks, SAVED_BYTES_MIN)?;
                for run in runs.iter().filter(|run| run.source != file.id) {
                    self.scan.add_original(run.source)?;
                }
                self.divisions.add(file, &runs, SAVED_BYTES_MIN)?;
            }
        }
        self.chunks = Table::new(self.chunks.spill());
        Ok(())
    }
}
