//! A backing that was used before: nothing that an earlier store left on it is ever taken for a page of this one.

use crate::support::rig::{park, raw_page, read, segments, store_on, write};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{Tear, TornLayer, TornRule, When};
use pagefold_store::parking::LayoutKind;
use std::sync::Arc;

#[test]
fn read_ahead_does_not_bring_in_pages_of_an_earlier_store() {
    let backing = Arc::new(MemoryBacking::new(segments(8)));
    for version in [1, 2] {
        let store = store_on(backing.clone(), LayoutKind::Log, 64);
        (0..20).for_each(|i| write(&store, i, &raw_page(i, version)));
        park(&store, 0, 9);
        // In order: the second read takes a run with it, past the end of what is written so far.
        assert!((0..2).all(|i| read(&store, i).unwrap() == raw_page(i, version)));
        park(&store, 10, 19);
        for i in 0..20 {
            assert!(read(&store, i).unwrap() == raw_page(i, version), "page {i} of store {version}");
        }
    }
}

#[test]
fn a_lost_write_does_not_show_an_earlier_store() {
    for layout in crate::support::rig::LAYOUTS {
        let torn = Arc::new(TornLayer::new(MemoryBacking::new(segments(8))));
        let before = store_on(torn.clone(), layout, 64);
        (0..20).for_each(|i| write(&before, i, &raw_page(i, 1)));
        park(&before, 0, 19);
        drop(before);

        let store = store_on(torn.clone(), layout, 64);
        (0..20).for_each(|i| write(&store, i, &raw_page(i, 2)));
        let lost = TornRule { when: When::Always, tear: Some(Tear::Nothing), errno: None, seed: 0 };
        torn.control().set(Some(lost));
        assert_eq!(park(&store, 0, 19).parked_pages, 20);
        for i in 0..20 {
            assert!(read(&store, i).is_err(), "{layout:?}: page {i} was never written");
        }
    }
}
