//! Incremental saves: a full one and those that follow it are the contents at the moment of the last, whatever changed, failed
//! or was restarted in between.

use super::save::{PAGE, PAGES, Saved, Target, assert_one_moment, beside_writers, change, config, store};
use crate::support::rig::LAYOUTS;
use crate::support::{PlainBytes, Random, page};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::{MemLimit, SaveDigest, SaveError, Store, WritebackThread};
use pagefold_sys::sharedmem::SharedMemory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The saves of one disk that a restore reads, together.
#[derive(Default)]
struct Chained {
    pages: BTreeMap<u64, Saved>,
    /// The digest of the last one, and the number of all.
    last: Option<SaveDigest>,
    count: u8,
}

impl Chained {
    /// Adds a save that is complete, and returns its digest.
    fn add(&mut self, target: Target, is_incremental: bool) -> SaveDigest {
        if !is_incremental {
            self.pages.clear();
        }
        for (index, saved) in target.0 {
            match saved {
                Saved::SameFilled(0) => drop(self.pages.remove(&index)),
                saved => drop(self.pages.insert(index, saved)),
            }
        }
        self.count += 1;
        let digest = [self.count; 32];
        self.last = Some(digest);
        digest
    }

    fn bytes(&self) -> Vec<u8> {
        Target(self.pages.clone()).bytes()
    }
}

/// Saves everything, without changes meanwhile. Returns whether the save was incremental, and its pages.
fn save(store: &Store, chained: &mut Chained, since: Option<SaveDigest>) -> (bool, Vec<u64>) {
    let mut save = store.begin_tracked_save(since).unwrap();
    let mut target = Target::default();
    while target.step(&mut save).unwrap() {}
    let (is_incremental, pages) = (save.is_incremental(), target.0.keys().copied().collect());
    save.complete(chained.add(target, is_incremental));
    (is_incremental, pages)
}

/// The cases that the seeds had, so that none is missing.
#[derive(Debug, Default)]
struct Seen {
    incremental: u32,
    full: u32,
    failed: u32,
    untracked: u32,
    restarted: u32,
}

/// Random changes, saves, failures in the middle of saves, and deaths of the process, against plain bytes.
fn run(seed: u64, mut store: Store, memory: Option<SharedMemory>, limit: MemLimit, seen: &mut Seen) {
    let mut model = PlainBytes(vec![0; (PAGES * PAGE) as usize]);
    let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
    let (mut chained, mut is_known) = (Chained::default(), false);
    (0..300).for_each(|_| change(&store, &mut model, &mut random));
    for round in 0..25 {
        (0..random.below(60)).for_each(|_| change(&store, &mut model, &mut random));
        if let (Some(memory), 0) = (&memory, random.below(8)) {
            std::mem::forget(store);
            store = Store::recover(config(limit), memory.try_clone().unwrap(), None).unwrap().0;
            is_known = false;
            seen.restarted += 1;
        }
        let tracked = match random.below(8) {
            0 => None,
            1 => Some(None),
            2 => Some(Some([0xee; 32])),
            _ => Some(chained.last),
        };
        let mut save = match tracked {
            None => store.begin_save(),
            Some(since) => store.begin_tracked_save(since),
        }
        .unwrap();
        let is_incremental = is_known && tracked.is_some_and(|since| since == chained.last);
        assert_eq!(save.is_incremental(), is_incremental, "seed {seed}, round {round}");
        let before = model.0.clone();
        let mut target = Target::default();
        let fails = random.below(4) == 0;
        let is_whole = loop {
            (0..random.below(40)).for_each(|_| change(&store, &mut model, &mut random));
            if !target.step(&mut save).unwrap() {
                break true;
            }
            if fails && random.below(3) == 0 {
                break false;
            }
        };
        // The target may fail after the last page, too.
        if fails || !is_whole {
            seen.failed += 1;
            continue;
        }
        save.end_capture();
        (0..random.below(20)).for_each(|_| change(&store, &mut model, &mut random));
        if tracked.is_none() {
            assert!(target.bytes() == before);
            seen.untracked += 1;
            continue;
        }
        save.complete(chained.add(target, is_incremental));
        is_known = true;
        *(if is_incremental { &mut seen.incremental } else { &mut seen.full }) += 1;
        assert!(chained.bytes() == before, "seed {seed}, round {round}, incremental: {is_incremental}");
    }
}

#[test]
fn a_chain_has_the_contents_of_its_last_save() {
    let mut seen = Seen::default();
    for seed in 1..=40 {
        let limit = if seed % 2 == 0 { MemLimit::Off } else { MemLimit::Bytes(300 << 10) };
        let memory = SharedMemory::new().unwrap();
        let kept = Store::new_kept(config(limit), memory.try_clone().unwrap()).unwrap();
        run(seed, kept, Some(memory), limit, &mut seen);
    }
    for seed in 41..=50 {
        for (layout, limit) in LAYOUTS.map(|layout| (layout, MemLimit::Bytes(300 << 10))) {
            run(seed, store(Some(layout), limit), None, limit, &mut seen);
        }
    }
    let Seen { incremental, full, failed, untracked, restarted } = seen;
    assert!(incremental > 300 && full > 100 && failed > 100 && untracked > 30 && restarted > 30, "{seen:?}");
}

#[test]
fn an_incremental_save_has_the_changed_pages_only() {
    let store = store(None, MemLimit::Off);
    let mut chained = Chained::default();
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index * 8 + 2)).unwrap());
    assert_eq!(save(&store, &mut chained, None), (false, (0..PAGES).collect()));
    let last = chained.last;
    assert_eq!(save(&store, &mut chained, last), (true, vec![]));
    store.write(7 * PAGE + 100, &[1; 50]).unwrap();
    store.discard(100 * PAGE, 2 * PAGE).unwrap();
    store.write_zeroes(63 * PAGE + 4000, 200).unwrap();
    store.write_same_filled(PageIndex(PAGES - 1), 5).unwrap();
    let last = chained.last;
    assert_eq!(save(&store, &mut chained, last), (true, vec![7, 63, 64, 100, 101, PAGES - 1]));
    let mut now = vec![0; (PAGES * PAGE) as usize];
    store.read(0, &mut now).unwrap();
    assert!(chained.bytes() == now);
    // A save of another kind changes nothing for the chain; one that another caller tracks ends it.
    Target::default().finish(store.begin_save().unwrap());
    store.write(0, &[9; PAGE_SIZE]).unwrap();
    let last = chained.last;
    assert_eq!(save(&store, &mut chained, last), (true, vec![0]));
    save(&store, &mut Chained { count: 100, ..Chained::default() }, None);
    let last = chained.last;
    assert_eq!(save(&store, &mut chained, last).1.len() as u64, PAGES - 2);
}

/// A failed save leaves its pages to the next one, also if nothing was saved before it.
#[test]
fn the_pages_of_a_failed_save_are_in_the_next_one() {
    let store = store(None, MemLimit::Off);
    let mut chained = Chained::default();
    store.write(0, &page(2)).unwrap();
    drop(store.begin_tracked_save(None).unwrap());
    assert_eq!(save(&store, &mut chained, Some([1; 32])), (false, vec![0]));
    store.write(9 * PAGE, &page(3)).unwrap();
    let failed = store.begin_tracked_save(chained.last).unwrap();
    assert!(matches!(store.begin_tracked_save(None), Err(SaveError::Busy)));
    store.write(11 * PAGE, &page(3)).unwrap();
    drop(failed);
    let last = chained.last;
    assert_eq!(save(&store, &mut chained, last), (true, vec![9, 11]));
}

/// Threads write while incremental saves run one after the other: no change is lost between two of them.
#[test]
fn chains_beside_threads_are_consistent() {
    for limit in [MemLimit::Off, MemLimit::Bytes(500 << 10)] {
        let layout = (limit != MemLimit::Off).then_some(LAYOUTS[0]);
        let store = Arc::new(store(layout, limit));
        let thread = layout.map(|_| WritebackThread::start(store.clone()).unwrap());
        let mut chained = Chained::default();
        // Fewer than all pages, so that a save that misses one is noticed.
        beside_writers(&store, 100, || {
            let last = chained.last;
            save(&store, &mut chained, last);
            assert_one_moment(&chained.bytes());
        });
        drop(thread);
        let last = chained.last;
        assert!(save(&store, &mut chained, last).0);
        let mut now = vec![0; (PAGES * PAGE) as usize];
        store.read(0, &mut now).unwrap();
        assert!(chained.bytes() == now);
    }
}
