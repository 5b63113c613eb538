//! Single steps of an evicting thread, without a region: how it behaves when eviction seems impossible.

use super::*;
use crate::config::{Eviction, RegionConfig};
use crate::error::RegionError;
use crate::pager::{OnLoss, Pinned, Served};
use pagefold_page::PAGE_SIZE;

/// Makes a pager with as many resident pages as its limit, and an evictor for it. Returns `None` if the kernel cannot
/// move pages.
fn full_pager(test: &str, limit_pages: u64) -> Option<(Arc<Pager>, Evictor)> {
    let len_bytes = 2 * limit_pages * PAGE_SIZE as u64;
    let config = RegionConfig {
        eviction: Eviction::Mixed,
        system_calls: false,
        neighbours: false,
        fold_threads: 1,
        ..RegionConfig::new(len_bytes, len_bytes / 2)
    };
    let pager = match Pager::new(config, None) {
        Ok(pager) => Arc::new(pager),
        Err(error @ (RegionError::Userfaultfd(_) | RegionError::NoFeature(_))) => {
            pagefold_testkit::skipped!("{test}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    (0..limit_pages).for_each(|page| touch(&pager, page));
    assert!(pager.budget.is_exhausted());
    let evictor = Evictor::new(pager.clone(), Arc::new(ClockHand::new())).unwrap();
    Some((pager, evictor))
}

/// Serves a write fault on a page.
fn touch(pager: &Pager, page: u64) {
    assert_eq!(pager.serve(page * PAGE_SIZE as u64, true, OnLoss::Return), Served::Again);
}

/// Pins all resident pages.
fn pin_all(pager: &Pager) -> [Pinned<'_>; 2] {
    let half = pager.budget.limit() as usize / 2 * PAGE_SIZE;
    [pager.pin(0, half).unwrap(), pager.pin(half, half).unwrap()]
}

/// Attempts evictions until the evictor takes itself for stuck.
fn exhaust_attempts(evictor: &mut Evictor) {
    for _ in 0..2 * STUCK_ATTEMPTS {
        assert!(matches!(evictor.step(), StepResult::Nothing));
        evictor.sweep.unlock_chunk(&evictor.pager);
        evictor.pause(Pause::NoPage, true);
    }
}

#[test]
fn pages_are_evicted_although_every_batch_has_memory() {
    const PAGES: u64 = 1024;
    let Some((pager, mut evictor)) = full_pager("pages_are_evicted_although_every_batch_has_memory", PAGES)
    else {
        return;
    };
    // Faults wanted more frames than there are, so every batch keeps its memory.
    pager.staging.want(PAGES as u32);
    let mut steps = 0;
    while !matches!(evictor.step(), StepResult::Nothing) {
        steps += 1;
        assert!(steps < 10 * PAGES, "{} pages of {PAGES} are folded", pager.table.folded());
    }
    assert_eq!(pager.table.folded(), PAGES);
    assert!(pager.staging.backed_free_frames() > 0);
}

#[test]
fn a_thread_that_does_not_wait_cannot_exceed_the_limit() {
    let Some((pager, mut evictor)) = full_pager("a_thread_that_does_not_wait_cannot_exceed_the_limit", 64)
    else {
        return;
    };
    let pins = pin_all(&pager);
    exhaust_attempts(&mut evictor);
    assert!(!pager.budget.overcommit());
    drop(pins);
}

#[test]
fn only_a_waiting_thread_exceeds_the_limit_when_no_page_can_be_moved_out() {
    let Some((pager, mut evictor)) =
        full_pager("only_a_waiting_thread_exceeds_the_limit_when_no_page_can_be_moved_out", 64)
    else {
        return;
    };
    let pins = pin_all(&pager);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| touch(&pager, 64));
        while !pager.budget.has_waiters() {
            std::thread::yield_now();
        }
        while !waiter.is_finished() {
            evictor.pause(Pause::NoPage, true);
        }
    });
    assert_eq!(pager.budget.in_use(), 65);
    // The page that came in can be moved out for the next one, so no further page is allowed.
    assert!(!pager.budget.overcommit());
    drop(pins);
}

/// The attempts find no page, because all were evicted already. Before the last one ends, other threads use up the
/// memory with pages that can be evicted.
#[test]
fn attempts_that_began_with_memory_left_do_not_count() {
    let Some((pager, mut evictor)) = full_pager("attempts_that_began_with_memory_left_do_not_count", 64)
    else {
        return;
    };
    while !matches!(evictor.step(), StepResult::Nothing) {}
    let ticket = pager.budget.ticket();
    std::thread::scope(|scope| {
        for _ in 0..2 * STUCK_ATTEMPTS {
            let was_exhausted = pager.budget.is_exhausted();
            assert!(matches!(evictor.step(), StepResult::Nothing) && !was_exhausted);
            evictor.sweep.unlock_chunk(&pager);
            evictor.pause(Pause::NoPage, was_exhausted);
        }
        let was_exhausted = pager.budget.is_exhausted();
        assert!(matches!(evictor.step(), StepResult::Nothing));
        evictor.sweep.unlock_chunk(&pager);
        let free = pager.budget.charge(u32::MAX >> 1);
        scope.spawn(|| pager.budget.wait_for_release(ticket));
        while !pager.budget.has_waiters() {
            std::thread::yield_now();
        }
        evictor.pause(Pause::NoPage, was_exhausted);
        assert!(!pager.budget.overcommit());
        pager.budget.uncharge(free);
    });
}

#[test]
fn memory_of_free_frames_is_released_for_a_waiting_thread() {
    let Some((pager, mut evictor)) =
        full_pager("memory_of_free_frames_is_released_for_a_waiting_thread", 512)
    else {
        return;
    };
    pager.staging.want(512);
    while pager.staging.backed_free_frames() == 0 {
        evictor.step();
    }
    while let Some(batch) = pager.staging.dequeue() {
        evictor.fold_batch(batch);
    }
    // Charge all free memory, and pin all resident pages.
    let free = pager.budget.charge(u32::MAX >> 1);
    let pins: Vec<_> = (0..512).filter(|page| pager.word(PageIndex(*page)).pin()).collect();
    let ticket = pager.budget.ticket();
    let (step, is_released) = std::thread::scope(|scope| {
        scope.spawn(|| pager.budget.wait_for_release(ticket));
        while !pager.budget.has_waiters() {
            std::thread::yield_now();
        }
        let did = (evictor.step(), !pager.budget.is_exhausted());
        pager.budget.close();
        did
    });
    assert!(matches!(step, StepResult::Folded) && is_released);
    pins.iter().for_each(|page| pager.word(PageIndex(*page)).unpin());
    pager.budget.uncharge(free);
}

/// No evictor runs here.
#[test]
fn tables_of_pages_that_are_written_to_the_store_count() {
    let Some((pager, _evictor)) = full_pager("tables_of_pages_that_are_written_to_the_store_count", 2048)
    else {
        return;
    };
    let part = vec![1; 2048 * PAGE_SIZE];
    // SAFETY: there are no references into the range.
    unsafe { pager.write_part(2048 * PAGE_SIZE, &part) }.unwrap();
    assert_eq!(pager.table.folded(), 2048);
    let tables = 2048 * 48 / PAGE_SIZE as u64;
    assert!(pager.budget.copy_pages() >= tables, "{} pages", pager.budget.copy_pages());
}
