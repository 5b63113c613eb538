//! Reads the bytes of written-back pages, with read-ahead of their neighbours in the log.
//!
//! A record is read with the rest of the blocks that it lies in. If pages are read in the order of the log, or a
//! request spans several pages, a longer run is read at once. The run is kept by the request and, after it, in a
//! small cache shared by all requests. It keeps its segment pinned, so its bytes stay valid. A page whose record lies
//! in a run needs no I/O.
//!
//! A run is a guess: a record that does not verify in it is read again alone, and only that read can fail. The
//! cache's lock is only tried, so readers never wait for each other here; the cleaner empties the cache before it
//! waits for readers' pins.

use crate::layout::{Blocks, Layout, Log, RECORD_HEADER_LEN, RecordHeader, Seed};
use crate::slot::{BackingLocation, Generation};
use crate::writeback::Writeback;
use crate::writeback::read_ahead::Run;
use crate::writeback::stats::add;
use pagefold_backing::{BackingError, Buffer, Demand};
use pagefold_page::{PAGE_SIZE, PageIndex};

/// The longest run, bytes.
const RUN_LEN: u64 = 64 << 10;

/// The reason why a page's bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// The medium failed.
    Io(BackingError),
    /// The bytes do not verify.
    Corrupt,
}

/// The version of a written-back page that is to be read: its slot, generation and location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageVersion {
    pub(crate) index: PageIndex,
    pub(crate) generation: Generation,
    pub(crate) written_back: BackingLocation,
}

/// The blocks that contain a page's record, and the record's position in them, bytes.
struct BlockRange {
    /// The blocks.
    blocks_offset: u64,
    blocks_len: usize,
    /// The record (or the page, in blocks layout) in them.
    at: usize,
    len: usize,
}

/// The state of a read request of one or several pages.
#[derive(Default)]
pub(crate) struct Reader {
    /// The CPU that it runs on.
    pub(crate) cpu: usize,
    /// Whole pages of the request after the current one.
    pub(crate) pages_ahead: usize,
    /// Its last run.
    run: Option<Run>,
    /// The page whose bytes did not verify at the last attempt; it is read again before it is reported as corrupt,
    /// because in blocks layout a block may be freed and reused for the same page while it is read.
    pub(crate) unverified: Option<PageVersion>,
}

impl Writeback {
    /// Reads a written-back page, verifies its bytes and passes them to `with`. The caller has pinned the place.
    pub(crate) fn fetch<T>(
        &self,
        version: PageVersion,
        reader: &mut Reader,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, FetchError> {
        match &self.layout {
            Layout::Log(log) => self.fetch_record(log, version, reader, with),
            Layout::Blocks(_) => self.fetch_alone(version, with),
        }
    }

    /// Reads and verifies one page in a signal handler: reads into `buf`, which [`Writeback::record_buffer`] made,
    /// allocates nothing, and waits for the medium only.
    pub(crate) fn fetch_signal_safe<'a>(
        &self,
        version: PageVersion,
        buf: &'a mut [u8],
    ) -> Result<&'a [u8], FetchError> {
        let range = self.blocks_of(version.written_back);
        let (offset, len_bytes, buf_len_bytes) = (range.blocks_offset, range.blocks_len, buf.len());
        let Some(blocks) = buf.get_mut(..len_bytes) else {
            return Err(FetchError::Io(BackingError::ShortBuffer { len_bytes, buf_len_bytes }));
        };
        self.backing().read_signal_safe(offset, blocks).map_err(|errno| {
            let len_bytes = len_bytes as u64;
            FetchError::Io(BackingError::Io { operation: "read", offset, len_bytes, errno })
        })?;
        self.verify_blocks(&range, version, blocks)
    }

    /// Makes a buffer for the blocks around one page; all of it is backed by memory.
    pub(crate) fn record_buffer(&self) -> Buffer {
        let block = self.backing().block_bytes();
        let mut buf = Buffer::new((RECORD_HEADER_LEN + PAGE_SIZE).next_multiple_of(block) + block);
        buf.fill(0xff);
        buf
    }

    /// Reads one page without read-ahead.
    fn fetch_alone<T>(&self, version: PageVersion, with: impl FnOnce(&[u8]) -> T) -> Result<T, FetchError> {
        let range = self.blocks_of(version.written_back);
        let mut buf = self.buffers().required(range.blocks_len);
        let blocks = &mut buf[..range.blocks_len];
        self.backing().read_at(range.blocks_offset, blocks).map_err(FetchError::Io)?;
        self.verify_blocks(&range, version, blocks).map(with)
    }

    fn blocks_of(&self, written_back: BackingLocation) -> BlockRange {
        let (offset, len) = (self.layout.offset(written_back), self.layout.len_bytes(written_back) as u64);
        let block = self.backing().block_bytes() as u64;
        let blocks_offset = offset / block * block;
        let blocks_end = (offset + len).next_multiple_of(block);
        let (blocks_len, at) = ((blocks_end - blocks_offset) as usize, (offset - blocks_offset) as usize);
        BlockRange { blocks_offset, blocks_len, at, len: len as usize }
    }

    /// Finds the page's bytes in the blocks that were read, and verifies them.
    fn verify_blocks<'a>(
        &self,
        range: &BlockRange,
        version: PageVersion,
        blocks: &'a [u8],
    ) -> Result<&'a [u8], FetchError> {
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, range.blocks_len as u64);
        let bytes = &blocks[range.at..range.at + range.len];
        let page = match &self.layout {
            Layout::Log(log) => verified(bytes, version, log.seed_of(version.written_back)),
            Layout::Blocks(_) => Blocks::is_intact(version.written_back, bytes).then_some(bytes),
        };
        page.ok_or(FetchError::Corrupt)
    }

    fn fetch_record<T>(
        &self,
        log: &Log,
        version: PageVersion,
        reader: &mut Reader,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, FetchError> {
        let start = Log::offset(version.written_back);
        let len = RECORD_HEADER_LEN + usize::from(version.written_back.len_bytes);
        let mut copy = [0; RECORD_HEADER_LEN + PAGE_SIZE];
        let mut is_sequential = false;
        let seed = log.seed_of(version.written_back);
        if let Some(bytes) = reader.run.as_ref().and_then(|run| run.find(start, len))
            && let Some(bytes) = verified(bytes, version, seed)
        {
            add(&self.counters.read_ahead_hits, 1);
            return Ok(with(bytes));
        }
        // If another reader has the lock, read the page alone instead of waiting.
        if let Some(mut ahead) = self.ahead.try_lock() {
            is_sequential = ahead.note(version.index, start, start + len as u64);
            if let Some(bytes) = ahead.find(start, len) {
                copy[..len].copy_from_slice(bytes);
                drop(ahead);
                if let Some(bytes) = verified(&copy[..len], version, seed) {
                    add(&self.counters.read_ahead_hits, 1);
                    return Ok(with(bytes));
                }
            }
        }
        let run_len = match is_sequential {
            true => RUN_LEN,
            false => ((reader.pages_ahead + 1) as u64 * PAGE_SIZE as u64).min(RUN_LEN),
        };
        if (is_sequential || reader.pages_ahead > 0)
            && let Some(run) = self.read_run(log, start, len, run_len)
        {
            self.unpin_run(reader.run.take());
            let bytes = reader.run.insert(run).find(start, len);
            if let Some(bytes) = bytes.and_then(|bytes| verified(bytes, version, seed)) {
                return Ok(with(bytes));
            }
        }
        self.fetch_alone(version, with)
    }

    /// Reads a run of records and pins its segment. Returns `None` if no buffer is available or the read fails.
    fn read_run(&self, log: &Log, start: u64, len: usize, run_len: u64) -> Option<Run> {
        let segment = log.segments.containing(start);
        let block = self.backing().block_bytes() as u64;
        let offset = start / block * block;
        let segment_end = log.segments.start(segment) + u64::from(log.segments.segment_len());
        let run_len = run_len.next_multiple_of(block).min(segment_end - offset) as usize;
        if run_len <= len {
            return None;
        }
        let mut buf = self.buffers().get(run_len, Demand::BestEffort)?;
        self.backing().read_at(offset, &mut buf[..run_len]).ok()?;
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, run_len as u64);
        // The segment cannot have been freed before this pin, because the caller has pinned it too.
        log.segments.pin(segment);
        Some(Run { offset, buf, len: run_len, segment })
    }

    /// Ends a request: puts its last run into the cache for requests that continue it.
    pub(crate) fn end_reader(&self, reader: Reader) {
        let Some(run) = reader.run else { return };
        let old = match self.ahead.try_lock() {
            Some(mut ahead) => ahead.keep(run),
            None => Some(run),
        };
        self.unpin_run(old);
    }

    fn unpin_run(&self, run: Option<Run>) {
        if let (Some(run), Some(log)) = (run, self.layout.log()) {
            log.segments.unpin(run.segment);
        }
    }

    /// Empties the cache of runs and unpins their segments.
    pub(crate) fn drop_read_ahead(&self) {
        let runs = self.ahead.lock().take_runs();
        runs.into_iter().for_each(|run| self.unpin_run(run));
    }
}

/// Returns the page's bytes if `record` verifies and belongs to this version of the page.
fn verified(record: &[u8], version: PageVersion, seed: Seed) -> Option<&[u8]> {
    let (header, bytes) = RecordHeader::open(record, seed)?;
    let is_it = header.slot == version.index.0
        && header.generation == version.generation
        && header.len_bytes == version.written_back.len_bytes
        && header.priority == version.written_back.priority;
    is_it.then_some(bytes)
}
