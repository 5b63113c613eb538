//! Reading a parked page's bytes, and its neighbours' with them.
//!
//! A record is read with what else is in the blocks it touches. When pages are read in
//! the order in which they lie in the log, or a request spans several pages, a longer
//! run is read at once and kept, first for the rest of the request and then, shared,
//! for a while: its segment stays pinned, so the bytes stay true. A slot whose record
//! lies in a run needs no read of its own. A run is a guess: what does not verify in it
//! is read again by itself, and only that can fail.

use crate::parking::blocks::Blocks;
use crate::parking::log::{Log, RECORD_HEADER_LEN, RecordHeader, Seed, SegmentIndex};
use crate::parking::stats::add;
use crate::parking::{Layout, Parking};
use crate::slot::{Generation, Parked};
use pagefold_backing::{BackingError, Buffer, Demand};
use pagefold_page::{PAGE_SIZE, PageIndex};

/// Most bytes of a run of neighbours.
const RUN_LEN: u64 = 64 << 10;
/// Runs kept for all.
const RUNS: usize = 4;
/// Reads remembered to notice that one continues another.
const RECENT: usize = 8;
/// The longest gap between the records of pages that lie in order, bytes: padding and a header.
const GAP_MAX: u64 = 4096 + 64;

/// Why a page's bytes were not got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// The medium failed.
    Io(BackingError),
    /// What was read is not what was written.
    Corrupt,
}

/// The page that is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) index: PageIndex,
    pub(crate) generation: Generation,
    pub(crate) parked: Parked,
}

/// Where a page is on the medium, bytes.
struct Place {
    /// The blocks around it.
    blocks_offset: u64,
    blocks_len: usize,
    /// Its record or block in them.
    at: usize,
    len: usize,
}

/// Bytes of the log that were read at once. Its segment is pinned, and to be unpinned with it.
pub(crate) struct Run {
    offset: u64,
    buf: Buffer,
    len: usize,
    segment: SegmentIndex,
}

impl Run {
    /// The bytes from `offset` on, if it has them.
    fn find(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.buf[..self.len].get(at..at + len)
    }
}

/// A request that reads pages, one after the other.
#[derive(Default)]
pub(crate) struct Reader {
    /// Where it runs.
    pub(crate) cpu: usize,
    /// Pages of it that follow the one being read.
    pub(crate) pages_ahead: usize,
    /// What it read last of the log.
    run: Option<Run>,
    /// A page of it whose bytes did not verify; it is read once more before that is believed, because a block
    /// may be freed and taken by the same page again while it is read.
    pub(crate) doubted: Option<Wanted>,
}

/// What is known from earlier requests.
#[derive(Default)]
pub(crate) struct ReadAhead {
    runs: [Option<Run>; RUNS],
    next_run: usize,
    /// Page, and end of its record.
    recent: [(u64, u64); RECENT],
    next_recent: usize,
}

impl ReadAhead {
    /// The bytes from `offset` on, if a run has them.
    fn find(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.runs.iter().flatten().find_map(|run| run.find(offset, len))
    }

    /// Notes a read; tells whether it continues an earlier one.
    fn note(&mut self, index: PageIndex, start: u64, end: u64) -> bool {
        let continues =
            |(page, at): &(u64, u64)| *page + 1 == index.0 && (*at..=*at + GAP_MAX).contains(&start);
        let found = self.recent.iter().position(continues);
        let at = found.unwrap_or_else(|| {
            self.next_recent = (self.next_recent + 1) % RECENT;
            self.next_recent
        });
        self.recent[at] = (index.0, end);
        found.is_some()
    }
}

impl Parking {
    /// Gets a parked page's verified bytes and hands them to `with`. The caller has pinned the place.
    pub(crate) fn fetch<T>(
        &self,
        wanted: Wanted,
        reader: &mut Reader,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, FetchError> {
        match &self.layout {
            Layout::Log(log) => self.fetch_record(log, wanted, reader, with),
            Layout::Blocks(_) => self.fetch_alone(wanted, with),
        }
    }

    /// The same with a read of its own into `buf`, made by [`Parking::record_buffer`]: allocates nothing, and
    /// waits for the medium only.
    pub(crate) fn fetch_now<'a>(&self, wanted: Wanted, buf: &'a mut [u8]) -> Result<&'a [u8], FetchError> {
        let place = self.place(wanted.parked);
        let (offset, len_bytes, buf_len_bytes) = (place.blocks_offset, place.blocks_len, buf.len());
        let Some(blocks) = buf.get_mut(..len_bytes) else {
            return Err(FetchError::Io(BackingError::ShortBuffer { len_bytes, buf_len_bytes }));
        };
        self.backing().read_now(offset, blocks).map_err(|errno| {
            let len_bytes = len_bytes as u64;
            FetchError::Io(BackingError::Io { operation: "read", offset, len_bytes, errno })
        })?;
        self.found(&place, wanted, blocks)
    }

    /// A buffer for one page with what is around it on the medium, touched.
    pub(crate) fn record_buffer(&self) -> Buffer {
        let block = self.backing().block_bytes();
        let mut buf = Buffer::new((RECORD_HEADER_LEN + PAGE_SIZE).next_multiple_of(block) + block);
        buf.fill(0xff);
        buf
    }

    /// A page that is read by itself.
    fn fetch_alone<T>(&self, wanted: Wanted, with: impl FnOnce(&[u8]) -> T) -> Result<T, FetchError> {
        let place = self.place(wanted.parked);
        let mut buf = self.buffers().required(place.blocks_len);
        let blocks = &mut buf[..place.blocks_len];
        self.backing().read_at(place.blocks_offset, blocks).map_err(FetchError::Io)?;
        self.found(&place, wanted, blocks).map(with)
    }

    fn place(&self, parked: Parked) -> Place {
        let (offset, len) = match &self.layout {
            Layout::Log(_) => (Log::offset(parked), RECORD_HEADER_LEN + usize::from(parked.len_bytes)),
            Layout::Blocks(_) => (Blocks::offset(parked), PAGE_SIZE),
        };
        let block = self.backing().block_bytes() as u64;
        let blocks_offset = offset / block * block;
        let blocks_end = (offset + len as u64).next_multiple_of(block);
        let (blocks_len, at) = ((blocks_end - blocks_offset) as usize, (offset - blocks_offset) as usize);
        Place { blocks_offset, blocks_len, at, len }
    }

    /// The page's bytes in the blocks that were read, if they are what was written.
    fn found<'a>(&self, place: &Place, wanted: Wanted, blocks: &'a [u8]) -> Result<&'a [u8], FetchError> {
        add(&self.counters().reads, 1);
        add(&self.counters().read_bytes, place.blocks_len as u64);
        let bytes = &blocks[place.at..place.at + place.len];
        let page = match &self.layout {
            Layout::Log(log) => verified(bytes, wanted, log.seed_of(wanted.parked)),
            Layout::Blocks(_) => Blocks::is_intact(wanted.parked, bytes).then_some(bytes),
        };
        page.ok_or(FetchError::Corrupt)
    }

    fn fetch_record<T>(
        &self,
        log: &Log,
        wanted: Wanted,
        reader: &mut Reader,
        with: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, FetchError> {
        let start = Log::offset(wanted.parked);
        let len = RECORD_HEADER_LEN + usize::from(wanted.parked.len_bytes);
        let mut copy = [0; RECORD_HEADER_LEN + PAGE_SIZE];
        let mut is_sequential = false;
        let seed = log.seed_of(wanted.parked);
        if let Some(bytes) = reader.run.as_ref().and_then(|run| run.find(start, len))
            && let Some(bytes) = verified(bytes, wanted, seed)
        {
            add(&self.counters().read_ahead_hits, 1);
            return Ok(with(bytes));
        }
        // Never waited for: a reader that finds it taken reads its page by itself.
        if let Some(mut ahead) = self.ahead.try_lock() {
            is_sequential = ahead.note(wanted.index, start, start + len as u64);
            if let Some(bytes) = ahead.find(start, len) {
                copy[..len].copy_from_slice(bytes);
                drop(ahead);
                if let Some(bytes) = verified(&copy[..len], wanted, seed) {
                    add(&self.counters().read_ahead_hits, 1);
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
            self.end_run(reader.run.take());
            let bytes = reader.run.insert(run).find(start, len);
            if let Some(bytes) = bytes.and_then(|bytes| verified(bytes, wanted, seed)) {
                return Ok(with(bytes));
            }
        }
        self.fetch_alone(wanted, with)
    }

    /// Reads a run of records, if there is a buffer to spare and no error.
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
        add(&self.counters().reads, 1);
        add(&self.counters().read_bytes, run_len as u64);
        // The caller has pinned the segment, so this does not come too late.
        log.segments.pin(segment);
        Some(Run { offset, buf, len: run_len, segment })
    }

    /// The request is over: what it read last is kept for others that continue it.
    pub(crate) fn end_reader(&self, reader: Reader) {
        let Some(run) = reader.run else { return };
        let old = match self.ahead.try_lock() {
            Some(mut ahead) => {
                let at = ahead.next_run;
                ahead.next_run = (at + 1) % RUNS;
                ahead.runs[at].replace(run)
            }
            None => Some(run),
        };
        self.end_run(old);
    }

    fn end_run(&self, run: Option<Run>) {
        if let (Some(run), Layout::Log(log)) = (run, &self.layout) {
            log.segments.unpin(run.segment);
        }
    }

    /// Lets go of what was read ahead, and of the segments it is in.
    pub(crate) fn forget_read_ahead(&self) {
        let runs = std::mem::take(&mut self.ahead.lock().runs);
        runs.into_iter().for_each(|run| self.end_run(run));
    }
}

/// The page's bytes, if this is the record that was written for these contents.
fn verified(record: &[u8], wanted: Wanted, seed: Seed) -> Option<&[u8]> {
    let (header, bytes) = RecordHeader::open(record, seed)?;
    let is_it = header.slot == wanted.index.0
        && header.generation == wanted.generation
        && header.len_bytes == wanted.parked.len_bytes
        && header.priority == wanted.parked.priority;
    is_it.then_some(bytes)
}
