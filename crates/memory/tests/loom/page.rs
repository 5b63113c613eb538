//! Model check of the production page words (run with `RUSTFLAGS="--cfg loom"`): threads that fault on a page, pin it,
//! drop it, page it out and fold it run in all orders, on the small region of `region_model`. Each of its steps stands
//! for the production function that its comment names, and makes the same transitions.
//!
//! Every model checks: a read returns the last version written, and never comes from a frame that was released; a
//! resident page is in the range; an older version never overwrites a newer one in the store; the copy of a page that
//! counts as clean equals the page; a page that a device has to write to it does not leave; one thread at a time owns a
//! frame or a slot of the store; waiters are woken (loom reports a deadlock).

use crate::region_model::{Method, RegionModel, Store::*, THREE, TWO, ZERO, check_bound, join, spawn};
use loom::sync::Arc;

/// Runs a model with both ways of paging out dirty pages.
fn check(bound: usize, model: fn(Arc<RegionModel>)) {
    for method in [Method::Move, Method::Protect] {
        check_bound(bound, move || model(RegionModel::new(method)));
    }
}

/// Checks the final contents, and pages the page out and in once more.
fn settle(region: &RegionModel, expected: &[u64]) {
    let value = region.read(0);
    assert!(expected.contains(&value), "{value} instead of {expected:?}");
    assert!(region.page_out(0, 2), "no thread owns the page any more");
    region.fold_frame(0, 2, Accepts);
    assert_eq!(region.read(0), value);
}

/// A page of version 10, resident and dirty.
fn dirty(region: &RegionModel) {
    region.write(0, 10);
}

/// A page of version 10, folded.
fn folded(region: &RegionModel) {
    region.write(0, 10);
    region.evict(0, 0, Accepts);
}

/// A page of version 10, resident and clean.
fn clean(region: &RegionModel) {
    folded(region);
    assert_eq!(region.read(0), 10);
}

#[test]
fn a_write_during_folding_is_kept() {
    for prepare in [dirty, clean] {
        for method in [Method::Move, Method::Protect] {
            check_bound(TWO, move || {
                let region = RegionModel::new(method);
                prepare(&region);
                let evictor = spawn(&region, |w| w.evict(0, 0, Accepts));
                region.write(0, 11);
                assert_eq!(region.read(0), 11);
                join([evictor]);
                settle(&region, &[11]);
            });
        }
    }
}

#[test]
fn old_versions_do_not_overwrite_new_ones() {
    check(THREE, |region| {
        dirty(&region);
        let evictors =
            [spawn(&region, |w| w.evict(0, 0, Accepts)), spawn(&region, |w| w.evict(0, 1, Accepts))];
        region.write(0, 11);
        join(evictors);
        settle(&region, &[11]);
    });
}

#[test]
fn a_reader_never_sees_an_older_version_again() {
    check(THREE, |region| {
        dirty(&region);
        let others = [
            spawn(&region, |w| w.evict(0, 0, Accepts)),
            spawn(&region, |w| {
                let first = w.read(0);
                let second = w.read(0);
                assert!([10, 11].contains(&first) && first <= second && second <= 11, "{first}, {second}");
            }),
        ];
        region.write(0, 11);
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_return_without_memory_keeps_the_frame() {
    for store in [Accepts, Refuses] {
        for prepare in [dirty, clean] {
            for method in [Method::Move, Method::Protect] {
                check_bound(TWO, move || {
                    let region = RegionModel::new(method);
                    prepare(&region);
                    let evictor = spawn(&region, move |w| w.evict(0, 0, store));
                    region.write_without_memory(0, 11);
                    join([evictor]);
                    settle(&region, &[11]);
                });
            }
        }
    }
}

#[test]
fn two_faults_that_return_a_page_wait_for_each_other() {
    check(THREE, |region| {
        dirty(&region);
        assert!(region.page_out(0, 0));
        let others = [
            spawn(&region, |w| w.fold_frame(0, 0, Accepts)),
            spawn(&region, |w| w.write_without_memory(0, 11)),
        ];
        assert!([10, 11].contains(&region.read(0)));
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_refused_page_comes_back() {
    check(THREE, |region| {
        dirty(&region);
        let evictors =
            [spawn(&region, |w| w.evict(0, 0, Refuses)), spawn(&region, |w| w.evict(0, 1, Accepts))];
        region.write(0, 11);
        join(evictors);
        settle(&region, &[11]);
    });
}

#[test]
fn a_page_dropped_during_folding_is_zero() {
    for prepare in [dirty, clean] {
        for method in [Method::Move, Method::Protect] {
            check_bound(TWO, move || {
                let region = RegionModel::new(method);
                prepare(&region);
                let evictor = spawn(&region, |w| w.evict(0, 0, Accepts));
                assert!(region.discard(0));
                // Without memory first: the word must not become folded then.
                region.serve(0, false);
                assert_eq!(region.read(0), ZERO);
                region.write(0, 12);
                join([evictor]);
                settle(&region, &[12]);
            });
        }
    }
}

#[test]
fn dropping_during_a_fault_and_folding() {
    check(THREE, |region| {
        dirty(&region);
        let others = [spawn(&region, |w| w.evict(0, 0, Accepts)), spawn(&region, |w| w.write(0, 11))];
        assert!(region.discard(0));
        join(others);
        settle(&region, &[ZERO, 11]);
    });
}

#[test]
fn dropping_a_folded_page_during_a_fault() {
    check(THREE, |region| {
        folded(&region);
        let others = [spawn(&region, |w| assert!(w.discard(0))), spawn(&region, |w| w.read_ahead(0, true))];
        assert!([ZERO, 10].contains(&region.read(0)));
        join(others);
        settle(&region, &[ZERO]);
    });
}

#[test]
fn a_pinned_page_stays() {
    check(THREE, |region| {
        dirty(&region);
        let others = [
            spawn(&region, |w| w.evict(0, 0, Accepts)),
            spawn(&region, |w| assert!([10, 11].contains(&w.read(0)))),
        ];
        region.write_pinned(0, 11);
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_pinned_page_is_not_dropped() {
    check(THREE, |region| {
        dirty(&region);
        let others = [
            spawn(&region, |w| w.evict(0, 0, Accepts)),
            // The page is resident after `discard` only if `discard` refused to drop it.
            spawn(&region, |w| {
                w.discard(0);
            }),
        ];
        region.write_pinned(0, 11);
        join(others);
        settle(&region, &[ZERO, 11]);
    });
}

#[test]
fn a_load_has_one_owner() {
    check(THREE, |region| {
        folded(&region);
        let others =
            [spawn(&region, |w| assert_eq!(w.read(0), 10)), spawn(&region, |w| w.read_ahead(0, false))];
        assert_eq!(region.read(0), 10);
        join(others);
        settle(&region, &[10]);
    });
}

#[test]
fn a_load_without_memory_is_retried() {
    check(THREE, |region| {
        folded(&region);
        let others =
            [spawn(&region, |w| w.evict(0, 1, Accepts)), spawn(&region, |w| w.write_without_memory(0, 11))];
        assert!([10, 11].contains(&region.read(0)));
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_first_touch_without_memory_is_retried() {
    check(THREE, |region| {
        let others =
            [spawn(&region, |w| w.evict(0, 1, Accepts)), spawn(&region, |w| w.write_without_memory(0, 11))];
        assert!([ZERO, 11].contains(&region.read(0)));
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn dropping_an_old_copy_during_folding() {
    check(THREE, |region| {
        clean(&region);
        let others = [spawn(&region, |w| w.evict(0, 0, Accepts)), spawn(&region, |w| w.drop_old_copy(0))];
        region.write(0, 11);
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_frame_is_reused_for_another_page() {
    check(THREE, |region| {
        dirty(&region);
        region.write(1, 20);
        let others = [
            spawn(&region, |w| {
                w.evict(0, 0, Accepts);
                w.evict(1, 0, Accepts);
            }),
            spawn(&region, |w| assert_eq!(w.read(1), 20)),
        ];
        region.write_without_memory(0, 11);
        join(others);
        assert_eq!(region.read(1), 20);
        settle(&region, &[11]);
    });
}

#[test]
fn a_page_that_cannot_be_moved_stays() {
    check(THREE, |region| {
        dirty(&region);
        let others = [spawn(&region, |w| w.fail_to_page_out(0)), spawn(&region, |w| w.evict(0, 0, Accepts))];
        region.write(0, 11);
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn a_page_dropped_by_madvise_is_unchanged_or_zero() {
    for method in [Method::Move, Method::Protect] {
        check_bound(THREE, move || {
            let region = RegionModel::with_madvise(method);
            clean(&region);
            let others = [
                spawn(&region, |w| w.evict(0, 0, Accepts)),
                spawn(&region, |w| assert!([ZERO, 10].contains(&w.read(0)))),
            ];
            region.madvise_dontneed(0);
            assert!([ZERO, 10].contains(&region.read(0)));
            join(others);
            assert!([ZERO, 10].contains(&region.read(0)));
        });
    }
}

#[test]
fn a_write_to_a_page_dropped_by_madvise_is_kept() {
    for method in [Method::Move, Method::Protect] {
        check_bound(TWO, move || {
            let region = RegionModel::with_madvise(method);
            dirty(&region);
            let evictor = spawn(&region, |w| w.evict(0, 0, Accepts));
            region.madvise_dontneed(0);
            assert!([ZERO, 10].contains(&region.read(0)));
            region.write(0, 11);
            assert_eq!(region.read(0), 11);
            join([evictor]);
            settle(&region, &[11]);
        });
    }
}

#[test]
fn a_page_overwritten_in_the_store_keeps_the_newest_version() {
    for store in [Accepts, Refuses] {
        for prepare in [dirty, clean, folded] {
            for method in [Method::Move, Method::Protect] {
                check_bound(TWO, move || {
                    let region = RegionModel::new(method);
                    prepare(&region);
                    let evictor = spawn(&region, |w| w.evict(0, 0, Accepts));
                    region.write_whole(0, 11, store);
                    assert_eq!(region.read_whole(0), 11);
                    join([evictor]);
                    settle(&region, &[11]);
                });
            }
        }
    }
}

#[test]
fn a_whole_page_is_overwritten_during_a_fault_and_folding() {
    check(THREE, |region| {
        dirty(&region);
        let others = [
            spawn(&region, |w| w.evict(0, 0, Accepts)),
            spawn(&region, |w| {
                let first = w.read(0);
                let second = w.read_whole(0);
                assert!([10, 11].contains(&first) && first <= second && second <= 11, "{first}, {second}");
            }),
        ];
        region.write_whole(0, 11, Accepts);
        join(others);
        settle(&region, &[11]);
    });
}

#[test]
fn dropping_during_a_copy_of_a_whole_page() {
    check(THREE, |region| {
        folded(&region);
        let others = [spawn(&region, |w| assert!(w.discard(0))), spawn(&region, |w| w.read_ahead(0, true))];
        region.write_whole(0, 11, Accepts);
        assert!([ZERO, 11].contains(&region.read_whole(0)));
        join(others);
        settle(&region, &[ZERO, 11]);
    });
}

/// Writes to an unwritten page in one of three ways, while a thread evicts it.
fn write_unwritten(bound: usize, write: fn(&RegionModel), other: Option<fn(&RegionModel)>) {
    check_bound(bound, move || {
        let region = RegionModel::new(Method::Drop);
        clean(&region);
        let mut others = vec![spawn(&region, |w| w.evict(0, 0, Accepts))];
        others.extend(other.map(|other| spawn(&region, other)));
        write(&region);
        assert_eq!(region.read(0), 11);
        join(others);
        assert_eq!(region.read(0), 11);
    });
}

const WRITES: [fn(&RegionModel); 3] =
    [|w| w.write(0, 11), |w| w.write_by_device(0, 11), |w| w.write_pinned(0, 11)];

#[test]
fn a_write_to_an_unwritten_page_is_kept() {
    WRITES.into_iter().for_each(|write| write_unwritten(TWO, write, None));
}

/// The other thread serves a fault on the page at the same time, or drops its copy.
#[test]
fn a_write_to_an_unwritten_page_beside_another_thread_is_kept() {
    for write in WRITES {
        write_unwritten(1, write, Some(|w| w.serve(0, true)));
        write_unwritten(1, write, Some(|w| w.drop_old_copy(0)));
    }
}
