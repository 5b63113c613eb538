//! The store against a reference model of plain bytes: all operations, all states, random limits, several threads.

use crate::support::{PlainBytes, Random, page};
use pagefold_page::PAGE_SIZE;
use pagefold_store::{CodecSpec, MemLimit, SourceError, Store, StoreConfig, StoreError};
use proptest::prelude::*;

/// Pages of the stores in these tests; the last one is partial.
const PAGES: u64 = 600;
const LEN: u64 = PAGES * PAGE_SIZE as u64 - 1000;

fn config(codec: &str) -> StoreConfig {
    StoreConfig { codec: CodecSpec::named(codec), mem_limit: MemLimit::Off, ..StoreConfig::new(LEN) }
}

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, len: u64, seed: u64 },
    Read { offset: u64, len: u64 },
    Discard { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Limit { pages: u64 },
    SameFilled(bool),
    Compact,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // Aligned and unaligned ranges, short and long, often on the same few pages, sometimes at the very end.
    prop_oneof![
        4 => (0..40u64, 1..5u64).prop_map(|(p, n)| (p * 4096, n * 4096)),
        3 => (0..40 * 4096u64, 1..9000u64),
        1 => (0..LEN, 1..40_000u64),
        1 => (LEN - 9000..LEN, 1..9000u64),
    ]
    .prop_map(|(offset, len)| (offset, len.min(LEN - offset)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), any::<u64>()).prop_map(|((offset, len), seed)| Step::Write { offset, len, seed }),
        3 => range().prop_map(|(offset, len)| Step::Read { offset, len }),
        2 => range().prop_map(|(offset, len)| Step::Discard { offset, len }),
        2 => range().prop_map(|(offset, len)| Step::Zero { offset, len }),
        1 => (0..200u64).prop_map(|pages| Step::Limit { pages }),
        1 => any::<bool>().prop_map(Step::SameFilled),
        1 => Just(Step::Compact),
    ]
}

fn data(seed: u64, len: u64) -> Vec<u8> {
    (0..).flat_map(|i| page(seed.wrapping_add(i))).take(len as usize).collect()
}

/// Writes to store and model. If the store refuses a page, the pages before it are written, and it and the later ones
/// are not.
fn write_both(store: &Store, model: &mut PlainBytes, offset: u64, bytes: &[u8]) {
    match store.write(offset, bytes) {
        Ok(()) => model.write(offset, bytes),
        Err(StoreError::NoMemory { index, source: SourceError::Limit { .. } }) => {
            let written = (index.0 * PAGE_SIZE as u64).saturating_sub(offset) as usize;
            model.write(offset, &bytes[..written]);
        }
        Err(e) => panic!("{e}"),
    }
}

fn apply(store: &Store, model: &mut PlainBytes, step: Step) {
    match step {
        Step::Write { offset, len, seed } => write_both(store, model, offset, &data(seed, len)),
        Step::Read { offset, len } => {
            let mut got = vec![0xee; len as usize];
            store.read(offset, &mut got).unwrap();
            assert!(got == model.0[offset as usize..(offset + len) as usize], "{offset}+{len}");
        }
        Step::Discard { offset, len } => {
            store.discard(offset, len).unwrap();
            model.discard(offset, len);
        }
        Step::Zero { offset, len } => match store.write_zeroes(offset, len) {
            Ok(()) => model.write_zeroes(offset, len),
            // The limit refused to rewrite a partial page at an end of the range: copy the present contents to the
            // model.
            Err(_) => store.read(0, &mut model.0).unwrap(),
        },
        Step::Limit { pages } => {
            let limit = if pages < 20 { MemLimit::Off } else { MemLimit::Bytes(pages * 4096) };
            store.set_mem_limit(limit);
        }
        Step::SameFilled(on) => store.set_same_filled_enabled(on),
        Step::Compact => drop(store.compact().to_string()),
    }
}

/// Checks that the counters agree with the contents.
fn check_counters(store: &Store, model: &PlainBytes) {
    let mut all = vec![0; model.0.len()];
    store.read(0, &mut all).unwrap();
    assert!(all == model.0);
    let stats = store.stats();
    let objects: u64 = store.class_stats().iter().map(|c| c.live).sum();
    assert_eq!(stats.mm.orig_data_size / 4096, objects + stats.mm.same_pages);
    let frames: u64 = store.class_stats().iter().map(|c| c.frames).sum();
    assert_eq!(stats.mm.mem_used_total, frames * 4096);
    assert!(stats.mm.mem_used_max >= stats.mm.mem_used_total);
    assert!(stats.mm.huge_pages_since >= stats.mm.huge_pages);
    assert_eq!(stats.io.failed_reads + stats.io.invalid_io, 0);
}

fn run(codec: &str, steps: Vec<Step>) {
    let store = Store::new(config(codec)).unwrap();
    let mut model = PlainBytes(vec![0; LEN as usize]);
    for step in steps {
        apply(&store, &mut model, step);
    }
    check_counters(&store, &model);
    store.discard(0, LEN).unwrap();
    let stats = store.stats();
    let left = (stats.mm.orig_data_size, stats.mm.compr_data_size, stats.mm.mem_used_total);
    assert_eq!(left, (0, 0, 0));
    assert_eq!((stats.mm.same_pages, stats.mm.huge_pages), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_history_agrees_with_plain_bytes(steps in prop::collection::vec(step(), 1..120)) {
        run("lz4", steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_history_agrees_with_plain_bytes_in_every_codec(steps in prop::collection::vec(step(), 1..60)) {
        for codec in ["lz4hc", "zstd", "deflate", "lzo", "lzo-rle", "842", "numbers"] {
            run(codec, steps.clone());
        }
    }
}

/// Each thread writes its own sectors of shared pages, so that partial writes of one page conflict all the time; none
/// may be lost. One more thread compacts and switches settings, and another writes up to the limit.
#[test]
fn threads_sharing_pages_lose_no_write() {
    const THREADS: u64 = 4;
    const SECTOR: u64 = 512;
    let store = Store::new(config("lz4")).unwrap();
    let last: Vec<Vec<u8>> = std::thread::scope(|s| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let store = &store;
                s.spawn(move || sector_writer(store, thread, THREADS, SECTOR))
            })
            .collect();
        s.spawn(|| {
            for i in 0..200 {
                store.compact();
                store.set_same_filled_enabled(i % 2 == 0);
            }
        });
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    for (sector, byte) in (0..64 * 8).map(|s| (s as u64, last[s % THREADS as usize][s / THREADS as usize])) {
        let mut got = [0; SECTOR as usize];
        store.read(sector * SECTOR, &mut got).unwrap();
        assert!(got.iter().all(|b| *b == byte), "sector {sector}");
    }
}

/// Writes the thread's sectors repeatedly, each with one byte value; returns the last values.
fn sector_writer(store: &Store, thread: u64, threads: u64, sector_len: u64) -> Vec<u8> {
    let mut random = Random(thread + 1);
    let sectors = 64 * 8 / threads;
    let mut last = vec![0u8; sectors as usize];
    for _ in 0..6000 {
        let (mine, byte) = (random.below(sectors), random.next() as u8);
        let offset = (mine * threads + thread) * sector_len;
        store.write(offset, &vec![byte; sector_len as usize]).unwrap();
        last[mine as usize] = byte;
        let check = random.below(sectors);
        let mut got = vec![0; sector_len as usize];
        store.read((check * threads + thread) * sector_len, &mut got).unwrap();
        assert!(got.iter().all(|b| *b == last[check as usize]));
    }
    last
}

/// A page that several threads write as a whole always contains one of the written pages, never a mixture.
#[test]
fn threads_writing_one_page_show_whole_pages_only() {
    let store = Store::new(config("lz4")).unwrap();
    // Same-filled, folded, raw and empty pages in turn.
    let pages: Vec<_> = [0u64, 1, 2, 3, 6, 7, 9, 11].iter().map(|s| page(*s)).collect();
    std::thread::scope(|s| {
        for thread in 0..3usize {
            let (store, pages) = (&store, &pages);
            s.spawn(move || {
                for i in 0..4000 {
                    match (i + thread) % 9 {
                        8 => store.discard(0, 8192).unwrap(),
                        n => store.write(4096 * (i as u64 % 2), &pages[n]).unwrap(),
                    }
                }
            });
        }
        for _ in 0..2 {
            s.spawn(|| {
                let mut got = [0; PAGE_SIZE];
                for i in 0..6000 {
                    store.read(4096 * (i % 2), &mut got).unwrap();
                    assert!(pages.contains(&got), "a page that nobody wrote");
                }
            });
        }
    });
}

#[test]
fn extent_walk_finds_exactly_what_was_written() {
    let store = Store::new(StoreConfig::new(1 << 40)).unwrap();
    let written = [0u64, 1, 2, 255, 256, 300, 70_000, (1 << 28) - 1];
    written.iter().for_each(|i| store.write(i * 4096, &page(i + 3)).unwrap());
    store.write(5 * 4096, &page(3)).unwrap();
    store.discard(5 * 4096, 4096).unwrap();
    let (mut offset, mut held) = (100, vec![]);
    while offset < 1 << 40 {
        let (len, empty) = store.extent(offset, (1 << 40) - offset).unwrap();
        assert!(len > 0);
        if !empty {
            held.extend(offset / 4096..(offset + len).div_ceil(4096));
        }
        offset += len;
    }
    assert_eq!(held, written);
    assert!(store.extent(1 << 40, 1).is_err());
}

/// Also at the end of the store, behind the last chunk of slots.
#[test]
fn an_extent_of_no_bytes_is_empty_wherever_it_lies() {
    let store = Store::new(StoreConfig::new(512 * 4096)).unwrap();
    store.write(0, &page(3)).unwrap();
    for offset in [0, 1, 4096, 256 * 4096, 512 * 4096 - 1, 512 * 4096] {
        assert_eq!(store.extent(offset, 0).unwrap(), (0, true), "{offset}");
    }
}

#[test]
fn limit_refuses_new_pages_keeps_old_ones_and_is_never_exceeded() {
    let store = Store::new(config("lz4")).unwrap();
    store.set_mem_limit(MemLimit::Bytes(100 * 4096));
    let noise = page(2);
    let refused = (0..PAGES - 1).find(|i| store.write(i * 4096, &noise).is_err()).unwrap();
    assert!((95..=100).contains(&refused), "{refused}");
    assert!(store.stats().mm.mem_used_total <= 100 * 4096);
    assert_eq!(store.stats().io.failed_writes, 1);
    let mut got = [0; PAGE_SIZE];
    for i in 0..refused {
        store.read(i * 4096, &mut got).unwrap();
        assert!(got == noise);
    }
    // A same-filled page needs no memory; a discard frees some.
    store.write(0, &page(9)).unwrap();
    store.discard(4096, 4096).unwrap();
    store.write(refused * 4096, &noise).unwrap();
}
