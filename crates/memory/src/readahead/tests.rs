//! Tests of readahead: windows of sequential, interleaved and random accesses.

use super::*;

const LIMIT_PAGES: u64 = 1 << 15;

#[test]
fn windows_are_dropped_behind_once_their_stream_has_passed_them() {
    for step in [1_i64, -1] {
        let readahead = Readahead::new(LIMIT_PAGES);
        run(&readahead, (0..1_000).map(|i| ((1 << 20) + i * step) as u64));
        let behind: Vec<_> = std::iter::from_fn(|| readahead.next_drop_behind()).collect();
        let pages: std::collections::BTreeSet<u64> = behind.iter().cloned().flatten().collect();
        assert_eq!(pages.len(), behind.iter().map(|range| range.clone().count()).sum::<usize>());
        let (far, near) = ((1 << 20) + 900 * step, (1 << 20) + 10 * step);
        assert!(pages.contains(&(near as u64)) && pages.contains(&(far as u64)), "{step}: {behind:?}");
        // The stream has not passed the last window.
        assert!(!pages.contains(&(((1 << 20) + 999 * step) as u64)));
        assert!(pages.iter().all(|page| page.abs_diff(1 << 20) < 1_000));
    }
}

#[test]
fn random_pages_are_not_dropped_behind() {
    let readahead = Readahead::new(LIMIT_PAGES);
    run(&readahead, (0..1000_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 30));
    assert_eq!(readahead.next_drop_behind(), None);
}

/// Touches pages in order, as a program that faults only on pages that were not brought in.
fn run(readahead: &Readahead, pages: impl Iterator<Item = u64>) -> (usize, usize) {
    let mut there = std::collections::BTreeSet::new();
    let (mut faults, mut touched) = (0, 0);
    for page in pages {
        touched += 1;
        if there.contains(&page) {
            continue;
        }
        faults += 1;
        match readahead.record_fault(page * PAGE_SIZE as u64, true) {
            Window::Strided { pages, stride } => {
                there.extend((0..pages as i64).map(|i| (page as i64 + i * stride) as u64));
                readahead.count_brought(pages - 1);
            }
            // The multiples of a number modulo another have distances that repeat.
            Window::Gather(gather) => {
                there.insert(page);
                there.extend(gather.pages().map(|page| page.0));
            }
            Window::Rows(_) => panic!("rows for page {page}"),
        }
    }
    (faults, touched)
}

#[test]
fn sequential_access_faults_once_a_window() {
    for (first, step) in [(0_i64, 1_i64), (1 << 20, -1), (7, 3), (1 << 20, -64)] {
        let readahead = Readahead::new(LIMIT_PAGES);
        let (faults, touched) = run(&readahead, (0..10_000).map(|i| (first + (i % 10_000) * step) as u64));
        assert!(faults < touched / 28, "{step}: {faults} faults for {touched} pages");
        let (brought, used) = readahead.counts();
        assert!(used * 100 >= brought * 97, "{step}: {used} of {brought}");
    }
}

#[test]
fn advised_sequential_access_faults_once_a_window_from_the_first_page_on() {
    let readahead = Readahead::new(LIMIT_PAGES);
    let (mut next, mut faults) = (1000_u64, 0);
    while next < 1000 + 3200 {
        let Window::Strided { pages, .. } = readahead.record_sequential(PageIndex(next)) else { panic!() };
        readahead.count_brought(pages - 1);
        (next, faults) = (next + pages, faults + 1);
    }
    assert_eq!(faults, 100);
    let behind: u64 = std::iter::from_fn(|| readahead.next_drop_behind()).flatten().count() as u64;
    assert_eq!(behind, 99 * WINDOW_MAX as u64, "all windows but the last were passed");
    assert_eq!(readahead.counts(), (100 * 31, 99 * 31));
    // Pages that were evicted before they were read come in again, with a whole window each time.
    assert_eq!(readahead.record_sequential(PageIndex(next - 5)), Window::Strided { pages: 32, stride: 1 });
    assert_eq!(readahead.record_sequential(PageIndex(next + 27)), Window::Strided { pages: 32, stride: 1 });
}

#[test]
fn random_access_brings_no_neighbours() {
    let readahead = Readahead::new(LIMIT_PAGES);
    let mut x = 1_u64;
    let random = std::iter::repeat_with(move || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        x >> 40
    });
    run(&readahead, random.take(100_000));
    let (brought, _) = readahead.counts();
    assert!(brought < 2_000, "{brought} neighbours");
}

#[test]
fn interleaved_streams_are_recognised_among_random_faults() {
    let readahead = Readahead::new(LIMIT_PAGES);
    let pages = (0..4_000_u64).flat_map(|i| {
        let noise = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 30;
        [i, (1 << 40) + i, (1 << 41) + i * 2, noise | 1 << 45].into_iter().take(if i % 8 == 0 {
            4
        } else {
            3
        })
    });
    let (faults, _) = run(&readahead, pages);
    assert!(faults < 500 + 3 * 4_000 / 20, "{faults}");
}

#[test]
fn a_stream_that_ends_is_not_counted_as_used() {
    let readahead = Readahead::new(LIMIT_PAGES);
    run(&readahead, 0..6);
    let (brought, used) = readahead.counts();
    assert!(brought > 0 && used < brought, "{used} of {brought}");
}

#[test]
fn streams_at_the_first_and_last_pages_do_not_overflow() {
    let readahead = Readahead::new(LIMIT_PAGES);
    run(&readahead, (0..5).rev());
    run(&readahead, (1_u64 << 36)..(1 << 36) + 5);
    let far = Stream { next: (1 << 48) - 1, stride: -64, level: 3, brought: 31 };
    assert_eq!(Stream::decode(far.encode()), Some(far));
}
