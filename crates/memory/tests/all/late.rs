//! Parts of a region that the kernel fills by itself, and their end when memory becomes short.

use crate::support::{MODES, Random, bytes_of, can, comes_true, noise, read, text, write};
use pagefold_memory::{Eviction, RangeError, Region, RegionConfig, Service};
use pagefold_sys::pagemap::{Pagemap, Run};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const LIMIT: u64 = 64 << 20;
/// Four times the limit.
const PAGES: u64 = 4 * LIMIT / 4096;
const CHUNK: u64 = 1024;

/// Runs a test for all modes; `None` stands for a kernel that cannot say which pages have memory.
fn each(test: &str, run: fn(Service, Eviction)) {
    if !Pagemap::open().unwrap().is_supported() {
        pagefold_testkit::skipped!("{test}: the kernel has no PAGEMAP_SCAN");
        return;
    }
    MODES
        .into_iter()
        .filter(|(service, eviction)| can(test, *service, *eviction))
        .for_each(|(s, e)| run(s, e));
}

fn config(service: Service, eviction: Eviction) -> RegionConfig {
    RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) }
}

fn region(service: Service, eviction: Eviction) -> Region {
    Region::new(config(service, eviction)).unwrap()
}

/// Returns the number of pages of the region's range that have memory.
fn populated(region: &Region) -> u64 {
    let pagemap = Pagemap::open().unwrap();
    let (start, mut at, mut pages) = (region.as_ptr().addr(), region.as_ptr().addr(), 0);
    let mut runs = vec![Run::default(); 1024];
    while at < start + region.len_bytes() {
        let scan = pagemap.populated(at, start + region.len_bytes() - at, &mut runs).unwrap();
        pages += runs[..scan.runs].iter().map(|run| run.len_bytes() as u64 / 4096).sum::<u64>();
        at = scan.end;
    }
    pages
}

#[test]
fn memory_below_the_limit_costs_few_faults() {
    each("memory_below_the_limit_costs_few_faults", |service, eviction| {
        let region = region(service, eviction);
        // Half of the limit, from a page within a chunk on.
        let pages = 100..100 + LIMIT / 4096 / 2;
        pages.clone().for_each(|page| write(&region, page, &text(page)));
        let stats = region.stats();
        assert!(stats.faults.zero <= 10 && stats.eviction.staged == 0, "{stats:?}");
        // Only what was touched counts, up to a huge page at both ends.
        let resident = stats.memory.resident / 4096;
        assert!((LIMIT / 8192..=LIMIT / 8192 + 1024).contains(&resident), "{resident}");
        pages.for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
    });
}

#[test]
fn a_region_that_is_filled_quickly_stays_below_its_limit() {
    each("a_region_that_is_filled_quickly_stays_below_its_limit", |service, eviction| {
        let region = region(service, eviction);
        let is_over = AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                let staged = || region.stats().eviction.staged;
                while !is_over.load(Relaxed) {
                    // A scan finds a page, and later another that has got its memory: it may take long.
                    let before = staged();
                    let found = populated(&region);
                    most = found.saturating_sub(staged() - before).max(most);
                }
                most
            });
            let halves = [0..PAGES / 2, PAGES / 2..PAGES];
            let fillers = halves.map(|half| {
                let region = &region;
                scope.spawn(move || half.for_each(|page| write(region, page, &text(page))))
            });
            fillers.into_iter().for_each(|filler| filler.join().unwrap());
            is_over.store(true, Relaxed);
            watcher.join().unwrap()
        });
        assert!(most > LIMIT / 4096 / 2 && most * 4096 <= LIMIT + LIMIT / 20, "{most} pages");
        assert!(region.stats().memory.resident_max <= LIMIT);
        (0..PAGES).for_each(|page| assert!(read(&region, page) == text(page), "{page}"));
    });
}

#[test]
fn chunks_with_few_touched_pages_do_not_use_up_the_limit() {
    each("chunks_with_few_touched_pages", |service, eviction| {
        // Huge pages would fill the chunks.
        let region = Region::new(RegionConfig { huge_pages: false, ..config(service, eviction) }).unwrap();
        let chunks = PAGES / CHUNK;
        for round in 0..100 {
            (0..chunks).for_each(|chunk| write(&region, chunk * CHUNK + round, &noise(chunk + round)));
        }
        let stats = region.stats();
        // Neighbours count, too.
        let resident = stats.memory.resident / 4096;
        assert!((chunks * 100..=chunks * 200).contains(&resident), "{stats:?}");
        assert_eq!(stats.eviction.staged, 0, "{stats:?}");
        for round in 0..100 {
            (0..chunks)
                .for_each(|chunk| assert!(read(&region, chunk * CHUNK + round) == noise(chunk + round)));
        }
    });
}

#[test]
fn a_lower_limit_is_kept_by_what_the_kernel_filled() {
    each("a_lower_limit_is_kept", |service, eviction| {
        let region = region(service, eviction);
        (0..8000).for_each(|page| write(&region, page, &noise(page)));
        region.set_limit(4 << 20).unwrap();
        assert!(comes_true(|| region.stats().memory.resident <= 4 << 20), "{:?}", region.stats());
        assert!(populated(&region) <= 1024);
        (0..8000).for_each(|page| assert!(read(&region, page) == noise(page), "{page}"));
    });
}

#[test]
fn dropped_chunks_are_zero_and_can_be_filled_again() {
    each("dropped_chunks_are_zero", |service, eviction| {
        let mut region = region(service, eviction);
        (0..4 * CHUNK).for_each(|page| write(&region, page, &noise(page)));
        // A part of the first chunk, two whole ones, a part of the last.
        region.discard(bytes_of(1000, 3 * CHUNK)).unwrap();
        assert!(populated(&region) <= CHUNK + 512, "{}", populated(&region));
        for page in 0..4 * CHUNK {
            let is_dropped = (1000..1000 + 3 * CHUNK).contains(&page);
            assert!(read(&region, page) == if is_dropped { [0; 512] } else { noise(page) }, "{page}");
        }
        (0..4 * CHUNK).for_each(|page| write(&region, page, &noise(page + 1)));
        (0..4 * CHUNK).for_each(|page| assert!(read(&region, page) == noise(page + 1), "{page}"));
    });
}

#[test]
fn pinned_pages_stay_while_their_chunk_is_registered() {
    each("pinned_pages_stay", |service, eviction| {
        let mut region = region(service, eviction);
        (0..4 * CHUNK).for_each(|page| write(&region, page, &noise(page)));
        let (first, others) = (bytes_of(10, 100), bytes_of(5 * CHUNK, 50));
        let mut bytes = vec![0; first.len() + others.len()];
        {
            // The second part was never touched.
            let pins = (region.pin(first.clone()).unwrap(), region.pin(others.clone()).unwrap());
            region.set_limit(1 << 20).unwrap();
            assert!(comes_true(|| populated(&region) <= 256), "{:?}", region.stats());
            // System calls find the pages.
            let mut pipe = std::io::pipe().unwrap();
            for (part, pin) in bytes.chunks_mut(4096).zip(pins.0.chunks(4096).chain(pins.1.chunks(4096))) {
                rustix::io::write(&pipe.1, pin).unwrap();
                pipe.0.read_exact(part).unwrap();
            }
        }
        assert!(bytes[first.len()..].iter().all(|byte| *byte == 0));
        for (page, part) in bytes[..first.len()].chunks(4096).enumerate() {
            let expected = noise(10 + page as u64).map(u64::to_ne_bytes);
            assert!(part == expected.as_flattened(), "{page}");
        }
        let pin = region.pin(first.clone()).unwrap();
        // SAFETY: nothing refers to the bytes but the pin, which is not read again.
        let refused = unsafe { region.discard_shared(bytes_of(0, 2 * CHUNK)) };
        assert_eq!(refused, Err(RangeError::Pinned { page: 10 }));
        drop(pin);
        region.discard(bytes_of(0, 2 * CHUNK)).unwrap();
    });
}

#[test]
fn threads_fill_and_drop_chunks_while_the_limit_changes() {
    each("threads_fill_and_drop_chunks", |service, eviction| {
        let region = region(service, eviction);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let fillers: [_; 4] = std::array::from_fn(|thread| {
                let region = &region;
                let own = thread as u64 * PAGES / 4..(thread as u64 + 1) * PAGES / 4;
                scope.spawn(move || fill_and_drop(region, own.start, own.end - own.start, thread as u64))
            });
            scope.spawn(|| {
                let mut random = Random::new(1);
                while !is_over.load(Relaxed) {
                    region
                        .set_limit([LIMIT, LIMIT / 2, LIMIT / 8, 4 << 20][random.below(4) as usize])
                        .unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(random.below(20)));
                    assert!(region.stats().memory.resident_max <= LIMIT);
                }
            });
            let ended = fillers.map(|filler| filler.join().is_ok());
            is_over.store(true, Relaxed);
            assert_eq!(ended, [true; 4]);
        });
    });
}

/// Writes, compares and drops runs of pages of one thread.
fn fill_and_drop(region: &Region, first: u64, pages: u64, seed: u64) {
    let mut random = Random::new(seed);
    let mut written = vec![None; pages as usize];
    let check = |page: u64, version: Option<u64>| {
        let expected = version.map_or([0; 512], |version| text(version ^ page << 8));
        assert!(read(region, first + page) == expected, "page {page} of thread {seed}");
    };
    for version in 0..60 {
        let len = 1 + random.below(1500);
        let run = random.below(pages - len);
        match random.below(3) {
            0 => {
                // SAFETY: this thread alone uses these pages.
                unsafe { region.discard_shared(bytes_of(first + run, len)) }.unwrap();
                written[run as usize..(run + len) as usize].fill(None);
            }
            1 => (run..run + len).for_each(|page| check(page, written[page as usize])),
            _ => {
                for page in run..run + len {
                    write(region, first + page, &text(version ^ page << 8));
                    written[page as usize] = Some(version);
                }
            }
        }
    }
    (0..pages).for_each(|page| check(page, written[page as usize]));
}
