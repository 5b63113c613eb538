//! The memory of an empty store. A separate process, because the test reads its own RSS.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_store::{Store, StoreConfig};

/// Resident set of this process, bytes (`proc(5)`, statm, second field, in pages of the machine).
fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn creating_100_gib_grows_rss_by_less_than_16_mib() {
    let before = rss_bytes();
    let store = Store::new(StoreConfig::new(100 << 30)).unwrap();
    // Reading, discarding and zeroing pages that were never written takes no memory either.
    let mut buf = vec![1; 1 << 20];
    for gib in 0..100u64 {
        store.read(gib << 30, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 0));
    }
    store.discard(0, 100 << 30).unwrap();
    store.write_zeroes(4097, (100 << 30) - 5000).unwrap();
    let grown = rss_bytes().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes");
    assert_eq!(store.stats().mm.orig_data_size, 0);
}
