//! Serving a fault in the thread that made it asks the allocator for nothing: the thread may have been interrupted in it.
//! Nor do the threads of the region that the fault may wait for, unless pages are written back.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_backing::MemoryBacking;
use pagefold_codec::CodecSpec;
use pagefold_memory::{Eviction, Region, RegionConfig};
use pagefold_store::parking::{LayoutKind, ParkConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The system's allocator, counting the requests of threads that ask for it.
struct Counting;

thread_local! {
    /// Requests of this thread since it asked; `None` while it does not.
    static REQUESTS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether requests of the region's threads are counted, and how many there were.
static WATCHES_REGION: AtomicBool = AtomicBool::new(false);
static REQUESTS_OF_REGION: AtomicU64 = AtomicU64::new(0);

fn count() {
    REQUESTS.with(|requests| requests.set(requests.get().map(|n| n + 1)));
    if WATCHES_REGION.load(Relaxed) {
        let mut name = [0_u8; 16];
        // SAFETY: a thread's name has 16 bytes at most.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        REQUESTS_OF_REGION.fetch_add(name.starts_with(b"pagefold-").into(), Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator as it is; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's duty.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's duty.
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
    WATCHES_REGION.store(true, Relaxed);
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
    WATCHES_REGION.store(false, Relaxed);
    let requests = REQUESTS.with(|requests| requests.take().unwrap());
    std::hint::black_box(sum);
    let stats = region.stats();
    assert!(stats.faults.folded > 1000 && stats.faults.failed == 0, "{stats:#?}");
    requests
}

#[test]
fn faults_ask_the_allocator_for_nothing() {
    if let Err(e) = pagefold_sys::uffd::kernel_features() {
        pagefold_testkit::skipped!("faults_ask_the_allocator_for_nothing: {e}");
        return;
    }
    for eviction in [Eviction::Auto, Eviction::Move, Eviction::Protect] {
        for codec in ["lz4", "zstd", "lzo-rle"] {
            for parks in [false, true] {
                let backing = || {
                    let backing = Arc::new(MemoryBacking::new(64 << 20));
                    ParkConfig { backing, layout: LayoutKind::Log }
                };
                let config = RegionConfig {
                    eviction,
                    codec: CodecSpec::named(codec),
                    max_pool_bytes: parks.then_some(2 << 20),
                    backing: parks.then(backing),
                    ..RegionConfig::new(12 << 20, 1 << 20)
                };
                assert_eq!(requests_of_faults(config), 0, "{eviction:?} {codec} parks {parks}");
                let of_region = REQUESTS_OF_REGION.swap(0, Relaxed);
                // More than a thousand pages were folded. A thread that begins only then asks for a little.
                assert!(of_region < 50 || parks, "{of_region} of the region's threads: {eviction:?} {codec}");
            }
        }
    }
}
