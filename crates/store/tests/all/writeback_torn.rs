//! A medium that tears or loses writes, flips bits, has unreadable sectors, or is written to by another program: a
//! read returns the written page or an error with its place; never another page's data, and never a panic.

use crate::support::Random;
use crate::support::rig::*;
use pagefold_backing::layer::{
    Action, ErrorLayer, FaultRule, StatsLayer, Tear, TornLayer, TornRule, TraceLayer, When,
};
use pagefold_backing::{Backing, BackingError, ByteSource, MemoryBacking};
use pagefold_page::PageIndex;
use pagefold_store::writeback::LayoutKind;
use pagefold_store::{Store, StoreError};
use std::ops::Range;
use std::sync::Arc;

fn fill(store: &Store, pages: u64, version: u64) {
    (0..pages).for_each(|i| write(store, i, &page(i, version)));
}

fn page(index: u64, version: u64) -> [u8; 4096] {
    if index % 3 == 1 { raw_page(index, version) } else { soft_page(index, version) }
}

/// Returns the place of a lost page; `None` if the page reads as it was written.
fn lost_at(store: &Store, index: u64, version: u64) -> Option<u64> {
    match read(store, index) {
        Ok(got) => {
            assert!(got == page(index, version), "wrong data of page {index}");
            None
        }
        Err(StoreError::CorruptRecord { index: at, offset }) => {
            assert_eq!(at, PageIndex(index));
            Some(offset)
        }
        Err(e) => panic!("{e}"),
    }
}

const TEARS: [Option<Tear>; 6] = [
    None,
    Some(Tear::Prefix),
    Some(Tear::Suffix),
    Some(Tear::AlternateSectors),
    Some(Tear::Nothing),
    Some(Tear::Everything),
];

#[test]
fn torn_writes_that_are_reported_lose_nothing() {
    for layout in LAYOUTS {
        let pages = if layout == LayoutKind::Log { 400 } else { 30 };
        for seed in 0..4 {
            for n in 1.. {
                let backing = Arc::new(TornLayer::new(MemoryBacking::new(segments(12))));
                let medium = backing.control();
                let store = store_on(backing, layout, pages);
                fill(&store, pages, 1);
                let rule = TornRule { when: When::Nth(n), tear: None, errno: Some(libc::EIO), seed };
                medium.set(Some(rule));
                let report = write_back_all(&store);
                assert_eq!(report.failed_pages > 0, medium.torn() > 0);
                assert!((0..pages).all(|i| lost_at(&store, i, 1).is_none()), "seed {seed}, write {n}");
                assert_eq!(write_back_all(&store).error, None);
                assert!((0..pages).all(|i| lost_at(&store, i, 1).is_none()), "seed {seed}, write {n}");
                if medium.torn() == 0 {
                    break;
                }
            }
        }
    }
}

#[test]
fn torn_writes_that_are_not_reported_cost_the_pages_in_them_and_no_others() {
    let mut lost_pages = 0;
    for layout in LAYOUTS {
        let pages = if layout == LayoutKind::Log { 400 } else { 20 };
        for (seed, tear) in TEARS.into_iter().enumerate() {
            for n in 1.. {
                let torn = TornLayer::new(MemoryBacking::new(segments(12)));
                let medium = torn.control();
                let logged = Arc::new(TraceLayer::new(torn, false));
                let log = logged.control();
                let store = store_on(logged, layout, pages);
                // One request at a time, so that they are torn and logged in the same order.
                writeback(&store).settings().set_writeback_batch_size(1);
                // Twice, so that in blocks a torn write shows the page that was there before.
                fill(&store, pages, 1);
                write_back_all(&store);
                fill(&store, pages, 2);
                log.take();
                medium.set(Some(TornRule { when: When::Nth(n), tear, errno: None, seed: seed as u64 }));
                assert_eq!(write_back_all(&store).error, None);
                let writes: Vec<_> = log
                    .take()
                    .iter()
                    .map(|e| e.access.offset..e.access.offset + e.access.len_bytes)
                    .collect();
                let torn_range: Range<u64> = writes.get(n as usize - 1).cloned().unwrap_or(0..0);
                let lost: Vec<u64> = (0..pages).filter_map(|i| lost_at(&store, i, 2)).collect();
                assert!(lost.iter().all(|at| torn_range.contains(at)), "{layout:?}, {tear:?}, write {n}");
                let is_whole = medium.torn() == 0 || tear == Some(Tear::Everything);
                assert!(!is_whole || lost.is_empty());
                assert_eq!(stats(&store).corrupt_pages, lost.len() as u64);
                lost_pages += lost.len();
                // Neither the cleaner nor a pass turns it into an intact record.
                writeback(&store).settings().promote.store(true);
                let again: Vec<u64> = (0..pages).filter_map(|i| lost_at(&store, i, 2)).collect();
                assert_eq!(lost, again);
                assert_all_free(&store);
                if medium.torn() == 0 {
                    break;
                }
            }
        }
    }
    assert!(lost_pages > 1000, "only {lost_pages} pages were lost: the test proves too little");
}

#[test]
fn flipped_bits_are_detected() {
    const PAGES: u64 = 120;
    for layout in LAYOUTS {
        let medium = Arc::new(MemoryBacking::new(segments(6)));
        let store = store_on(medium.clone(), layout, PAGES);
        fill(&store, PAGES, 1);
        write_back_all(&store);
        let used = stats(&store).written_bytes;
        let mut random = Random(77);
        let mut noticed = 0;
        for _ in 0..150 {
            let flips: Vec<u64> =
                (0..=random.below(6)).map(|_| DATA_START * 8 + random.below(used * 8)).collect();
            let flip = || {
                flips.iter().for_each(|bit| {
                    let mut byte = [0];
                    medium.read_at(bit / 8, &mut byte).unwrap();
                    medium.write_at(bit / 8, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
                })
            };
            flip();
            // In random order, so that hardly any page comes from read-ahead; and then in one read.
            let lost = (0..PAGES).filter(|_| lost_at(&store, random.below(PAGES), 1).is_some()).count();
            let mut all = vec![0; PAGES as usize * 4096];
            match store.read(0, &mut all) {
                Ok(()) => assert!((0..PAGES).all(|i| all[i as usize * 4096..][..4096] == page(i, 1))),
                Err(e) => assert!(matches!(e, StoreError::CorruptRecord { .. }), "{e}"),
            }
            noticed += lost;
            flip();
        }
        assert!(noticed > 100, "{layout:?}: {noticed}");
        assert_eq!(stats(&store).corrupt_pages > 0, noticed > 0);
        // After the bits are restored, all pages are intact.
        assert!((0..PAGES).all(|i| lost_at(&store, i, 1).is_none()));
    }
}

/// Writes to the medium as another program might, between two requests.
fn write_randomly(medium: &MemoryBacking, random: &mut Random) {
    let len = random.below(20_000) + 1;
    let room = medium.len_bytes() - len;
    let (from, to) = (random.below(room), random.below(room));
    let mut bytes = vec![0; len as usize];
    match random.below(4) {
        0 => {}
        1 => bytes.iter_mut().for_each(|b| *b = random.next() as u8),
        // Copies whole segments to another place.
        2 => {
            bytes = vec![0; SEGMENT_LEN as usize];
            let segment = |n| DATA_START + n * SEGMENT_LEN;
            medium.read_at(segment(random.below(7)), &mut bytes).unwrap();
            return medium.write_at(segment(random.below(7)), &bytes).unwrap();
        }
        _ => medium.read_at(from, &mut bytes).unwrap(),
    }
    medium.write_at(to, &bytes).unwrap();
}

#[test]
fn a_medium_that_other_programs_write_to_causes_errors_and_no_wrong_data() {
    const PAGES: u64 = 500;
    for (layout, seed) in [(LayoutKind::Log, 1), (LayoutKind::Log, 2), (LayoutKind::Blocks, 3)] {
        let medium = Arc::new(MemoryBacking::new(segments(7)));
        let store = store_on(medium.clone(), layout, PAGES);
        writeback(&store).settings().promote.store(seed == 2);
        let mut versions = vec![0; PAGES as usize];
        let mut random = Random(seed);
        let (mut lost, mut good) = (0, 0);
        for step in 1..8000 {
            let i = random.below(PAGES);
            match random.below(40) {
                0 => write_randomly(&medium, &mut random),
                1 => drop(write_back_all(&store)),
                2 => store.run_maintenance(true),
                3..16 => {
                    versions[i as usize] = step;
                    write(&store, i, &page(i, step));
                }
                _ if versions[i as usize] == 0 => assert!(read(&store, i).unwrap() == [0; 4096]),
                _ => match lost_at(&store, i, versions[i as usize]) {
                    Some(_) => lost += 1,
                    None => good += 1,
                },
            }
        }
        assert!(lost > 50 && good > 500, "{layout:?}: {lost} lost, {good} good");
        // Lost pages can be rewritten and written back again, and nothing has leaked.
        fill(&store, PAGES, 1);
        assert!((0..PAGES).all(|i| lost_at(&store, i, 1).is_none()));
        assert_all_free(&store);
    }
}

#[test]
fn an_unreadable_sector_costs_its_page_and_not_the_neighbours() {
    for layout in LAYOUTS {
        for (batch_read, promote) in [(1, false), (1, true), (16, false)] {
            let backing = Arc::new(ErrorLayer::new(MemoryBacking::new(segments(6))));
            let medium = backing.control();
            let store = store_on(backing, layout, 64);
            (0..64).for_each(|i| write(&store, i, &raw_page(i, 1)));
            write_back_all(&store);
            writeback(&store).settings().promote.store(promote);
            // In the log: the header of the write, then records of a header and a page each.
            let (first, each) = if layout == LayoutKind::Log { (64, 24 + 4096) } else { (0, 4096) };
            let at = DATA_START + first + 20 * each;
            let range = at + 1000..at + 1512;
            let bad = |errno| FaultRule {
                actions: vec![Action::Read],
                range: Some(range.clone()),
                when: When::Always,
                errno,
            };
            medium.fail(bad(libc::EIO));
            let mut got = vec![0; batch_read * 4096];
            for round in 0..2 {
                for i in (0..64).step_by(batch_read) {
                    let result = store.read(i * 4096, &mut got);
                    match (i..i + batch_read as u64).contains(&20) {
                        false => {
                            result.unwrap();
                            (0..batch_read)
                                .for_each(|k| assert!(got[k * 4096..][..4096] == raw_page(i + k as u64, 1)));
                        }
                        true => {
                            let Err(StoreError::ReadBack { index: PageIndex(20), offset, source }) = result
                            else {
                                panic!("{result:?}")
                            };
                            assert_eq!((offset, source.errno()), (at, libc::EIO));
                            assert!(matches!(source, BackingError::Io { operation: "read", .. }));
                        }
                    }
                }
                assert_eq!(stats(&store).unreadable_pages, round + 1);
            }
            // The error disappears, and the page is still there.
            medium.clear();
            assert!((0..64).all(|i| read(&store, i).unwrap() == raw_page(i, 1)));
            assert_eq!(stats(&store).corrupt_pages, 0);
        }
    }
}

#[test]
fn each_read_request_fails_in_turn() {
    for layout in LAYOUTS {
        for n in 1.. {
            let backing = Arc::new(ErrorLayer::new(MemoryBacking::new(segments(6))));
            let medium = backing.control();
            let store = store_on(backing, layout, 64);
            fill(&store, 64, 1);
            write_back_all(&store);
            medium.fail_reads(When::Nth(n), libc::EIO);
            let mut failed = 0;
            for i in 0..64 {
                match read(&store, i) {
                    Ok(got) => assert!(got == page(i, 1)),
                    Err(StoreError::ReadBack { index, .. }) => {
                        assert_eq!(index, PageIndex(i));
                        failed += 1;
                    }
                    Err(e) => panic!("{e}"),
                }
            }
            // A failed read of a run is followed by a read of the page alone.
            assert!(failed <= 1 && stats(&store).unreadable_pages == failed);
            medium.clear();
            assert!((0..64).all(|i| read(&store, i).unwrap() == page(i, 1)));
            if medium.injected() == 0 {
                break;
            }
        }
    }
}

#[test]
fn a_part_is_not_written_over_a_page_that_cannot_be_read() {
    for layout in LAYOUTS {
        let backing = Arc::new(ErrorLayer::new(MemoryBacking::new(segments(6))));
        let medium = backing.control();
        let store = store_on(backing, layout, 8);
        fill(&store, 8, 1);
        write_back_all(&store);
        medium.fail_reads(When::Always, libc::EIO);
        let error = store.write(5 * 4096 + 5, b"part").unwrap_err();
        assert!(matches!(error, StoreError::ReadBack { index: PageIndex(5), .. }), "{error}");
        assert_eq!(store.stats().io.failed_writes, 1);
        // A whole page needs no reading.
        write(&store, 6, &page(6, 2));
        medium.clear();
        assert!(read(&store, 5).unwrap() == page(5, 1) && read(&store, 6).unwrap() == page(6, 2));
    }
}

#[test]
fn promotion_returns_pages_that_are_read_twice_and_can_be_disabled() {
    for layout in LAYOUTS {
        let counted = Arc::new(StatsLayer::new(MemoryBacking::new(segments(6))));
        let medium = counted.control();
        let store = store_on(counted, layout, 40);
        fill(&store, 40, 1);
        write_back_all(&store);
        // Disabled: every read reads the medium, as in the kernel.
        for round in 1..=3 {
            assert!((0..40).rev().all(|i| read(&store, i).unwrap() == page(i, 1)));
            assert_eq!((stats(&store).bd.bd_count, stats(&store).bd.bd_reads), (40, 40 * round));
        }
        assert!(medium.stats().reads.requests >= if layout == LayoutKind::Blocks { 120 } else { 1 });
        // Enabled: the pages were read just now.
        writeback(&store).settings().promote.store(true);
        assert!((0..10).all(|i| read(&store, i).unwrap() == page(i, 1)));
        assert_eq!((stats(&store).bd.bd_count, stats(&store).promoted_pages), (30, 10));
        let mm = store.stats().mm;
        assert_eq!(mm.huge_pages, 3);
        assert!(mm.compr_data_size > 0);
        let reads = medium.stats().reads.requests;
        assert!((0..10).all(|i| read(&store, i).unwrap() == page(i, 1)));
        assert_eq!(medium.stats().reads.requests, reads, "they are in memory");
        // No promotion above the high mark: memory is used up to the limit.
        let used = store.stats().mm.mem_used_total;
        store.set_mem_limit(pagefold_store::MemLimit::Bytes(used + 4096));
        assert!(writeback(&store).policy().set_marks_percent(50, 40));
        assert!((10..40).all(|i| read(&store, i).unwrap() == page(i, 1)));
        assert_eq!(stats(&store).promoted_pages, 10);
        store.set_mem_limit(pagefold_store::MemLimit::Off);
        // The first read after writeback does not promote.
        write_back_all(&store);
        assert!((0..10).all(|i| read(&store, i).unwrap() == page(i, 1)));
        assert_eq!(stats(&store).promoted_pages, 10);
        assert_all_free(&store);
    }
}
