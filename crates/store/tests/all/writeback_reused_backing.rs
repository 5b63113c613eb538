//! A backing that was used before: records of an earlier store are never taken for pages of this one.

use crate::support::rig::{LAYOUTS, raw_page, read, segments, store_on, write, write_back, write_back_all};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{Tear, TornLayer, TornRule, When};
use pagefold_store::StoreError;
use pagefold_store::writeback::{AttachError, LayoutKind, WritebackConfig};
use std::sync::Arc;

#[test]
fn read_ahead_does_not_bring_in_pages_of_an_earlier_store() {
    let backing = Arc::new(MemoryBacking::new(segments(8)));
    for version in [1, 2] {
        let store = store_on(backing.clone(), LayoutKind::Log, 64);
        (0..20).for_each(|i| write(&store, i, &raw_page(i, version)));
        write_back(&store, 0, 9);
        // Sequential: the second read reads a run ahead, past the end of the written records.
        assert!((0..2).all(|i| read(&store, i).unwrap() == raw_page(i, version)));
        write_back(&store, 10, 19);
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
        write_back(&before, 0, 19);
        drop(before);

        let store = store_on(torn.clone(), layout, 64);
        (0..20).for_each(|i| write(&store, i, &raw_page(i, 2)));
        let lost = TornRule { when: When::Always, tear: Some(Tear::Nothing), errno: None, seed: 0 };
        torn.control().set(Some(lost));
        assert_eq!(write_back(&store, 0, 19).written_back_pages, 20);
        for i in 0..20 {
            assert!(read(&store, i).is_err(), "{layout:?}: page {i} was never written");
        }
    }
}

/// Pages may lie on the first backing, and would be read from the second.
#[test]
fn a_second_backing_is_refused_and_the_first_keeps_its_pages() {
    for layout in LAYOUTS {
        let mut store = store_on(Arc::new(MemoryBacking::new(segments(8))), layout, 20);
        (0..20).for_each(|i| write(&store, i, &raw_page(i, 1)));
        assert_eq!(write_back_all(&store).error, None);
        let second = WritebackConfig { backing: Arc::new(MemoryBacking::new(segments(8))), layout };
        let refused = store.attach(second);
        assert!(matches!(refused, Err(StoreError::Attach(AttachError::HasOne))), "{refused:?}");
        (0..20).for_each(|i| assert!(read(&store, i).unwrap() == raw_page(i, 1), "{i}"));
    }
}
