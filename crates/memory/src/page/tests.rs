//! Tests of the transitions: the rules of the clock hand and the bounds one by one, and in `model` random sequences against
//! a slow and obvious model.

mod model;

use super::clock::HEAT_MAX;
use super::*;
use std::collections::HashSet;

/// A time, and a later time at which a page folded at the first is cold.
const THEN: FoldTime = FoldTime(u16::MAX - 3);
const LATER: FoldTime = FoldTime(THEN.0.wrapping_add(EARLY_REFAULT_TICKS));

/// A page that was just brought in.
fn resident() -> PageWord {
    let word = PageWord::new();
    assert_eq!(word.claim_fault(), FaultClaim::Zero);
    word.finish_load(LATER, Arrival::Plain);
    word
}

/// Visits that pass over a page before it is taken.
fn visits_left(word: &PageWord) -> u32 {
    (0..100).take_while(|_| word.visit(Candidates::Cold, 0) != Visit::Taken).count() as u32
}

#[test]
fn zeroed_memory_is_an_untouched_page() {
    assert_eq!(PageWord::new().load(), Word(0));
    assert_eq!(Word(0).state(), State::Untouched);
    assert_eq!((size_of::<PageWord>(), align_of::<PageWord>()), (4, 4));
}

#[test]
fn a_new_cold_page_has_no_chances() {
    let word = PageWord::new();
    word.claim_fault();
    word.finish_load(LATER, Arrival::Plain);
    assert_eq!(visits_left(&word), 0);
}

#[test]
fn the_hottest_pages_lose_a_chance_in_few_rounds_only() {
    let word =
        PageWord(AtomicU32::new(Word(0).with_state(State::Resident).with_heat(HEAT_MAX).with_chances(2).0));
    let visit = |round| word.visit(Candidates::Cold, round);
    let passed_over = Visit::Kept;
    assert!((1..HOT_ROUNDS).all(|round| visit(round) == passed_over && word.load().chances() == 2));
    assert_eq!((visit(HOT_ROUNDS), word.load().chances()), (passed_over, 1));
    assert_eq!((visit(0), visit(1), visit(0)), (passed_over, Visit::Taken, Visit::NotFree));
}

#[test]
fn each_return_raises_the_heat_up_to_a_bound_and_a_late_refault_resets_it() {
    let word = resident();
    for chances in [1, 3, 7, 7] {
        assert!(word.take());
        word.stage(Frame(5));
        assert_eq!(word.claim_fault(), FaultClaim::Return { frame: Frame(5), is_folding: false });
        word.finish_return();
        assert_eq!(visits_left(&word), chances);
        word.put_back();
    }
    assert!(word.take());
    word.stage(Frame(6));
    assert!(word.begin_fold(Frame(6)));
    assert_eq!(word.finish_fold(Frame(6), THEN), FoldResult::Folded);
    assert_eq!(word.claim_fault(), FaultClaim::Load);
    word.finish_load(LATER, Arrival::Plain);
    assert_eq!(visits_left(&word), 0);
}

#[test]
fn pages_of_rows_stay_a_while_and_those_to_be_kept_longer() {
    for (is_kept, after, chances) in [
        (false, 0, 3),
        (true, 0, 7),
        (false, 1, 3),
        (true, 1, 7),
        (false, EARLY_REFAULT_TICKS, 3),
        (true, EARLY_REFAULT_TICKS, 3),
    ] {
        let word = resident();
        assert!(word.take());
        word.stage(Frame(5));
        assert!(word.begin_fold(Frame(5)));
        assert_eq!(word.finish_fold(Frame(5), THEN), FoldResult::Folded);
        assert_eq!(word.claim_fault(), FaultClaim::Load);
        word.finish_load(FoldTime(THEN.0.wrapping_add(after)), Arrival::InRow { is_kept });
        assert_eq!(visits_left(&word), chances, "kept {is_kept}, after {after}");
    }
}

#[test]
fn an_early_refault_raises_the_heat_and_a_late_one_resets_it() {
    let word = resident();
    for (after, chances) in
        [(EARLY_REFAULT_TICKS - 1, 1), (0, 3), (1, 7), (1, 7), (EARLY_REFAULT_TICKS, 0), (5, 1)]
    {
        assert!(word.take());
        word.stage(Frame(5));
        assert!(word.begin_fold(Frame(5)));
        assert_eq!(word.finish_fold(Frame(5), THEN), FoldResult::Folded);
        assert_eq!(word.claim_fault(), FaultClaim::Load);
        word.finish_load(FoldTime(THEN.0.wrapping_add(after)), Arrival::Plain);
        assert_eq!(visits_left(&word), chances, "{after}");
        word.put_back();
    }
    assert!(word.take());
    word.fold_clean(THEN);
    assert_eq!(word.claim_fault(), FaultClaim::Load);
    assert!(word.has_copy());
}

#[test]
fn any_candidate_is_taken_even_if_it_is_not_cold() {
    let word = PageWord::new();
    word.claim_fault();
    word.finish_load(LATER, Arrival::Plain);
    assert_eq!(word.visit(Candidates::Any, 0), Visit::Taken);
}

#[test]
fn pins_are_counted_up_to_their_bound() {
    let word = resident();
    for pins in 0..PINS_MAX {
        assert_eq!(word.pins(), pins);
        assert!(word.pin());
    }
    assert!(!word.pin());
    assert_eq!((word.pins(), word.state()), (PINS_MAX, State::Resident));
    assert_eq!(word.visit(Candidates::Any, 0), Visit::NotFree);
    assert_eq!(word.claim_drop(), DropClaim::Pinned);
    // The full count does not touch the neighbouring bits.
    assert_eq!((word.load().chances(), word.load().heat(), word.has_copy()), (0, 0, false));
    (0..PINS_MAX).for_each(|_| word.unpin());
    assert_eq!(word.pins(), 0);
    assert!(word.take());
}

#[test]
fn a_page_is_not_folded_from_a_frame_that_it_left() {
    let word = resident();
    assert!(word.take());
    word.stage(Frame(1));
    assert!(!word.begin_fold(Frame(2)));
    assert!(word.begin_fold(Frame(1)));
    assert_eq!(word.claim_fault(), FaultClaim::Return { frame: Frame(1), is_folding: true });
    word.finish_return();
    assert!(!word.take(), "a page that is being folded is not moved out again");
    assert!(matches!(word.claim_drop(), DropClaim::Busy(_)));
    assert_eq!(word.finish_fold(Frame(1), THEN), FoldResult::Returned);
    assert!(word.has_copy());
    assert!(!word.begin_fold(Frame(1)));
}

#[test]
fn waiting_ends_with_any_change() {
    let word = resident();
    assert!(word.take());
    let FaultClaim::Busy(seen) = word.claim_fault() else { panic!("taken") };
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| word.wait(seen))).collect();
        word.put_back();
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
    });
    // A wait for a state that is over returns at once.
    word.wait(seen);
    assert_eq!(word.claim_fault(), FaultClaim::Recheck);
    // Until the recheck ends, no evictor takes the page, and other faults wait.
    assert!(!word.take() && matches!(word.claim_fault(), FaultClaim::Busy(_)));
    word.end_recheck();
    assert!(word.take());
}

#[test]
fn states_and_payloads_do_not_share_bits() {
    let states = [
        State::Untouched,
        State::Resident,
        State::Taken,
        State::Staged,
        State::Returning,
        State::Loading,
        State::Folded,
        State::Unregistered,
    ];
    let mut seen = HashSet::new();
    for state in states {
        for frame in [0, 1, 0x8000, u16::MAX] {
            for (heat, chances) in [(0, 0), (3, 7), (1, 4)] {
                let word = Word(0).with_state(state).with_frame(Frame(frame)).with_heat(heat);
                let word = word.with_chances(chances).waited().with(Word::COPY);
                assert_eq!((word.state(), word.frame()), (state, Frame(frame)));
                assert_eq!((word.heat(), word.chances()), (heat, chances));
                assert!(word.is_waited() && word.has(Word::COPY));
                assert!(!word.has(Word::FOLDING));
                assert!(seen.insert(word.0));
            }
        }
    }
}

#[test]
fn a_spared_page_outlasts_three_visits_and_other_pages_stay_as_they_are() {
    let word = PageWord::new();
    word.spare();
    assert_eq!(word.load(), Word(0));
    assert_eq!(word.claim_fault(), FaultClaim::Zero);
    word.finish_load(FoldTime(0), Arrival::Plain);
    word.spare();
    for _ in 0..ADVISED_CHANCES {
        assert_eq!(word.visit(Candidates::Cold, 0), Visit::Kept);
    }
    assert_eq!(word.visit(Candidates::Cold, 0), Visit::Taken);
    word.spare();
    assert_eq!(word.state(), State::Taken);
}

#[test]
fn a_page_that_equals_the_file_is_dropped_to_it_from_its_frame_or_the_store() {
    let word = PageWord::new();
    let come_in = || {
        assert_eq!(word.claim_fault(), FaultClaim::Zero);
        word.set_file_hash();
        word.finish_load(FoldTime(0), Arrival::Plain);
        assert!(word.has_file_hash() && word.take());
        word.stage(Frame(3));
        assert!(word.begin_fold(Frame(3)));
    };
    come_in();
    assert_eq!(word.finish_drop_to_file(Frame(3)), FoldResult::Folded);
    assert_eq!(word.load(), Word(0).with(Word::FILE_HASH));
    come_in();
    assert!(!word.take_folded_in_file());
    assert_eq!(word.finish_fold(Frame(3), FoldTime(1)), FoldResult::Folded);
    assert!(word.take_folded_in_file() && !word.take_folded_in_file());
    word.finish_drop_folded_in_file();
    assert_eq!(word.load(), Word(0).with(Word::FILE_HASH));
    // Other bytes were stored: the file does not have them.
    come_in();
    word.clear_file_hash();
    assert_eq!(word.finish_fold(Frame(3), FoldTime(1)), FoldResult::Folded);
    assert!(!word.take_folded_in_file());
}

#[test]
fn a_page_that_was_dropped_to_the_file_is_known_when_it_is_read_again() {
    let word = PageWord::new();
    assert_eq!(word.claim_fault(), FaultClaim::Zero);
    assert!(!word.has_file_hash(), "a first read");
    word.set_file_hash();
    word.finish_load(FoldTime(0), Arrival::Plain);
    assert!(word.take());
    word.stage(Frame(3));
    assert!(word.begin_fold(Frame(3)));
    assert_eq!(word.finish_drop_to_file(Frame(3)), FoldResult::Folded);
    for _ in 0..2 {
        assert_eq!(word.claim_readahead(), Some(FaultClaim::Zero));
        assert!(word.has_file_hash(), "it is read again");
        word.abandon_load();
    }
    // A page that the program drops is zero, and is not read again.
    assert!(word.zero_untouched() && !word.has_file_hash());
    assert_eq!(word.claim_fault(), FaultClaim::Zeroed);
}

#[test]
fn a_page_that_was_brought_back_is_not_dropped_to_the_file() {
    let word = PageWord::new();
    assert_eq!(word.claim_fault(), FaultClaim::Zero);
    word.set_file_hash();
    word.finish_load(FoldTime(0), Arrival::Plain);
    assert!(word.take());
    word.stage(Frame(3));
    assert!(word.begin_fold(Frame(3)));
    assert_eq!(word.claim_fault(), FaultClaim::Return { frame: Frame(3), is_folding: true });
    word.finish_return();
    assert_eq!(word.finish_drop_to_file(Frame(3)), FoldResult::Returned);
    assert!(word.state() == State::Resident && word.has_file_hash() && word.take());
}

#[test]
fn a_dropped_page_of_a_region_with_a_file_is_zero() {
    let word = PageWord::new();
    assert!(word.zero_untouched());
    assert_eq!(word.claim_fault(), FaultClaim::Zeroed);
    word.abandon_load();
    assert_eq!(word.claim_readahead(), Some(FaultClaim::Zeroed));
    assert!(!word.zero_untouched());
    word.finish_load(FoldTime(0), Arrival::Plain);
    assert!(!word.zero_untouched() && !word.has_file_hash());
    assert!(matches!(word.claim_drop(), DropClaim::Taken { was: State::Resident, .. }));
    word.finish_drop_to_zero();
    assert!(word.is_untouched());
    assert_eq!(word.claim_fault(), FaultClaim::Zeroed);
}

#[test]
fn an_unregistered_page_becomes_resident_if_it_has_memory_or_pins() {
    for (is_populated, pins, state) in [
        (false, 0, State::Untouched),
        (true, 0, State::Resident),
        (false, 2, State::Resident),
        (true, 1, State::Resident),
    ] {
        let word = PageWord::new();
        assert!(!word.pin_unregistered());
        assert!(word.unregister() && !word.unregister());
        assert_eq!((word.state(), word.claim_fault()), (State::Unregistered, FaultClaim::Unregistered));
        assert_eq!((word.claim_readahead(), word.claim_drop()), (None, DropClaim::Unregistered));
        assert!(!word.take() && !word.pin());
        (0..pins).for_each(|_| assert!(word.pin_unregistered()));
        assert_eq!(word.register(is_populated), state == State::Resident);
        assert_eq!((word.state(), word.pins()), (state, pins));
        // Pins are kept, so the page can be taken only without them.
        assert_eq!(word.take(), state == State::Resident && pins == 0);
    }
}

#[test]
fn only_untouched_pages_are_unregistered() {
    let word = PageWord::new();
    word.claim_fault();
    assert!(!word.unregister());
    word.finish_load(FoldTime(0), Arrival::Plain);
    assert!(!word.unregister());
}
