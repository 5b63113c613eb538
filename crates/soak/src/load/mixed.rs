//! Requests of all kinds from several threads, each of which checks what it reads against a shadow.
//!
//! Each thread has a range of pages to itself, so that it knows what they hold; it reads others' pages too, but cannot
//! check them. A refused write is not a fault by itself: a [`Referee`] says whether there was room. Where threads
//! free memory side by side, what a referee sees around a refusal may differ from what the write met; so there the
//! write is tried again, and counts as wrongly refused only if it is refused every time.

use crate::load::content::{self, Mix, PAGE};
use crate::load::shadow::{Held, Shadow};
use crate::load::watch::{Watch, What};
use crate::model::Verdict;
use crate::part::{Fault, FaultKind};
use crate::random::{Random, derive};
use crate::target::{Connection, Failure, Target};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Times that a write which seems wrongly refused is tried again.
const RETRIES: u32 = 5;
/// Pages read at once when all is compared.
const COMPARE_PAGES: usize = 64;

/// Says whether a refusal is right.
pub trait Referee: Sync {
    /// A request is about to be made.
    fn look(&self) {}

    /// A request was refused. An error is a refusal that no retry can excuse.
    fn judge(&self) -> Result<Verdict, String>;
}

/// The load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixed {
    /// Draws the requests.
    pub seed: u64,
    /// Threads; each has an equal part of the pages.
    pub threads: usize,
    /// Pages of the target that are used.
    pub pages: usize,
    /// Requests of each thread.
    pub requests: u64,
    /// Requests end after this time.
    pub time: Duration,
    /// What pages hold.
    pub mix: Mix,
    /// The longest request, pages.
    pub run_pages: u64,
    /// Whether all pages are written first, front to back, for half of the time at most.
    pub fills: bool,
    /// Shares of requests, percent; the rest is writes of whole pages.
    pub reads: u64,
    /// Discards.
    pub discards: u64,
    /// Writes of zeroes.
    pub zeroes: u64,
    /// Writes of parts of pages, if the target can.
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

/// What a load did.
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

/// Makes the requests, then reads all pages back. The first fault ends it.
pub fn run(load: &Mixed, target: &dyn Target, referee: &dyn Referee, watch: &Watch) -> Result<Counts, Fault> {
    if (load.pages * PAGE) as u64 > target.len_bytes() {
        let (pages, len) = (load.pages, target.len_bytes());
        return Err(Fault::new(
            FaultKind::Failed,
            format!("{pages} pages are asked of a target of {len} bytes"),
        ));
    }
    let (counts, is_over) = (Counts::default(), AtomicBool::new(false));
    let per_thread = load.pages / load.threads.max(1);
    let outcomes = std::thread::scope(|scope| {
        let start = |thread| {
            let (counts, is_over) = (&counts, &is_over);
            scope.spawn(move || {
                let connection = target.connect().map_err(|e| Fault::new(FaultKind::Failed, e))?;
                let mut worker = Worker {
                    load,
                    target,
                    connection,
                    referee,
                    watch,
                    thread,
                    shadow: Shadow::new(per_thread, load.mix),
                    first: (thread * per_thread) as u64,
                    random: Random::new(derive(load.seed, thread as u64)),
                    counts,
                };
                worker.run(is_over).inspect_err(|_| is_over.store(true, Relaxed))
            })
        };
        let threads: Vec<_> = (0..load.threads).map(start).collect();
        threads.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    for outcome in outcomes {
        outcome.unwrap_or_else(|_| Err(Fault::new(FaultKind::Failed, "a thread of the load panicked")))?;
    }
    Ok(counts)
}

struct Worker<'a> {
    load: &'a Mixed,
    target: &'a dyn Target,
    connection: Box<dyn Connection + 'a>,
    referee: &'a dyn Referee,
    watch: &'a Watch,
    thread: usize,
    shadow: Shadow,
    /// Its first page on the target.
    first: u64,
    random: Random,
    counts: &'a Counts,
}

/// What a write is to put on one page.
type Change = (usize, Held);

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

    /// A request of a kind, place and length at random.
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

    /// A range that begins and ends anywhere in these pages, as far as the target can.
    fn cut(&mut self, at: usize, count: usize) -> (u64, usize) {
        let (unit, len) = (self.target.align().max(1), (count * PAGE) as u64);
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
            changes.push((at + i, Held::Stamp(stamp)));
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

    /// What these bytes make of the pages that they lie on.
    fn changes(&mut self, offset: u64, data: &[u8]) -> Result<Vec<Change>, Fault> {
        let mut changes = Vec::new();
        let mut done = 0;
        while done < data.len() {
            let place = (offset + done as u64 - self.first * PAGE as u64) as usize;
            let (index, at) = (place / PAGE, place % PAGE);
            let len = (PAGE - at).min(data.len() - done);
            if len < PAGE && !self.shadow.is_known(index) {
                self.read(index, 1)?;
            }
            // A page that could not be read, because its medium failed on purpose, is not changed in part.
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
        self.attempt(What::Write, offset, data.len() as u64, changes, &mut |c| c.write(offset, data))
    }

    fn discard(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let (offset, len) = self.cut(at, count);
        let whole = self.whole_pages(offset, len);
        let changes = whole.map(|index| (index, Held::Stamp(0))).collect();
        self.attempt(What::Discard, offset, len as u64, changes, &mut |c| c.discard(offset, len as u64))
    }

    fn write_zeroes(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let (offset, len) = self.cut(at, count);
        let changes = self.changes(offset, &vec![0; len])?;
        if changes.is_empty() {
            return Ok(());
        }
        self.attempt(What::Zero, offset, len as u64, changes, &mut |c| c.write_zeroes(offset, len as u64))
    }

    /// The pages that lie in a range of bytes as a whole.
    fn whole_pages(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        let page = PAGE as u64;
        let (first, end) = (offset.div_ceil(page), (offset + len as u64) / page);
        let index = |number: u64| number.saturating_sub(self.first) as usize;
        index(first)..index(end)
    }

    /// Makes a request that changes pages; if it is refused, asks the referee.
    fn attempt(
        &mut self,
        what: What,
        offset: u64,
        len_bytes: u64,
        changes: Vec<Change>,
        ask: &mut dyn FnMut(&mut dyn Connection) -> Result<(), Failure>,
    ) -> Result<(), Fault> {
        let mut left = if self.load.threads > 1 { RETRIES } else { 0 };
        loop {
            self.referee.look();
            let answer = {
                let _under_way = self.watch.begin(self.thread, what, offset, len_bytes);
                ask(&mut *self.connection)
            };
            let why = match answer {
                Ok(()) => {
                    changes.into_iter().for_each(|(index, held)| self.shadow.set(index, held));
                    return Ok(());
                }
                Err(Failure::Other(why)) => return Err(self.unexpected(why)),
                Err(Failure::Injected(_)) => {
                    self.counts.injected.fetch_add(1, Relaxed);
                    return self.keep_candidates(changes);
                }
                Err(Failure::NoRoom(why)) => why,
            };
            self.counts.refused.fetch_add(1, Relaxed);
            match self.referee.judge() {
                Ok(Verdict::Right(_)) => return self.keep_candidates(changes),
                Ok(Verdict::Wrong(..)) if left > 0 => left -= 1,
                Ok(Verdict::Wrong(_, room)) | Err(room) => {
                    return Err(Fault::new(FaultKind::Refused, format!("{why}; but {room}")));
                }
            }
        }
    }

    fn keep_candidates(&mut self, changes: Vec<Change>) -> Result<(), Fault> {
        changes.into_iter().for_each(|(index, held)| self.shadow.may_be(index, held));
        Ok(())
    }

    fn unexpected(&self, why: String) -> Fault {
        // An empty reserve, and the like, are refusals that no limit explains.
        match why.contains("was not stored") {
            true => Fault::new(FaultKind::Refused, format!("{why}; no limit explains that")),
            false => Fault::new(FaultKind::Failed, why),
        }
    }

    fn read(&mut self, at: usize, count: usize) -> Result<(), Fault> {
        let mut data = vec![0xee; count * PAGE];
        let offset = self.offset(at);
        let answer = {
            let _under_way = self.watch.begin(self.thread, What::Read, offset, data.len() as u64);
            self.connection.read(offset, &mut data)
        };
        match answer {
            Ok(()) => self.check(at, &data),
            Err(Failure::Injected(_)) => {
                self.counts.injected.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(Failure::NoRoom(why) | Failure::Other(why)) => Err(Fault::failed("a read", why)),
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
