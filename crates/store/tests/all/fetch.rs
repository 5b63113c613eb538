//! A restore that goes on while the store is used: each page has the saved contents until it is changed, whatever happens
//! meanwhile, and however often the process dies.

use crate::save::{PAGE, PAGES, Saved, Target, config};
use crate::support::{PlainBytes, Random, page};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::{
    FetchedContents, MemLimit, PageSource, SaveError, SavedContents, Store, StoreError, TakeFetched,
};
use pagefold_sys::sharedmem::SharedMemory;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Pages that lie beside each other in the source.
const BESIDE: u64 = 8;

/// Saved pages; some cannot be read.
struct Source {
    pages: BTreeMap<u64, Saved>,
    /// Pages of which this bit of their number is set cannot be read now; 0: all can.
    broken_bit: AtomicU64,
    fetches: AtomicU64,
}

impl Source {
    fn is_broken(&self, index: u64) -> bool {
        index & self.broken_bit.load(SeqCst) != 0
    }
}

impl PageSource for Source {
    fn fetch(&self, index: PageIndex, take: &mut TakeFetched) -> io::Result<()> {
        self.fetches.fetch_add(1, SeqCst);
        if self.is_broken(index.0) {
            return Err(io::Error::other("a damaged block"));
        }
        if !self.pages.contains_key(&index.0) {
            return Ok(());
        }
        let first = index.0 / BESIDE * BESIDE;
        for (beside, saved) in self.pages.range(first..first + BESIDE) {
            let contents = match saved {
                Saved::Compressed(priority, bytes) => {
                    FetchedContents::Saved(SavedContents::Compressed { priority: *priority, bytes })
                }
                // As those of another codec.
                Saved::Raw(page) if beside % 2 == 0 => FetchedContents::Plain(page),
                Saved::Raw(page) => FetchedContents::Saved(SavedContents::Raw(page)),
                Saved::SameFilled(word) => FetchedContents::Saved(SavedContents::SameFilled(*word)),
                Saved::Lost => FetchedContents::Saved(SavedContents::Lost),
            };
            if !self.is_broken(*beside) {
                take(PageIndex(*beside), contents);
            }
        }
        Ok(())
    }

    fn next_page(&self, range: Range<PageIndex>) -> Option<PageIndex> {
        if range.start >= range.end {
            return None;
        }
        self.pages.range(range.start.0..range.end.0).next().map(|(index, _)| PageIndex(*index))
    }
}

/// A saved disk, and its bytes.
fn saved() -> (Arc<Source>, PlainBytes) {
    let store = Store::new(config(MemLimit::Off)).unwrap();
    // Whole chunks of the table are missing too.
    for index in (0..PAGES).filter(|index| index % 3 != 0 && !(64..400).contains(index)) {
        store.write(index * PAGE, &page(index)).unwrap();
    }
    let target = Target::default().finish(store.begin_save().unwrap());
    let bytes = target.bytes();
    let (broken_bit, fetches) = (AtomicU64::new(0), AtomicU64::new(0));
    (Arc::new(Source { pages: target.0, broken_bit, fetches }), PlainBytes(bytes))
}

/// Fetches all that can be. Returns whether that was all.
fn fetch_all(store: &Store, source: &Source) -> bool {
    let mut is_whole = true;
    for index in source.pages.keys() {
        is_whole &= store.fetch_ahead(PageIndex(*index)).is_ok();
    }
    is_whole
}

#[test]
fn pages_are_the_saved_ones_until_they_change_whenever_the_process_dies() {
    for seed in 1..=6 {
        let (source, mut truth) = saved();
        let mut rng = Random(seed * 0x1234_5677);
        let memory = SharedMemory::new().unwrap();
        let mut store = Store::new_kept(config(MemLimit::Off), memory.try_clone().unwrap()).unwrap();
        store.begin_restore(source.clone());
        let len = PAGES * PAGE;
        for step in 0..3000 {
            let offset = rng.below(len);
            let count = (rng.below(3 * PAGE) + 1).min(len - offset);
            let bytes = offset as usize..(offset + count) as usize;
            let (first, end) = (offset / PAGE, (offset + count).div_ceil(PAGE));
            let may_fail = (first..end).any(|index| source.is_broken(index));
            match rng.below(12) {
                0..=3 => {
                    let mut read = vec![1; count as usize];
                    match store.read(offset, &mut read) {
                        Ok(()) => assert!(read == truth.0[bytes], "step {step}: {offset}+{count}"),
                        Err(e) => assert!(may_fail && matches!(e, StoreError::Fetch { .. }), "{e}"),
                    }
                }
                4 => {
                    let whole = page(rng.next());
                    store.write(first * PAGE, &whole).unwrap();
                    truth.write(first * PAGE, &whole);
                }
                5 => {
                    let part = (PAGE - offset % PAGE).min(count) as usize;
                    let data = &page(rng.next() | 2)[..part];
                    match store.write(offset, data) {
                        Ok(()) => truth.write(offset, data),
                        Err(e) => assert!(may_fail && matches!(e, StoreError::Fetch { .. }), "{e}"),
                    }
                }
                6 => {
                    store.discard(offset, count).unwrap();
                    truth.discard(offset, count);
                }
                7 if !may_fail => {
                    store.write_zeroes(offset, count).unwrap();
                    truth.write_zeroes(offset, count);
                }
                8 => {
                    let (run, is_empty) = store.extent(offset, count).unwrap();
                    let run = &truth.0[bytes][..run as usize];
                    assert!(!run.is_empty() && (!is_empty || run.iter().all(|byte| *byte == 0)));
                }
                9 => drop(store.fetch_ahead(PageIndex(first))),
                10 if step % 4 == 0 => {
                    let is_restoring = store.is_restoring();
                    drop(store);
                    let memory = memory.try_clone().unwrap();
                    let (next, found) = Store::recover(config(MemLimit::Off), memory, None).unwrap();
                    assert_eq!((found.is_restoring, found.lost_pages), (is_restoring, 0));
                    if is_restoring {
                        assert!(matches!(next.begin_save().err(), Some(SaveError::Restoring)));
                        next.begin_restore(source.clone());
                    }
                    store = next;
                }
                11 if step % 64 == 0 => source.broken_bit.store(1 << rng.below(12), SeqCst),
                11 if step > 2000 => {
                    source.broken_bit.store(0, SeqCst);
                    if store.is_restoring() {
                        assert!(fetch_all(&store, &source));
                        store.end_restore();
                    }
                }
                _ => {}
            }
        }
        source.broken_bit.store(0, SeqCst);
        assert!(fetch_all(&store, &source));
        store.end_restore();
        let fetches = source.fetches.load(SeqCst);
        let mut read = vec![1; len as usize];
        store.read(0, &mut read).unwrap();
        assert!(read == truth.0 && source.fetches.load(SeqCst) == fetches);
        // Nothing is left that a save could miss.
        assert!(Target::default().finish(store.begin_save().unwrap()).bytes() == truth.0);
    }
}

/// A page that the store discards when the restore has ended stays so for the next process.
#[test]
fn a_discarded_page_does_not_come_back() {
    let (source, _) = saved();
    let memory = SharedMemory::new().unwrap();
    for ends in [false, true] {
        memory.set_len(0).unwrap();
        let store = Store::new_kept(config(MemLimit::Off), memory.try_clone().unwrap()).unwrap();
        store.begin_restore(source.clone());
        if ends {
            assert!(fetch_all(&store, &source));
            store.end_restore();
        }
        store.discard(0, PAGES * PAGE).unwrap();
        drop(store);
        let (store, found) =
            Store::recover(config(MemLimit::Off), memory.try_clone().unwrap(), None).unwrap();
        assert_eq!(found.is_restoring, !ends);
        if found.is_restoring {
            store.begin_restore(source.clone());
        }
        let mut read = vec![1; (PAGES * PAGE) as usize];
        store.read(0, &mut read).unwrap();
        assert!(read.iter().all(|byte| *byte == 0));
    }
}

/// Without its source, a store of a dead process has no contents in place of those that were not fetched.
#[test]
fn without_the_source_pages_are_errors_and_not_zeroes() {
    let (source, truth) = saved();
    let memory = SharedMemory::new().unwrap();
    let store = Store::new_kept(config(MemLimit::Off), memory.try_clone().unwrap()).unwrap();
    store.begin_restore(source);
    let mut read = [1; PAGE_SIZE];
    store.read(PAGE, &mut read).unwrap();
    drop(store);
    let (store, _) = Store::recover(config(MemLimit::Off), memory, None).unwrap();
    store.read(PAGE, &mut read).unwrap();
    assert!(read[..] == truth.0[PAGE_SIZE..2 * PAGE_SIZE]);
    assert!(matches!(store.read(450 * PAGE, &mut read), Err(StoreError::Fetch { .. })));
    assert!(store.write(450 * PAGE + 1, &[1]).is_err() && store.fetch_ahead(PageIndex(450)).is_err());
    store.write(450 * PAGE, &page(3)).unwrap();
    store.read(450 * PAGE, &mut read).unwrap();
    assert!(read == page(3));
}

/// At the memory limit pages stay in the source, and are read there.
#[test]
fn without_memory_pages_are_read_from_the_source() {
    let (source, truth) = saved();
    let store = Store::new(config(MemLimit::Bytes(256 << 10))).unwrap();
    store.begin_restore(source.clone());
    for _ in 0..2 {
        let mut read = vec![1; (PAGES * PAGE) as usize];
        store.read(0, &mut read).unwrap();
        assert!(read == truth.0 && store.stats().mm.mem_used_total <= 256 << 10);
    }
    assert!(!fetch_all(&store, &source));
    // With memory, the rest follows.
    store.set_mem_limit(MemLimit::Off);
    assert!(fetch_all(&store, &source));
    store.end_restore();
    let mut read = vec![1; (PAGES * PAGE) as usize];
    store.read(0, &mut read).unwrap();
    assert!(read == truth.0);
}

/// Threads that read, write and discard, while another fetches all pages and ends the restore.
#[test]
fn a_fetch_brings_no_old_contents_back() {
    for round in 0..20 {
        let (source, truth) = saved();
        let store = Store::new(config(MemLimit::Off)).unwrap();
        store.begin_restore(source.clone());
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (store, truth, ended, source) = (&store, &truth, &ended, &source);
            // Each thread changes its pages: nobody else does.
            for thread in 0..3u64 {
                s.spawn(move || {
                    let mut rng = Random(round * 77 + thread + 1);
                    let mut own = PlainBytes(truth.0.clone());
                    let mut is_last = false;
                    while !is_last {
                        is_last = ended.load(SeqCst);
                        for _ in 0..200 {
                            let (first, end) = (thread * (PAGES / 3), (thread + 1) * (PAGES / 3));
                            let index = first + rng.below(end - first);
                            let offset = index * PAGE;
                            let bytes = offset as usize..offset as usize + PAGE_SIZE;
                            let mut read = [1; PAGE_SIZE];
                            store.read(offset, &mut read).unwrap();
                            assert!(read[..] == own.0[bytes], "page {index}");
                            match rng.below(4) {
                                0 => {
                                    let len = (rng.below(30) + 1).min(end - index) * PAGE;
                                    store.discard(offset, len).unwrap();
                                    own.discard(offset, len);
                                }
                                1 => {
                                    store.write(offset + 5, &[7; 90]).unwrap();
                                    own.write(offset + 5, &[7; 90]);
                                }
                                2 => {
                                    let whole = page(rng.next());
                                    store.write(offset, &whole).unwrap();
                                    own.write(offset, &whole);
                                }
                                _ => {}
                            }
                        }
                    }
                });
            }
            s.spawn(|| {
                assert!(fetch_all(store, source));
                store.end_restore();
                ended.store(true, SeqCst);
            });
        });
    }
}
