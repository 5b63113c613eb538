use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A cache whose buffers are all idle, so that `reclaim` may drop any of them.
#[derive(Default)]
struct IdleBuffers(std::sync::Mutex<Vec<GrantedBuffer>>);

impl Reclaim for IdleBuffers {
    fn reclaim(&self, len_bytes: u64) -> u64 {
        let mut freed = 0;
        while freed < len_bytes {
            let Some(buffer) = self.0.lock().unwrap().pop() else { break };
            freed += Budget::footprint(buffer.len());
        }
        freed
    }
}

#[test]
fn buffers_and_charges_use_up_a_grant_and_dropping_it_returns_the_rest() {
    let budget = Budget::new(10 * 4096, 0).unwrap();
    let mut grant = budget.grant(6 * 4096, Demand::Required).unwrap();
    let buffer = grant.buffer(4097).unwrap();
    let charge = grant.charge(4096).unwrap();
    assert_eq!(grant.left_bytes(), 3 * 4096);
    assert!(grant.buffer(4 * 4096).is_none() && grant.charge(3 * 4096 + 1).is_none());
    assert_eq!(budget.stats().in_use_bytes, 6 * 4096);
    drop(grant);
    assert_eq!(budget.stats().in_use_bytes, 3 * 4096);
    drop((buffer, charge));
    assert_eq!((budget.stats().in_use_bytes, budget.stats().peak_bytes), (0, 6 * 4096));
}

#[test]
fn best_effort_leaves_bytes_for_required_grants_and_too_large_grants_are_refused() {
    let budget = Budget::new(10 * 4096, 4 * 4096).unwrap();
    let held = budget.grant(6 * 4096, Demand::BestEffort).unwrap();
    assert_eq!(budget.grant(1, Demand::BestEffort).unwrap_err(), GrantError::NoRoom { needed_bytes: 1 });
    let reserve = budget.grant(4 * 4096, Demand::Required).unwrap();
    let refused = budget.grant(10 * 4096 + 1, Demand::Required).unwrap_err();
    assert_eq!(refused, GrantError::TooLarge { needed_bytes: 40_961, limit_bytes: 40_960 });
    drop((held, reserve));
    assert_eq!((budget.stats().refused, budget.stats().waits), (1, 0));
}

#[test]
fn required_grants_are_served_in_the_order_of_arrival() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let held = budget.grant(3 * 4096, Demand::Required).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (place, pages) in [4, 1, 2].into_iter().enumerate() {
            let (budget, order) = (&budget, &order);
            scope.spawn(move || {
                let grant = budget.grant(pages * 4096, Demand::Required).unwrap();
                order.lock().unwrap().push(pages);
                drop(grant);
            });
            while budget.0.state().wait_queue.len() != place + 1 {
                std::thread::yield_now();
            }
        }
        // One page is free, and the second grant in the queue would fit; it waits behind the first one.
        assert!(budget.grant(4096, Demand::BestEffort).is_err());
        assert!(order.lock().unwrap().is_empty());
        drop(held);
    });
    assert_eq!(order.lock().unwrap()[0], 4);
    assert_eq!((budget.stats().in_use_bytes, budget.stats().waits), (0, 3));
}

#[test]
fn a_grant_reclaims_idle_buffers_and_wake_makes_a_waiting_grant_reclaim_again() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let idle_buffers = Arc::new(IdleBuffers::default());
    let weak: std::sync::Weak<dyn Reclaim> = Arc::<IdleBuffers>::downgrade(&idle_buffers);
    budget.reclaim_with(weak);
    let mut grant = budget.grant(4 * 4096, Demand::Required).unwrap();
    for _ in 0..4 {
        idle_buffers.0.lock().unwrap().push(grant.buffer(4096).unwrap());
    }
    let mut grant = budget.grant(2 * 4096, Demand::BestEffort).unwrap();
    let last_two = [grant.buffer(4096).unwrap(), grant.buffer(4096).unwrap()];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(budget.grant(4 * 4096, Demand::Required).unwrap()));
        while budget.0.state().wait_queue.len() == 0 {
            std::thread::yield_now();
        }
        idle_buffers.0.lock().unwrap().extend(last_two);
        budget.wake();
        waiter.join().unwrap();
    });
    assert_eq!(budget.stats().in_use_bytes, 0);
}

/// Its first call of `reclaim` returns 0, but before it returns, one buffer becomes idle and another is freed, which is
/// too small for the waiting grant.
struct LateReclaim {
    calls: AtomicUsize,
    in_use: Mutex<Vec<GrantedBuffer>>,
    idle: Mutex<Vec<GrantedBuffer>>,
}

impl Reclaim for LateReclaim {
    fn reclaim(&self, _: u64) -> u64 {
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut in_use = self.in_use.lock().unwrap();
            self.idle.lock().unwrap().extend(in_use.pop());
            in_use.clear();
            return 0;
        }
        std::mem::take(&mut *self.idle.lock().unwrap()).iter().map(|b| Budget::footprint(b.len())).sum()
    }
}

#[test]
fn a_buffer_that_becomes_idle_during_reclaim_is_not_missed() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let mut grant = budget.grant(4 * 4096, Demand::Required).unwrap();
    let in_use = [1, 3].map(|pages| grant.buffer(pages * 4096).unwrap()).into();
    let late = LateReclaim { calls: AtomicUsize::new(0), in_use: Mutex::new(in_use), idle: Mutex::default() };
    let late: Arc<dyn Reclaim> = Arc::new(late);
    budget.reclaim_with(Arc::downgrade(&late));
    let (ended, end) = std::sync::mpsc::channel();
    let waiter = budget.clone();
    std::thread::spawn(move || ended.send(waiter.grant(4 * 4096, Demand::Required).is_ok()));
    assert_eq!(end.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
}

#[test]
fn refuse_when_refuses_the_requests_that_its_test_selects() {
    let budget = Budget::new(4096, 0).unwrap();
    budget.refuse_when(|number, _| number == 1);
    assert!(budget.grant(1, Demand::Required).is_ok());
    assert!(matches!(budget.grant(1, Demand::Required), Err(GrantError::TooLarge { .. })));
    assert!(budget.grant(1, Demand::BestEffort).is_ok());
}

#[test]
fn concurrent_grants_never_exceed_the_limit_and_never_deadlock() {
    let budget = Budget::new(8 * 4096, 2 * 4096).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6_usize {
            let budget = &budget;
            scope.spawn(move || {
                for round in 0..300_usize {
                    let pages = 1 + (thread * 31 + round * 17) % 8;
                    let demand = if round % 3 == 0 { Demand::BestEffort } else { Demand::Required };
                    let Ok(mut grant) = budget.grant(pages as u64 * 4096, demand) else { continue };
                    let mut buffer = grant.buffer(pages * 4096).unwrap();
                    buffer.fill(thread as u8);
                    assert!(buffer.iter().all(|&b| b == thread as u8));
                }
            });
        }
    });
    let stats = budget.stats();
    assert!(stats.in_use_bytes == 0 && stats.peak_bytes <= stats.limit_bytes, "{stats:?}");
}

#[test]
fn a_grant_that_needs_reserved_bytes_is_refused_and_does_not_wait() {
    let budget = Budget::new(10 * 4096, 0).unwrap();
    let reservation = budget.reserve(3 * 4096).unwrap();
    let refused = budget.grant(8 * 4096, Demand::Required).unwrap_err();
    assert_eq!(refused, GrantError::TooLarge { needed_bytes: 8 * 4096, limit_bytes: 7 * 4096 });
    assert!(budget.grant(7 * 4096, Demand::Required).is_ok());
    drop(reservation);
    assert!(budget.grant(10 * 4096, Demand::Required).is_ok());
}

#[test]
fn a_grant_that_waits_behind_a_reservation_is_refused_if_it_needs_the_reserved_bytes() {
    const TIME_LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
    let budget = Budget::new(10 * 4096, 0).unwrap();
    let held = budget.grant(10 * 4096, Demand::Required).unwrap();
    let wait_for_queue = |len| {
        while budget.0.state().wait_queue.len() != len {
            std::thread::yield_now();
        }
    };
    let waiter = budget.clone();
    let reserving = std::thread::spawn(move || waiter.reserve(3 * 4096));
    wait_for_queue(1);
    // The first one needs reserved bytes. The second one fits, and must not wait behind it.
    let [large, small] = [(8, 2), (7, 3)].map(|(pages, queue_len)| {
        let (sender, result) = std::sync::mpsc::channel();
        let waiter = budget.clone();
        std::thread::spawn(move || {
            sender.send(waiter.grant(pages * 4096, Demand::Required).map(|grant| grant.left_bytes()))
        });
        wait_for_queue(queue_len);
        result
    });
    drop(held);
    let reservation = reserving.join().unwrap().unwrap();
    let refused = GrantError::TooLarge { needed_bytes: 8 * 4096, limit_bytes: 7 * 4096 };
    assert_eq!(large.recv_timeout(TIME_LIMIT), Ok(Err(refused)));
    assert_eq!(small.recv_timeout(TIME_LIMIT), Ok(Ok(7 * 4096)));
    drop(reservation);
}

/// A cache that cannot be reclaimed.
struct Panicking;

impl Reclaim for Panicking {
    fn reclaim(&self, _: u64) -> u64 {
        panic!("a panic of this test")
    }
}

#[test]
fn a_grant_whose_reclaim_panics_leaves_the_queue() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let holder: Arc<dyn Reclaim> = Arc::new(Panicking);
    budget.reclaim_with(Arc::downgrade(&holder));
    let held = budget.grant(4 * 4096, Demand::Required).unwrap();
    let waiting = std::panic::AssertUnwindSafe(|| budget.grant(4096, Demand::Required));
    assert!(std::panic::catch_unwind(waiting).is_err());
    drop(held);
    assert_eq!(budget.0.state().wait_queue.len(), 0);
    assert!(budget.grant(4 * 4096, Demand::Required).is_ok());
}
