//! Stores in memory that outlives its process: the next process finds the same pages, counters and memory.

use crate::support::{Random, page};
use pagefold_store::backing::{Backing, MemoryBacking};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackConfig};
use pagefold_store::{CodecSpec, MemLimit, Recovered, Stats, Store, StoreConfig, StoreError};
use pagefold_sys::sharedmem::SharedMemory;
use std::ops::ControlFlow;
use std::sync::Arc;

const PAGES: u64 = 2000;

fn config() -> StoreConfig {
    StoreConfig {
        further_codecs: [Some(CodecSpec::named("zstd")), None, None],
        mem_limit: MemLimit::Off,
        access_times: true,
        ..StoreConfig::new(PAGES * 4096)
    }
}

fn read_all(store: &Store) -> Vec<[u8; 4096]> {
    (0..PAGES)
        .map(|index| {
            let mut page = [1; 4096];
            store.read(index * 4096, &mut page).unwrap();
            page
        })
        .collect()
}

/// The counters that do not depend on the process.
fn lasting(stats: Stats) -> [u64; 8] {
    let Stats { mm, memory, recompress, .. } = stats;
    [
        mm.orig_data_size,
        mm.compr_data_size,
        mm.same_pages,
        mm.huge_pages,
        memory.objects,
        memory.slots,
        recompress.pages_now[0],
        recompress.pages_now[1],
    ]
}

/// The store that the next process makes, and how much memory there is beyond what it counts.
fn recover(memory: &SharedMemory, backing: Option<Arc<dyn Backing>>) -> (Store, Recovered) {
    let (store, recovered) = Store::recover(config(), memory.try_clone().unwrap(), backing).unwrap();
    let counted = store.stats().memory.total();
    let used = memory.used_bytes().unwrap();
    // Header, notes and redo, the directory, and sequence numbers.
    assert!((counted..=counted + 5 * 4096).contains(&used), "{used} bytes used, {counted} counted");
    (store, recovered)
}

fn change(store: &Store, model: &mut [[u8; 4096]], rng: &mut Random, count: u32) {
    for _ in 0..count {
        let index = rng.below(PAGES);
        match rng.below(5) {
            0 => {
                store.discard(index * 4096, 4096).unwrap();
                model[index as usize].fill(0);
            }
            _ => {
                let page = page(rng.next());
                store.write(index * 4096, &page).unwrap();
                model[index as usize] = page;
            }
        }
    }
}

#[test]
fn the_next_process_finds_the_same_pages_and_goes_on() {
    let mut rng = Random(7);
    let memory = SharedMemory::new().unwrap();
    let mut store = Store::new_kept(config(), memory.try_clone().unwrap()).unwrap();
    let mut model = vec![[0; 4096]; PAGES as usize];
    for round in 0..12 {
        change(&store, &mut model, &mut rng, 3000);
        if round % 3 == 1 {
            store.compact();
        }
        let before = lasting(store.stats());
        drop(store);
        let found;
        (store, found) = recover(&memory, None);
        assert_eq!(found.lost_pages, 0);
        assert!(found.pages > PAGES / 2);
        assert_eq!(lasting(store.stats()), before, "round {round}");
        assert!(read_all(&store) == model, "round {round}");
    }
    store.discard(0, PAGES * 4096).unwrap();
    assert_eq!(store.stats().mm.mem_used_total, 0);
}

#[test]
fn pages_on_a_backing_stay_there() {
    for layout in [LayoutKind::Log, LayoutKind::Blocks] {
        let mut rng = Random(8);
        let memory = SharedMemory::new().unwrap();
        let backing: Arc<dyn Backing> = Arc::new(MemoryBacking::new(64 << 20));
        let mut store = Store::new_kept(config(), memory.try_clone().unwrap()).unwrap();
        store.attach(WritebackConfig { backing: backing.clone(), layout }).unwrap();
        let mut model = vec![[0; 4096]; PAGES as usize];
        for round in 0..8 {
            change(&store, &mut model, &mut rng, 1000);
            if round % 2 == 0 {
                store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(())).unwrap();
                change(&store, &mut model, &mut rng, 100);
            }
            let before = (lasting(store.stats()), store.writeback().unwrap().stats().bd);
            drop(store);
            let found;
            (store, found) = recover(&memory, Some(backing.clone()));
            assert_eq!(found.lost_pages, 0);
            let after = (lasting(store.stats()), store.writeback().unwrap().stats().bd);
            assert_eq!(after.0, before.0, "round {round}");
            assert_eq!(after.1.bd_count, before.1.bd_count, "round {round}");
            assert!(read_all(&store) == model, "round {round}");
        }
    }
}

#[test]
fn another_store_or_backing_is_refused() {
    let memory = SharedMemory::new().unwrap();
    let refused = |config: StoreConfig, backing| {
        let recovered = Store::recover(config, memory.try_clone().unwrap(), backing);
        recovered.err().map(|e| e.to_string()).unwrap()
    };
    assert!(refused(config(), None).contains("too few"));
    drop(Store::new_kept(config(), memory.try_clone().unwrap()).unwrap());
    assert!(refused(StoreConfig::new(4096), None).contains("that of a store of"));
    assert!(refused(config(), Some(Arc::new(MemoryBacking::new(64 << 20)))).contains("backing"));
    for codec in [CodecSpec::named("zstd"), CodecSpec { dictionary: Some(vec![7; 99]), ..config().codec }] {
        assert!(refused(StoreConfig { codec, ..config() }, None).contains("other codecs"));
    }
    assert!(
        refused(StoreConfig { further_codecs: Default::default(), ..config() }, None)
            .contains("other codecs")
    );
    let (mut store, _) = recover(&memory, None);
    let backing: Arc<dyn Backing> = Arc::new(MemoryBacking::new(64 << 20));
    store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
    drop(store);
    assert!(refused(config(), None).contains("backing"));
    assert!(refused(config(), Some(Arc::new(MemoryBacking::new(32 << 20)))).contains("not the backing"));
    let ordinary = SharedMemory::new().unwrap();
    ordinary.set_len(1 << 20).unwrap();
    let error = Store::recover(config(), ordinary, None).err().unwrap();
    assert!(matches!(&error, StoreError::Unrecoverable(why) if why.contains("header")), "{error}");
}
