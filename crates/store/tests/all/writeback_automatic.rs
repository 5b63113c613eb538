//! A store with a writeback thread and a limit far below the written data: without a request, no write fails and no
//! page is lost.

use crate::support::{Random, page};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{ErrorLayer, When};
use pagefold_page::PAGE_SIZE;
use pagefold_store::writeback::{Condition, LayoutKind, WritebackConfig};
use pagefold_store::{MemLimit, SourceError, Store, StoreConfig, StoreError, WritebackThread};
use std::sync::Arc;

const PAGES: u64 = 4096;
const LIMIT: u64 = 2 << 20;

fn store(layout: LayoutKind, backing: Arc<dyn pagefold_backing::Backing>) -> Arc<Store> {
    let len_bytes = PAGES * PAGE_SIZE as u64;
    let config = StoreConfig { mem_limit: MemLimit::Bytes(LIMIT), ..StoreConfig::new(len_bytes) };
    let mut store = Store::new(config).unwrap();
    store.attach(WritebackConfig { backing, layout }).unwrap();
    Arc::new(store)
}

/// Sleeps for ten milliseconds and returns false.
fn wait_a_little() -> bool {
    std::thread::sleep(std::time::Duration::from_millis(10));
    false
}

fn seed(index: u64) -> u64 {
    index * 8 + 2 + index % 6
}

#[test]
fn four_times_the_limit_is_written_and_read_back() {
    for layout in [LayoutKind::Log, LayoutKind::Blocks] {
        let store = store(layout, Arc::new(MemoryBacking::new(24 << 20)));
        let writeback_thread = WritebackThread::start(store.clone()).unwrap();
        std::thread::scope(|s| {
            for part in 0..4 {
                let store = &store;
                s.spawn(move || {
                    let mut random = Random(part + 1);
                    for index in (part..PAGES).step_by(4) {
                        store.write(index * 4096, &page(seed(index))).unwrap();
                        let back = random.below(index / 4 + 1) * 4 + part;
                        let mut got = [0; PAGE_SIZE];
                        store.read(back * 4096, &mut got).unwrap();
                        assert!(got == page(seed(back)), "page {back} of {layout:?}");
                    }
                });
            }
        });
        assert!(store.stats().mm.mem_used_max <= LIMIT);
        let stats = store.writeback().unwrap().stats();
        assert!(stats.bd.bd_count > PAGES / 4, "{stats:?}");
        assert_eq!((stats.failed_pages, stats.unreadable_pages, stats.corrupt_pages), (0, 0, 0));
        drop(writeback_thread);
        assert_eq!(store.writeback().unwrap().condition(), Condition::Off);
        for index in 0..PAGES {
            let mut got = [0; PAGE_SIZE];
            store.read(index * 4096, &mut got).unwrap();
            assert!(got == page(seed(index)), "page {index} of {layout:?}");
        }
    }
}

#[test]
fn a_full_backing_and_a_failing_one_refuse_writes_and_lose_nothing() {
    let small = Arc::new(MemoryBacking::new(5 << 19));
    let failing = Arc::new(ErrorLayer::new(MemoryBacking::new(24 << 20)));
    let control = failing.control();
    for (is_failing, backing) in [(false, small as Arc<dyn pagefold_backing::Backing>), (true, failing)] {
        let store = store(LayoutKind::Log, backing);
        if is_failing {
            control.fail_writes(When::Always, libc::EIO);
        }
        let writeback_thread = WritebackThread::start(store.clone()).unwrap();
        let refused = (0..PAGES).find_map(|index| {
            store.write(index * 4096, &page(seed(index))).err().map(|error| (index, error))
        });
        let (count, error) = refused.unwrap();
        assert!(matches!(error, StoreError::NoMemory { source: SourceError::Limit { .. }, .. }), "{error}");
        // Between two tries the condition is the cause; during one it is `Writeback`.
        let says = || match store.writeback().unwrap().condition() {
            Condition::Failing(_) => is_failing,
            Condition::Full => !is_failing,
            other => {
                assert_eq!(other, Condition::Writeback);
                false
            }
        };
        assert!((0..6000).any(|_| says() || wait_a_little()));
        for index in 0..count {
            let mut got = [0; PAGE_SIZE];
            store.read(index * 4096, &mut got).unwrap();
            assert!(got == page(seed(index)), "page {index}");
        }
        // When the cause is gone, writeback continues by itself.
        if is_failing {
            control.clear();
            let mut tries = 0;
            while store.write(count * 4096, &page(seed(count))).is_err() {
                tries += 1;
                assert!(tries < 6000, "{:?}", store.writeback().unwrap().condition());
                wait_a_little();
            }
        }
        drop(writeback_thread);
    }
}
