//! Model check of late registration (run with `RUSTFLAGS="--cfg loom"`): a fault unregisters the chunk of its page, and
//! other threads fault, drop pages, pin them, and register the chunk again to evict them, in all orders. The words of
//! the pages are the production ones; `region_model::chunk` is the model of the chunk.

use crate::region_model::{Method, RegionModel, Store::*, THREE, TWO, ZERO, check_bound, join, spawn};
use loom::sync::Arc;

/// Runs a model with both ways of paging out, and a chunk that may be unregistered once or twice.
fn check(bound: usize, model: fn(Arc<RegionModel>)) {
    for (method, room) in [(Method::Move, 1), (Method::Protect, 1), (Method::Move, 2)] {
        check_bound(bound, move || model(RegionModel::late(method, room)));
    }
}

/// Registers the chunk and checks both pages, then pages them out and in once more.
fn settle(region: &RegionModel, expected: [&[u64]; 2]) {
    let values = [region.read(0), region.read(1)];
    region.check_registered();
    for (page, value) in values.into_iter().enumerate() {
        assert!(expected[page].contains(&value), "page {page}: {value} instead of {:?}", expected[page]);
        assert!(region.page_out(page, 2), "no thread owns page {page} any more");
        region.fold_frame(page, 2, Accepts);
        assert_eq!(region.read(page), value);
    }
}

/// An evictor that registers the chunk and evicts a page.
fn evict(region: &RegionModel, page: usize) {
    region.register_chunk();
    region.evict(page, 0, Accepts);
}

#[test]
fn two_first_faults_agree_on_the_chunk() {
    check(THREE, |region| {
        let others = [spawn(&region, |w| w.write(1, 20)), spawn(&region, |w| w.evict(0, 0, Accepts))];
        region.write(0, 10);
        join(others);
        settle(&region, [&[10], &[20]]);
    });
}

#[test]
fn a_write_is_kept_while_the_chunk_is_registered() {
    check(THREE, |region| {
        region.write(0, 10);
        let others = [spawn(&region, |w| evict(w, 0)), spawn(&region, |w| evict(w, 1))];
        region.write(0, 11);
        join(others);
        settle(&region, [&[11], &[ZERO]]);
    });
}

#[test]
fn a_reader_never_sees_an_older_version_again() {
    check(THREE, |region| {
        let others = [
            spawn(&region, |w| {
                w.register_chunk();
            }),
            spawn(&region, |w| {
                let first = w.read(0);
                let second = w.read(0);
                assert!([ZERO, 11].contains(&first) && first <= second && second <= 11, "{first}, {second}");
            }),
        ];
        region.write(0, 11);
        join(others);
        settle(&region, [&[11], &[ZERO]]);
    });
}

#[test]
fn a_page_that_is_in_use_keeps_its_chunk_registered() {
    check(THREE, |region| {
        let others = [
            // As a neighbour of a page before the chunk.
            spawn(&region, |w| w.read_ahead(1, true)),
            spawn(&region, |w| w.write_without_memory(1, 20)),
        ];
        region.write(0, 10);
        join(others);
        settle(&region, [&[10], &[20]]);
    });
}

#[test]
fn a_page_is_dropped_while_the_chunk_is_registered() {
    check(THREE, |region| {
        region.write(0, 10);
        let others = [spawn(&region, |w| evict(w, 1)), spawn(&region, |w| w.write(1, 20))];
        assert!(region.discard(0));
        join(others);
        settle(&region, [&[ZERO], &[20]]);
    });
}

#[test]
fn a_chunk_is_dropped_while_it_is_registered() {
    check(THREE, |region| {
        region.write(0, 10);
        region.write(1, 20);
        let others = [spawn(&region, |w| evict(w, 0)), spawn(&region, |w| assert!(w.discard_chunk()))];
        assert!([ZERO, 10].contains(&region.read(0)));
        join(others);
        settle(&region, [&[ZERO], &[ZERO]]);
    });
}

#[test]
fn a_chunk_is_dropped_during_a_fault() {
    check(THREE, |region| {
        let others = [spawn(&region, |w| evict(w, 0)), spawn(&region, |w| assert!(w.discard_chunk()))];
        region.write(0, 11);
        join(others);
        settle(&region, [&[ZERO, 11], &[ZERO]]);
    });
}

#[test]
fn a_pinned_page_stays_while_its_chunk_is_registered() {
    check(TWO, |region| {
        let evictor = spawn(&region, |w| evict(w, 0));
        region.write_pinned(0, 11);
        join([evictor]);
        settle(&region, [&[11], &[ZERO]]);
    });
}

#[test]
fn a_pinned_page_of_a_chunk_is_not_dropped() {
    check(THREE, |region| {
        region.write(0, 10);
        let others = [
            spawn(&region, |w| evict(w, 0)),
            // The pages are resident afterwards only if `discard_chunk` refused to drop them.
            spawn(&region, |w| {
                w.discard_chunk();
            }),
        ];
        region.write_pinned(0, 11);
        join(others);
        settle(&region, [&[ZERO, 11], &[ZERO]]);
    });
}

#[test]
fn two_evictors_register_a_chunk_once() {
    check(TWO, |region| {
        region.write(0, 10);
        let other = spawn(&region, |w| {
            if w.register_chunk() {
                w.evict(0, 1, Accepts);
            }
        });
        evict(&region, 0);
        join([other]);
        settle(&region, [&[10], &[ZERO]]);
    });
}
