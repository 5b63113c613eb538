//! Two threads on pages chosen with a Zipf distribution: a few are used often, most seldom.
//!
//! Each operation draws a page; 70 % of the operations read 8 to 64 bytes of it, the others write as many. All random
//! choices are made before the measurement, and both sides do the same operations. Each thread writes only its half of
//! the pages, every second one. The page and the number of its writes determine the content, so the expected content of
//! every page is known at the end and is compared byte by byte. One read in sixteen is checked immediately: each word
//! must come from the source or from a write.

use super::child::{ChildReport, Clock, Source};
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
/// Maximum number of words in an operation.
const OP_WORDS_MAX: u64 = 8;
/// One read in this many is checked immediately.
const CHECK_INTERVAL: u64 = 16;

/// A drawn operation: the page in the upper 32 bits, one bit that is set for a read, and 31 random bits that choose the
/// words.
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

/// The operations of all threads, drawn before the measurement.
pub struct Operations {
    /// The operations of each thread, in order.
    ops: Vec<Vec<Op>>,
    /// The first operations of each thread, which are not measured.
    warm_up_len: usize,
}

impl Operations {
    /// Draws the operations of a plan.
    pub fn new(plan: &MemoryPlan) -> anyhow::Result<Self> {
        let pages = u32::try_from(plan.zipf_size_bytes() / PAGE_SIZE as u64).context("too many pages")?;
        let zipf = Zipf::new(pages, THETA, SEED);
        let ops_of = |number: usize| {
            let mut random = Random(SEED ^ (number as u64 + 1));
            (0..plan.zipf_warm_up_ops + plan.zipf_ops).map(|_| Op::draw(&zipf, &mut random)).collect()
        };
        let warm_up_len = usize::try_from(plan.zipf_warm_up_ops)?;
        Ok(Operations { ops: (0..ZIPF_THREADS).map(ops_of).collect(), warm_up_len })
    }

    /// Returns a thread's warm-up operations and its measured operations.
    fn ops(&self, number: usize) -> (&[Op], &[Op]) {
        self.ops[number].split_at(self.warm_up_len)
    }
}

type PageWords = [AtomicU64; PAGE_WORDS];

/// Fills the memory, runs the threads, reports operations per second, and compares all pages.
pub fn run(
    operations: &Operations,
    memory: &mut [u8],
    source: &Source,
    report: &mut ChildReport,
) -> anyhow::Result<()> {
    super::passes::fill(memory, source, report);
    let pages = shared(memory);
    let barrier = Barrier::new(ZIPF_THREADS);
    let mut workers: Vec<_> = (0..ZIPF_THREADS).map(|number| Worker::new(number, pages, source)).collect();
    let wrong = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let (warm_up, ops) = operations.ops(worker.number);
                    worker.work(warm_up);
                    barrier.wait();
                    let clock = Clock::start();
                    worker.work(ops);
                    // Both threads stop their clocks only when the slower one has ended.
                    barrier.wait();
                    let mut report = ChildReport::default();
                    clock.record_s("zipf", &mut report);
                    (report, worker.wrong)
                })
            })
            .collect();
        let mut wrong = None;
        for thread in threads {
            let (thread_report, found) =
                thread.join().map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?;
            report.figures.extend(thread_report.figures);
            wrong = wrong.or(found);
        }
        anyhow::Ok(wrong)
    })?;
    if let Some((page, word, found)) = wrong {
        anyhow::bail!("word {word} of page {page} was read as {found:#x}, which was never written");
    }
    let seconds = report.figures.get("zipf_s").copied().unwrap_or(f64::NAN);
    let ops: usize = (0..ZIPF_THREADS).map(|number| operations.ops(number).1.len()).sum();
    report.figures.insert("zipf_ops_per_s".into(), ops as f64 / seconds);
    for worker in &workers {
        report.checksum = report.checksum.wrapping_add(worker.compare()?);
    }
    Ok(())
}

/// Casts the memory to atomic words that threads can share.
fn shared(memory: &mut [u8]) -> &[PageWords] {
    // SAFETY: `PageWords` consists of 8-byte integers, so all bytes are valid for it, and align_to_mut returns only
    // aligned elements. The borrow is exclusive and lasts as long as the result, so all access to these bytes is
    // atomic.
    let (before, pages, _) = unsafe { memory.align_to_mut::<PageWords>() };
    debug_assert!(before.is_empty(), "memory begins at a page boundary");
    pages
}

/// The state of a thread.
struct Worker<'a> {
    number: usize,
    pages: &'a [PageWords],
    source: &'a Source,
    /// The number of writes of each page that this thread writes: pages `number`, `number + ZIPF_THREADS`, ...
    versions: Vec<u32>,
    /// The first word that was read but never written: page, index in the page, value.
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
        let (first, count) = word_range(drawn);
        let words = &self.pages[page][first..first + count];
        let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(word.load(Relaxed)));
        black_box(sum);
        if drawn.is_multiple_of(CHECK_INTERVAL) {
            for (i, word) in words.iter().enumerate() {
                let found = word.load(Relaxed);
                let original = u64::from_le_bytes(self.source.page(page).as_chunks().0[first + i]);
                let is_right = found == original || found >> 24 == written_word(page, first + i, 0) >> 24;
                if !is_right {
                    self.wrong.get_or_insert((page, first + i, found));
                }
            }
        }
    }

    /// Writes to the page of this thread that is paired with the drawn page.
    fn write(&mut self, drawn_page: usize) {
        let page = drawn_page / ZIPF_THREADS * ZIPF_THREADS + self.number;
        // If the number of pages is odd, the last page has no pair.
        if page >= self.pages.len() {
            return;
        }
        let version = &mut self.versions[page / ZIPF_THREADS];
        *version += 1;
        let (first, count) = word_range(write_bits(page, *version));
        for (i, word) in self.pages[page][first..first + count].iter().enumerate() {
            word.store(written_word(page, first + i, *version), Relaxed);
        }
    }

    /// Repeats all writes in a copy of each page, and compares. Returns a checksum.
    fn compare(&self) -> anyhow::Result<u64> {
        let mut checksum = 0u64;
        for (page, &versions) in (self.number..self.pages.len()).step_by(ZIPF_THREADS).zip(&self.versions) {
            let source: &[[u8; 8]] = self.source.page(page).as_chunks().0;
            let mut wanted: Vec<u64> = source.iter().map(|word| u64::from_le_bytes(*word)).collect();
            for version in 1..=versions {
                let (first, count) = word_range(write_bits(page, version));
                for (i, word) in wanted[first..first + count].iter_mut().enumerate() {
                    *word = written_word(page, first + i, version);
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

/// The words of an operation: the index of the first, and their number.
fn word_range(drawn: u64) -> (usize, usize) {
    let count = 1 + drawn % OP_WORDS_MAX;
    let first = (drawn >> 8) % (PAGE_WORDS as u64 - count + 1);
    (first as usize, count as usize)
}

/// The random bits that choose the words of a page's write.
fn write_bits(page: usize, version: u32) -> u64 {
    Random((page as u64) << 32 | u64::from(version)).next()
}

/// The word that a write stores: similar to a pointer; its last three bytes are the version.
fn written_word(page: usize, word: usize, version: u32) -> u64 {
    let address = Random((page * PAGE_WORDS + word) as u64).next() & 0xffff;
    0x7f00 << 40 | address << 24 | u64::from(version & 0xff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_ranges_stay_in_the_page_and_reach_its_ends() {
        let drawn: Vec<_> = (0..100_000).map(|n| word_range(Random(n).next())).collect();
        assert!(drawn.iter().all(|(first, count)| (1..=8).contains(count) && first + count <= PAGE_WORDS));
        assert!(drawn.iter().any(|(first, _)| *first == 0));
        assert!(drawn.iter().any(|(first, count)| first + count == PAGE_WORDS));
    }

    #[test]
    fn drawn_operations_have_the_right_pages_and_shares() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, ..MemoryPlan::QUICK };
        let pages = (plan.zipf_size_bytes() / PAGE_SIZE as u64) as u32;
        let zipf = Zipf::new(pages, THETA, SEED);
        let operations = Operations::new(&plan).unwrap();
        for number in 0..ZIPF_THREADS {
            let (warm_up, ops) = operations.ops(number);
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
            let checked = ops.iter().filter(|op| op.drawn().is_multiple_of(CHECK_INTERVAL)).count();
            assert!((0.055..0.07).contains(&(checked as f64 / ops.len() as f64)));
        }
        assert_ne!(operations.ops(0), operations.ops(1));
    }

    #[test]
    fn the_comparison_detects_one_changed_bit() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, zipf_ops: 20_000, ..MemoryPlan::QUICK };
        let source = Source::of((0..8 * PAGE_SIZE).map(|i| (i / 64) as u8).collect());
        let mut words = vec![0u64; plan.zipf_size_bytes() as usize / 8 + PAGE_WORDS];
        // SAFETY: all bytes are valid for `u8`, which has no padding.
        let (_, memory, _) = unsafe { words.align_to_mut::<u8>() };
        let start = memory.as_ptr().align_offset(PAGE_SIZE);
        let memory = &mut memory[start..][..plan.zipf_size_bytes() as usize];
        let mut report = ChildReport::default();
        run(&Operations::new(&plan).unwrap(), memory, &source, &mut report).unwrap();
        assert!(report.figures["zipf_ops_per_s"] > 0.0);
        let pages = shared(memory);
        let operations = Operations::new(&plan).unwrap();
        let mut worker = Worker::new(1, pages, &source);
        // This worker has recorded no writes, so the pages that `run` wrote differ from its expectation.
        assert!(worker.compare().is_err());
        for (i, page) in pages.iter().enumerate() {
            for (word, bytes) in page.iter().zip(source.page(i).as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        }
        worker.work(&operations.ops(1).1[..1000]);
        assert_eq!(worker.wrong, None);
        worker.compare().unwrap();
        pages[3][511].fetch_xor(1, Relaxed);
        assert!(worker.compare().is_err());
    }
}
