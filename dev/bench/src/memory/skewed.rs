//! Two threads on pages chosen with a Zipf distribution: a few are used often, most seldom.
//!
//! Each operation draws a page; 70 % of the operations read 8 to 64 bytes of it, the others write as many. All random
//! choices are made before the measurement, and both sides do the same operations. Each thread writes only its half of
//! the pages, every second one. The page and the number of its writes determine the content, so the expected content of
//! every page is known at the end and is compared byte by byte. One read in sixteen is checked immediately: each word
//! must come from the source or from a write.

use super::passes::{self, PAGE_WORDS, combine, source_page};
use super::plan::{MemoryPlan, Task};
use crate::pages::PageSet;
use crate::random::{Random, SEED, Zipf};
use crate::stats::{Clock, in_threads};
use anyhow::{Context, Result};
use pagefold_page::PAGE_SIZE;
use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const THREADS: usize = 2;
/// Share of reads among the operations, per cent.
const READ_PERCENT: u64 = 70;
/// Maximum number of words in an operation.
const OP_WORDS_MAX: u64 = 8;
/// One read in this many is checked immediately.
const CHECK_INTERVAL: u64 = 16;

/// A drawn operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    page: u32,
    reads: bool,
    /// Chooses the words of a read.
    drawn: u32,
}

/// The operations of each thread of a plan, in order, with those of the warm-up.
pub fn operations(plan: &MemoryPlan) -> Result<Vec<Vec<Op>>> {
    let pages = u32::try_from(plan.len_bytes(Task::Zipf) / PAGE_SIZE as u64).context("too many pages")?;
    let zipf = Zipf::new(pages);
    let ops_of = |number| {
        let mut random = Random(SEED ^ (number as u64 + 1));
        let draw = |_| {
            let (page, drawn) = (zipf.draw(&mut random), random.next());
            Op { page, reads: drawn % 100 < READ_PERCENT, drawn: (drawn >> 32) as u32 }
        };
        (0..plan.warm_up_ops + plan.ops).map(draw).collect()
    };
    Ok((0..THREADS).map(ops_of).collect())
}

type PageWords = [AtomicU64; PAGE_WORDS];

/// Fills the memory, runs the threads, and compares all pages. Returns operations per second, the CPU time of each, and
/// a checksum.
pub fn run(
    ops: &[Vec<Op>],
    plan: &MemoryPlan,
    memory: &mut [u8],
    source: &PageSet,
) -> Result<(Vec<f64>, u64)> {
    passes::fill(memory, source);
    let pages = shared(memory);
    let barrier = Barrier::new(THREADS);
    let works = ops.iter().enumerate().map(|(number, ops)| {
        let barrier = &barrier;
        move || {
            let mut worker = Worker::new(number, pages, source);
            let (warm_up, ops) = ops.split_at(plan.warm_up_ops);
            worker.work(warm_up);
            barrier.wait();
            let clock = Clock::of_process();
            worker.work(ops);
            // Both threads stop their clocks only when the slower one has ended.
            barrier.wait();
            Ok((clock.stop(THREADS * ops.len()), worker))
        }
    });
    let workers = in_threads(works)?;
    let [wall_ns, cpu_ns] = workers[0].0;
    let sums = workers.iter().map(|(_, worker)| worker.compare()).collect::<Result<Vec<_>>>()?;
    Ok((vec![1e9 / wall_ns, cpu_ns], sums.into_iter().fold(0, combine)))
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
    source: &'a PageSet,
    /// The number of writes of each page that this thread writes: pages `number`, `number + THREADS`, ...
    versions: Vec<u32>,
    /// The first word that was read but never written: page, index in the page, value.
    wrong: Option<(usize, usize, u64)>,
}

impl<'a> Worker<'a> {
    fn new(number: usize, pages: &'a [PageWords], source: &'a PageSet) -> Self {
        Worker { number, pages, source, versions: vec![0; pages.len().div_ceil(THREADS)], wrong: None }
    }

    fn work(&mut self, ops: &[Op]) {
        for op in ops {
            let page = op.page as usize;
            if op.reads { self.read(page, op.drawn.into()) } else { self.write(page) }
        }
    }

    fn read(&mut self, page: usize, drawn: u64) {
        let words = word_range(drawn);
        let read = |word: usize| self.pages[page][word].load(Relaxed);
        black_box(words.clone().map(read).fold(0, u64::wrapping_add));
        if drawn.is_multiple_of(CHECK_INTERVAL) {
            let is_wrong = |(word, found): &(usize, u64)| {
                *found != self.source_word(page, *word) && found >> 24 != written_word(page, *word, 0) >> 24
            };
            let wrong = words.map(|word| (word, read(word))).find(is_wrong);
            self.wrong = self.wrong.or(wrong.map(|(word, found)| (page, word, found)));
        }
    }

    fn source_word(&self, page: usize, word: usize) -> u64 {
        u64::from_le_bytes(source_page(self.source, page).as_chunks().0[word])
    }

    /// Writes to the page of this thread that is paired with the drawn page.
    fn write(&mut self, drawn_page: usize) {
        let page = drawn_page / THREADS * THREADS + self.number;
        // If the number of pages is odd, the last page has no pair.
        let Some(words) = self.pages.get(page) else { return };
        let version = &mut self.versions[page / THREADS];
        *version += 1;
        for word in written_range(page, *version) {
            words[word].store(written_word(page, word, *version), Relaxed);
        }
    }

    /// Repeats all writes in a copy of each page, and compares. Returns a checksum. Fails also if a word was wrong before.
    fn compare(&self) -> Result<u64> {
        if let Some((page, word, found)) = self.wrong {
            anyhow::bail!("word {word} of page {page} was read as {found:#x}, which was never written");
        }
        let mut checksum = 0;
        for (page, &versions) in (self.number..self.pages.len()).step_by(THREADS).zip(&self.versions) {
            let mut wanted: [u64; PAGE_WORDS] = std::array::from_fn(|word| self.source_word(page, word));
            for version in 1..=versions {
                written_range(page, version)
                    .for_each(|word| wanted[word] = written_word(page, word, version));
            }
            for (word, (found, wanted)) in self.pages[page].iter().zip(wanted).enumerate() {
                let found = found.load(Relaxed);
                anyhow::ensure!(
                    found == wanted,
                    "word {word} of page {page}, written {versions} times, is {found:#x}, not {wanted:#x}"
                );
            }
            checksum = wanted.into_iter().fold(checksum, combine);
        }
        Ok(checksum)
    }
}

/// The words of an operation.
fn word_range(drawn: u64) -> Range<usize> {
    let count = 1 + drawn % OP_WORDS_MAX;
    let first = (drawn >> 8) % (PAGE_WORDS as u64 - count + 1);
    first as usize..(first + count) as usize
}

/// The words of a write.
fn written_range(page: usize, version: u32) -> Range<usize> {
    word_range(Random((page as u64) << 32 | u64::from(version)).next())
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
        assert!(drawn.iter().all(|words| (1..=8).contains(&words.len()) && words.end <= PAGE_WORDS));
        assert!(drawn.iter().any(|words| words.start == 0));
        assert!(drawn.iter().any(|words| words.end == PAGE_WORDS));
    }

    #[test]
    fn drawn_operations_have_the_right_shares_and_differ_by_thread() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, ..MemoryPlan::QUICK };
        let pages = (plan.len_bytes(Task::Zipf) / PAGE_SIZE as u64) as u32;
        let operations = operations(&plan).unwrap();
        assert_eq!(operations, super::operations(&plan).unwrap());
        for ops in &operations {
            assert_eq!(ops.len(), plan.warm_up_ops + plan.ops);
            assert!(ops.iter().all(|op| op.page < pages));
            let share =
                |is: fn(&Op) -> bool| ops.iter().filter(|op| is(op)).count() as f64 / ops.len() as f64;
            assert!((0.69..0.71).contains(&share(|op| op.reads)));
            assert!((0.055..0.07).contains(&share(|op| u64::from(op.drawn).is_multiple_of(CHECK_INTERVAL))));
        }
        assert_ne!(operations[0], operations[1]);
    }

    #[test]
    fn the_comparison_detects_one_changed_bit() {
        let plan = MemoryPlan { limit_bytes: 1 << 20, ops: 20_000, ..MemoryPlan::QUICK };
        let source = PageSet::read(None, crate::pages::LARGE_PAGES).unwrap();
        let mut memory = pagefold_page::AlignedBytes::new(plan.len_bytes(Task::Zipf) as usize, 0);
        let operations = operations(&plan).unwrap();
        let (values, _) = run(&operations, &plan, &mut memory, &source).unwrap();
        assert!(values[0] > 0.0);
        let pages = shared(&mut memory);
        let mut worker = Worker::new(1, pages, &source);
        // This worker has recorded no writes, so the pages that `run` wrote differ from its expectation.
        assert!(worker.compare().is_err());
        for (i, page) in pages.iter().enumerate() {
            for (word, bytes) in page.iter().zip(source_page(&source, i).as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Relaxed);
            }
        }
        worker.work(&operations[1][..1000]);
        worker.compare().unwrap();
        pages[3][511].fetch_xor(1, Relaxed);
        assert!(worker.compare().is_err());
        worker.wrong = Some((1, 2, 3));
        assert!(worker.compare().unwrap_err().to_string().contains("never written"));
    }
}
