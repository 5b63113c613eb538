use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn buffers_are_aligned_and_disjoint_and_dropping_frees_them() {
    let buffers = Buffers::new(64 * 4096).unwrap();
    let mut held: Vec<Buffer> = Vec::new();
    for (i, len_bytes) in [0, 1, 4096, 4097, 20_000, 131_072].into_iter().enumerate() {
        let mut buffer = buffers.get(len_bytes, Demand::BestEffort).unwrap();
        assert_eq!(buffer.as_ptr().addr() % BUFFER_ALIGN_BYTES, 0);
        assert_eq!(buffer.len(), len_bytes);
        buffer.fill(i as u8 + 1);
        held.push(buffer);
    }
    for (i, buffer) in held.iter().enumerate() {
        assert!(buffer.iter().all(|&b| b == i as u8 + 1), "buffer {i} was overwritten");
    }
    assert_eq!(buffers.stats().in_use_bytes, (1 + 1 + 1 + 2 + 5 + 32) * 4096);
    held.clear();
    assert_eq!(buffers.stats().in_use_bytes, 0);
    assert_eq!(buffers.get(64 * 4096, Demand::BestEffort).unwrap().len(), 64 * 4096);
}

#[test]
fn required_overflows_to_the_heap_and_best_effort_is_refused() {
    let buffers = Buffers::new(4096).unwrap();
    let first = buffers.get(4096, Demand::Required).unwrap();
    let second = buffers.get(8192, Demand::Required).unwrap();
    assert!(second.iter().all(|&b| b == 0));
    assert_eq!(second.as_ptr().addr() % BUFFER_ALIGN_BYTES, 0);
    assert!(buffers.get(1, Demand::BestEffort).is_none());
    let expected = BufferStats {
        in_use_bytes: 12_288,
        peak_bytes: 12_288,
        limit_bytes: 4096,
        overflows: 1,
        refused: 1,
        waits: 0,
    };
    assert_eq!(buffers.stats(), expected);
    drop((first, second));
    assert_eq!(buffers.stats(), BufferStats { in_use_bytes: 0, ..expected });
}

#[test]
fn a_buffer_outlives_its_region() {
    let buffers = Buffers::new(4096).unwrap();
    let mut buffer = buffers.get(4096, Demand::BestEffort).unwrap();
    drop(buffers);
    buffer.fill(9);
    assert_eq!(buffer[4095], 9);
}

#[test]
fn an_empty_region_serves_required_buffers_only() {
    let buffers = Buffers::new(0).unwrap();
    assert!(buffers.get(0, Demand::BestEffort).is_none());
    assert!(buffers.get(0, Demand::Required).is_some());
}

#[test]
fn threads_share_a_region() {
    let buffers = Buffers::new(16 * 4096).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let buffers = buffers.clone();
            scope.spawn(move || {
                for round in 0..500_usize {
                    let mut buffer = buffers.get(1 + round * 37 % 20_000, Demand::Required).unwrap();
                    buffer.fill(thread);
                    assert!(buffer.iter().all(|&b| b == thread));
                }
            });
        }
    });
    assert_eq!(buffers.stats().in_use_bytes, 0);
}

/// A cache whose buffers are all idle, so that `reclaim` may drop any of them.
#[derive(Default)]
struct IdleBuffers(std::sync::Mutex<Vec<Buffer>>);

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
    in_use: Mutex<Vec<Buffer>>,
    idle: Mutex<Vec<Buffer>>,
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
fn resident_memory_of_a_budget_stays_within_its_limit() {
    let budget = Budget::new(16 * 4096, 0).unwrap();
    for round in 0..200_usize {
        // A short buffer stays while a long one is freed, so that the next long one gets other addresses.
        let mut grant = budget.grant(16 * 4096, Demand::Required).unwrap();
        let mut long = grant.buffer((1 + round % 12) * 4096).unwrap();
        long.fill(round as u8);
        let mut short = grant.buffer(4096).unwrap();
        drop(long);
        short.fill(1);
        let mut other = grant.buffer((1 + round * 7 % 3) * 4096).unwrap();
        other.fill(2);
        assert!(short.iter().all(|&b| b == 1));
        let resident_count = budget.0.state().resident.as_ref().map(|resident| resident.count);
        assert!(resident_count.is_some_and(|count| count <= 16), "round {round}: {resident_count:?}");
    }
}

/// Bytes of a budget that are real memory now: those of its region, free units included, and those elsewhere.
fn real_bytes(budget: &Budget) -> u64 {
    let state = budget.0.state();
    let resident = state.resident.as_ref().map_or(0, |resident| resident.count as u64 * 4096);
    resident + state.elsewhere_bytes + state.reserved_bytes
}

/// Free units keep their memory only as long as nothing else needs it.
#[test]
fn memory_elsewhere_takes_the_place_of_free_memory_in_the_region() {
    const UNITS: usize = 1024;
    const LIMIT: u64 = UNITS as u64 * 4096;
    let budget = Budget::new(LIMIT as usize, 0).unwrap();
    let fill_region = || {
        let mut grant = budget.grant(LIMIT, Demand::Required).unwrap();
        let buffers: Vec<_> = (0..UNITS).map(|_| grant.buffer(4096).unwrap()).collect();
        drop(buffers);
        assert_eq!(real_bytes(&budget), LIMIT, "free units are kept while nobody needs memory");
    };
    let is_within_limit = || {
        let real = real_bytes(&budget);
        assert!(real <= LIMIT, "{real} of {LIMIT}");
        real
    };
    fill_region();
    let mut grant = budget.grant(LIMIT, Demand::Required).unwrap();
    let charge = grant.charge(5 * 4096 + 1).unwrap();
    assert!(is_within_limit() >= LIMIT - 70 * 4096, "most of the free memory stays");
    let buffers: Vec<_> = (0..UNITS - 6).map(|_| grant.buffer(4096).unwrap()).collect();
    is_within_limit();
    drop((charge, buffers, grant));
    for charged in [1, LIMIT / 3, LIMIT] {
        fill_region();
        let charge = budget.try_charge(charged).unwrap();
        is_within_limit();
        drop(charge);
        fill_region();
        let reservation = budget.reserve(charged).unwrap();
        is_within_limit();
        drop(reservation);
    }
    assert_eq!((budget.stats().in_use_bytes, budget.0.state().elsewhere_bytes), (0, 0));
}

/// The region is so fragmented that the heap serves a buffer.
#[test]
fn a_heap_buffer_takes_the_place_of_free_memory_in_the_region() {
    const LIMIT: u64 = 16 * 4096;
    let budget = Budget::new(LIMIT as usize, 0).unwrap();
    let mut grant = budget.grant(LIMIT, Demand::Required).unwrap();
    // All units of the address space but 15 are taken, and no two of these are neighbours.
    {
        let units = &mut budget.0.state().units;
        let count = 4 * 16;
        assert_eq!(units.take(count), Some(0));
        (0..15).for_each(|i| units.release(2 * i, 1));
    }
    let single: Vec<_> = (0..14).map(|_| grant.buffer(4096).unwrap()).collect();
    drop(single);
    assert_eq!(real_bytes(&budget), 14 * 4096);
    let mut grant = budget.grant(LIMIT - grant.left_bytes(), Demand::Required).unwrap();
    let heap = grant.buffer(2 * 4096 + 1).unwrap();
    assert_eq!(budget.0.state().elsewhere_bytes, 3 * 4096);
    assert!(real_bytes(&budget) <= LIMIT, "{}", real_bytes(&budget));
    drop(heap);
    assert_eq!(budget.0.state().elsewhere_bytes, 0);
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
