//! Model check of the count of memory left (run with `RUSTFLAGS="--cfg loom"`): who waits for memory is woken when
//! there is some, when waiting is in vain, and when the region goes; and who moves pages out does not sleep through a
//! call. A wake-up that is lost is a deadlock, which loom reports.

use crate::world::check_bound;
use loom::sync::Arc;
use loom::thread::{self, JoinHandle};
use pagefold_memory::memory_left::MemoryLeft;

/// Pages: enough that the high mark, 4, is below.
const LIMIT: u32 = 8;

/// All of the limit but so many pages is taken.
fn with_left(pages: u32) -> Arc<MemoryLeft> {
    let left = MemoryLeft::new(LIMIT.into());
    assert_eq!(left.take(LIMIT - pages), LIMIT - pages);
    Arc::new(left)
}

fn spawn<T: 'static>(left: &Arc<MemoryLeft>, run: impl FnOnce(&MemoryLeft) -> T + 'static) -> JoinHandle<T> {
    let left = left.clone();
    thread::spawn(move || run(&left))
}

/// `Pager::await_memory`.
fn await_memory(left: &MemoryLeft) -> bool {
    loop {
        let ticket = left.ticket();
        if left.take(1) == 1 {
            return true;
        }
        if left.is_closing() {
            return false;
        }
        if left.go_beyond() {
            return true;
        }
        left.await_more(ticket);
    }
}

/// `Evictor::run`, until it has moved something out.
fn move_out(left: &MemoryLeft, pages: u32) {
    while !left.is_short(0) {
        if left.is_closing() {
            return;
        }
        left.await_work(|| left.is_short(0));
    }
    left.give(pages);
}

#[test]
fn who_waits_gets_what_is_given() {
    check_bound(3, || {
        let left = with_left(0);
        let waiter = spawn(&left, await_memory);
        left.give(1);
        assert!(waiter.join().unwrap());
        assert_eq!(left.left(), 0);
    });
}

#[test]
fn two_who_wait_get_what_two_give() {
    check_bound(2, || {
        let left = with_left(0);
        let waiter = spawn(&left, await_memory);
        let giver = spawn(&left, |left| left.give(1));
        left.give(1);
        assert!(await_memory(&left) && waiter.join().unwrap());
        giver.join().unwrap();
        assert_eq!((left.left(), left.is_waited_for()), (0, false));
    });
}

#[test]
fn who_waits_gets_what_a_larger_limit_allows() {
    check_bound(3, || {
        let left = with_left(0);
        let waiter = spawn(&left, await_memory);
        left.set_limit(u64::from(LIMIT) + 1);
        assert!(waiter.join().unwrap());
        assert_eq!(left.in_use(), u64::from(LIMIT) + 1);
    });
}

#[test]
fn who_waits_gets_what_copies_gave_up() {
    check_bound(3, || {
        let left = with_left(1);
        left.set_copies(1);
        assert!(left.is_empty());
        let waiter = spawn(&left, await_memory);
        left.set_copies(0);
        assert!(waiter.join().unwrap());
        assert_eq!(left.left(), 0);
    });
}

#[test]
fn who_waits_in_vain_goes_beyond_the_limit() {
    check_bound(3, || {
        let left = with_left(0);
        let waiter = spawn(&left, await_memory);
        left.set_stuck(true);
        assert!(waiter.join().unwrap());
        assert_eq!(left.left(), -1);
    });
}

#[test]
fn nobody_waits_for_a_region_that_goes() {
    check_bound(2, || {
        let left = with_left(0);
        let waiters = [spawn(&left, await_memory), spawn(&left, await_memory)];
        left.close();
        waiters.into_iter().for_each(|waiter| assert!(!waiter.join().unwrap()));
    });
}

/// A page that cannot return for want of memory waits once, and looks at its word again; it does not ask whether the
/// region is going.
#[test]
fn no_returning_page_waits_for_a_region_that_goes() {
    check_bound(2, || {
        let left = with_left(0);
        let waiter = spawn(&left, |left| {
            let ticket = left.ticket();
            assert_eq!(left.take(1), 0);
            left.await_more(ticket);
        });
        left.close();
        waiter.join().unwrap();
    });
}

#[test]
fn who_moves_out_does_not_sleep_through_a_call() {
    check_bound(2, || {
        // Exactly the high mark: nothing to do.
        let left = with_left(4);
        let evictor = spawn(&left, |left| move_out(left, 4));
        // It may miss that memory is short; it may not miss that somebody waits.
        assert_eq!(left.take(4), 4);
        left.check(0);
        assert!(await_memory(&left));
        evictor.join().unwrap();
        assert_eq!(left.left(), 3);
    });
}

#[test]
fn who_moves_out_ends_with_the_region() {
    check_bound(3, || {
        let left = with_left(4);
        let evictors = [spawn(&left, |left| move_out(left, 0)), spawn(&left, |left| move_out(left, 0))];
        left.close();
        evictors.into_iter().for_each(|evictor| evictor.join().unwrap());
    });
}
