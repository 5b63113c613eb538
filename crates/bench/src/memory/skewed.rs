//! Two threads on pages of which few are used often and many seldom.
//!
//! A page is drawn from a Zipf distribution that is scattered over the memory; 70 % of the operations read
//! 8 to 64 bytes of it, the others write as many. All is drawn before anything is measured. Each thread
//! writes only its half of the pages, every second one, and what a write writes follows from the page and how
//! often it was written; so what every page must hold in the end follows from these counts, and is compared
//! byte by byte. All reads
//! are summed, and one in sixteen is checked while it happens: each word is the source's, or one that
//! was written.
//! Both sides do the same operations.

use super::child::{Clock, Source, Told};
use super::plan::{MemoryPlan, READ_PERCENT, THETA, ZIPF_THREADS};
use crate::plan::SEED;
use crate::stats::Random;
use crate::zipf::Zipf;
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

/// One operation as it was drawn: a page in the upper half; whether it reads; 31 random bits for its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Op(u64);

impl Op {
    const READS: u64 = 1 << 31;

    fn draw(zipf: &Zipf, random: &mut Random) -> Self {
        let page = zipf.draw(random);
        let drawn = random.next();
        let reads = if drawn % 100 < READ_PERCENT { Op::READS } else { 0 };
        Op(u64::from(page) << 32 | reads | drawn >> 33)
    }

    fn page(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn reads(self) -> bool {
        self.0 & Op::READS != 0
    }

    fn drawn(self) -> u64 {
        self.0 & (Op::READS - 1)
    }
}

/// What is done, made before anything is measured.
pub struct Plan {
    /// Of each thread, in order.
    ops: Vec<Vec<Op>>,
    /// So many of each thread's come before those that are measured.
    warm_up_len: usize,
}

impl Plan {
    /// For the memory of the plan.
    pub fn new(plan: &MemoryPlan) -> anyhow::Result<Self> {
        let pages = u32::try_from(plan.zipf_size_bytes() / PAGE_SIZE as u64).context("too many pages")?;
        let zipf = Zipf::new(pages, THETA, SEED);
        let ops_of = |number: usize| {
            let mut random = Random(SEED ^ (number as u64 + 1));
            (0..plan.zipf_warm_up_ops + plan.zipf_ops).map(|_| Op::draw(&zipf, &mut random)).collect()
        };
        let warm_up_len = usize::try_from(plan.zipf_warm_up_ops)?;
        Ok(Plan { ops: (0..ZIPF_THREADS).map(ops_of).collect(), warm_up_len })
    }

    /// A thread's operations: those that warm up, and those that are measured.
    fn ops(&self, number: usize) -> (&[Op], &[Op]) {
        self.ops[number].split_at(self.warm_up_len)
    }
}

type PageWords = [AtomicU64; PAGE_WORDS];

/// Fills the memory, works, tells operations per second, and compares.
pub fn run(plan: &Plan, memory: &mut [u8], source: &Source, told: &mut Told) -> anyhow::Result<()> {
    super::passes::fill(memory, source, told);
    let pages = shared(memory);
    let barrier = Barrier::new(ZIPF_THREADS);
    let mut workers: Vec<_> = (0..ZIPF_THREADS).map(|number| Worker::new(number, pages, source)).collect();
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let (warm_up, ops) = plan.ops(worker.number);
                    worker.work(warm_up);
                    barrier.wait();
                    let clock = Clock::start();
                    worker.work(ops);
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
    let ops: usize = (0..ZIPF_THREADS).map(|number| plan.ops(number).1.len()).sum();
    told.figures.insert("zipf_ops_per_s".into(), ops as f64 / seconds);
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
    /// How often each of its pages was written: pages `number`, `number + ZIPF_THREADS`, ...
    versions: Vec<u32>,
    /// A word that was read and never written: page, word, what was found.
    wrong: Option<(usize, usize, u64)>,
}

impl<'a> Worker<'a> {
    fn new(number: usize, pages: &'a [PageWords], source: &'a Source) -> Self {
        let versions = vec![0; pages.len().div_ceil(ZIPF_THREADS)];
        Worker { number, pages, source, versions, wrong: None }
    }

    fn work(&mut self, ops: &[Op]) {
        for op in ops {
            if op.reads() { self.read(op.page(), op.drawn()) } else { self.write(op.page()) }
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
    fn operations_are_what_would_be_drawn_while_measuring() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, ..MemoryPlan::QUICK };
        let pages = (plan.zipf_size_bytes() / PAGE_SIZE as u64) as u32;
        let zipf = Zipf::new(pages, THETA, SEED);
        let made = Plan::new(&plan).unwrap();
        for number in 0..ZIPF_THREADS {
            let (warm_up, ops) = made.ops(number);
            let lens = (warm_up.len() as u64, ops.len() as u64);
            assert_eq!(lens, (plan.zipf_warm_up_ops, plan.zipf_ops));
            let mut random = Random(SEED ^ (number as u64 + 1));
            for op in warm_up.iter().chain(ops) {
                let page = zipf.draw(&mut random) as usize;
                let drawn = random.next();
                let wanted = (page, drawn % 100 < READ_PERCENT, drawn >> 33);
                assert_eq!((op.page(), op.reads(), op.drawn()), wanted);
            }
            let read = ops.iter().filter(|op| op.reads()).count();
            assert!((0.69..0.71).contains(&(read as f64 / ops.len() as f64)));
            let checked = ops.iter().filter(|op| op.drawn().is_multiple_of(CHECKED_ONE_IN)).count();
            assert!((0.055..0.07).contains(&(checked as f64 / ops.len() as f64)));
        }
        assert_ne!(made.ops(0), made.ops(1));
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
        let mut worker = Worker::new(1, pages, &source);
        // A worker that has not written finds the other's writes wrong.
        assert!(worker.compare().is_err());
        for (i, page) in pages.iter().enumerate() {
            for (word, bytes) in page.iter().zip(source.page(i).as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        }
        worker.work(&plan.ops(1).1[..1000]);
        assert_eq!(worker.wrong, None);
        worker.compare().unwrap();
        pages[3][511].fetch_xor(1, Relaxed);
        assert!(worker.compare().is_err());
    }
}
