//! A store on a backing, for tests of parking.

use super::Random;
use pagefold_backing::Backing;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::parking::{LayoutKind, ParkConfig, ParkReport, ParkStats, Parking, Selection, Which};
use pagefold_store::{MemLimit, Store, StoreConfig};
use std::ops::ControlFlow;
use std::sync::Arc;

/// First byte of segments and blocks.
pub const DATA_START: u64 = 1 << 20;
/// Segments of a backing of less than 64 MiB, bytes.
pub const SEGMENT_LEN: u64 = 256 << 10;
pub const LAYOUTS: [LayoutKind; 2] = [LayoutKind::Log, LayoutKind::Blocks];

/// Bytes of a backing with so many small segments.
pub const fn segments(count: u64) -> usize {
    (DATA_START + count * SEGMENT_LEN) as usize
}

/// A store of `pages` pages on a backing; nothing promotes unless a test says so.
pub fn store_on(backing: Arc<dyn Backing>, layout: LayoutKind, pages: u64) -> Store {
    let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(pages * PAGE_SIZE as u64) };
    let mut store = Store::new(config).unwrap();
    store.attach(ParkConfig { backing, layout }).unwrap();
    parking(&store).settings().set_promote(false);
    store
}

pub fn parking(store: &Store) -> &Parking {
    store.parking().unwrap()
}

pub fn stats(store: &Store) -> ParkStats {
    parking(store).stats()
}

/// Parks pages `first` to `last`, both included.
pub fn park(store: &Store, first: u64, last: u64) -> ParkReport {
    let selection = Selection::pages(PageIndex(first), PageIndex(last)).unwrap();
    store.park(&selection, &mut |_| ControlFlow::Continue(())).unwrap()
}

pub fn park_all(store: &Store) -> ParkReport {
    store.park(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(())).unwrap()
}

/// A page that does not compress, and says whose it is: index and version first.
pub fn raw_page(index: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut random = Random(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (version << 32) | 1);
    let mut page = [0; PAGE_SIZE];
    page.chunks_mut(8).for_each(|c| c.copy_from_slice(&random.next().to_le_bytes()));
    page[..8].copy_from_slice(&index.to_le_bytes());
    page[8..16].copy_from_slice(&version.to_le_bytes());
    page
}

/// A page that compresses to about a third, with the same beginning.
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

/// With everything discarded nothing may be left but what heads (two) and windows (four) hold.
pub fn assert_all_free(store: &Store) {
    discard_all(store);
    let stats = stats(store);
    assert_eq!((stats.bd.bd_count, stats.parked_bytes), (0, 0));
    let kept = match parking(store).layout() {
        LayoutKind::Log => 6 * SEGMENT_LEN,
        LayoutKind::Blocks => 0,
    };
    assert!(stats.free_bytes + kept >= stats.capacity_bytes, "{stats:?}");
    // Counters that were taken from twice show as zero until something is added.
    (0..3).for_each(|i| write(store, i, &raw_page(i, 1)));
    let mm = store.stats().mm;
    assert_eq!((mm.orig_data_size, mm.compr_data_size, mm.huge_pages), (3 * 4096, 3 * 4096, 3));
    discard_all(store);
}
