//! A stress test: compressed memory never loses or mixes up data.
//!
//! Threads use a small region in all ways, and keep a plain copy of it. They compare every word that they read with
//! the last one written. Each thread owns pages, interleaved with those of others; other pages all threads read, and
//! others again have a lock. The threads read and write words, pages and runs, drop pages, and pin them for system
//! calls; another thread changes the limit. This runs for each way to serve faults, to page out, and to compress, with
//! and without a backing. At the end all pages are compared once more, and the kernel's count of present pages with
//! the region's.
//!
//! In `cargo test` each combination runs for about a second; for minutes with
//!
//! ```sh
//! PAGEFOLD_LONG=1 cargo test --release -p pagefold-memory --test checker
//! ```
//!
//! `PAGEFOLD_CHECK_S=20` sets the seconds, `PAGEFOLD_SEED=0x123` the seed, `PAGEFOLD_CHECK_ONLY=text` runs combinations
//! whose name has the text. Threads run freely, so a seed makes a failure likely again, not certain.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod pattern;
mod resident;
mod watch;
mod worker;

use pagefold_backing::MemoryBacking;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Eviction, Region, RegionConfig, RegionError, Service};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pattern::{Random, Words, ZERO, fill, mix};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use watch::{fail, say};
use worker::{Arena, Worker};

const PAGE: u64 = 4096;
const THREADS: u64 = 4;
/// Pages that each belong to one thread; that all threads read; that have a lock.
const OWN: u64 = 1600;
const COMMON: u64 = 320;
const LOCKED: u64 = 128;
/// Limits that are set during a run, pages.
const LIMITS: [u64; 5] = [64, 80, 128, 200, 300];
/// The first limit of some runs, pages: the kernel fills parts of the range by itself until the limit is lowered.
const LATE_LIMIT: u64 = 4000;

/// The configuration of a run.
struct Case {
    service: Service,
    eviction: Eviction,
    codec: &'static str,
    layout: Option<LayoutKind>,
    seed: u64,
}

fn number_of(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn duration() -> Duration {
    let long = std::env::var_os("PAGEFOLD_LONG").is_some();
    number_of("PAGEFOLD_CHECK_S")
        .map_or(Duration::from_millis(if long { 120_000 } else { 800 }), Duration::from_secs)
}

/// Runs all codecs, with and without a backing, one after the other: the kernel's count of pages is one for the
/// process.
fn run_all(service: Service, eviction: Eviction) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number_of("PAGEFOLD_SEED").unwrap_or(clock.as_nanos() as u64);
    let layouts = [None, Some(LayoutKind::Log), None, Some(LayoutKind::Blocks), None, Some(LayoutKind::Log)];
    for (i, layout) in layouts.into_iter().enumerate() {
        let codec = ["lz4", "zstd", "lzo-rle"][i / 2];
        let name = format!("{service:?} {eviction:?} {codec} {layout:?}");
        let only = std::env::var("PAGEFOLD_CHECK_ONLY").unwrap_or_default();
        if name.contains(&only) {
            say(&format!("{name}: PAGEFOLD_SEED={seed:#x}"));
            run(&Case { service, eviction, codec, layout, seed: mix(seed ^ i as u64) });
        }
    }
}

fn config(case: &Case, random: &mut Random) -> RegionConfig {
    let limits = [LATE_LIMIT, LIMITS[random.below(5) as usize]];
    let backing = case.layout.map(|layout| {
        let medium = Arc::new(MemoryBacking::new(32 << 20));
        WritebackConfig { backing: medium, layout }
    });
    RegionConfig {
        service: case.service,
        eviction: case.eviction,
        codec: CodecSpec::named(case.codec),
        max_pool_bytes: backing.is_some().then_some(1 << 20),
        backing,
        fold_threads: 1 + random.below(3) as usize,
        handler_threads: 1 + random.below(3) as usize,
        neighbours: random.below(4) > 0,
        same_filled: random.below(4) > 0,
        huge_pages: random.below(2) == 0,
        ..RegionConfig::new((OWN + COMMON + LOCKED) * PAGE, limits[random.below(2) as usize] * PAGE)
    }
}

/// Returns the pages of a thread: every fourth of one half, a block of the other.
fn pages_of(owner: u64) -> Vec<u64> {
    let block = OWN / 2 / THREADS;
    let interleaved = (0..OWN / 2).filter(|page| page % THREADS == owner);
    interleaved.chain(OWN / 2 + owner * block..OWN / 2 + (owner + 1) * block).collect()
}

fn run(case: &Case) {
    let mut random = Random::new(case.seed);
    let config = config(case, &mut random);
    let first_limit = config.limit_bytes;
    let region = Region::new(config).unwrap();
    let mut common = vec![ZERO; COMMON as usize];
    common.iter_mut().zip(OWN..).for_each(|(words, page)| fill(words, &mut random, page, 1, THREADS));
    let locked = (0..LOCKED).map(|_| Mutex::new(Box::new(ZERO))).collect();
    let serves_system = case.service == Service::HandlerThreads;
    let arena = Arena {
        region: &region,
        common,
        common_start: OWN,
        locked,
        locked_start: OWN + COMMON,
        serves_system,
    };
    let over = AtomicBool::new(false);
    let steps: Vec<_> = (0..=THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| watch::watch(&region, &steps, &over));
        work(&arena, &steps, random.next());
        // The last counter belongs to this thread.
        let step = || steps[THREADS as usize].fetch_add(1, Relaxed);
        check_shared(&arena, step);
        over.store(true, Relaxed);
    });
    check_limit(&region, first_limit);
    check_account(&region);
}

fn work(arena: &Arena<'_>, steps: &[AtomicU64], seed: u64) {
    for (page, words) in (OWN..).zip(&arena.common) {
        arena.write(page, words);
    }
    let until = Instant::now() + duration();
    std::thread::scope(|scope| {
        for owner in 0..THREADS {
            let mut worker = Worker::new(arena, owner, pages_of(owner), mix(seed ^ owner));
            let steps = &steps[owner as usize];
            scope.spawn(move || {
                while Instant::now() < until {
                    worker.step();
                    steps.fetch_add(1, Relaxed);
                }
                worker.check_all("all is over");
                steps.store(u64::MAX, Relaxed);
            });
        }
        let mut random = Random::new(seed);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1 + random.below(30)));
            arena.region.set_limit(LIMITS[random.below(LIMITS.len() as u64) as usize] * PAGE).unwrap();
            steps[THREADS as usize].fetch_add(1, Relaxed);
        }
    });
}

fn check_shared(arena: &Arena<'_>, mut step: impl FnMut() -> u64) {
    let mut check = |page: u64, words: &Words| {
        arena.check(page, words, "all is over");
        step();
    };
    (OWN..).zip(&arena.common).for_each(|(page, words)| check(page, words));
    let locked = (OWN + COMMON..).zip(&arena.locked);
    locked.for_each(|(page, words)| check(page, &words.lock().unwrap()));
}

fn check_limit(region: &Region, first_limit: u64) {
    let stats = region.stats();
    let refused =
        stats.pool.reject_alloc_fail + stats.pool.reject_compress_fail + stats.pool.reject_reclaim_fail;
    let most = first_limit.max(LIMITS[LIMITS.len() - 1] * PAGE);
    if refused == 0 && stats.memory.resident_max > most {
        fail(
            region,
            &format!("{} bytes were resident, the largest limit was {most}", stats.memory.resident_max),
        );
    }
    if stats.faults.failed > 0 || stats.pool.decompress_fail > 0 {
        fail(region, "faults failed");
    }
    if stats.eviction.folded == 0 || stats.faults.folded == 0 {
        fail(region, "nothing was folded: this checks nothing");
    }
}

/// Checks that the region's count of memory equals the kernel's, once nothing happens any more.
fn check_account(region: &Region) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let counted = region.stats().memory.resident / PAGE;
        let present = resident::present_pages();
        if counted == present && region.stats().memory.resident / PAGE == counted {
            return;
        }
        if Instant::now() > until {
            fail(region, &format!("{counted} pages are counted as resident, {present} are"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_missing(test: &str, service: Service, eviction: Eviction) -> bool {
    let config = RegionConfig { service, eviction, ..RegionConfig::new(1 << 20, 1 << 20) };
    match Region::new(config) {
        Ok(_) => false,
        Err(error @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
            pagefold_testkit::skipped!("{test}: {error}");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn faulting_thread_protect() {
    if !is_missing("faulting_thread_protect", Service::FaultingThread, Eviction::Protect) {
        run_all(Service::FaultingThread, Eviction::Protect);
    }
}

#[test]
fn handler_threads_protect() {
    if !is_missing("handler_threads_protect", Service::HandlerThreads, Eviction::Protect) {
        run_all(Service::HandlerThreads, Eviction::Protect);
    }
}

#[test]
fn faulting_thread_mixed() {
    if !is_missing("faulting_thread_mixed", Service::FaultingThread, Eviction::Mixed) {
        run_all(Service::FaultingThread, Eviction::Mixed);
    }
}

#[test]
fn handler_threads_mixed() {
    if !is_missing("handler_threads_mixed", Service::HandlerThreads, Eviction::Mixed) {
        run_all(Service::HandlerThreads, Eviction::Mixed);
    }
}
