//! Clients of a store: threads that read and write runs of pages, chosen with a Zipf distribution.
//!
//! A run is the range of one request: one page, or several consecutive pages. An atomic word for each run contains its
//! version and a bit that a writing client sets, as in a seqlock. Only one client at a time writes a run; a read
//! during which the word did not change must return the content of that version; and at the end the expected content of
//! every page is known.

use super::content::Content;
use super::plan::READ_PERCENT;
use crate::plan::SEED;
use crate::stats::Random;
use crate::zipf::Zipf;
use anyhow::Context;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::{Store, StoreError};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bit of a version word: a client is writing the run.
const WRITING: u32 = 1;
/// One read in this many is compared with the expected content.
const CHECK_INTERVAL: u64 = 16;
/// A write that takes longer counts as having waited for memory.
const WAIT_THRESHOLD: Duration = Duration::from_millis(1);
/// How long a write that fails because of a lack of memory is repeated.
const RETRY_TIME: Duration = Duration::from_secs(20);

/// The work of the clients of one store, and the expected contents of its pages.
pub struct Workload<'a> {
    content: &'a Content<'a>,
    zipf: &'a Zipf,
    /// Pages of a run.
    run_pages: usize,
    /// The version word of each run.
    versions: Vec<AtomicU32>,
}

/// Counters of the clients during the measurement.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub ops: u64,
    pub writes: u64,
    /// Writes that took longer than [`WAIT_THRESHOLD`].
    pub waits: u64,
    /// Time of all these writes.
    pub waited: Duration,
    /// Writes that failed because of a lack of memory and were repeated.
    pub refused: u64,
    /// Time of the measurement.
    pub time: Duration,
}

impl Tally {
    /// Operations per second of all clients.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.time.as_secs_f64()
    }

    fn add(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.writes += other.writes;
        self.waits += other.waits;
        self.waited += other.waited;
        self.refused += other.refused;
        self.time = self.time.max(other.time);
    }
}

/// The current phase of all clients.
struct Phase(AtomicU8);

impl Phase {
    const SETTLE: u8 = 0;
    const COUNT: u8 = 1;
    const STOP: u8 = 2;

    fn is(&self, phase: u8) -> bool {
        self.0.load(Ordering::Relaxed) == phase
    }
}

/// Stops the clients when dropped, also after an error or a panic.
struct StopOnDrop<'p>(&'p Phase);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.0.store(Phase::STOP, Ordering::Relaxed);
    }
}

impl<'a> Workload<'a> {
    /// A workload with runs of `run_pages` pages, chosen by `zipf`; no page has been written yet.
    pub fn new(content: &'a Content<'a>, zipf: &'a Zipf, run_pages: usize) -> Self {
        let versions = (0..zipf.len()).map(|_| AtomicU32::new(0)).collect();
        Workload { content, zipf, run_pages, versions }
    }

    /// Writes every run once, in a random order that does not depend on how often runs are used.
    pub fn fill(&self, store: &Store) -> anyhow::Result<()> {
        let mut order: Vec<u32> = (0..self.versions.len() as u32).collect();
        let mut random = Random(SEED ^ 7);
        for i in (1..order.len()).rev() {
            order.swap(i, random.below(i as u64 + 1) as usize);
        }
        let mut buf = self.new_run();
        order
            .into_iter()
            .try_for_each(|run| self.write(store, run, &mut buf, &mut Tally::default()).map(drop))
    }

    /// Runs `clients` threads, for `settle` without and then for `count` with counting. Calls `at_start_and_end` when
    /// counting starts and when it ends.
    pub fn run(
        &self,
        store: &Store,
        clients: usize,
        settle: Duration,
        count: Duration,
        mut at_start_and_end: impl FnMut(),
    ) -> anyhow::Result<Tally> {
        let phase = Phase(AtomicU8::new(Phase::SETTLE));
        std::thread::scope(|scope| {
            let client = |n| {
                let phase = &phase;
                scope.spawn(move || self.client(store, n as u64, phase))
            };
            let threads: Vec<_> = (0..clients).map(client).collect();
            let stop = StopOnDrop(&phase);
            std::thread::sleep(settle);
            at_start_and_end();
            phase.0.store(Phase::COUNT, Ordering::Relaxed);
            std::thread::sleep(count);
            drop(stop);
            at_start_and_end();
            let mut sum = Tally::default();
            for thread in threads {
                let tally = thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client panicked")))?;
                sum.add(&tally);
            }
            Ok(sum)
        })
    }

    fn client(&self, store: &Store, number: u64, phase: &Phase) -> anyhow::Result<Tally> {
        let mut random = Random(SEED.rotate_left(17) ^ number << 40 ^ self.seed_of_round());
        let (mut buf, mut ignored) = (self.new_run(), Tally::default());
        while phase.is(Phase::SETTLE) {
            self.operate(store, &mut random, &mut buf, &mut ignored)?;
        }
        let started = Instant::now();
        let mut tally = Tally::default();
        while phase.is(Phase::COUNT) {
            self.operate(store, &mut random, &mut buf, &mut tally)?;
        }
        Ok(Tally { time: started.elapsed(), ..tally })
    }

    /// A seed that depends on all versions, so that each round draws other runs.
    fn seed_of_round(&self) -> u64 {
        self.versions.iter().map(|version| u64::from(version.load(Ordering::Relaxed))).sum()
    }

    fn new_run(&self) -> Vec<Page> {
        vec![[0; PAGE_SIZE]; self.run_pages]
    }

    fn offset(&self, run: u32) -> u64 {
        u64::from(run) * (self.run_pages * PAGE_SIZE) as u64
    }

    /// The indexes of the pages of a run.
    fn indexes(&self, run: u32) -> impl Iterator<Item = u64> {
        let first = u64::from(run) * self.run_pages as u64;
        first..first + self.run_pages as u64
    }

    fn check(&self, run: u32, version: u32, pages: &[Page]) -> anyhow::Result<()> {
        for (index, page) in self.indexes(run).zip(pages) {
            let is_right = match version {
                0 => *page == [0; PAGE_SIZE],
                version => self.content.is(index, version, page),
            };
            anyhow::ensure!(is_right, "page {index} was read with other contents than were stored");
        }
        Ok(())
    }

    fn operate(
        &self,
        store: &Store,
        random: &mut Random,
        buf: &mut [Page],
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let run = self.zipf.draw(random);
        if random.below(100) < READ_PERCENT {
            self.read(store, run, buf, random)?;
        } else if !self.write(store, run, buf, tally)? {
            return Ok(());
        }
        tally.ops += 1;
        Ok(())
    }

    fn read(&self, store: &Store, run: u32, buf: &mut [Page], random: &mut Random) -> anyhow::Result<()> {
        let version = &self.versions[run as usize];
        let before = version.load(Ordering::Acquire);
        store.read(self.offset(run), buf.as_flattened_mut())?;
        let is_checked = before & WRITING == 0 && random.below(CHECK_INTERVAL) == 0;
        match is_checked && version.load(Ordering::Acquire) == before {
            true => self.check(run, before >> 1, buf),
            false => Ok(()),
        }
    }

    /// Writes a run. Returns false if another client is writing it.
    fn write(&self, store: &Store, run: u32, buf: &mut [Page], tally: &mut Tally) -> anyhow::Result<bool> {
        let word = &self.versions[run as usize];
        let old = word.load(Ordering::Relaxed);
        let is_taken = old & WRITING == 0
            && word.compare_exchange(old, old | WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !is_taken {
            return Ok(false);
        }
        let mut scratch = [0; PAGE_SIZE];
        for (index, page) in self.indexes(run).zip(&mut *buf) {
            *page = *self.content.page(index, (old >> 1) + 1, &mut scratch);
        }
        let started = Instant::now();
        loop {
            match store.write(self.offset(run), buf.as_flattened()) {
                Ok(()) => break,
                Err(StoreError::NoMemory { .. }) if started.elapsed() < RETRY_TIME => {
                    tally.refused += 1;
                    std::thread::sleep(WAIT_THRESHOLD);
                }
                Err(e) => return Err(e).context("writing during automatic writeback"),
            }
        }
        let took = started.elapsed();
        if took > WAIT_THRESHOLD {
            tally.waits += 1;
            tally.waited += took;
        }
        tally.writes += 1;
        word.store(old + 2, Ordering::Release);
        Ok(true)
    }

    /// Reads every page and compares it with its expected content. No client may run meanwhile.
    pub fn verify(&self, store: &Store) -> anyhow::Result<()> {
        let mut buf = self.new_run();
        for (run, version) in (0..).zip(&self.versions) {
            store.read(self.offset(run), buf.as_flattened_mut())?;
            self.check(run, version.load(Ordering::Acquire) >> 1, &buf)?;
        }
        Ok(())
    }
}
