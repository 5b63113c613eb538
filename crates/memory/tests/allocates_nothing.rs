//! Serving a fault in the thread that made it does not call the allocator, because the thread may have been
//! interrupted in it. The evictors, for which the fault may wait, do not call it either. Only the writeback thread
//! does.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_backing::MemoryBacking;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Eviction, Region, RegionConfig};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The system's allocator, with a count of calls.
struct Counting;

thread_local! {
    /// Calls of this thread since it began to count; `None` while it does not count.
    static REQUESTS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether calls of evictors are counted, and their number.
static WATCHES_EVICTORS: AtomicBool = AtomicBool::new(false);
static REQUESTS_OF_EVICTORS: AtomicU64 = AtomicU64::new(0);

fn count() {
    REQUESTS.with(|requests| requests.set(requests.get().map(|n| n + 1)));
    if WATCHES_EVICTORS.load(Relaxed) {
        let mut name = [0_u8; 16];
        // SAFETY: a thread's name has 16 bytes at most.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        REQUESTS_OF_EVICTORS.fetch_add(name.starts_with(b"pagefold-fold").into(), Relaxed);
    }
}

// SAFETY: every call is passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller guarantees it.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller guarantees it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A page that compresses somewhat, one that does not, one that repeats a word, one of zeroes.
fn fill(page: &mut [u8], at: usize) {
    let mut x = at as u64 | 1;
    for (i, word) in page.chunks_mut(8).enumerate() {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let value = match at % 4 {
            0 if i % 3 == 0 => x,
            1 => x,
            2 => 0x1234_5678,
            _ => i as u64 / 64 * u64::from(at.is_multiple_of(4)),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn requests_of_faults(config: RegionConfig) -> u64 {
    let mut region = Region::new(config).unwrap();
    let pages = region.len_bytes() / 4096;
    region.bytes_mut().chunks_mut(4096).enumerate().for_each(|(at, page)| fill(page, at));
    let bytes = region.bytes_mut();
    let (mut x, mut sum) = (1_usize, 0_u64);
    REQUESTS.with(|requests| requests.set(Some(0)));
    WATCHES_EVICTORS.store(true, Relaxed);
    for round in 0..4 {
        for at in 0..pages {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = if round % 2 == 0 { at } else { (x >> 33) % pages };
            sum = sum.wrapping_add(u64::from(bytes[page * 4096 + 8]));
            if at.is_multiple_of(5) {
                bytes[page * 4096 + 16] ^= 1;
            }
        }
    }
    WATCHES_EVICTORS.store(false, Relaxed);
    let requests = REQUESTS.with(|requests| requests.take().unwrap());
    std::hint::black_box(sum);
    let stats = region.stats();
    assert!(stats.faults.folded > 1000 && stats.faults.failed == 0, "{stats:#?}");
    requests
}

#[test]
fn faults_do_not_call_the_allocator() {
    if let Err(e) = pagefold_sys::uffd::kernel_features() {
        pagefold_testkit::skipped!("faults_do_not_call_the_allocator: {e}");
        return;
    }
    for eviction in [Eviction::Auto, Eviction::Protect] {
        for codec in ["lz4", "zstd", "lzo-rle"] {
            for writes_back in [false, true] {
                let backing = || {
                    let backing = Arc::new(MemoryBacking::new(64 << 20));
                    WritebackConfig { backing, layout: LayoutKind::Log }
                };
                let config = RegionConfig {
                    eviction,
                    codec: CodecSpec::named(codec),
                    max_pool_bytes: writes_back.then_some(2 << 20),
                    backing: writes_back.then(backing),
                    ..RegionConfig::new(12 << 20, 1 << 20)
                };
                assert_eq!(requests_of_faults(config), 0, "{eviction:?} {codec} writes back {writes_back}");
                let of_evictors = REQUESTS_OF_EVICTORS.swap(0, Relaxed);
                // More than a thousand pages were folded. A thread that starts only then allocates a little.
                assert!(
                    of_evictors < 50,
                    "{of_evictors} of the evictors: {eviction:?} {codec} writes back {writes_back}"
                );
            }
        }
    }
}
