//! First tests: a region keeps its contents within its limit.

use crate::support::can;
use pagefold_memory::{Eviction, Region, RegionConfig, Service};

fn fill_and_read(test: &str, config: RegionConfig) {
    if !can(test, config.service, config.eviction) {
        return;
    }
    let mut region = Region::new(config).unwrap();
    let pages = region.len_bytes() / 4096;
    for (i, page) in region.bytes_mut().chunks_mut(4096).enumerate() {
        page[..8].copy_from_slice(&(i as u64 * 7).to_le_bytes());
        page[4088..].copy_from_slice(&(i as u64).to_le_bytes());
    }
    for _ in 0..2 {
        for (i, page) in region.bytes().chunks(4096).enumerate() {
            assert_eq!(page[..8], (i as u64 * 7).to_le_bytes(), "{i}");
            assert_eq!(page[4088..], (i as u64).to_le_bytes(), "{i}");
        }
    }
    let mut x = 1_u64;
    for _ in 0..pages {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let i = (x >> 33) as usize % pages;
        assert_eq!(region.bytes()[i * 4096..][..8], (i as u64 * 7).to_le_bytes(), "{i}");
    }
    let stats = region.stats();
    eprintln!("{stats:#?}");
    assert!(stats.memory.resident_max <= stats.memory.limit, "{stats:?}");
    assert!(stats.folded_bytes > 0);
}

#[test]
fn signal_move() {
    fill_and_read("signal_move", RegionConfig::new(64 << 20, 8 << 20));
}

#[test]
fn signal_protect() {
    let config = RegionConfig { eviction: Eviction::Protect, ..RegionConfig::new(64 << 20, 8 << 20) };
    fill_and_read("signal_protect", config);
}

#[test]
fn handlers_move() {
    let config = RegionConfig { service: Service::HandlerThreads, ..RegionConfig::new(16 << 20, 2 << 20) };
    fill_and_read("handlers_move", config);
}

#[test]
fn handlers_protect() {
    let config = RegionConfig {
        service: Service::HandlerThreads,
        eviction: Eviction::Protect,
        ..RegionConfig::new(16 << 20, 2 << 20)
    };
    fill_and_read("handlers_protect", config);
}

#[test]
fn reading_through_leaves_pages_resident() {
    if !can("reading_through_leaves_pages_resident", Service::FaultingThread, Eviction::Auto) {
        return;
    }
    let mut region = Region::new(RegionConfig::new(256 << 20, 64 << 20)).unwrap();
    let pages = region.len_bytes() / 4096;
    for (i, page) in region.bytes_mut().chunks_mut(4096).enumerate() {
        page[..8].copy_from_slice(&(i as u64 * 7).to_le_bytes());
    }
    let read_through = || {
        let came_in = |region: &Region| region.stats().faults.folded + region.stats().neighbours_brought;
        let before = came_in(&region);
        let sum = region.bytes().chunks(4096).fold(0, |sum, page| sum + u64::from(page[0]));
        assert!(sum > 0);
        came_in(&region) - before
    };
    // The pages that were written last are resident at first.
    read_through();
    let came_in = (0..3).map(|_| read_through()).min().unwrap();
    assert!(came_in * 20 < pages as u64 * 19, "{came_in} of {pages} pages came in");
}
