//! Loading agrees with reading, its slow twin, in every state of a page.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::page;
use common::rig::read;
use pagefold_codec::{CodecSpec, names};
use pagefold_page::{Page, PageIndex};
use pagefold_store::{Loaded, Loader, MemLimit, Store, StoreConfig, fill};

const PAGES: u64 = 64;

/// The page as a load tells it; `page` is not touched unless it should be.
fn load(store: &Store, index: u64, loader: &mut Loader) -> Page {
    let mut page = [0xee; 4096];
    match store.load(PageIndex(index), loader, &mut page).unwrap() {
        Loaded::Page => return page,
        Loaded::Empty => {
            assert!(page == [0xee; 4096]);
            page.fill(0);
        }
        Loaded::SameFilled(word) => {
            assert!(page == [0xee; 4096]);
            fill(&mut page, word);
        }
    }
    page
}

fn check_all(store: &Store, loader: &mut Loader) {
    for index in 0..PAGES {
        assert!(load(store, index, loader) == read(store, index).unwrap(), "page {index}");
    }
}

#[test]
fn a_load_agrees_with_a_read_for_every_codec() {
    for name in names() {
        let config = StoreConfig {
            codec: CodecSpec::named(name),
            mem_limit: MemLimit::Off,
            ..StoreConfig::new(PAGES * 4096)
        };
        let store = Store::new(config).unwrap();
        let mut loader = store.loader().unwrap();
        for index in (0..PAGES).filter(|i| i % 5 > 0) {
            store.write(index * 4096, &page(index)).unwrap();
        }
        check_all(&store, &mut loader);
    }
}
