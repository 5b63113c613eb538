//! The states of slots as zram's `block_state` shows them.

use crate::support::rig::{LAYOUTS, raw_page, read, soft_page, write, write_back};
use pagefold_backing::MemoryBacking;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{CodecSpec, MemLimit, SlotState, Store, StoreConfig};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const PAGES: u64 = 100_000;

fn store(layout: Option<LayoutKind>) -> Store {
    let mut config = StoreConfig::new(PAGES * PAGE_SIZE as u64);
    config.mem_limit = MemLimit::Off;
    config.access_times = true;
    config.further_codecs = [Some(CodecSpec::named("zstd")), Some(CodecSpec::named("deflate")), None];
    let mut store = Store::new(config).unwrap();
    if let Some(layout) = layout {
        let backing = Arc::new(MemoryBacking::new(16 << 20));
        store.attach(WritebackConfig { backing, layout }).unwrap();
        store.writeback().unwrap().settings().promote.store(false);
    }
    store
}

fn states(store: &Store, first: u64, end: u64) -> Vec<SlotState> {
    let mut all = Vec::new();
    store.each_slot_state(PageIndex(first)..PageIndex(end), |slot| {
        all.push(slot);
        ControlFlow::Continue(())
    });
    all
}

/// Index and flags of all pages, in zram's letters.
fn flags(store: &Store) -> Vec<(u64, String)> {
    let text = |s: &SlotState| {
        let flags = [
            (s.is_same_filled, 's'),
            (s.is_written_back, 'w'),
            (s.is_raw, 'h'),
            (s.is_idle, 'i'),
            (s.is_recompressed, 'r'),
            (s.is_incompressible, 'n'),
        ];
        flags.iter().filter(|(set, _)| *set).map(|(_, letter)| letter).collect()
    };
    states(store, 0, PAGES).iter().map(|s| (s.index.0, text(s))).collect()
}

fn expect(store: &Store, expected: &[(u64, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(index, flags)| (*index, flags.to_string())).collect();
    assert_eq!(flags(store), expected);
}

fn recompress(store: &Store, words: &str) {
    store.recompress(&words.parse().unwrap(), &mut |_| ControlFlow::Continue(())).unwrap();
}

/// Text that a denser codec makes shorter.
fn text() -> [u8; PAGE_SIZE] {
    let text: String = (0..2000).map(|i| format!("{} pages, ", i * i % 997)).collect();
    text.as_bytes()[..PAGE_SIZE].try_into().unwrap()
}

#[test]
fn each_state_has_its_flags_until_the_page_changes() {
    let store = store(None);
    expect(&store, &[]);
    write(&store, 3, &text());
    write(&store, 700, &raw_page(700, 0));
    write(&store, 701, &[7; PAGE_SIZE]);
    write(&store, 99_999, &soft_page(99_999, 0));
    expect(&store, &[(3, ""), (700, "h"), (701, "s"), (99_999, "")]);
    store.mark_idle(0);
    // Neither zram nor a store marks same-filled pages.
    expect(&store, &[(3, "i"), (700, "hi"), (701, "s"), (99_999, "i")]);
    read(&store, 99_999).unwrap();
    expect(&store, &[(3, "i"), (700, "hi"), (701, "s"), (99_999, "")]);
    // Only the codec of the highest priority makes a page incompressible, a compressed one too.
    write(&store, 4, &mixed_page());
    recompress(&store, "priority=1");
    expect(&store, &[(3, "r"), (4, ""), (700, "h"), (701, "s"), (99_999, "r")]);
    recompress(&store, "priority=2");
    expect(&store, &[(3, "rn"), (4, "n"), (700, "hn"), (701, "s"), (99_999, "rn")]);
    // A change of the contents clears all.
    write(&store, 700, &raw_page(700, 1));
    write(&store, 3, &text());
    expect(&store, &[(3, ""), (4, "n"), (700, "h"), (701, "s"), (99_999, "rn")]);
    store.discard(0, 701 * PAGE_SIZE as u64).unwrap();
    expect(&store, &[(701, "s"), (99_999, "rn")]);
}

/// A page of which each codec saves the second half, and nothing of the first.
fn mixed_page() -> [u8; PAGE_SIZE] {
    let mut page = raw_page(4, 0);
    page[PAGE_SIZE / 2..].fill(7);
    page
}

/// The flags of one page.
fn flags_of(store: &Store, index: u64) -> String {
    flags(store).into_iter().find(|(of, _)| *of == index).unwrap().1
}

#[test]
fn a_written_back_page_keeps_its_form_where_the_backing_keeps_its_bytes() {
    for (layout, raw, again) in [(LAYOUTS[0], "wh", "wr"), (LAYOUTS[1], "w", "w")] {
        let store = store(Some(layout));
        write(&store, 0, &text());
        write(&store, 1, &raw_page(1, 0));
        write(&store, 2, &soft_page(2, 0));
        write(&store, 3, &text());
        recompress(&store, "priority=2");
        assert_eq!([0, 1].map(|index| flags_of(&store, index)), ["r", "hn"]);
        write(&store, 3, &text());
        store.mark_idle(0);
        write_back(&store, 0, 1);
        write_back(&store, 3, 3);
        assert_eq!([0, 1, 3].map(|index| flags_of(&store, index)), [again, raw, "w"]);
        assert!(flags_of(&store, 2).starts_with('i'));
    }
}

#[test]
fn only_the_pages_of_the_range_are_visited_until_the_visitor_breaks() {
    let store = store(None);
    [0, 255, 256, 40_000, 99_999].iter().for_each(|i| write(&store, *i, &[9; PAGE_SIZE]));
    let indices = |first, end| states(&store, first, end).iter().map(|s| s.index.0).collect::<Vec<_>>();
    assert_eq!(indices(0, 1), [0]);
    assert_eq!(indices(1, 255), [0; 0]);
    assert_eq!(indices(255, 257), [255, 256]);
    assert_eq!(indices(257, u64::MAX), [40_000, 99_999]);
    assert_eq!(indices(PAGES, u64::MAX), [0; 0]);
    let mut visited = Vec::new();
    store.each_slot_state(PageIndex(0)..PageIndex(PAGES), |slot| {
        visited.push(slot.index.0);
        if visited.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(visited, [0, 255, 256]);
}

#[test]
fn access_times_lie_between_those_of_the_calls() {
    let tick = Duration::from_millis(250);
    let store = store(None);
    std::thread::sleep(2 * tick);
    // Advances the clock, which stands still in a store without threads.
    store.mark_idle(0);
    let before = store.elapsed();
    write(&store, 5, &[1; PAGE_SIZE]);
    let written = states(&store, 5, 6)[0].last_access;
    assert!(written <= before && written + 2 * tick >= before, "{written:?} {before:?}");
    std::thread::sleep(2 * tick);
    assert_eq!(states(&store, 5, 6)[0].last_access, written);
    store.mark_idle(0);
    read(&store, 5).unwrap();
    let accessed = states(&store, 5, 6)[0].last_access;
    assert!(accessed > written && accessed <= store.elapsed(), "{accessed:?} after {written:?}");
}

#[test]
fn reads_of_written_back_pages_wait_for_the_medium() {
    for layout in LAYOUTS {
        let store = store(Some(layout));
        let page = PAGE_SIZE as u64;
        (0..8).for_each(|index| write(&store, index, &raw_page(index, 1)));
        let waits = |first: u64, len: u64| store.waits_for_medium(first, len);
        assert!(!waits(0, 8 * page), "in memory");
        write_back(&store, 3, 4);
        assert!(waits(3 * page, page) && waits(0, 8 * page) && waits(5 * page - 1, 1));
        assert!(!waits(0, 3 * page) && !waits(5 * page, 3 * page) && !waits(3 * page, 0));
        // Outside, and with numbers that no range has.
        assert!(!waits(PAGES * page, 1) && !waits(u64::MAX, u64::MAX));
        write(&store, 3, &raw_page(3, 2));
        store.discard(4 * page, page).unwrap();
        assert!(!waits(0, 8 * page), "replaced and discarded");
    }
    let without = store(None);
    write(&without, 0, &raw_page(0, 1));
    assert!(!without.waits_for_medium(0, 4096));
}
