//! Two threads on pages of which few are used often and many seldom.
//!
//! A page is drawn from a Zipf distribution that is scattered over the memory; 70 % of the operations read
//! 8 to 64 bytes of it, the others write as many. Each thread writes only its half of the pages, every
//! second one, and what a write writes follows from the page and how often it was written; so
//! what every page must hold in the end follows from these counts, and is compared byte by byte. All reads
//! are summed, and one in sixteen is checked while it happens: each word is the source's, or one that
//! was written.
//! Both sides do the same operations.

use super::child::{Clock, Source, Told};
use super::plan::{MemoryPlan, READ_PERCENT, THETA, ZIPF_THREADS};
use crate::commands::bench::plan::SEED;
use crate::commands::bench::stats::Random;
use crate::commands::bench::zipf::Zipf;
use anyhow::Context;
use pagefold_page::PAGE_SIZE;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words of 8 bytes in a page.
const PAGE_WORDS: usize = PAGE_SIZE / 8;
/// Words of an operation at most.
const OP_WORDS_MAX: u64 = 8;
/// One read in so many is checked while it happens.
const CHECKED_ONE_IN: u64 = 16;

/// What is done, made before anything is measured.
pub struct Plan {
    zipf: Zipf,
    warm_up_ops: u64,
    ops: u64,
}

impl Plan {
    /// For the memory of the plan.
    pub fn new(plan: &MemoryPlan) -> anyhow::Result<Self> {
        let pages = u32::try_from(plan.zipf_size_bytes() / PAGE_SIZE as u64).context("too many pages")?;
        let zipf = Zipf::new(pages, THETA, SEED);
        Ok(Plan { zipf, warm_up_ops: plan.zipf_warm_up_ops, ops: plan.zipf_ops })
    }
}

type PageWords = [AtomicU64; PAGE_WORDS];

/// Fills the memory, works, tells operations per second, and compares.
pub fn run(plan: &Plan, memory: &mut [u8], source: &Source, told: &mut Told) -> anyhow::Result<()> {
    super::passes::fill(memory, source, told);
    let pages = shared(memory);
    let barrier = Barrier::new(ZIPF_THREADS);
    let mut workers: Vec<_> =
        (0..ZIPF_THREADS).map(|number| Worker::new(number, pages, source, plan)).collect();
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let barrier = &barrier;
                scope.spawn(move || {
                    worker.work(plan.warm_up_ops);
                    barrier.wait();
                    let clock = Clock::start();
                    worker.work(plan.ops);
                    // The slower thread's time counts.
                    barrier.wait();
                    let mut told = Told::default();
                    clock.tell_s("zipf", &mut told);
                    (told, worker.wrong)
                })
            })
            .collect();
        let mut wrong = None;
        for thread in threads {
            let (own, found) = thread.join().map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?;
            told.figures.extend(own.figures);
            wrong = wrong.or(found);
        }
        anyhow::Ok(wrong)
    })?;
    if let Some((page, word, found)) = wrong {
        anyhow::bail!("word {word} of page {page} was read as {found:#x}, which was never written");
    }
    let seconds = told.figures.get("zipf_s").copied().unwrap_or(f64::NAN);
    let ops = (plan.ops * ZIPF_THREADS as u64) as f64;
    told.figures.insert("zipf_ops_per_s".into(), ops / seconds);
    for worker in &workers {
        told.checksum = told.checksum.wrapping_add(worker.compare()?);
    }
    Ok(())
}

/// The memory as words that threads share.
fn shared(memory: &mut [u8]) -> &[PageWords] {
    // SAFETY: `PageWords` is 8-byte integers and nothing else, so all bytes are valid for it; align_to takes
    // only what is aligned. The borrow is exclusive and lasts as long as the result, so all access to these
    // bytes is by atomic operations.
    let (before, pages, _) = unsafe { memory.align_to_mut::<PageWords>() };
    debug_assert!(before.is_empty(), "memory begins at a page");
    pages
}

/// A thread's part.
struct Worker<'a> {
    number: usize,
    pages: &'a [PageWords],
    source: &'a Source,
    zipf: &'a Zipf,
    random: Random,
    /// How often each of its pages was written: pages `number`, `number + ZIPF_THREADS`, ...
    versions: Vec<u32>,
    /// A word that was read and never written: page, word, what was found.
    wrong: Option<(usize, usize, u64)>,
}

impl<'a> Worker<'a> {
    fn new(number: usize, pages: &'a [PageWords], source: &'a Source, plan: &'a Plan) -> Self {
        let versions = vec![0; pages.len().div_ceil(ZIPF_THREADS)];
        let random = Random(SEED ^ (number as u64 + 1));
        Worker { number, pages, source, zipf: &plan.zipf, random, versions, wrong: None }
    }

    fn work(&mut self, ops: u64) {
        for _ in 0..ops {
            let page = self.zipf.draw(&mut self.random) as usize;
            let drawn = self.random.next();
            if drawn % 100 < READ_PERCENT { self.read(page, drawn >> 32) } else { self.write(page) }
        }
    }

    fn read(&mut self, page: usize, drawn: u64) {
        let (first, count) = place(drawn);
        let words = &self.pages[page][first..first + count];
        let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
        black_box(sum);
        if drawn.is_multiple_of(CHECKED_ONE_IN) {
            for (i, word) in words.iter().enumerate() {
                let found = word.load(Relaxed);
                let original = u64::from_le_bytes(self.source.page(page).as_chunks().0[first + i]);
                let is_right = found == original || found >> 24 == written(page, first + i, 0) >> 24;
                if !is_right {
                    self.wrong.get_or_insert((page, first + i, found));
                }
            }
        }
    }

    /// Writes to a page of its own beside the drawn one.
    fn write(&mut self, page: usize) {
        let own = page / ZIPF_THREADS * ZIPF_THREADS + self.number;
        // An odd number of pages has no pair for the last.
        if own >= self.pages.len() {
            return;
        }
        let version = &mut self.versions[own / ZIPF_THREADS];
        *version += 1;
        let (first, count) = place(of_write(own, *version));
        for (i, word) in self.pages[own][first..first + count].iter().enumerate() {
            word.store(written(own, first + i, *version), Relaxed);
        }
    }

    /// Does all writes again to a copy of each page, and compares. Returns a checksum.
    fn compare(&self) -> anyhow::Result<u64> {
        let mut checksum = 0u64;
        for (page, &versions) in (self.number..self.pages.len()).step_by(ZIPF_THREADS).zip(&self.versions) {
            let source: &[[u8; 8]] = self.source.page(page).as_chunks().0;
            let mut wanted: Vec<u64> = source.iter().map(|word| u64::from_le_bytes(*word)).collect();
            for version in 1..=versions {
                let (first, count) = place(of_write(page, version));
                for (i, word) in wanted[first..first + count].iter_mut().enumerate() {
                    *word = written(page, first + i, version);
                }
            }
            let found = self.pages[page].iter().map(|w| w.load(Relaxed));
            let different: Vec<_> = found.zip(&wanted).enumerate().filter(|(_, (f, w))| f != *w).collect();
            if let Some((word, (found, wanted))) = different.first() {
                let count = different.len();
                let stale =
                    if *found == u64::from_le_bytes(source[*word]) { ", as before any write" } else { "" };
                anyhow::bail!(
                    "page {page}, written {versions} times, is not what was written: {count} words differ, \
                     the first is {word}: {found:#x}{stale}, not {wanted:#x}"
                );
            }
            checksum = wanted.iter().fold(checksum, |sum, word| sum.rotate_left(1).wrapping_add(*word));
        }
        Ok(checksum)
    }
}

/// Which words an operation takes: the first and how many.
fn place(drawn: u64) -> (usize, usize) {
    let count = 1 + drawn % OP_WORDS_MAX;
    let first = (drawn >> 8) % (PAGE_WORDS as u64 - count + 1);
    (first as usize, count as usize)
}

/// What decides the place of a page's write.
fn of_write(page: usize, version: u32) -> u64 {
    Random((page as u64) << 32 | u64::from(version)).next()
}

/// What a write leaves in a word: something like a pointer, whose last three bytes tell the version.
fn written(page: usize, word: usize, version: u32) -> u64 {
    let place = Random((page * PAGE_WORDS + word) as u64).next() & 0xffff;
    0x7f00 << 40 | place << 24 | u64::from(version & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stay_in_the_page_and_reach_its_ends() {
        let drawn: Vec<_> = (0..100_000).map(|n| place(Random(n).next())).collect();
        assert!(drawn.iter().all(|(first, count)| (1..=8).contains(count) && first + count <= PAGE_WORDS));
        assert!(drawn.iter().any(|(first, _)| *first == 0));
        assert!(drawn.iter().any(|(first, count)| first + count == PAGE_WORDS));
    }

    #[test]
    fn the_comparison_notices_one_bit() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, zipf_ops: 20_000, ..MemoryPlan::QUICK };
        let source = Source::of((0..8 * PAGE_SIZE).map(|i| (i / 64) as u8).collect());
        let mut words = vec![0u64; plan.zipf_size_bytes() as usize / 8 + PAGE_WORDS];
        // SAFETY: any bytes are integers, and integers bytes.
        let (_, memory, _) = unsafe { words.align_to_mut::<u8>() };
        let start = memory.as_ptr().align_offset(PAGE_SIZE);
        let memory = &mut memory[start..][..plan.zipf_size_bytes() as usize];
        let mut told = Told::default();
        run(&Plan::new(&plan).unwrap(), memory, &source, &mut told).unwrap();
        assert!(told.figures["zipf_ops_per_s"] > 0.0);
        let pages = shared(memory);
        let plan = Plan::new(&plan).unwrap();
        let mut worker = Worker::new(1, pages, &source, &plan);
        // A worker that has not written finds the other's writes wrong.
        assert!(worker.compare().is_err());
        for (i, page) in pages.iter().enumerate() {
            for (word, bytes) in page.iter().zip(source.page(i).as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        }
        worker.work(1000);
        worker.compare().unwrap();
        pages[3][511].fetch_xor(1, Relaxed);
        assert!(worker.compare().is_err());
    }
}
