//! Recompression: which pages are compressed again, what stays as it is, and contents beside all other operations.

use crate::support::rig::{LAYOUTS, raw_page, read, soft_page, stats, write, write_back_all};
use crate::support::{Random, page};
use pagefold_backing::MemoryBacking;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::recompress::{RecompressError, RecompressReport, RecompressRequest};
use pagefold_store::writeback::{Selection, Which, WritebackConfig};
use pagefold_store::{CodecSpec, Loaded, MemLimit, RecompressStats, Store, StoreConfig};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGES: u64 = 600;

fn config() -> StoreConfig {
    let mut config = StoreConfig::new(PAGES * PAGE_SIZE as u64);
    config.mem_limit = MemLimit::Off;
    config.access_times = true;
    config.further_codecs = [Some(CodecSpec::named("zstd")), None, Some(CodecSpec::named("deflate"))];
    config
}

fn store() -> Store {
    Store::new(config()).unwrap()
}

/// Text that zstd makes clearly smaller than lz4 does, different for each index.
fn text(index: u64) -> [u8; PAGE_SIZE] {
    let words = ["page ", "slot ", "frame ", "store ", "backing ", "memory ", "codec ", "stream "];
    let mut random = Random(index.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let text: Vec<u8> = (0..2000).flat_map(|_| words[random.below(8) as usize].bytes()).collect();
    text[..PAGE_SIZE].try_into().unwrap()
}

fn recompress(store: &Store, words: &str) -> RecompressReport {
    store.recompress(&words.parse().unwrap(), &mut |_| ControlFlow::Continue(())).unwrap()
}

fn recompressed(store: &Store) -> RecompressStats {
    store.stats().recompress
}

#[test]
fn pages_become_smaller_and_keep_their_contents() {
    let store = store();
    (0..100).for_each(|i| write(&store, i, &text(i)));
    let before = store.stats().mm.compr_data_size;
    let report = recompress(&store, "");
    assert_eq!((report.recompressed_pages, report.not_smaller_pages), (100, 0));
    let after = store.stats().mm.compr_data_size;
    assert_eq!(before - after, report.old_bytes - report.new_bytes);
    assert!(after < before, "{after} of {before}");
    let counted = recompressed(&store);
    assert_eq!(counted.pages_now, [100, 0, 0]);
    assert_eq!((counted.recompressed_pages, counted.saved_bytes), (100, before - after));
    let mut loader = store.loader().unwrap();
    for i in 0..100 {
        assert!(read(&store, i).unwrap() == text(i), "{i}");
        let mut page = [0; PAGE_SIZE];
        assert_eq!(store.load(PageIndex(i), &mut loader, &mut page).unwrap(), Loaded::Page);
        assert!(page == text(i), "{i}");
    }
    // Written again, they are pages of the primary codec.
    (0..100).for_each(|i| write(&store, i, &text(i)));
    assert_eq!(recompressed(&store).pages_now, [0; 3]);
    assert_eq!(store.stats().mm.compr_data_size, before);
    store.discard(0, store.len_bytes()).unwrap();
    assert_eq!(store.stats().mm.mem_used_total, 0);
}

#[test]
fn a_page_that_did_not_become_smaller_is_not_tried_again_at_that_priority() {
    let store = store();
    (0..20).for_each(|i| write(&store, i, &raw_page(i, 0)));
    assert_eq!(recompress(&store, "type=huge").not_smaller_pages, 20);
    assert_eq!(recompress(&store, "type=huge"), RecompressReport::default());
    assert_eq!(recompress(&store, "priority=3").not_smaller_pages, 20);
    // Nor after another codec was tried in between: rules of two codecs would try the page for ever.
    assert_eq!(recompress(&store, "priority=1"), RecompressReport::default());
    assert_eq!(recompress(&store, "priority=3"), RecompressReport::default());
    write(&store, 3, &raw_page(3, 1));
    assert_eq!(recompress(&store, "algo=deflate").not_smaller_pages, 1);
}

#[test]
fn codecs_are_found_by_name_and_priority() {
    let store = store();
    let refused = |words: &str| {
        let request: RecompressRequest = words.parse().unwrap();
        let error = store.recompress(&request, &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        error
    };
    assert_eq!(refused("priority=2"), RecompressError::NoCodec { priority: 2 });
    assert_eq!(refused("algo=lz4"), RecompressError::NoSuchCodec { name: "lz4".into() });
    assert_eq!(refused("algo=zstd priority=3"), RecompressError::NoSuchCodec { name: "zstd".into() });
    write(&store, 0, &text(0));
    assert_eq!(recompress(&store, "algo=deflate").recompressed_pages, 1);
    // Only to a higher priority: a page never goes back.
    assert_eq!(recompress(&store, "algo=zstd"), RecompressReport::default());
    assert_eq!(store.codec_of(3).unwrap().0, "deflate");
    assert_eq!(store.codec_of(2), None);
}

#[test]
fn thresholds_bound_both_lengths_and_a_limit_takes_the_longest_first() {
    let store = store();
    (0..40).for_each(|i| write(&store, i, &if i % 2 == 0 { text(i) } else { soft_page(i, 0) }));
    // Soft pages are random at the beginning: longer than text, and zstd does not make them much shorter.
    let report = recompress(&store, "max_pages=20");
    assert_eq!(report.recompressed_pages + report.not_smaller_pages, 20);
    (0..40).step_by(2).for_each(|i| assert_eq!(read(&store, i).unwrap(), text(i)));
    let untried = recompress(&store, "threshold=3900");
    assert_eq!(untried, RecompressReport::default());
    // A result that is not below the threshold is not kept, and can be kept by a later pass.
    assert_eq!(recompress(&store, "threshold=1 max_pages=5").recompressed_pages, 0);
    assert_eq!(recompress(&store, "threshold=0").recompressed_pages, 20);
}

#[test]
fn a_threshold_that_no_compressed_page_reaches_is_refused() {
    let store = store();
    for (bytes, is_valid) in [(3967, true), (3968, false), (u16::MAX, false)] {
        let request = RecompressRequest { threshold_bytes: Some(bytes), ..Default::default() };
        let result = store.recompress(&request, &mut |_| ControlFlow::Continue(()));
        assert_eq!(result.is_ok(), is_valid, "{bytes}: {result:?}");
    }
}

#[test]
fn a_threshold_of_zero_is_none() {
    let store = store();
    (0..20).for_each(|i| write(&store, i, &text(i)));
    let request = RecompressRequest { threshold_bytes: Some(0), ..Default::default() };
    let report = store.recompress(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.recompressed_pages, report.not_smaller_pages), (20, 0));
}

#[test]
fn a_result_that_only_the_threshold_refuses_is_tried_again_without_it() {
    let store = store();
    (0..20).for_each(|i| write(&store, i, &text(i)));
    let report = recompress(&store, "threshold=1");
    assert_eq!((report.recompressed_pages, report.not_smaller_pages), (0, 20));
    assert_eq!(recompress(&store, "").recompressed_pages, 20);
}

#[test]
fn idle_pages_are_recompressed_and_an_access_ends_idleness() {
    let store = store();
    (0..10).for_each(|i| write(&store, i, &text(i)));
    assert_eq!(recompress(&store, "type=idle"), RecompressReport::default());
    store.mark_idle(0);
    read(&store, 4).unwrap();
    assert_eq!(recompress(&store, "type=idle").recompressed_pages, 9);
    let old = RecompressRequest { which: Which::NotAccessedFor { age_s: 3600 }, ..Default::default() };
    assert_eq!(store.recompress(&old, &mut |_| ControlFlow::Continue(())).unwrap().recompressed_pages, 0);
}

#[test]
fn pages_that_are_read_meanwhile_are_recompressed_or_stay_as_they_are() {
    let store = store();
    (0..PAGES).for_each(|i| write(&store, i, &text(i)));
    store.mark_idle(0);
    let done = AtomicBool::new(false);
    let report = std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                (0..PAGES).for_each(|i| drop(read(&store, i)));
            }
        });
        let report = recompress(&store, "type=idle");
        done.store(true, Ordering::Relaxed);
        report
    });
    assert!(report.recompressed_pages + report.changed_pages <= PAGES);
    assert_eq!(recompressed(&store).pages_now[0], report.recompressed_pages);
    (0..PAGES).for_each(|i| assert_eq!(read(&store, i).unwrap(), text(i)));
}

#[test]
fn at_the_memory_limit_recompression_makes_room() {
    let mut config = config();
    config.mem_limit = MemLimit::Bytes(300 << 10);
    let store = Store::new(config).unwrap();
    let stored =
        (0..PAGES).take_while(|i| store.write(i * PAGE_SIZE as u64, &text(*i)).is_ok()).count() as u64;
    assert!(stored < PAGES, "the limit was not reached");
    let before = store.in_use_bytes();
    let mut in_all = 0;
    loop {
        let report = recompress(&store, "");
        assert!(store.stats().mm.mem_used_max <= (300 + 64) << 10);
        in_all += report.recompressed_pages;
        if report.recompressed_pages == 0 {
            break;
        }
    }
    assert_eq!(in_all, stored, "{:?}", recompressed(&store));
    assert!(store.in_use_bytes() < before);
    (0..stored).for_each(|i| assert_eq!(read(&store, i).unwrap(), text(i)));
    store.write(stored * PAGE_SIZE as u64, &text(stored)).unwrap();
}

#[test]
fn below_a_lowered_limit_recompression_makes_room_too() {
    let store = store();
    (0..PAGES).for_each(|i| write(&store, i, &text(i)));
    let before = store.in_use_bytes();
    store.set_mem_limit(MemLimit::Bytes(before / 2));
    let report = recompress(&store, "");
    assert_eq!((report.recompressed_pages, report.no_memory_pages), (PAGES, 0));
    assert!(store.in_use_bytes() < before && store.stats().mm.mem_used_max <= before + (64 << 10));
}

#[test]
fn on_a_reserve_recompression_waits_for_nothing() {
    let mut config = config();
    config.reserve_bytes = Some(1 << 20);
    let store = Store::new(config).unwrap();
    (0..PAGES).for_each(|i| write(&store, i, &text(i)));
    let report = recompress(&store, "");
    assert_eq!(report.recompressed_pages + report.no_memory_pages, PAGES);
    assert!(report.recompressed_pages > 0, "{report:?}");
    (0..PAGES).for_each(|i| assert_eq!(read(&store, i).unwrap(), text(i)));
}

#[test]
fn recompressed_pages_are_written_back_and_read_back() {
    for layout in LAYOUTS {
        let backing = Arc::new(MemoryBacking::new(16 << 20));
        let mut store = store();
        store.attach(WritebackConfig { backing, layout }).unwrap();
        (0..60).for_each(|i| write(&store, i, &text(i)));
        assert_eq!(recompress(&store, "").recompressed_pages, 60);
        assert_eq!(write_back_all(&store).written_back_pages, 60);
        assert_eq!(recompressed(&store).pages_now, [0; 3]);
        assert_eq!(recompress(&store, ""), RecompressReport::default());
        let mut loader = store.loader().unwrap();
        for i in 0..60 {
            let mut page = [0; PAGE_SIZE];
            store.load(PageIndex(i), &mut loader, &mut page).unwrap();
            assert!(page == text(i) && read(&store, i).unwrap() == text(i), "{layout:?} {i}");
            // The second read within the window moves it back to memory.
            read(&store, i).unwrap();
        }
        assert!(stats(&store).promoted_pages > 0);
        (0..60).for_each(|i| assert!(read(&store, i).unwrap() == text(i), "{layout:?} {i}"));
    }
}

#[test]
fn a_limit_takes_the_longest_first_wherever_they_are() {
    let store = store();
    (0..20).for_each(|i| write(&store, i, &text(0)));
    (20..30).for_each(|i| write(&store, i, &raw_page(i, 0)));
    // Ten raw pages at the end, and one of the twenty shorter ones, which have the same length.
    let report = recompress(&store, "max_pages=11");
    assert_eq!((report.recompressed_pages, report.not_smaller_pages), (1, 10));
    assert_eq!(recompress(&store, "max_pages=18").recompressed_pages, 18);
    assert_eq!(recompress(&store, "").recompressed_pages, 1);
}

#[test]
fn pages_are_incompressible_when_the_highest_codec_has_failed() {
    let mut store = store();
    let backing = Arc::new(MemoryBacking::new(16 << 20));
    store.attach(WritebackConfig { backing, layout: LAYOUTS[0] }).unwrap();
    (0..20).for_each(|i| write(&store, i, &raw_page(i, 0)));
    let write_back = || {
        let selection = Selection::of(Which::Incompressible);
        store.write_back(&selection, &mut |_| ControlFlow::Continue(())).unwrap().written_back_pages
    };
    recompress(&store, "priority=1");
    assert_eq!(write_back(), 0);
    recompress(&store, "priority=3");
    assert_eq!(write_back(), 20);
}

#[test]
fn a_stopped_pass_says_so_and_leaves_a_whole_store() {
    let store = store();
    (0..PAGES).for_each(|i| write(&store, i, &text(i)));
    let mut calls = 0;
    let report = store
        .recompress(&RecompressRequest::default(), &mut |progress| {
            calls += 1;
            assert!(progress.seen_pages <= progress.total_pages && progress.total_pages == PAGES);
            ControlFlow::Break(())
        })
        .unwrap();
    assert!(report.stopped && calls == 1);
    assert!(report.recompressed_pages > 0 && report.recompressed_pages < PAGES);
    (0..PAGES).for_each(|i| assert_eq!(read(&store, i).unwrap(), text(i)));
}

/// Writers, discards, compaction, writeback and statistics beside passes of several workers: every page reads as it was
/// last written, since each page has one writer.
#[test]
fn contents_are_right_beside_all_other_operations() {
    let backing = Arc::new(MemoryBacking::new(64 << 20));
    let mut store = store();
    store.attach(WritebackConfig { backing, layout: LAYOUTS[0] }).unwrap();
    let (store, done) = (&store, &AtomicBool::new(false));
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..2u64).map(|w| s.spawn(move || write_and_check(store, w))).collect();
        for priority in [1, 3] {
            s.spawn(move || {
                let request =
                    RecompressRequest { priority: Some(priority), threads: 2, ..Default::default() };
                while !done.load(Ordering::Relaxed) {
                    store.recompress(&request, &mut |_| ControlFlow::Continue(())).unwrap();
                }
            });
        }
        s.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                store.compact();
                store.mark_idle(0);
                write_back_all(store);
                std::hint::black_box(store.stats());
            }
        });
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|r| r.unwrap());
    });
    store.discard(0, store.len_bytes()).unwrap();
    let left = store.stats();
    assert_eq!((left.mm.mem_used_total, left.mm.orig_data_size, left.recompress.pages_now), (0, 0, [0; 3]));
}

/// Writes, discards and reads the pages of one writer at random, and compares each read with what was written.
fn write_and_check(store: &Store, writer: u64) {
    let mut random = Random(77 + writer);
    let mut model = vec![[0; PAGE_SIZE]; PAGES as usize];
    for step in 0..6000u64 {
        let index = random.below(PAGES / 2) * 2 + writer;
        match random.below(10) {
            0..=3 => {
                let seed = random.next();
                let new = if seed.is_multiple_of(3) { page(seed) } else { text(seed) };
                write(store, index, &new);
                model[index as usize] = new;
            }
            4 => {
                store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64).unwrap();
                model[index as usize] = [0; PAGE_SIZE];
            }
            _ => assert!(read(store, index).unwrap() == model[index as usize], "page {index}, step {step}"),
        }
    }
}
