//! A store on a backing, for tests of writeback.

use super::Random;
use pagefold_backing::layer::{DelayLayer, DelayOptions, SystemClock};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::writeback::{
    LayoutKind, Selection, Which, Writeback, WritebackConfig, WritebackReport, WritebackStats,
};
use pagefold_store::{MemLimit, Store, StoreConfig};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// First byte of segments and blocks.
pub const DATA_START: u64 = 1 << 20;
/// Segments of a backing of less than 64 MiB, bytes.
pub const SEGMENT_LEN: u64 = 256 << 10;
pub const LAYOUTS: [LayoutKind; 2] = [LayoutKind::Log, LayoutKind::Blocks];

/// Bytes of a backing with `count` small segments.
pub const fn segments(count: u64) -> usize {
    (DATA_START + count * SEGMENT_LEN) as usize
}

/// Creates a store of `pages` pages on a backing, with promotion disabled.
pub fn store_on(backing: Arc<dyn Backing>, layout: LayoutKind, pages: u64) -> Store {
    let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(pages * PAGE_SIZE as u64) };
    let mut store = Store::new(config).unwrap();
    store.attach(WritebackConfig { backing, layout }).unwrap();
    writeback(&store).settings().promote.store(false);
    store
}

pub fn writeback(store: &Store) -> &Writeback {
    store.writeback().unwrap()
}

pub fn stats(store: &Store) -> WritebackStats {
    writeback(store).stats()
}

/// Writes back pages `first` to `last`, both included.
pub fn write_back(store: &Store, first: u64, last: u64) -> WritebackReport {
    let selection = Selection::pages(PageIndex(first), PageIndex(last)).unwrap();
    store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap()
}

pub fn write_back_all(store: &Store) -> WritebackReport {
    store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// An incompressible page that begins with its index and version.
pub fn raw_page(index: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut random = Random(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (version << 32) | 1);
    let mut page = [0; PAGE_SIZE];
    page.chunks_mut(8).for_each(|c| c.copy_from_slice(&random.next().to_le_bytes()));
    page[..8].copy_from_slice(&index.to_le_bytes());
    page[8..16].copy_from_slice(&version.to_le_bytes());
    page
}

/// A page that compresses to about a third, and also begins with its index and version.
pub fn soft_page(index: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut page = raw_page(index, version);
    page[1300..].iter_mut().enumerate().for_each(|(i, b)| *b = (i / 11) as u8);
    page
}

pub fn write(store: &Store, index: u64, page: &[u8; PAGE_SIZE]) {
    store.write(index * PAGE_SIZE as u64, page).unwrap();
}

pub fn read(store: &Store, index: u64) -> Result<[u8; PAGE_SIZE], pagefold_store::StoreError> {
    let mut page = [0xee; PAGE_SIZE];
    store.read(index * PAGE_SIZE as u64, &mut page).map(|()| page)
}

pub fn discard_all(store: &Store) {
    store.discard(0, store.len_bytes()).unwrap();
}

/// Discards all pages and checks that all space is free, except for segments of the heads (two) and of cached
/// read-ahead (four).
pub fn assert_all_free(store: &Store) {
    discard_all(store);
    let stats = stats(store);
    assert_eq!((stats.bd.bd_count, stats.written_back_bytes), (0, 0));
    let in_use_max = match writeback(store).layout() {
        LayoutKind::Log => 6 * SEGMENT_LEN,
        LayoutKind::Blocks => 0,
    };
    assert!(stats.free_bytes + in_use_max >= stats.capacity_bytes, "{stats:?}");
    // A counter that was decremented twice would read 0 until something is added.
    (0..3).for_each(|i| write(store, i, &raw_page(i, 1)));
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.huge_pages), (3 * 4096, 3 * 4096, 3));
    discard_all(store);
}

/// Runs a stress test on media that answer at once and are small enough for the cleaner to work all the time.
pub fn on_prompt_media(stress: impl Fn(LayoutKind, Arc<dyn Backing>)) {
    stress(LayoutKind::Log, Arc::new(MemoryBacking::new(segments(7))));
    stress(LayoutKind::Blocks, Arc::new(MemoryBacking::new(segments(6) + 100 * PAGE_SIZE)));
}

/// Runs a stress test on media that answer late and out of order.
pub fn on_late_media(stress: impl Fn(LayoutKind, Arc<dyn Backing>)) {
    for layout in LAYOUTS {
        let (delay, jitter) = (Duration::from_micros(20), Duration::from_micros(200));
        let options = DelayOptions { delay, jitter, depth: 8, ..DelayOptions::default() };
        let clock = Arc::new(SystemClock::default());
        stress(layout, Arc::new(DelayLayer::new(MemoryBacking::new(segments(7)), options, clock)));
    }
}
