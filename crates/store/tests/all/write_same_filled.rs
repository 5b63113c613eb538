//! Writing a page by its fill word has the same effect as writing its bytes: contents, results and counters, in every
//! state of the page. Known mistakes that these tests exclude: a word that is stored with the check disabled; old
//! contents that are not freed; an error that is not counted.

use crate::support::rig::*;
use crate::support::{Random, page};
use pagefold_backing::MemoryBacking;
use pagefold_page::PageIndex;
use pagefold_pool::{Arena, RefuseNth};
use pagefold_store::{Loaded, MemLimit, Store, StoreConfig, StoreError, fill};
use std::sync::Arc;

const PAGES: u64 = 96;

/// Writes a page as bytes to one store, and as a word to the other.
fn write_both(bytes: &Store, word: &Store, index: u64, fill_word: u64) -> Result<(), StoreError> {
    let mut page = [0; 4096];
    fill(&mut page, fill_word);
    let (first, second) =
        (bytes.write(index.saturating_mul(4096), &page), word.write_same_filled(PageIndex(index), fill_word));
    assert_eq!(format!("{first:?}"), format!("{second:?}"), "page {index}");
    second
}

fn check(bytes: &Store, word: &Store) {
    assert_eq!(bytes.stats(), word.stats());
    assert_eq!(bytes.writeback().map(|p| p.stats().bd), word.writeback().map(|p| p.stats().bd));
}

#[test]
fn a_word_has_the_same_effect_as_its_page_in_every_state() {
    let store = || store_on(Arc::new(MemoryBacking::new(segments(12))), LAYOUTS[0], PAGES);
    let (bytes, word) = (store(), store());
    let mut random = Random(7);
    let mut kinds = [0; 2];
    for round in 0..2000 {
        let index = random.below(PAGES);
        match random.below(8) {
            0..3 => {
                let page = page(random.next());
                [&bytes, &word].into_iter().for_each(|store| write(store, index, &page));
            }
            3 => {
                [&bytes, &word]
                    .into_iter()
                    .for_each(|store| drop(write_back(store, index, (index + 3).min(PAGES - 1))));
            }
            4 if round % 16 == 0 => {
                let is_on = random.below(2) == 0;
                [&bytes, &word].into_iter().for_each(|store| store.set_same_filled_enabled(is_on));
            }
            _ => {
                let fill_word = [0, u64::MAX, random.next()][random.below(3) as usize];
                write_both(&bytes, &word, index, fill_word).unwrap();
                let mut page = [0; 4096];
                let loaded = word.load(PageIndex(index), &mut word.loader().unwrap(), &mut page).unwrap();
                let kept_as =
                    if word.same_filled_enabled() { Loaded::SameFilled(fill_word) } else { Loaded::Page };
                assert_eq!(loaded, kept_as);
                kinds[usize::from(loaded == Loaded::Page)] += 1;
            }
        }
        check(&bytes, &word);
    }
    assert!(kinds.iter().all(|count| *count > 100), "{kinds:?}");
    for index in 0..PAGES {
        assert!(read(&bytes, index).unwrap() == read(&word, index).unwrap(), "page {index}");
    }
}

#[test]
fn partial_pages_at_the_end_are_refused() {
    let config = || StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(PAGES * 4096 - 1000) };
    let (bytes, word) = (Store::new(config()).unwrap(), Store::new(config()).unwrap());
    for is_on in [true, false] {
        [&bytes, &word].into_iter().for_each(|store| store.set_same_filled_enabled(is_on));
        write_both(&bytes, &word, PAGES - 2, 5).unwrap();
        for index in [PAGES - 1, PAGES, PAGES << 20, u64::MAX / 4096, u64::MAX] {
            assert!(matches!(write_both(&bytes, &word, index, 5), Err(StoreError::OutOfRange { .. })));
        }
        check(&bytes, &word);
    }
    assert_eq!(word.stats().io.invalid_io, 10);
}

#[test]
fn a_word_that_finds_no_memory_for_its_slot_is_refused_and_counted() {
    let store = || {
        let source = Arc::new(RefuseNth::new(Arena::new(64 << 20).unwrap(), u64::MAX));
        let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(PAGES * 4096) };
        let store = Store::with_source(config, source.clone()).unwrap();
        source.refuse_after(0);
        (store, source)
    };
    let ((bytes, first), (word, second)) = (store(), store());
    assert!(matches!(write_both(&bytes, &word, 3, 5), Err(StoreError::NoMemory { .. })));
    assert_eq!(word.stats().io.failed_writes, 1);
    check(&bytes, &word);
    [first, second].into_iter().for_each(|source| source.allow());
    write_both(&bytes, &word, 3, 5).unwrap();
    check(&bytes, &word);
}
