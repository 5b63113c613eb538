//! Model check of the production words of pages (run with `RUSTFLAGS="--cfg loom"`): threads that touch a page, pin
//! it, drop it, move it out and fold it meet in all orders, in a region whose other parts are the least there can
//! be. Each step stands for the function of production that `loom_world` names, and calls the word as that one does.
//!
//! In every model: who reads sees the last version written, and never a frame that was given up; a resident page is
//! in the range; the store's copy is never overwritten by an older version, and equals what is taken for clean; only
//! one thread at a time has a frame or a place of the store; and who waits is woken, or loom reports a deadlock.

use crate::world::{Method, Store::*, World, ZERO, check_bound};
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};

/// Forced switches of models with two threads, and with three.
const TWO: usize = 3;
const THREE: usize = 2;

fn spawn(world: &Arc<World>, run: impl FnOnce(&World) + 'static) -> JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || run(&world))
}

fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Both ways of taking pages out.
fn check(bound: usize, model: fn(Arc<World>)) {
    for method in [Method::Move, Method::Protect] {
        check_bound(bound, move || model(World::new(method)));
    }
}

/// What is left in the end goes out and comes in once more.
fn settle(world: &World, expected: &[u64]) {
    let value = world.read(0);
    assert!(expected.contains(&value), "{value} instead of {expected:?}");
    assert!(world.take_out(0, 2), "nobody has a hand on it any more");
    world.fold_frame(0, 2, Accepts);
    assert_eq!(world.read(0), value);
}

/// A page of version 10, resident and dirty.
fn dirty(world: &World) {
    world.write(0, 10);
}

/// A page of version 10, folded.
fn folded(world: &World) {
    world.write(0, 10);
    world.evict(0, 0, Accepts);
}

/// A page of version 10, resident and clean.
fn clean(world: &World) {
    folded(world);
    assert_eq!(world.read(0), 10);
}

#[test]
fn a_write_beside_folding_is_kept() {
    for prepare in [dirty, clean] {
        for method in [Method::Move, Method::Protect] {
            check_bound(TWO, move || {
                let world = World::new(method);
                prepare(&world);
                let evictor = spawn(&world, |w| w.evict(0, 0, Accepts));
                world.write(0, 11);
                assert_eq!(world.read(0), 11);
                join([evictor]);
                settle(&world, &[11]);
            });
        }
    }
}

#[test]
fn old_versions_do_not_overtake_new_ones() {
    check(THREE, |world| {
        dirty(&world);
        let evictors = [spawn(&world, |w| w.evict(0, 0, Accepts)), spawn(&world, |w| w.evict(0, 1, Accepts))];
        world.write(0, 11);
        join(evictors);
        settle(&world, &[11]);
    });
}

#[test]
fn a_reader_never_sees_an_older_version_again() {
    check(THREE, |world| {
        dirty(&world);
        let others = [
            spawn(&world, |w| w.evict(0, 0, Accepts)),
            spawn(&world, |w| {
                let first = w.read(0);
                let second = w.read(0);
                assert!([10, 11].contains(&first) && first <= second && second <= 11, "{first}, {second}");
            }),
        ];
        world.write(0, 11);
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_return_without_memory_keeps_the_frame() {
    for store in [Accepts, Refuses] {
        for prepare in [dirty, clean] {
            for method in [Method::Move, Method::Protect] {
                check_bound(TWO, move || {
                    let world = World::new(method);
                    prepare(&world);
                    let evictor = spawn(&world, move |w| w.evict(0, 0, store));
                    world.write_in_need(0, 11);
                    join([evictor]);
                    settle(&world, &[11]);
                });
            }
        }
    }
}

#[test]
fn two_that_return_without_memory_find_each_other() {
    check(THREE, |world| {
        dirty(&world);
        assert!(world.take_out(0, 0));
        let others =
            [spawn(&world, |w| w.fold_frame(0, 0, Accepts)), spawn(&world, |w| w.write_in_need(0, 11))];
        assert!([10, 11].contains(&world.read(0)));
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_refused_page_comes_back() {
    check(THREE, |world| {
        dirty(&world);
        let evictors = [spawn(&world, |w| w.evict(0, 0, Refuses)), spawn(&world, |w| w.evict(0, 1, Accepts))];
        world.write(0, 11);
        join(evictors);
        settle(&world, &[11]);
    });
}

#[test]
fn a_page_dropped_beside_folding_is_zero() {
    for prepare in [dirty, clean] {
        for method in [Method::Move, Method::Protect] {
            check_bound(TWO, move || {
                let world = World::new(method);
                prepare(&world);
                let evictor = spawn(&world, |w| w.evict(0, 0, Accepts));
                assert!(world.discard(0));
                // Without memory first: then it must not be taken for folded.
                world.serve(0, false);
                assert_eq!(world.read(0), ZERO);
                world.write(0, 12);
                join([evictor]);
                settle(&world, &[12]);
            });
        }
    }
}

#[test]
fn dropping_beside_a_touch_and_folding() {
    check(THREE, |world| {
        dirty(&world);
        let others = [spawn(&world, |w| w.evict(0, 0, Accepts)), spawn(&world, |w| w.write(0, 11))];
        assert!(world.discard(0));
        join(others);
        settle(&world, &[ZERO, 11]);
    });
}

#[test]
fn dropping_a_folded_page_beside_a_touch() {
    check(THREE, |world| {
        folded(&world);
        let others = [spawn(&world, |w| assert!(w.discard(0))), spawn(&world, |w| w.bring_ahead(0, true))];
        assert!([ZERO, 10].contains(&world.read(0)));
        join(others);
        settle(&world, &[ZERO]);
    });
}

#[test]
fn a_pinned_page_stays() {
    check(THREE, |world| {
        dirty(&world);
        let others = [
            spawn(&world, |w| w.evict(0, 0, Accepts)),
            spawn(&world, |w| assert!([10, 11].contains(&w.read(0)))),
        ];
        world.write_pinned(0, 11);
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_pinned_page_is_not_dropped() {
    check(THREE, |world| {
        dirty(&world);
        let others = [
            spawn(&world, |w| w.evict(0, 0, Accepts)),
            // A page that is dropped is there no more, and one that is not is there.
            spawn(&world, |w| {
                w.discard(0);
            }),
        ];
        world.write_pinned(0, 11);
        join(others);
        settle(&world, &[ZERO, 11]);
    });
}

#[test]
fn a_load_has_one_owner() {
    check(THREE, |world| {
        folded(&world);
        let others =
            [spawn(&world, |w| assert_eq!(w.read(0), 10)), spawn(&world, |w| w.bring_ahead(0, false))];
        assert_eq!(world.read(0), 10);
        join(others);
        settle(&world, &[10]);
    });
}

#[test]
fn a_load_without_memory_is_tried_again() {
    check(THREE, |world| {
        folded(&world);
        let others = [spawn(&world, |w| w.evict(0, 1, Accepts)), spawn(&world, |w| w.write_in_need(0, 11))];
        assert!([10, 11].contains(&world.read(0)));
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_first_touch_without_memory_is_tried_again() {
    check(THREE, |world| {
        let others = [spawn(&world, |w| w.evict(0, 1, Accepts)), spawn(&world, |w| w.write_in_need(0, 11))];
        assert!([ZERO, 11].contains(&world.read(0)));
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn dropping_an_old_copy_beside_folding() {
    check(THREE, |world| {
        clean(&world);
        let others = [spawn(&world, |w| w.evict(0, 0, Accepts)), spawn(&world, |w| w.drop_old_copy(0))];
        world.write(0, 11);
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_frame_goes_from_page_to_page() {
    check(THREE, |world| {
        dirty(&world);
        world.write(1, 20);
        let others = [
            spawn(&world, |w| {
                w.evict(0, 0, Accepts);
                w.evict(1, 0, Accepts);
            }),
            spawn(&world, |w| assert_eq!(w.read(1), 20)),
        ];
        world.write_in_need(0, 11);
        join(others);
        assert_eq!(world.read(1), 20);
        settle(&world, &[11]);
    });
}

#[test]
fn a_page_that_cannot_be_moved_stays() {
    check(THREE, |world| {
        dirty(&world);
        let others = [spawn(&world, |w| w.fail_to_take_out(0)), spawn(&world, |w| w.evict(0, 0, Accepts))];
        world.write(0, 11);
        join(others);
        settle(&world, &[11]);
    });
}

#[test]
fn a_page_dropped_behind_our_back_is_what_it_was_or_zero() {
    for method in [Method::Move, Method::Protect] {
        check_bound(THREE, move || {
            let world = World::dropped_behind(method);
            clean(&world);
            let others = [
                spawn(&world, |w| w.evict(0, 0, Accepts)),
                spawn(&world, |w| assert!([ZERO, 10].contains(&w.read(0)))),
            ];
            world.drop_behind(0);
            assert!([ZERO, 10].contains(&world.read(0)));
            join(others);
            assert!([ZERO, 10].contains(&world.read(0)));
        });
    }
}

#[test]
fn a_write_to_a_page_dropped_behind_our_back_is_kept() {
    for method in [Method::Move, Method::Protect] {
        check_bound(TWO, move || {
            let world = World::dropped_behind(method);
            dirty(&world);
            let evictor = spawn(&world, |w| w.evict(0, 0, Accepts));
            world.drop_behind(0);
            assert!([ZERO, 10].contains(&world.read(0)));
            world.write(0, 11);
            assert_eq!(world.read(0), 11);
            join([evictor]);
            settle(&world, &[11]);
        });
    }
}
