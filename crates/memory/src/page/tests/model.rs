//! Random sequences of transitions against a slow and obvious model.

use super::super::*;
use super::{LATER, THEN};
use proptest::prelude::*;

/// The state of a page, with facts that only its owner knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ModelState {
    Untouched,
    Resident { pins: u32 },
    Taken { was: State },
    Staged { frame: u16 },
    Returning { frame: u16 },
    Loading,
    Rechecking { pins: u32 },
    Folded,
}

/// The model: every part of the word by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Model {
    is: ModelState,
    /// The frame that a thread is writing to the store.
    folding: Option<u16>,
    has_copy: bool,
    is_rewritten: bool,
    is_protected: bool,
    heat: u32,
    chances: u32,
    /// The claim of a thread that overwrites the page.
    overwrite: Option<OverwriteClaim>,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    FaultClaim,
    TouchAhead,
    FinishLoad,
    FinishLoadProtected,
    FinishLoadWithoutCopy,
    AbandonLoad,
    FinishReturn,
    FinishRefusal,
    AbandonReturn,
    ClaimFrame,
    ClaimOverwrite(bool),
    FinishOverwrite,
    AbandonOverwrite,
    EndRecheck,
    Visit(Candidates),
    Take,
    PutBack,
    PutBackBusy,
    PutBackDirty,
    EndProtection,
    FoldClean,
    Stage(u16),
    BeginFold(u16),
    /// The thread that is folding the page sees whether it was written.
    NoteRewritten(bool),
    FinishFold,
    RefuseFold,
    TakeToDrop,
    FinishDrop,
    Pin,
    Unpin,
    /// A thread begins to wait.
    Wait,
}

const UNTOUCHED: Model = Model {
    is: ModelState::Untouched,
    folding: None,
    has_copy: false,
    is_rewritten: false,
    is_protected: false,
    heat: 0,
    chances: 0,
    overwrite: None,
};

/// Steps, each about as likely as it is possible.
fn step() -> impl Strategy<Value = Step> {
    let candidates = || prop_oneof![4 => Just(Candidates::Cold), 1 => Just(Candidates::Any)];
    let frame = || prop_oneof![Just(0_u16), Just(1), Just(u16::MAX)];
    let on_the_way = prop_oneof![
        Just(Step::FinishLoad),
        Just(Step::FinishLoadProtected),
        Just(Step::FinishLoadWithoutCopy),
        Just(Step::AbandonLoad),
        Just(Step::FinishReturn),
        Just(Step::FinishRefusal),
        Just(Step::AbandonReturn),
        Just(Step::EndRecheck),
    ];
    let whole = prop_oneof![
        Just(Step::ClaimFrame),
        any::<bool>().prop_map(Step::ClaimOverwrite),
        Just(Step::FinishOverwrite),
        Just(Step::AbandonOverwrite),
    ];
    let out = prop_oneof![
        Just(Step::Take),
        Just(Step::PutBack),
        Just(Step::PutBackBusy),
        Just(Step::PutBackDirty),
        Just(Step::EndProtection),
        Just(Step::FoldClean),
        Just(Step::TakeToDrop),
        Just(Step::FinishDrop),
    ];
    prop_oneof![
        4 => Just(Step::FaultClaim),
        1 => Just(Step::TouchAhead),
        6 => on_the_way,
        6 => candidates().prop_map(Step::Visit),
        3 => out,
        3 => whole,
        3 => frame().prop_map(Step::Stage),
        3 => frame().prop_map(Step::BeginFold),
        2 => any::<bool>().prop_map(Step::NoteRewritten),
        2 => Just(Step::FinishFold),
        1 => Just(Step::RefuseFold),
        1 => Just(Step::Pin),
        2 => Just(Step::Unpin),
        1 => Just(Step::Wait),
    ]
}

impl Model {
    fn state(&self) -> State {
        match self.is {
            ModelState::Untouched => State::Untouched,
            ModelState::Resident { .. } => State::Resident,
            ModelState::Taken { .. } => State::Taken,
            ModelState::Staged { .. } => State::Staged,
            ModelState::Returning { .. } => State::Returning,
            ModelState::Loading | ModelState::Rechecking { .. } => State::Loading,
            ModelState::Folded => State::Folded,
        }
    }

    fn is_free(&self) -> bool {
        self.is == ModelState::Resident { pins: 0 } && self.folding.is_none()
    }

    /// The page becomes resident.
    fn settle(&mut self) {
        self.is = ModelState::Resident { pins: 0 };
    }

    fn visit(&mut self, candidates: Candidates) -> Visit {
        if !self.is_free() {
            return Visit::NotFree;
        }
        if candidates == Candidates::Any || self.chances == 0 {
            self.is = ModelState::Taken { was: State::Resident };
            return Visit::Taken;
        }
        self.chances -= 1;
        Visit::Kept
    }

    /// Applies a step to word and model, if its caller may take it now, and compares the results.
    fn step(&mut self, word: &PageWord, step: Step) {
        match (step, self.is) {
            (
                Step::FinishLoad
                | Step::FinishLoadProtected
                | Step::FinishLoadWithoutCopy
                | Step::AbandonLoad,
                _,
            ) if self.overwrite.is_some() => {}
            (Step::FinishReturn | Step::FinishRefusal | Step::AbandonReturn, _)
                if self.overwrite.is_some() => {}
            (Step::FaultClaim, is) => self.touch(word, is),
            (Step::TouchAhead, ModelState::Untouched) => {
                assert_eq!(word.claim_readahead(), Some(FaultClaim::Zero));
                self.is = ModelState::Loading;
            }
            (Step::TouchAhead, ModelState::Folded) => {
                assert_eq!(word.claim_readahead(), Some(FaultClaim::Load));
                self.is = ModelState::Loading;
            }
            (Step::TouchAhead, _) => assert_eq!(word.claim_readahead(), None),
            (Step::FinishLoad, ModelState::Loading) => {
                // Long after the page was folded, if it was.
                word.finish_load(LATER, Arrival::Plain);
                (self.heat, self.chances) = (0, 0);
                self.settle();
            }
            (Step::FinishLoadProtected, ModelState::Loading) if self.has_copy => {
                word.finish_load_protected(LATER, Arrival::Plain);
                (self.heat, self.chances, self.is_protected) = (0, 0, true);
                self.settle();
            }
            (Step::FinishLoadWithoutCopy, ModelState::Loading) => {
                word.finish_load_without_copy(LATER, Arrival::Plain);
                (self.heat, self.chances, self.has_copy) = (0, 0, false);
                self.settle();
            }
            (Step::AbandonLoad, ModelState::Loading) => {
                word.abandon_load();
                self.is = if self.has_copy { ModelState::Folded } else { ModelState::Untouched };
            }
            (Step::FinishReturn, ModelState::Returning { .. }) => {
                word.finish_return();
                self.settle();
                self.heat = (self.heat + 1).min(3);
                self.chances = [0, 1, 3, 7][self.heat as usize];
            }
            (Step::FinishRefusal, ModelState::Returning { .. }) if self.folding.is_none() => {
                word.finish_refusal();
                self.settle();
                self.chances = 7;
            }
            (Step::AbandonReturn, ModelState::Returning { frame }) => {
                word.abandon_return();
                self.is = ModelState::Staged { frame };
            }
            (Step::EndRecheck, ModelState::Rechecking { pins }) => {
                word.end_recheck();
                self.is = ModelState::Resident { pins };
            }
            (Step::Visit(candidates), _) => {
                assert_eq!(word.visit(candidates, 0), self.visit(candidates));
            }
            (Step::Take, _) => {
                assert_eq!(word.take(), self.is_free());
                if self.is_free() {
                    self.is = ModelState::Taken { was: State::Resident };
                }
            }
            (Step::Pin, ModelState::Resident { pins }) if !self.is_protected => {
                assert!(word.pin());
                self.is = ModelState::Resident { pins: pins + 1 };
            }
            (Step::Pin, _) => assert!(!word.pin()),
            (Step::Unpin, ModelState::Resident { pins: 1.. } | ModelState::Rechecking { pins: 1.. }) => {
                word.unpin();
                let (ModelState::Resident { pins } | ModelState::Rechecking { pins }) = &mut self.is else {
                    unreachable!()
                };
                *pins -= 1;
            }
            (Step::Wait, _) => drop(word.0.fetch_or(Word(0).waited().0, Ordering::Relaxed)),
            (
                Step::ClaimFrame | Step::ClaimOverwrite(_) | Step::FinishOverwrite | Step::AbandonOverwrite,
                _,
            ) => {
                self.step_whole(word, step);
            }
            (step, _) => self.step_out(word, step),
        }
    }

    /// The steps of threads that copy whole pages.
    fn step_whole(&mut self, word: &PageWord, step: Step) {
        match (step, self.is) {
            (Step::ClaimFrame, ModelState::Staged { frame }) => {
                assert_eq!(word.claim_frame(), Some(Frame(frame)));
                self.is = ModelState::Returning { frame };
            }
            (Step::ClaimFrame, _) => assert_eq!(word.claim_frame(), None),
            (Step::ClaimOverwrite(takes_untouched), is) => {
                let (claim, next) = match is {
                    ModelState::Folded => (Some(OverwriteClaim::Folded), ModelState::Loading),
                    ModelState::Untouched if takes_untouched => {
                        (Some(OverwriteClaim::Untouched), ModelState::Loading)
                    }
                    ModelState::Staged { frame } if self.folding.is_none() => {
                        let has_copy = self.has_copy;
                        (Some(OverwriteClaim::Staged { has_copy }), ModelState::Returning { frame })
                    }
                    is => (None, is),
                };
                assert_eq!(word.begin_overwrite(takes_untouched), claim);
                self.is = next;
                self.overwrite = claim.or(self.overwrite);
            }
            (Step::FinishOverwrite, _) if self.overwrite.take().is_some() => {
                word.finish_overwrite(THEN);
                self.is = ModelState::Folded;
                (self.has_copy, self.is_rewritten) = (true, false);
            }
            (Step::AbandonOverwrite, is) => {
                let Some(claim) = self.overwrite.take() else { return };
                word.abandon_overwrite(claim);
                self.is = match is {
                    ModelState::Returning { frame } => ModelState::Staged { frame },
                    _ if self.has_copy => ModelState::Folded,
                    _ => ModelState::Untouched,
                };
            }
            _ => {}
        }
    }

    fn touch(&mut self, word: &PageWord, is: ModelState) {
        let expected = match is {
            ModelState::Untouched => FaultClaim::Zero,
            ModelState::Folded => FaultClaim::Load,
            ModelState::Resident { .. } => FaultClaim::Recheck,
            ModelState::Staged { frame } => {
                FaultClaim::Return { frame: Frame(frame), is_folding: self.folding.is_some() }
            }
            _ => FaultClaim::Busy(ObservedWord(word.load().0)),
        };
        assert_eq!(word.claim_fault(), expected);
        self.is = match is {
            ModelState::Untouched | ModelState::Folded => ModelState::Loading,
            ModelState::Staged { frame } => ModelState::Returning { frame },
            ModelState::Resident { pins } => {
                // Until the recheck ends, nobody asks.
                self.is_protected = false;
                ModelState::Rechecking { pins }
            }
            is => is,
        };
    }

    /// The steps of threads that evict or drop pages.
    fn step_out(&mut self, word: &PageWord, step: Step) {
        match (step, self.is) {
            (Step::PutBack, ModelState::Taken { was: State::Resident }) => {
                word.put_back();
                self.is = ModelState::Resident { pins: 0 };
            }
            (Step::PutBackBusy, ModelState::Taken { was: State::Resident }) => {
                word.put_back_busy();
                self.is = ModelState::Resident { pins: 0 };
                self.chances = 7;
            }
            (Step::PutBackDirty, ModelState::Taken { was: State::Resident }) => {
                word.put_back_dirty();
                self.is = ModelState::Resident { pins: 0 };
                self.has_copy = false;
            }
            (Step::EndProtection, ModelState::Taken { was: State::Resident }) => {
                word.end_protection();
                self.is_protected = false;
            }
            (Step::FoldClean, ModelState::Taken { was: State::Resident }) if self.has_copy => {
                word.fold_clean(THEN);
                self.is = ModelState::Folded;
                (self.is_rewritten, self.is_protected) = (false, false);
            }
            (Step::Stage(frame), ModelState::Taken { was: State::Resident }) => {
                word.stage(Frame(frame));
                self.is = ModelState::Staged { frame };
                self.is_protected = false;
            }
            // This would wait, or another thread is folding.
            (Step::BeginFold(frame), ModelState::Returning { frame: of }) if frame == of => {}
            (Step::BeginFold(frame), _) if self.folding == Some(frame) => {}
            (Step::BeginFold(frame), is) => {
                let is_there = is == ModelState::Staged { frame };
                assert_eq!(word.begin_fold(Frame(frame)), is_there);
                self.folding = if is_there { Some(frame) } else { self.folding };
            }
            (Step::NoteRewritten(is_rewritten), _) if self.folding.is_some() => {
                assert_eq!(word.has_fold_hash(), self.has_copy || self.is_rewritten);
                word.note_rewritten(is_rewritten);
                self.is_rewritten = is_rewritten;
            }
            (Step::FinishFold, is) => {
                let Some(frame) = self.folding.take() else { return };
                self.has_copy = true;
                if is == (ModelState::Staged { frame }) {
                    assert_eq!(word.finish_fold(Frame(frame), THEN), FoldResult::Folded);
                    self.is = ModelState::Folded;
                } else {
                    assert_eq!(word.finish_fold(Frame(frame), THEN), FoldResult::Returned);
                }
            }
            (Step::RefuseFold, is) => {
                let Some(frame) = self.folding.take() else { return };
                if is == (ModelState::Staged { frame }) {
                    assert_eq!(word.refuse_fold(Frame(frame)), RefusalResult::BringBack);
                    self.is = ModelState::Returning { frame };
                } else {
                    assert_eq!(word.refuse_fold(Frame(frame)), RefusalResult::Returned);
                }
            }
            (Step::TakeToDrop, is) => self.claim_drop(word, is),
            (Step::FinishDrop, ModelState::Taken { .. }) => {
                word.finish_drop();
                *self = UNTOUCHED;
            }
            _ => {}
        }
    }

    fn claim_drop(&mut self, word: &PageWord, is: ModelState) {
        let was = self.state();
        let expected = match is {
            ModelState::Untouched => DropClaim::Nothing,
            ModelState::Resident { pins: 1.. } => DropClaim::Pinned,
            ModelState::Resident { .. } | ModelState::Staged { .. } | ModelState::Folded
                if self.folding.is_none() =>
            {
                DropClaim::Taken { was, has_copy: self.has_copy }
            }
            _ => DropClaim::Busy(ObservedWord(word.load().0)),
        };
        assert_eq!(word.claim_drop(), expected);
        if matches!(expected, DropClaim::Taken { .. }) {
            self.is = ModelState::Taken { was };
        }
    }

    /// Checks that the word agrees with the model.
    fn compare(&self, word: &PageWord) {
        let bits = word.load();
        assert_eq!(word.state(), self.state());
        let whereabouts = match self.is {
            ModelState::Untouched => Whereabouts::Nowhere { is_zeroed: false },
            ModelState::Staged { .. } => Whereabouts::Frame,
            ModelState::Folded => Whereabouts::Store,
            _ => Whereabouts::Range,
        };
        assert_eq!(word.whereabouts(), whereabouts);
        assert_eq!(word.has_copy(), self.has_copy);
        assert_eq!(word.is_rewritten(), self.is_rewritten);
        assert_eq!(word.is_protected(), self.is_protected);
        assert_eq!(word.is_unwritten(), self.is_protected && self.has_copy);
        assert_eq!(bits.has(Word::FOLDING), self.folding.is_some());
        assert_eq!((bits.heat(), bits.chances()), (self.heat, self.chances));
        match self.is {
            ModelState::Resident { pins } | ModelState::Rechecking { pins } => assert_eq!(word.pins(), pins),
            ModelState::Staged { frame } | ModelState::Returning { frame } => {
                assert_eq!(bits.frame(), Frame(frame))
            }
            ModelState::Untouched => assert_eq!(bits.unwaited(), Word(0)),
            _ => assert_eq!(word.pins(), 0),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn a_word_agrees_with_its_model(steps in prop::collection::vec(step(), 0..200)) {
        let (word, mut model) = (PageWord::new(), UNTOUCHED);
        for step in steps {
            let before = (model, word.load().is_waited());
            model.step(&word, step);
            model.compare(&word);
            // Every change lets waiters look again; without a change, no waiter is forgotten.
            if model != before.0 {
                prop_assert!(!word.load().is_waited(), "{:?} of {:?}", step, before.0);
            }
        }
    }
}
