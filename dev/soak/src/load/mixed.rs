//! Requests of all kinds from several threads. Each thread checks the data that it reads against a shadow.
//!
//! Each thread uses a separate range of pages, so that it knows their contents. A refused write is not a fault by
//! itself: a [`RefusalJudge`] decides whether there was space. If several threads free memory at the same time, the
//! state that the judge sees after a refusal may differ from the state at the refusal. With several threads the write
//! is then retried, and only a write that is refused every time is a fault. If the judge returns an error, for instance
//! because memory was never at its limit, the first refusal is a fault.

use crate::load::content::{self, Mix, PAGE};
use crate::load::shadow::{PageContents, Shadow};
use crate::model::Judgement;
use crate::random::{Random, derive};
use crate::target::{Connect, Connection, RequestError};
use crate::verdict::{Fault, FaultKind, OrFault, join};
use crate::watchdog::{self, RequestKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Retries of a write whose refusal seems unjustified.
const RETRIES: u32 = 5;
/// Pages in one read of the final comparison.
const COMPARE_PAGES: usize = 64;

/// Decides whether a refusal was justified.
pub trait RefusalJudge: Sync {
    /// Called before each request.
    fn before_request(&self) {}

    /// Called after a refused request. An error is an unjustified refusal, even if a retry succeeds.
    fn judge(&self) -> Result<Judgement, String>;
}

/// The parameters of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixed {
    /// Seed of the requests.
    pub seed: u64,
    /// Threads; each uses an equal part of the pages.
    pub threads: usize,
    /// Pages of the target that are used.
    pub pages: usize,
    /// Requests of each thread.
    pub requests: u64,
    /// Time after which no further request begins.
    pub time: Duration,
    /// Contents of pages.
    pub mix: Mix,
    /// Pages of the longest request.
    pub run_pages: u64,
    /// Whether all pages are written first, front to back, for half of the time at most.
    pub fills: bool,
    /// Share of reads, percent. The requests left over from all shares are writes of whole pages.
    pub reads: u64,
    /// Share of discards, percent.
    pub discards: u64,
    /// Share of writes of zeroes, percent.
    pub zeroes: u64,
    /// Share of writes of parts of pages, percent; these are as short as the target's alignment allows.
    pub parts: u64,
}

impl Mixed {
    /// Draws threads, lengths and shares for so many pages.
    pub fn draw(random: &mut Random, pages: usize) -> Self {
        let threads = random.pick(&[1, 1, 1, 2, 3, 4, 8]).min(pages);
        let (reads, discards) = (random.pick(&[10, 30, 60]), random.pick(&[0, 2, 10]));
        Mixed {
            seed: random.next(),
            threads,
            pages,
            requests: random.doubling(30, 4000),
            time: Duration::from_secs(1),
            mix: Mix::draw(random),
            run_pages: random.pick(&[1, 1, 4, 32, 256]),
            fills: random.percent(50),
            reads,
            discards,
            zeroes: random.pick(&[0, 1, 5]),
            parts: random.pick(&[0, 5, 20]),
        }
    }
}

/// Numbers of requests of a load.
#[derive(Debug, Default)]
pub struct Counts {
    requests: AtomicU64,
    refused: AtomicU64,
    injected: AtomicU64,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (requests, refused) = (self.requests.load(Relaxed), self.refused.load(Relaxed));
        write!(f, "{requests} requests, {refused} refused, {} failed on purpose", self.injected.load(Relaxed))
    }
}

/// Makes the requests, then reads all pages back. The first fault ends the load.
pub fn run(load: &Mixed, connect: &Connect<'_>, judge: &dyn RefusalJudge) -> Result<Counts, Fault> {
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    let per_thread = load.pages / load.threads.max(1);
    let results = std::thread::scope(|scope| {
        let start = |thread| {
            let (counts, is_over) = (&counts, &is_over);
            scope.spawn(move || {
                let mut worker = Worker {
                    load,
                    connection: connect().or_fault("a connection of the load")?,
                    judge,
                    shadow: Shadow::new(per_thread, load.mix),
                    first: (thread * per_thread) as u64,
                    random: Random::new(derive(load.seed, thread as u64)),
                    counts,
                };
                worker.run(is_over).inspect_err(|_| is_over.store(true, Relaxed))
            })
        };
        let threads: Vec<_> = (0..load.threads).map(start).collect();
        threads.into_iter().map(join).collect::<Vec<_>>()
    });
    results.into_iter().try_for_each(|result| result).map(|()| counts)
}

struct Worker<'a> {
    load: &'a Mixed,
    connection: Box<dyn Connection + 'a>,
    judge: &'a dyn RefusalJudge,
    shadow: Shadow,
    /// The thread's first page on the target.
    first: u64,
    random: Random,
    counts: &'a Counts,
}

/// Index of a page in the shadow, and its contents after a write.
type Change = (usize, PageContents);

impl Worker<'_> {
    fn run(&mut self, is_over: &AtomicBool) -> Result<(), Fault> {
        let began = Instant::now();
        let pages = self.pages();
        let goes_on = |time| began.elapsed() < time && !is_over.load(Relaxed);
        let mut at = 0;
        while self.load.fills && at < pages && goes_on(self.load.time / 2) {
            let count = (self.load.run_pages as usize).min(pages - at);
            self.write_pages(at, count)?;
            at += count;
        }
        for _ in 0..self.load.requests {
            if pages == 0 || !goes_on(self.load.time) {
                break;
            }
            self.request()?;
        }
        self.compare(is_over)
    }

    fn pages(&self) -> usize {
        self.load.pages / self.load.threads.max(1)
    }

    /// Makes a request of random kind, offset and length.
    fn request(&mut self) -> Result<(), Fault> {
        self.counts.requests.fetch_add(1, Relaxed);
        let longest = self.load.run_pages.min(self.pages() as u64);
        let count = self.random.doubling(1, longest) as usize;
        let at = self.random.below((self.pages() - count + 1) as u64) as usize;
        let Mixed { reads, discards, zeroes, parts, .. } = *self.load;
        match self.random.below(100) {
            n if n < reads => self.read(at, count),
            n if n < reads + discards => self.discard(at, count),
            n if n < reads + discards + zeroes => self.write_zeroes(at, count),
            n if n < reads + discards + zeroes + parts => self.write_part(at, count),
            _ => self.write_pages(at, count),
        }
    }

    fn offset(&self, at: usize) -> u64 {
        (self.first + at as u64) * PAGE as u64
    }

    /// Draws a range of bytes within these pages, aligned as the target requires. Returns offset and length.
    fn cut(&mut self, at: usize, count: usize) -> (u64, usize) {
        let (unit, len) = (self.connection.align().max(1), (count * PAGE) as u64);
        let from = self.random.below(len / unit) * unit;
        let len = self.random.between(1, ((len - from) / unit).max(1)) * unit;
        (self.offset(at) + from, len as usize)
    }

    fn write_pages(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let mut data = vec![0; count * PAGE];
        let mut changes = Vec::with_capacity(count);
        for (i, page) in data.chunks_mut(PAGE).enumerate() {
            let stamp = self.random.next() | 1;
            content::make(stamp, &self.load.mix, page);
            changes.push((at + i, PageContents::Generated(stamp)));
        }
        self.write(self.offset(at), &data, changes)
    }

    fn write_part(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let (offset, len) = self.cut(at, count.min(4));
        let mut data = vec![0; len];
        let stamp = self.random.next() | 1;
        content::make(stamp, &self.load.mix, &mut data);
        let changes = self.changes(offset, &data)?;
        self.write(offset, &data, changes)
    }

    /// The contents of pages after a write of these bytes; empty if the contents before it cannot be read.
    fn changes(&mut self, offset: u64, data: &[u8]) -> Result<Vec<Change>, Fault> {
        let mut changes = Vec::new();
        let mut done = 0;
        while done < data.len() {
            let position = (offset + done as u64 - self.first * PAGE as u64) as usize;
            let (index, at) = (position / PAGE, position % PAGE);
            let len = (PAGE - at).min(data.len() - done);
            if len < PAGE && !self.shadow.is_known(index) {
                self.read(index, 1)?;
            }
            // The read failed on purpose: then the contents after a partial write are not known.
            if len < PAGE && !self.shadow.is_known(index) {
                return Ok(Vec::new());
            }
            changes.push((index, self.shadow.with_part(index, at, &data[done..done + len])));
            done += len;
        }
        Ok(changes)
    }

    fn write(&mut self, offset: u64, data: &[u8], changes: Vec<Change>) -> Result<(), Fault> {
        if changes.is_empty() {
            return Ok(());
        }
        self.attempt(RequestKind::Write, offset, data.len() as u64, changes, &mut |c| c.write(offset, data))
    }

    fn discard(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let (offset, len) = self.cut(at, count);
        let whole = self.whole_pages(offset, len);
        let changes = whole.map(|index| (index, PageContents::Generated(0))).collect();
        self.attempt(RequestKind::Discard, offset, len as u64, changes, &mut |c| {
            c.discard(offset, len as u64)
        })
    }

    fn write_zeroes(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let (offset, len) = self.cut(at, count);
        let changes = self.changes(offset, &vec![0; len])?;
        if changes.is_empty() {
            return Ok(());
        }
        self.attempt(RequestKind::Zero, offset, len as u64, changes, &mut |c| {
            c.write_zeroes(offset, len as u64)
        })
    }

    /// The pages that lie completely in a range of bytes.
    fn whole_pages(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        let page = PAGE as u64;
        let (first, end) = (offset.div_ceil(page), (offset + len as u64) / page);
        let index = |number: u64| number.saturating_sub(self.first) as usize;
        index(first)..index(end)
    }

    /// Makes a request that changes pages, updates the shadow, and asks the judge about a refusal.
    fn attempt(
        &mut self,
        kind: RequestKind,
        offset: u64,
        len_bytes: u64,
        changes: Vec<Change>,
        send: &mut dyn FnMut(&mut dyn Connection) -> Result<(), RequestError>,
    ) -> Result<(), Fault> {
        let mut retries = if self.load.threads > 1 { RETRIES } else { 0 };
        loop {
            self.judge.before_request();
            let answer = {
                let _under_way = watchdog::begin(kind, offset, len_bytes);
                send(&mut *self.connection)
            };
            let why = match answer {
                Ok(()) => {
                    changes.into_iter().for_each(|(index, contents)| self.shadow.set(index, contents));
                    return Ok(());
                }
                Err(RequestError::Other(why)) => return Err(self.unexpected(why)),
                Err(RequestError::Injected(_)) => {
                    self.counts.injected.fetch_add(1, Relaxed);
                    break;
                }
                Err(RequestError::NoRoom(why)) => why,
            };
            self.counts.refused.fetch_add(1, Relaxed);
            match self.judge.judge() {
                Ok(Judgement::Justified(_)) => break,
                Ok(Judgement::Unjustified(..)) if retries > 0 => retries -= 1,
                Ok(Judgement::Unjustified(_, room)) | Err(room) => {
                    return Err(Fault::new(FaultKind::Refused, format!("{why}; but {room}")));
                }
            }
        }
        changes.into_iter().for_each(|(index, contents)| self.shadow.add_candidate(index, contents));
        Ok(())
    }

    fn unexpected(&self, why: String) -> Fault {
        // A refusal that no limit explains, for example because of an empty reserve.
        match why.contains("was not stored") {
            true => Fault::new(FaultKind::Refused, format!("{why}; no limit explains that")),
            false => Fault::new(FaultKind::Failed, why),
        }
    }

    fn read(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let mut data = vec![0xee; count * PAGE];
        let offset = self.offset(at);
        let answer = {
            let _under_way = watchdog::begin(RequestKind::Read, offset, data.len() as u64);
            self.connection.read(offset, &mut data)
        };
        match answer {
            Ok(()) => self.check(at, &data),
            Err(RequestError::Injected(_)) => {
                self.counts.injected.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(RequestError::NoRoom(why) | RequestError::Other(why)) => Err(Fault::failed("a read", why)),
        }
    }

    fn check(&mut self, at: usize, data: &[u8]) -> Result<(), Fault> {
        for (i, page) in data.chunks(PAGE).enumerate() {
            let checked = self.shadow.check(at + i, 0, page);
            let number = self.first + (at + i) as u64;
            checked.map_err(|e| Fault::new(FaultKind::Contents, format!("page {number}: {e}")))?;
        }
        Ok(())
    }

    /// Reads all pages back.
    fn compare(&mut self, is_over: &AtomicBool) -> Result<(), Fault> {
        for at in (0..self.pages()).step_by(COMPARE_PAGES) {
            if is_over.load(Relaxed) {
                break;
            }
            self.read(at, COMPARE_PAGES.min(self.pages() - at))?;
        }
        Ok(())
    }
}
