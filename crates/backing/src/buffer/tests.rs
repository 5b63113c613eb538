use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn pieces_are_aligned_and_disjoint_and_come_back() {
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
fn a_buffer_outlives_its_budget() {
    let buffers = Buffers::new(4096).unwrap();
    let mut buffer = buffers.get(4096, Demand::BestEffort).unwrap();
    drop(buffers);
    buffer.fill(9);
    assert_eq!(buffer[4095], 9);
}

#[test]
fn an_empty_budget_serves_required_only() {
    let buffers = Buffers::new(0).unwrap();
    assert!(buffers.get(0, Demand::BestEffort).is_none());
    assert!(buffers.get(0, Demand::Required).is_some());
}

#[test]
fn threads_share_a_budget() {
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

/// A cache of buffers that gives them up when asked.
#[derive(Default)]
struct Hoard(std::sync::Mutex<Vec<Buffer>>);

impl Reclaim for Hoard {
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
fn a_grant_is_paid_out_and_what_is_left_goes_back() {
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
fn best_effort_leaves_the_reserve_and_too_much_is_refused() {
    let budget = Budget::new(10 * 4096, 4 * 4096).unwrap();
    let held = budget.grant(6 * 4096, Demand::BestEffort).unwrap();
    assert_eq!(budget.grant(1, Demand::BestEffort).unwrap_err(), Refused::NoRoom { needed_bytes: 1 });
    let reserve = budget.grant(4 * 4096, Demand::Required).unwrap();
    let refused = budget.grant(10 * 4096 + 1, Demand::Required).unwrap_err();
    assert_eq!(refused, Refused::TooLarge { needed_bytes: 40_961, limit_bytes: 40_960 });
    drop((held, reserve));
    assert_eq!((budget.stats().refused, budget.stats().waits), (1, 0));
}

#[test]
fn required_grants_are_served_in_the_order_they_came() {
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
            while budget.0.books().turns.waiting() != place + 1 {
                std::thread::yield_now();
            }
        }
        // One page is free, and the second in the queue would fit; it waits its turn.
        assert!(budget.grant(4096, Demand::BestEffort).is_err());
        assert!(order.lock().unwrap().is_empty());
        drop(held);
    });
    assert_eq!(order.lock().unwrap()[0], 4);
    assert_eq!((budget.stats().in_use_bytes, budget.stats().waits), (0, 3));
}

#[test]
fn caches_give_way_to_grants_and_a_new_cache_wakes_who_waits() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let hoard = Arc::new(Hoard::default());
    let weak: std::sync::Weak<dyn Reclaim> = Arc::<Hoard>::downgrade(&hoard);
    budget.reclaim_with(weak);
    let mut grant = budget.grant(4 * 4096, Demand::Required).unwrap();
    for _ in 0..4 {
        hoard.0.lock().unwrap().push(grant.buffer(4096).unwrap());
    }
    let mut grant = budget.grant(2 * 4096, Demand::BestEffort).unwrap();
    let kept = [grant.buffer(4096).unwrap(), grant.buffer(4096).unwrap()];
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(budget.grant(4 * 4096, Demand::Required).unwrap()));
        while budget.0.books().turns.waiting() == 0 {
            std::thread::yield_now();
        }
        hoard.0.lock().unwrap().extend(kept);
        budget.wake();
        waiter.join().unwrap();
    });
    assert_eq!(budget.stats().in_use_bytes, 0);
}

/// Has nothing to give up when it is first asked; by the time that it has said so, it has, and a buffer that is too
/// small for who waits came back.
struct Late {
    asked: AtomicUsize,
    in_use: Mutex<Vec<Buffer>>,
    idle: Mutex<Vec<Buffer>>,
}

impl Reclaim for Late {
    fn reclaim(&self, _: u64) -> u64 {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 0 {
            let mut in_use = self.in_use.lock().unwrap();
            self.idle.lock().unwrap().extend(in_use.pop());
            in_use.clear();
            return 0;
        }
        std::mem::take(&mut *self.idle.lock().unwrap()).iter().map(|b| Budget::footprint(b.len())).sum()
    }
}

#[test]
fn what_becomes_idle_while_reclaim_is_asked_is_not_missed() {
    let budget = Budget::new(4 * 4096, 0).unwrap();
    let mut grant = budget.grant(4 * 4096, Demand::Required).unwrap();
    let in_use = [1, 3].map(|pages| grant.buffer(pages * 4096).unwrap()).into();
    let late = Late { asked: AtomicUsize::new(0), in_use: Mutex::new(in_use), idle: Mutex::default() };
    let late: Arc<dyn Reclaim> = Arc::new(late);
    budget.reclaim_with(Arc::downgrade(&late));
    let (ended, end) = std::sync::mpsc::channel();
    let waiter = budget.clone();
    std::thread::spawn(move || ended.send(waiter.grant(4 * 4096, Demand::Required).is_ok()));
    assert_eq!(end.recv_timeout(std::time::Duration::from_secs(20)), Ok(true));
}

#[test]
fn memory_of_a_spread_region_stays_within_the_limit() {
    let budget = Budget::new(16 * 4096, 0).unwrap();
    for round in 0..200_usize {
        // A short buffer stays while a long one comes and goes, so that the long ones wander.
        let mut grant = budget.grant(16 * 4096, Demand::Required).unwrap();
        let mut long = grant.buffer((1 + round % 12) * 4096).unwrap();
        long.fill(round as u8);
        let mut short = grant.buffer(4096).unwrap();
        drop(long);
        short.fill(1);
        let mut other = grant.buffer((1 + round * 7 % 3) * 4096).unwrap();
        other.fill(2);
        assert!(short.iter().all(|&b| b == 1));
        let touched_count = budget.0.books().touched.as_ref().map(|touched| touched.count);
        assert!(touched_count.is_some_and(|count| count <= 16), "round {round}: {touched_count:?}");
    }
}

#[test]
fn every_grant_can_be_made_to_fail() {
    let budget = Budget::new(4096, 0).unwrap();
    budget.refuse_when(|number, _| number == 1);
    assert!(budget.grant(1, Demand::Required).is_ok());
    assert!(matches!(budget.grant(1, Demand::Required), Err(Refused::TooLarge { .. })));
    assert!(budget.grant(1, Demand::BestEffort).is_ok());
}

#[test]
fn threads_that_grant_never_exceed_the_limit_and_never_stand_still() {
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
fn nobody_waits_for_what_was_set_aside() {
    let budget = Budget::new(10 * 4096, 0).unwrap();
    let aside = budget.set_aside(3 * 4096).unwrap();
    let refused = budget.grant(8 * 4096, Demand::Required).unwrap_err();
    assert_eq!(refused, Refused::TooLarge { needed_bytes: 8 * 4096, limit_bytes: 7 * 4096 });
    assert!(budget.grant(7 * 4096, Demand::Required).is_ok());
    drop(aside);
    assert!(budget.grant(10 * 4096, Demand::Required).is_ok());
}
