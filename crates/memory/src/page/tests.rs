//! Tests of the transitions: any sequence of them against a slow and obvious twin, and what the hand's rule and
//! the bounds come to.

use super::clock::HEAT_MAX;
use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

/// What a page is, with what only its owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Untouched,
    Resident { pins: u32 },
    Taken { was: State },
    Staged { frame: u16 },
    Returning { frame: u16 },
    Loading,
    Rechecking { pins: u32 },
    Folded,
}

/// The twin: every part of the word by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Twin {
    is: Is,
    /// The frame that a thread writes to the store.
    folding: Option<u16>,
    has_copy: bool,
    is_new: bool,
    heat: u32,
    chances: u32,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Touch,
    TouchAhead,
    FinishLoad,
    AbandonLoad,
    FinishReturn,
    FinishRefusal,
    AbandonReturn,
    BeginRecheck,
    EndRecheck,
    Visit(Option<bool>, Effort),
    Take,
    PutBack,
    PutBackBusy,
    PutBackDirty,
    Stage(u16),
    BeginFold(u16),
    FinishFold,
    RefuseFold,
    TakeToDrop,
    FinishDrop,
    Pin,
    Unpin,
    /// Somebody begins to wait.
    Wait,
}

const UNTOUCHED: Twin =
    Twin { is: Is::Untouched, folding: None, has_copy: false, is_new: false, heat: 0, chances: 0 };

/// Steps as likely as they are to do something.
fn step() -> impl Strategy<Value = Step> {
    let effort = || prop_oneof![4 => Just(Effort::Cold), 1 => Just(Effort::Any)];
    let frame = || prop_oneof![Just(0_u16), Just(1), Just(u16::MAX)];
    let on_the_way = prop_oneof![
        Just(Step::FinishLoad),
        Just(Step::AbandonLoad),
        Just(Step::FinishReturn),
        Just(Step::FinishRefusal),
        Just(Step::AbandonReturn),
        Just(Step::BeginRecheck),
        Just(Step::EndRecheck),
    ];
    let out = prop_oneof![
        Just(Step::Take),
        Just(Step::PutBack),
        Just(Step::PutBackBusy),
        Just(Step::PutBackDirty),
        Just(Step::TakeToDrop),
        Just(Step::FinishDrop),
    ];
    prop_oneof![
        4 => Just(Step::Touch),
        1 => Just(Step::TouchAhead),
        6 => on_the_way,
        6 => (proptest::option::of(any::<bool>()), effort()).prop_map(|(w, e)| Step::Visit(w, e)),
        3 => out,
        3 => frame().prop_map(Step::Stage),
        3 => frame().prop_map(Step::BeginFold),
        2 => Just(Step::FinishFold),
        1 => Just(Step::RefuseFold),
        1 => Just(Step::Pin),
        2 => Just(Step::Unpin),
        1 => Just(Step::Wait),
    ]
}

impl Twin {
    fn state(&self) -> State {
        match self.is {
            Is::Untouched => State::Untouched,
            Is::Resident { .. } => State::Resident,
            Is::Taken { .. } => State::Taken,
            Is::Staged { .. } => State::Staged,
            Is::Returning { .. } => State::Returning,
            Is::Loading | Is::Rechecking { .. } => State::Loading,
            Is::Folded => State::Folded,
        }
    }

    fn is_free(&self) -> bool {
        self.is == Is::Resident { pins: 0 } && self.folding.is_none()
    }

    /// Arrives in the range.
    fn settle(&mut self) {
        self.is = Is::Resident { pins: 0 };
        self.is_new = true;
    }

    fn visit(&mut self, is_written: Option<bool>, effort: Effort) -> Visit {
        if !self.is_free() {
            return Visit::NotFree;
        }
        // Where writes are not told, an arrival is nothing special.
        let is_new = self.is_new && is_written.is_some();
        let is_cold = !is_new && is_written != Some(true) && self.chances == 0;
        if effort == Effort::Any || is_cold {
            self.is = Is::Taken { was: State::Resident };
            return Visit::Taken;
        }
        if is_new {
            // It is passed over until the hand has seen its arrival, as a write.
            self.is_new = is_written == Some(false);
            return Visit::Kept { is_rewritten: false };
        }
        if is_written == Some(true) {
            self.chances = self.chances.max(1);
            return Visit::Kept { is_rewritten: true };
        }
        self.chances -= 1;
        Visit::Kept { is_rewritten: false }
    }

    /// Does a step to both, if its caller may make it now, and compares the answers.
    fn step(&mut self, word: &PageWord, step: Step) {
        match (step, self.is) {
            (Step::Touch, is) => self.touch(word, is),
            (Step::TouchAhead, Is::Untouched) => {
                assert_eq!(word.touch_ahead(), Some(Touch::Zero));
                self.is = Is::Loading;
            }
            (Step::TouchAhead, Is::Folded) => {
                assert_eq!(word.touch_ahead(), Some(Touch::Load));
                self.is = Is::Loading;
            }
            (Step::TouchAhead, _) => assert_eq!(word.touch_ahead(), None),
            (Step::FinishLoad, Is::Loading) => {
                // Long after it was folded, if it was.
                word.finish_load(LATER);
                (self.heat, self.chances) = (0, 0);
                self.settle();
            }
            (Step::AbandonLoad, Is::Loading) => {
                word.abandon_load();
                self.is = if self.has_copy { Is::Folded } else { Is::Untouched };
            }
            (Step::FinishReturn, Is::Returning { .. }) => {
                word.finish_return();
                self.settle();
                self.heat = (self.heat + 1).min(3);
                self.chances = [0, 1, 3, 7][self.heat as usize];
            }
            (Step::FinishRefusal, Is::Returning { .. }) if self.folding.is_none() => {
                word.finish_refusal();
                self.settle();
                self.chances = 7;
            }
            (Step::AbandonReturn, Is::Returning { frame }) => {
                word.abandon_return();
                self.is = Is::Staged { frame };
            }
            (Step::BeginRecheck, Is::Resident { pins }) => {
                assert!(word.begin_recheck());
                self.is = Is::Rechecking { pins };
            }
            (Step::BeginRecheck, _) => assert!(!word.begin_recheck()),
            (Step::EndRecheck, Is::Rechecking { pins }) => {
                word.end_recheck();
                self.is = Is::Resident { pins };
            }
            (Step::Visit(is_written, effort), _) => {
                assert_eq!(word.visit(is_written, effort, 0), self.visit(is_written, effort));
            }
            (Step::Take, _) => {
                assert_eq!(word.take(), self.is_free());
                if self.is_free() {
                    self.is = Is::Taken { was: State::Resident };
                }
            }
            (Step::Pin, Is::Resident { pins }) => {
                assert!(word.pin());
                self.is = Is::Resident { pins: pins + 1 };
            }
            (Step::Pin, _) => assert!(!word.pin()),
            (Step::Unpin, Is::Resident { pins: 1.. } | Is::Rechecking { pins: 1.. }) => {
                word.unpin();
                let (Is::Resident { pins } | Is::Rechecking { pins }) = &mut self.is else { unreachable!() };
                *pins -= 1;
            }
            (Step::Wait, _) => drop(word.0.fetch_or(Word(0).waited().0, Ordering::Relaxed)),
            (step, _) => self.step_out(word, step),
        }
    }

    fn touch(&mut self, word: &PageWord, is: Is) {
        let expected = match is {
            Is::Untouched => Touch::Zero,
            Is::Folded => Touch::Load,
            Is::Resident { .. } => Touch::There,
            Is::Staged { frame } => Touch::Return { frame: Frame(frame), is_folding: self.folding.is_some() },
            _ => Touch::Busy(Seen(word.load().0)),
        };
        assert_eq!(word.touch(), expected);
        self.is = match is {
            Is::Untouched | Is::Folded => Is::Loading,
            Is::Staged { frame } => Is::Returning { frame },
            is => is,
        };
    }

    /// The steps of who moves pages out or drops them.
    fn step_out(&mut self, word: &PageWord, step: Step) {
        match (step, self.is) {
            (Step::PutBack, Is::Taken { was: State::Resident }) => {
                word.put_back();
                self.is = Is::Resident { pins: 0 };
            }
            (Step::PutBackBusy, Is::Taken { was: State::Resident }) => {
                word.put_back_busy();
                self.is = Is::Resident { pins: 0 };
                self.chances = 7;
            }
            (Step::PutBackDirty, Is::Taken { was: State::Resident }) => {
                word.put_back_dirty();
                self.is = Is::Resident { pins: 0 };
                self.has_copy = false;
            }
            (Step::Stage(frame), Is::Taken { was: State::Resident }) => {
                word.stage(Frame(frame));
                self.is = Is::Staged { frame };
            }
            // This waits, or is another thread's.
            (Step::BeginFold(frame), Is::Returning { frame: of }) if frame == of => {}
            (Step::BeginFold(frame), _) if self.folding == Some(frame) => {}
            (Step::BeginFold(frame), is) => {
                let is_there = is == Is::Staged { frame };
                assert_eq!(word.begin_fold(Frame(frame)), is_there);
                self.folding = if is_there { Some(frame) } else { self.folding };
            }
            (Step::FinishFold, is) => {
                let Some(frame) = self.folding.take() else { return };
                self.has_copy = true;
                if is == (Is::Staged { frame }) {
                    assert_eq!(word.finish_fold(Frame(frame), THEN), Folded::Yes);
                    self.is = Is::Folded;
                } else {
                    assert_eq!(word.finish_fold(Frame(frame), THEN), Folded::Returned);
                }
            }
            (Step::RefuseFold, is) => {
                let Some(frame) = self.folding.take() else { return };
                if is == (Is::Staged { frame }) {
                    assert_eq!(word.refuse_fold(Frame(frame)), Refused::BringBack);
                    self.is = Is::Returning { frame };
                } else {
                    assert_eq!(word.refuse_fold(Frame(frame)), Refused::Returned);
                }
            }
            (Step::TakeToDrop, is) => self.take_to_drop(word, is),
            (Step::FinishDrop, Is::Taken { .. }) => {
                word.finish_drop();
                *self = UNTOUCHED;
            }
            _ => {}
        }
    }

    fn take_to_drop(&mut self, word: &PageWord, is: Is) {
        let was = self.state();
        let expected = match is {
            Is::Untouched => Drop::Nothing,
            Is::Resident { pins: 1.. } => Drop::Pinned,
            Is::Resident { .. } | Is::Staged { .. } | Is::Folded if self.folding.is_none() => {
                Drop::Taken { was, has_copy: self.has_copy }
            }
            _ => Drop::Busy(Seen(word.load().0)),
        };
        assert_eq!(word.take_to_drop(), expected);
        if matches!(expected, Drop::Taken { .. }) {
            self.is = Is::Taken { was };
        }
    }

    /// Whether the word says the same.
    fn compare(&self, word: &PageWord) {
        let bits = word.load();
        assert_eq!(word.state(), self.state());
        assert_eq!(word.has_copy(), self.has_copy);
        assert_eq!(bits.has(Word::NEW), self.is_new);
        assert_eq!(bits.has(Word::FOLDING), self.folding.is_some());
        assert_eq!((bits.heat(), bits.chances()), (self.heat, self.chances));
        match self.is {
            Is::Resident { pins } | Is::Rechecking { pins } => assert_eq!(word.pins(), pins),
            Is::Staged { frame } | Is::Returning { frame } => assert_eq!(bits.frame(), Frame(frame)),
            Is::Untouched => assert_eq!(bits.unwaited(), Word(0)),
            _ => assert_eq!(word.pins(), 0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_word_agrees_with_its_twin(steps in prop::collection::vec(step(), 0..200)) {
        let (word, mut twin) = (PageWord::new(), UNTOUCHED);
        for step in steps {
            let before = (twin, word.load().is_waited());
            twin.step(&word, step);
            twin.compare(&word);
            // Every change lets those who wait look again; without one, nobody is forgotten.
            if twin != before.0 {
                prop_assert!(!word.load().is_waited(), "{:?} of {:?}", step, before.0);
            }
        }
    }
}

/// A time, and one so much later that a page folded at the first is cold.
const THEN: FoldTime = FoldTime(u16::MAX - 3);
const LATER: FoldTime = FoldTime(THEN.0.wrapping_add(SOON));

/// A page that just came in, and was seen by the hand.
fn resident() -> PageWord {
    let word = PageWord::new();
    assert_eq!(word.touch(), Touch::Zero);
    word.finish_load(LATER);
    assert_eq!(word.visit(Some(true), Effort::Cold, 0), Visit::Kept { is_rewritten: false });
    word
}

/// Visits that pass over a page before it is taken.
fn visits_left(word: &PageWord, is_written: Option<bool>) -> u32 {
    (0..100).take_while(|_| word.visit(is_written, Effort::Cold, 0) != Visit::Taken).count() as u32
}

#[test]
fn zeroed_memory_is_an_untouched_page() {
    assert_eq!(PageWord::new().load(), Word(0));
    assert_eq!(Word(0).state(), State::Untouched);
    assert_eq!((size_of::<PageWord>(), align_of::<PageWord>()), (4, 4));
}

#[test]
fn a_page_that_came_in_cold_has_no_chance_but_where_its_arrival_counts_as_a_write() {
    for (is_written, visits) in [(None, 0), (Some(true), 100)] {
        let word = PageWord::new();
        word.touch();
        word.finish_load(LATER);
        assert_eq!(visits_left(&word, is_written), visits);
    }
}

#[test]
fn the_hottest_pages_lose_a_chance_in_few_rounds_only() {
    let word =
        PageWord(AtomicU32::new(Word(0).with_state(State::Resident).with_heat(HEAT_MAX).with_chances(2).0));
    let visit = |round| word.visit(None, Effort::Cold, round);
    let kept = Visit::Kept { is_rewritten: false };
    assert!((1..HOT_ROUNDS).all(|round| visit(round) == kept && word.load().chances() == 2));
    assert_eq!((visit(HOT_ROUNDS), word.load().chances()), (kept, 1));
    assert_eq!((visit(0), visit(1), visit(0)), (kept, Visit::Taken, Visit::NotFree));
}

#[test]
fn an_arrival_counts_as_a_write_that_the_hand_will_see() {
    let word = PageWord::new();
    word.touch();
    word.finish_load(LATER);
    // The hand looked for writes before it came: it is not known to be cold.
    for _ in 0..5 {
        assert_eq!(word.visit(Some(false), Effort::Cold, 0), Visit::Kept { is_rewritten: false });
    }
    // Now its arrival is seen, which does not make its copy useless.
    assert_eq!(word.visit(Some(true), Effort::Cold, 0), Visit::Kept { is_rewritten: false });
    assert_eq!(word.visit(Some(false), Effort::Cold, 0), Visit::Taken);
}

#[test]
fn a_written_page_is_passed_over_until_it_is_written_no_more() {
    let word = resident();
    for _ in 0..5 {
        assert_eq!(word.visit(Some(true), Effort::Cold, 0), Visit::Kept { is_rewritten: true });
    }
    assert_eq!(visits_left(&word, Some(false)), 1);
}

#[test]
fn each_return_makes_hotter_up_to_a_bound_and_folding_makes_cold() {
    let word = resident();
    for chances in [1, 3, 7, 7] {
        assert!(word.take());
        word.stage(Frame(5));
        assert_eq!(word.touch(), Touch::Return { frame: Frame(5), is_folding: false });
        word.finish_return();
        assert_eq!(visits_left(&word, None), chances);
        word.put_back();
    }
    assert!(word.take());
    word.stage(Frame(6));
    assert!(word.begin_fold(Frame(6)));
    assert_eq!(word.finish_fold(Frame(6), THEN), Folded::Yes);
    assert_eq!(word.touch(), Touch::Load);
    word.finish_load(LATER);
    assert_eq!(visits_left(&word, None), 0);
}

#[test]
fn a_page_that_comes_back_soon_is_hotter_and_one_that_does_not_is_cold() {
    let word = resident();
    for (after, chances) in [(SOON - 1, 1), (0, 3), (1, 7), (1, 7), (SOON, 0), (5, 1)] {
        assert!(word.take());
        word.stage(Frame(5));
        assert!(word.begin_fold(Frame(5)));
        assert_eq!(word.finish_fold(Frame(5), THEN), Folded::Yes);
        assert_eq!(word.touch(), Touch::Load);
        word.finish_load(FoldTime(THEN.0.wrapping_add(after)));
        assert_eq!(visits_left(&word, None), chances, "{after}");
        word.put_back();
    }
    assert!(word.take());
    word.fold_clean(THEN);
    assert_eq!(word.touch(), Touch::Load);
    assert!(word.has_copy());
}

#[test]
fn who_needs_any_page_does_not_ask_whether_it_is_cold() {
    let word = PageWord::new();
    word.touch();
    word.finish_load(LATER);
    assert_eq!(word.visit(Some(true), Effort::Any, 0), Visit::Taken);
}

#[test]
fn pins_are_counted_to_their_bound() {
    let word = resident();
    for pins in 0..PINS_MAX {
        assert_eq!(word.pins(), pins);
        assert!(word.pin());
    }
    assert!(!word.pin());
    assert_eq!((word.pins(), word.state()), (PINS_MAX, State::Resident));
    assert_eq!(word.visit(None, Effort::Any, 0), Visit::NotFree);
    assert_eq!(word.take_to_drop(), Drop::Pinned);
    // The full count spares the bits beside it.
    assert_eq!((word.load().chances(), word.load().heat(), word.has_copy()), (0, 0, false));
    (0..PINS_MAX).for_each(|_| word.unpin());
    assert_eq!(word.pins(), 0);
    assert!(word.take());
}

#[test]
fn a_frame_that_a_page_left_is_not_folded_from() {
    let word = resident();
    assert!(word.take());
    word.stage(Frame(1));
    assert!(!word.begin_fold(Frame(2)));
    assert!(word.begin_fold(Frame(1)));
    assert_eq!(word.touch(), Touch::Return { frame: Frame(1), is_folding: true });
    word.finish_return();
    assert!(!word.take(), "a page that is being folded is not moved out again");
    assert!(matches!(word.take_to_drop(), Drop::Busy(_)));
    assert_eq!(word.finish_fold(Frame(1), THEN), Folded::Returned);
    assert!(word.has_copy());
    assert!(!word.begin_fold(Frame(1)));
}

#[test]
fn waiting_ends_with_any_change() {
    let word = resident();
    assert!(word.take());
    let Touch::Busy(seen) = word.touch() else { panic!("taken") };
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(|| word.wait(seen))).collect();
        word.put_back();
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
    });
    // What is over is not waited for.
    word.wait(seen);
    assert_eq!(word.touch(), Touch::There);
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
                assert!(!word.has(Word::FOLDING) && !word.has(Word::NEW));
                assert!(seen.insert(word.0));
            }
        }
    }
}
