//! Model check of the resident budget (run with `RUSTFLAGS="--cfg loom"`): a thread that waits for memory is woken
//! when there is some, when waiting is of no use, and when the region is dropped; an evictor does not miss a wake-up.
//! A lost wake-up is a deadlock, which loom reports.

use crate::region_model::check_bound;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use pagefold_memory::region_budget::RegionBudget;

/// Pages: enough that the high watermark, 4, is below the limit.
const LIMIT: u32 = 8;

/// Makes a budget with so many pages left.
fn with_available(pages: u32) -> Arc<RegionBudget> {
    let budget = RegionBudget::new(LIMIT.into());
    assert_eq!(budget.charge(LIMIT - pages), LIMIT - pages);
    Arc::new(budget)
}

fn spawn<T: 'static>(
    budget: &Arc<RegionBudget>,
    run: impl FnOnce(&RegionBudget) -> T + 'static,
) -> JoinHandle<T> {
    let budget = budget.clone();
    thread::spawn(move || run(&budget))
}

/// `Pager::await_memory`.
fn await_memory(budget: &RegionBudget) -> bool {
    loop {
        let ticket = budget.ticket();
        if budget.charge(1) == 1 {
            return true;
        }
        if budget.is_closing() {
            return false;
        }
        if budget.overcommit() {
            return true;
        }
        budget.wait_for_release(ticket);
    }
}

/// `Evictor::run`, until it has evicted once.
fn move_out(budget: &RegionBudget, pages: u32) {
    while !budget.needs_eviction(0) {
        if budget.is_closing() {
            return;
        }
        budget.wait_for_work(|| budget.needs_eviction(0));
    }
    budget.uncharge(pages);
}

#[test]
fn a_waiter_gets_uncharged_memory() {
    check_bound(3, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, await_memory);
        budget.uncharge(1);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.available(), 0);
    });
}

#[test]
fn two_waiters_get_memory_that_two_threads_uncharge() {
    check_bound(2, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, await_memory);
        let giver = spawn(&budget, |budget| budget.uncharge(1));
        budget.uncharge(1);
        assert!(await_memory(&budget) && waiter.join().unwrap());
        giver.join().unwrap();
        assert_eq!((budget.available(), budget.has_waiters()), (0, false));
    });
}

#[test]
fn a_waiter_gets_memory_of_a_raised_limit() {
    check_bound(3, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, await_memory);
        budget.set_limit(u64::from(LIMIT) + 1);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.in_use(), u64::from(LIMIT) + 1);
    });
}

/// More is in use than the limit before and less than the limit afterwards.
#[test]
fn a_change_of_the_limit_does_not_change_what_is_in_use() {
    check_bound(3, || {
        let budget = with_available(2);
        budget.set_limit(u64::from(LIMIT) - 4);
        let reader = spawn(&budget, |budget| budget.in_use());
        budget.set_limit(LIMIT.into());
        assert_eq!(reader.join().unwrap(), u64::from(LIMIT) - 2);
    });
}

#[test]
fn a_waiter_gets_memory_of_dropped_copies() {
    check_bound(3, || {
        let budget = with_available(1);
        budget.set_copy_pages(1);
        assert!(budget.is_exhausted());
        let waiter = spawn(&budget, await_memory);
        budget.set_copy_pages(0);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.available(), 0);
    });
}

#[test]
fn a_waiter_exceeds_the_limit_if_eviction_is_stuck() {
    check_bound(3, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, await_memory);
        budget.set_store_refuses(true);
        assert!(waiter.join().unwrap());
        assert_eq!(budget.available(), -1);
    });
}

#[test]
fn a_waiter_exceeds_the_limit_if_no_page_can_be_moved_out() {
    check_bound(3, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, await_memory);
        // The evictor tries again and again.
        while !budget.has_waiters() {
            thread::yield_now();
        }
        budget.overcommit_waiters();
        assert!(waiter.join().unwrap());
        assert_eq!(budget.available(), -1);
    });
}

#[test]
fn closing_wakes_all_waiters() {
    check_bound(2, || {
        let budget = with_available(0);
        let waiters = [spawn(&budget, await_memory), spawn(&budget, await_memory)];
        budget.close();
        waiters.into_iter().for_each(|waiter| assert!(!waiter.join().unwrap()));
    });
}

/// A page that cannot return without memory waits once, and then its word is examined again; the thread does not check
/// whether the region is being dropped.
#[test]
fn closing_wakes_the_waiter_of_a_returning_page() {
    check_bound(2, || {
        let budget = with_available(0);
        let waiter = spawn(&budget, |budget| {
            let ticket = budget.ticket();
            assert_eq!(budget.charge(1), 0);
            budget.wait_for_release(ticket);
        });
        budget.close();
        waiter.join().unwrap();
    });
}

#[test]
fn an_evictor_does_not_miss_a_wake_up() {
    check_bound(2, || {
        // Exactly the high watermark: the evictor has nothing to do.
        let budget = with_available(4);
        let evictor = spawn(&budget, |budget| move_out(budget, 4));
        // The evictor may miss that memory is short, but not that a thread waits.
        assert_eq!(budget.charge(4), 4);
        budget.wake_evictors_if_low(0);
        assert!(await_memory(&budget));
        evictor.join().unwrap();
        assert_eq!(budget.available(), 3);
    });
}

#[test]
fn closing_ends_the_evictors() {
    check_bound(3, || {
        let budget = with_available(4);
        let evictors =
            [spawn(&budget, |budget| move_out(budget, 0)), spawn(&budget, |budget| move_out(budget, 0))];
        budget.close();
        evictors.into_iter().for_each(|evictor| evictor.join().unwrap());
    });
}
