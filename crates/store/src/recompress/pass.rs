//! A pass of recompression: a walk over the slots by several workers.
//!
//! Workers take stretches of slots from one counter. They examine slots without their locks, and recompress the pages
//! that the request selects. The caller's thread is the first worker, and calls `on_progress` between stretches. With a
//! limit on pages, the longest objects come first: a first walk finds the length from which on there are about so many.

use super::page::{PageResult, Target, Worker};
use super::request::{RecompressError, RecompressRequest};
use crate::pages::{Counter, Pages};
use crate::slot::SlotSnapshot;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_pool::{FRAME_LEN, REPLACEMENT_FRAMES_MAX};
use pagefold_sys::{cpu, signal};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Slots that a worker takes at once: one chunk of the table, some hundred microseconds of work for a slow codec.
const STRETCH_LEN: u64 = 256;

/// The result of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecompressReport {
    /// Pages that have a smaller object now.
    pub recompressed_pages: u64,
    /// Length of their objects before, bytes.
    pub old_bytes: u64,
    /// Length of their objects now, bytes.
    pub new_bytes: u64,
    /// Pages that would not become smaller.
    pub not_smaller_pages: u64,
    /// Pages that were changed, moved or accessed in the meantime.
    pub changed_pages: u64,
    /// Pages for whose new object there was no memory beside the old one.
    pub no_memory_pages: u64,
    /// Pages that did not decompress, or whose compression failed.
    pub failed_pages: u64,
    /// Whether `on_progress` ended the pass early.
    pub stopped: bool,
}

/// The progress of a running pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecompressProgress {
    /// Slots examined so far.
    pub seen_pages: u64,
    /// Slots to examine in total.
    pub total_pages: u64,
    /// Pages that have a smaller object now.
    pub recompressed_pages: u64,
    /// Bytes saved so far: old lengths minus new ones.
    pub saved_bytes: u64,
}

/// A function that is called during a pass, and ends it by returning [`ControlFlow::Break`].
type OnProgress<'a> = dyn FnMut(&RecompressProgress) -> ControlFlow<()> + 'a;

/// The state that the workers of a pass share.
struct RecompressPass<'a> {
    pages: &'a Pages,
    request: &'a RecompressRequest,
    /// The codec's priority.
    priority: u8,
    /// Results of this length and more are not kept, bytes.
    len_limit_bytes: usize,
    /// Frames of objects up to which the workers may take more, beyond the limit too.
    frames_max: AtomicU64,
    /// Only objects of at least this length are tried, bytes.
    len_min_bytes: usize,
    /// Objects of exactly that length that may still be tried.
    ties_left: AtomicI64,
    /// Pages that may still be tried.
    pages_left: AtomicI64,
    /// The first slot that no worker has taken.
    next: AtomicU64,
    stopped: AtomicBool,
    /// The results so far, of all workers.
    report: Mutex<RecompressReport>,
}

/// Recompresses the pages of a request; returns when all workers have ended.
pub(crate) fn run_pass(
    pages: &Pages,
    request: &RecompressRequest,
    on_progress: &mut OnProgress,
) -> Result<RecompressReport, RecompressError> {
    let threshold_bytes = request.threshold_bytes()?;
    let priority = request.target(&pages.codecs)?;
    let no_codec = || RecompressError::NoCodec { priority };
    let mut first = Worker::new(pages, priority)?.ok_or_else(no_codec)?;
    // Fewer workers than asked for are no failure.
    let threads = (request.threads as u64).min(pages.table.page_count().0.div_ceil(STRETCH_LEN));
    let threads = (threads as usize).min(2 * cpu::count());
    let others: Vec<Worker> =
        (1..threads).map_while(|_| Worker::new(pages, priority).ok().flatten()).collect();
    let mut pass = RecompressPass {
        pages,
        request,
        priority,
        len_limit_bytes: threshold_bytes.map_or(PAGE_SIZE, usize::from),
        frames_max: AtomicU64::new(frames_max(frames_limit(pages), frames_in_use(pages))),
        len_min_bytes: 0,
        ties_left: AtomicI64::new(i64::MAX),
        pages_left: AtomicI64::new(request.pages_max.map_or(i64::MAX, |n| n.try_into().unwrap_or(i64::MAX))),
        next: AtomicU64::new(0),
        stopped: AtomicBool::new(false),
        report: Mutex::default(),
    };
    pages.tick();
    if let Some(pages_max) = request.pages_max {
        pass.take_longest_first(pages_max);
    }
    let pass = &pass;
    std::thread::scope(|scope| {
        // If the caller's function panics, the other workers end too.
        let _stop = StopOnPanic(&pass.stopped);
        for mut worker in others {
            let builder = std::thread::Builder::new().name("pagefold-rc".into());
            let work = move || pass.work(&mut worker, &mut |_| ControlFlow::Continue(()));
            // Masked, because a worker locks slots, and a signal handler may load a page. If it cannot be started, the
            // others do its work.
            let _ = signal::spawn_masked_scoped(builder, scope, work);
        }
        pass.work(&mut first, on_progress);
    });
    Ok(RecompressReport { stopped: pass.stopped.load(Relaxed), ..*pass.report.lock() })
}

impl RecompressPass<'_> {
    /// Takes stretches of slots until none is left, the limit on pages is reached, or the pass is stopped.
    fn work(&self, worker: &mut Worker, on_progress: &mut OnProgress) {
        let count = self.pages.table.page_count().0;
        loop {
            let from = self.next.fetch_add(STRETCH_LEN, Relaxed);
            if from >= count || self.stopped.load(Relaxed) || self.pages_left.load(Relaxed) <= 0 {
                return;
            }
            let Some(end) = self.work_on(worker, from, (from + STRETCH_LEN).min(count)) else { return };
            if on_progress(&self.progress(end)).is_break() {
                self.stopped.store(true, Relaxed);
            }
        }
    }

    /// Recompresses the selected pages from `from` to before `end`. Skips ahead if no slot is allocated there; returns
    /// the number of slots passed in all, or `None` if the limit on pages is reached.
    fn work_on(&self, worker: &mut Worker, from: u64, end: u64) -> Option<u64> {
        let first = self.pages.table.next_allocated(PageIndex(from), u64::MAX);
        if first.0 >= end {
            // Whole stretches without slots are passed over at once. Workers that took one of them find it empty.
            self.next.fetch_max(first.0 / STRETCH_LEN * STRETCH_LEN, Relaxed);
            return Some(end);
        }
        let target = self.target();
        for index in first.0..end {
            let index = PageIndex(index);
            let Some(slot) = self.pages.table.get(index) else { continue };
            let seen = slot.snapshot();
            if self.is_selected(&seen) {
                if self.stopped.load(Relaxed) || self.pages_left.fetch_sub(1, Relaxed) <= 0 {
                    return None;
                }
                self.count(worker.recompress(self.pages, index, slot, target));
            }
        }
        Some(end)
    }

    /// The target of the next stretch. A pass may take hours, in which the limit and the use change.
    fn target(&self) -> Target {
        // Two workers may exchange their results; the next stretch corrects that.
        let before = self.frames_max.load(Relaxed);
        let frames_max = next_frames_max(before, frames_limit(self.pages), frames_in_use(self.pages));
        self.frames_max.store(frames_max, Relaxed);
        Target { priority: self.priority, len_limit_bytes: self.len_limit_bytes, frames_max }
    }

    /// Whether a page is to be tried. The clock goes on during a pass, so that a page that is read meanwhile is young.
    fn is_selected(&self, seen: &SlotSnapshot) -> bool {
        let age_s = seen.last_access().age_s(self.pages.clock.now());
        let len_bytes = seen.object_len_bytes();
        len_bytes >= self.len_min_bytes
            && self.request.selects(seen, self.priority, age_s)
            && (len_bytes > self.len_min_bytes || self.ties_left.fetch_sub(1, Relaxed) > 0)
    }

    /// Adds the result of a page to the report, and to the counters of the store.
    fn count(&self, result: PageResult) {
        let (counters, cpu) = (&self.pages.counters, cpu::current());
        let mut report = self.report.lock();
        match result {
            PageResult::Smaller { old_len_bytes, new_len_bytes } => {
                report.recompressed_pages += 1;
                report.old_bytes += old_len_bytes as u64;
                report.new_bytes += new_len_bytes as u64;
                counters.add(cpu, Counter::Recompressed, 1);
                counters.add(cpu, Counter::RecompressSavedBytes, old_len_bytes as i64 - new_len_bytes as i64);
            }
            PageResult::NotSmaller => {
                report.not_smaller_pages += 1;
                counters.add(cpu, Counter::RecompressNotSmaller, 1);
            }
            PageResult::Changed => report.changed_pages += 1,
            PageResult::NoMemory => report.no_memory_pages += 1,
            PageResult::Failed => report.failed_pages += 1,
        }
    }

    fn progress(&self, seen_pages: u64) -> RecompressProgress {
        let report = self.report.lock();
        RecompressProgress {
            seen_pages,
            total_pages: self.pages.table.page_count().0,
            recompressed_pages: report.recompressed_pages,
            saved_bytes: report.old_bytes - report.new_bytes,
        }
    }

    /// Finds the length from which on there are at least `pages_max` selected objects, if there are so many, and how
    /// many of exactly this length belong to them.
    fn take_longest_first(&mut self, pages_max: u64) {
        let mut counts = vec![0u64; PAGE_SIZE + 1];
        self.pages.each_slot(|_, _, seen| {
            let age_s = seen.last_access().age_s(self.pages.clock.now());
            if self.request.selects(seen, self.priority, age_s) {
                counts[seen.object_len_bytes()] += 1;
            }
            ControlFlow::Continue(())
        });
        let mut longer = 0;
        for (len_bytes, count) in counts.into_iter().enumerate().rev() {
            if longer + count >= pages_max {
                self.len_min_bytes = len_bytes;
                let ties = pages_max - longer;
                self.ties_left = AtomicI64::new(ties.try_into().unwrap_or(i64::MAX));
                return;
            }
            longer += count;
        }
    }
}

/// Frames up to which a pass may take more: a little more than the limit, or than the use if that is higher still, because
/// the limit was lowered. A use just above the limit is that of another pass, which must not raise the bound of this one.
fn frames_max(limit: u64, in_use: u64) -> u64 {
    let beyond = limit.saturating_add(REPLACEMENT_FRAMES_MAX);
    if in_use <= beyond { beyond } else { in_use.saturating_add(REPLACEMENT_FRAMES_MAX) }
}

/// The same for a later moment of the pass. The frames that the pass itself takes do not raise the bound.
fn next_frames_max(before: u64, limit: u64, in_use: u64) -> u64 {
    frames_max(limit, in_use.min(before.saturating_sub(REPLACEMENT_FRAMES_MAX)))
}

fn frames_limit(pages: &Pages) -> u64 {
    pages.pool.source().arena().limit_bytes() / FRAME_LEN as u64
}

fn frames_in_use(pages: &Pages) -> u64 {
    pages.pool.source().arena().in_use_bytes() / FRAME_LEN as u64
}

/// Stops the workers of a pass when it is dropped by a panic.
struct StopOnPanic<'a>(&'a AtomicBool);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Store, StoreConfig};
    use crate::slot::AccessTime;
    use crate::writeback::Which;
    use pagefold_codec::CodecSpec;
    use std::time::Duration;

    const PAGES: u64 = 3 * STRETCH_LEN;

    /// A store with pages that zstd makes smaller; all were accessed an hour ago.
    fn store_of_old_pages() -> Store {
        let mut config = StoreConfig::new(PAGES * PAGE_SIZE as u64);
        config.further_codecs[0] = Some(CodecSpec::named("zstd"));
        config.access_times = true;
        let store = Store::new(config).unwrap();
        let words = ["page ", "slot ", "frame ", "store ", "backing ", "memory ", "codec ", "stream "];
        let text: Vec<u8> = (0..40_000usize).flat_map(|i| words[i * i / 7 % 8].bytes()).collect();
        for index in 0..PAGES {
            let at = index as usize * 97;
            store.write(index * PAGE_SIZE as u64, &text[at..at + PAGE_SIZE]).unwrap();
            let slot = store.pages.table.get(PageIndex(index)).unwrap();
            slot.lock().set_last_access(AccessTime::default().before(4 * 3600));
        }
        store
    }

    fn recompress_old(store: &Store, on_progress: &mut OnProgress) -> RecompressReport {
        let which = Which::NotAccessedFor { age_s: 60 };
        run_pass(&store.pages, &RecompressRequest { which, ..Default::default() }, on_progress).unwrap()
    }

    #[test]
    fn pages_that_are_read_or_written_during_a_pass_are_young() {
        let store = store_of_old_pages();
        let mut page = [0; PAGE_SIZE];
        let mut calls = 0;
        let report = recompress_old(&store, &mut |_| {
            calls += 1;
            if calls == 1 {
                // A minute passes; pages of the last stretch are read and written.
                store.pages.advance_clock(Duration::from_secs(60));
                for index in [PAGES - 1, PAGES - 3] {
                    store.read(index * PAGE_SIZE as u64, &mut page).unwrap();
                }
                store.write((PAGES - 5) * PAGE_SIZE as u64, &page).unwrap();
            }
            ControlFlow::Continue(())
        });
        assert_eq!(report.recompressed_pages, PAGES - 3);
        for index in [PAGES - 1, PAGES - 3, PAGES - 5] {
            assert_eq!(store.pages.table.get(PageIndex(index)).unwrap().snapshot().priority(), 0);
        }
    }

    #[test]
    fn the_bound_on_frames_follows_the_limit_and_falls_with_the_use_but_never_rises_with_it() {
        let beyond = REPLACEMENT_FRAMES_MAX;
        for (before, limit, in_use, expected) in [
            (100, 100, 90, 100),
            // The pass has taken all that it may.
            (100, 100, 100 + beyond, 100),
            // The limit was lowered below the use, which falls.
            (100, 50, 90, 90),
            (90, 50, 90 + beyond, 90),
            (90, 50, 70, 70),
            (70, 50, 40, 50),
            // The limit was raised.
            (50, 80, 50 + beyond, 80),
        ] {
            let found = next_frames_max(before + beyond, limit, in_use);
            assert_eq!(found, expected + beyond, "{before} {limit} {in_use}");
        }
    }

    #[test]
    fn passes_at_the_same_time_exceed_the_limit_no_further_than_one() {
        let beyond = REPLACEMENT_FRAMES_MAX;
        for in_use in [0, 100, 101, 100 + beyond] {
            assert_eq!(frames_max(100, in_use), 100 + beyond, "{in_use}");
        }
        assert_eq!(frames_max(100, 200), 200 + beyond);
        assert_eq!(frames_max(u64::MAX, 5), u64::MAX);
    }

    #[test]
    fn a_limit_takes_the_longest_and_of_equally_long_ones_only_as_many_as_fit() {
        let store = store_of_old_pages();
        let noise = |index: u64| -> Vec<u8> {
            let mut word = index + 1;
            let mut next = || {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (word >> 56) as u8
            };
            (0..PAGE_SIZE).map(|_| next()).collect()
        };
        // The longest objects, raw ones, are the last in the table; all others are text.
        (PAGES - 9..PAGES).for_each(|i| store.write(i * PAGE_SIZE as u64, &noise(i)).unwrap());
        let request = RecompressRequest { pages_max: Some(9), ..Default::default() };
        let report = run_pass(&store.pages, &request, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((report.not_smaller_pages, report.recompressed_pages), (9, 0));
        let same: Vec<u8> = b"the same ".iter().copied().cycle().take(PAGE_SIZE).collect();
        (0..100).for_each(|i| store.write(i * PAGE_SIZE as u64, &same).unwrap());
        let request = RecompressRequest { pages_max: Some(PAGES - 9 - 40), ..Default::default() };
        let report = run_pass(&store.pages, &request, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(report.recompressed_pages + report.not_smaller_pages, PAGES - 9 - 40);
    }

    #[test]
    fn a_panic_of_the_caller_ends_the_pass() {
        let store = store_of_old_pages();
        // With more threads, another one might take all stretches and this one call nothing.
        let request = RecompressRequest::default();
        let panics =
            std::panic::AssertUnwindSafe(|| run_pass(&store.pages, &request, &mut |_| panic!("by the test")));
        assert!(std::panic::catch_unwind(panics).is_err());
        recompress_old(&store, &mut |_| ControlFlow::Continue(()));
        let mut page = [0; PAGE_SIZE];
        (0..PAGES).for_each(|i| store.read(i * PAGE_SIZE as u64, &mut page).unwrap());
    }
}
