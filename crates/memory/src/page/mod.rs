//! The state of one page of a region: a word of four bytes, and the transitions between its states.
//!
//! | state | where the bytes are | mapped in the region |
//! |---|---|---|
//! | untouched | nowhere: the page is zero | no |
//! | resident | in the region; *clean* while the store has a copy of what was loaded, else *dirty* | yes |
//! | taken | in the region, or nowhere any more: one thread is moving it out or dropping it | either |
//! | staged | in a frame of the staging area | no |
//! | returning | in a frame; a thread that touched the page is bringing it back from there | no |
//! | loading | in the store, or nowhere yet; a thread that touched the page is bringing it in | no |
//! | folded | in the store | no |
//!
//! Beside the state, *folding* says that a thread is writing the page to the store from its frame: the page may be
//! brought back meanwhile, but not moved out again nor dropped, so that an old version never overtakes a new
//! one. Taken, returning and loading pages belong to the thread that made them so; everybody else waits on the
//! word. A state changes only through the functions of [`PageWord`], each named for its transition.
//!
//! *Clean* is a claim about the store, not about the page: whether the page still equals its copy is known only
//! once it has been moved out, by its hash (see `evict`).
//!
//! A word with all bits zero is an untouched page, so zeroed memory is a table of untouched pages.

mod clock;
mod found;
mod word;

use crate::sync::{AtomicU32, Ordering, WAKE_ALL, wait, wake};
pub use clock::{Effort, FoldTime, HOT_ROUNDS, SOON, Visit};
pub use found::{Drop, Folded, Refused, Seen, Touch};
use word::Word;
pub use word::{Frame, PINS_MAX, State};

/// The state of one page.
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU32);

impl PageWord {
    /// An untouched page.
    pub fn new() -> Self {
        PageWord(AtomicU32::new(0))
    }

    fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Changes the word if `next` has an answer, and wakes who waits for it. Returns what it was.
    fn change(&self, next: impl Fn(Word) -> Option<Word>) -> Result<Word, Word> {
        let mut seen = self.load();
        loop {
            let Some(new) = next(seen) else { return Err(seen) };
            let new = new.unwaited();
            let set = self.0.compare_exchange_weak(seen.0, new.0, Ordering::AcqRel, Ordering::Acquire);
            match set {
                Ok(_) => {
                    if seen.is_waited() {
                        wake(&self.0, WAKE_ALL);
                    }
                    return Ok(seen);
                }
                Err(now) => seen = Word(now),
            }
        }
    }

    /// A transition that its caller alone can make, because the page is its own.
    fn must(&self, next: impl Fn(Word) -> Word) -> Word {
        match self.change(|word| Some(next(word))) {
            Ok(old) | Err(old) => old,
        }
    }

    /// The state at this moment.
    pub fn state(&self) -> State {
        self.load().state()
    }

    /// Whether the store has a copy of the page, perhaps of an older version.
    pub fn has_copy(&self) -> bool {
        self.load().has(Word::COPY)
    }

    /// Whether the page is among the hottest: its copy would be of use only after a long time.
    pub fn is_hot(&self) -> bool {
        clock::is_hot(self.load())
    }

    /// Sleeps until the word is not what was seen. May return early.
    pub fn wait(&self, seen: Seen) {
        let seen = Word(seen.0);
        let marked = seen.waited();
        let set = self.0.compare_exchange(seen.0, marked.0, Ordering::AcqRel, Ordering::Acquire);
        if set.is_ok() || seen.is_waited() {
            wait(&self.0, marked.0);
        }
    }

    /// Transition: untouched or folded to loading, staged to returning; by who touched the page.
    pub fn touch(&self) -> Touch {
        let taken = self.change(|word| match word.state() {
            State::Untouched | State::Folded => Some(word.with_state(State::Loading)),
            State::Staged => Some(word.with_state(State::Returning)),
            _ => None,
        });
        match taken {
            Ok(old) => match old.state() {
                State::Untouched => Touch::Zero,
                State::Folded => Touch::Load,
                _ => Touch::Return { frame: old.frame(), is_folding: old.has(Word::FOLDING) },
            },
            Err(word) if word.state() == State::Resident => Touch::There,
            Err(word) => Touch::Busy(Seen(word.0)),
        }
    }

    /// Transition: folded or untouched to loading, for a neighbour. `None` if the page is neither.
    pub fn touch_ahead(&self) -> Option<Touch> {
        let old = self.change(|word| match word.state() {
            State::Untouched | State::Folded => Some(word.with_state(State::Loading)),
            _ => None,
        });
        let old = old.ok()?;
        Some(if old.state() == State::Untouched { Touch::Zero } else { Touch::Load })
    }

    /// Transition: loading to resident. Clean if it came from the store. A page that was folded a short while ago is
    /// hotter than before, one that was longer ago is cold.
    pub fn finish_load(&self, now: FoldTime) {
        self.must(|word| {
            let word = if clock::is_soon(word, now) { clock::hotter(word) } else { clock::cold(word) };
            word.with_state(State::Resident).with(Word::NEW).with_payload(0)
        });
    }

    /// Transition: loading back to what it was, because nothing could be brought in.
    pub fn abandon_load(&self) {
        self.must(|word| {
            word.with_state(if word.has(Word::COPY) { State::Folded } else { State::Untouched })
        });
    }

    /// Transition: returning to resident. The page was wanted again soon, so it is hotter than before.
    pub fn finish_return(&self) {
        self.must(|word| clock::hotter(word).with_state(State::Resident).with_payload(0).with(Word::NEW));
    }

    /// Transition: returning to resident, by who moved it out and could not fold it. It is left alone for a while.
    pub fn finish_refusal(&self) {
        let settled = |word: Word| word.with_state(State::Resident).with_payload(0).with(Word::NEW);
        self.must(|word| settled(word).with_chances(Word::CHANCES_MAX));
    }

    /// Transition: returning back to staged, because it could not be brought in.
    pub fn abandon_return(&self) {
        self.must(|word| word.with_state(State::Staged));
    }

    /// Transition: resident to loading, to look whether it really is there. False if it is not resident.
    pub fn begin_recheck(&self) -> bool {
        let begin = |word: Word| word.with_state(State::Loading).with(Word::RECHECK);
        self.change(|word| (word.state() == State::Resident).then(|| begin(word))).is_ok()
    }

    /// Transition: loading, by [`PageWord::begin_recheck`], back to resident.
    pub fn end_recheck(&self) {
        self.must(|word| word.with_state(State::Resident).without(Word::RECHECK));
    }

    /// Looks at a resident page as the clock's hand does. Transition: resident to taken, if it is cold (or any
    /// will do) and free to be taken; else one of its chances is used up.
    ///
    /// `is_written` says whether it was written since the hand was here last, if that is known. It is a chance of its
    /// own. A page that arrived since counts as written then, whatever became of it, and is passed over once. The
    /// hottest pages lose a chance in one round of [`HOT_ROUNDS`] only.
    pub fn visit(&self, is_written: Option<bool>, effort: Effort, round: u64) -> Visit {
        let old = self.change(|word| {
            word.is_free_to_take().then(|| clock::seen_by_hand(word, is_written, effort, round))
        });
        let Ok(old) = old else { return Visit::NotFree };
        match clock::seen_by_hand(old, is_written, effort, round).state() {
            State::Taken => Visit::Taken,
            _ => Visit::Kept { is_rewritten: !old.has(Word::NEW) && is_written == Some(true) },
        }
    }

    /// Transition: resident and free to taken, whatever its chances.
    pub fn take(&self) -> bool {
        self.change(|word| word.is_free_to_take().then(|| word.with_state(State::Taken))).is_ok()
    }

    /// [`PageWord::take`], but only a page that came from the store and was not wanted again soon after it was folded.
    pub fn take_behind(&self) -> bool {
        let is_of_no_more_use =
            |word: Word| word.is_free_to_take() && word.has(Word::COPY) && word.heat() == 0;
        self.change(|word| is_of_no_more_use(word).then(|| word.with_state(State::Taken))).is_ok()
    }

    /// Transition: taken back to resident, untouched meanwhile.
    pub fn put_back(&self) {
        self.must(|word| word.with_state(State::Resident));
    }

    /// Transition: taken back to resident, because it cannot be moved. It is left alone for a while.
    pub fn put_back_busy(&self) {
        self.must(|word| word.with_state(State::Resident).with_chances(Word::CHANCES_MAX));
    }

    /// Transition: taken, its copy dropped by the caller, to resident dirty.
    pub fn put_back_dirty(&self) {
        self.must(|word| word.with_state(State::Resident).without(Word::COPY));
    }

    /// Transition: taken to folded, as it still equals the store's copy. The region has it no more.
    pub fn fold_clean(&self, now: FoldTime) {
        self.must(|word| word.with_state(State::Folded).with_fold_time(now));
    }

    /// Transition: taken to staged. Its bytes are in the frame, and the region has them no more.
    pub fn stage(&self, frame: Frame) {
        self.must(|word| word.with_state(State::Staged).with_frame(frame));
    }

    /// A staged page in this frame is to be written to the store, by the caller alone. False if it is not there any
    /// more; then nobody reads the frame. Waits for who is bringing it back from there, who may not succeed.
    pub fn begin_fold(&self, frame: Frame) -> bool {
        loop {
            match self.change(|word| word.is_staged_in(frame).then(|| word.with(Word::FOLDING))) {
                Ok(_) => return true,
                Err(word) if word.is_returning_from(frame) => self.wait(Seen(word.0)),
                Err(_) => return false,
            }
        }
    }

    /// Transition: staged and folding to folded, the store having the page; or folding ends, the page having been
    /// brought back meanwhile, and it is clean.
    pub fn finish_fold(&self, frame: Frame, now: FoldTime) -> Folded {
        let old = self.must(|word| {
            let word = word.without(Word::FOLDING).with(Word::COPY);
            match word.is_staged_in(frame) {
                true => word.with_state(State::Folded).with_fold_time(now),
                false => word,
            }
        });
        if old.is_staged_in(frame) { Folded::Yes } else { Folded::Returned }
    }

    /// Transition: staged and folding to returning, by who could not fold it and brings it back. `Returned` if somebody
    /// else did; in both cases folding ends.
    pub fn refuse_fold(&self, frame: Frame) -> Refused {
        let old = self.must(|word| {
            let word = word.without(Word::FOLDING);
            if word.is_staged_in(frame) { word.with_state(State::Returning) } else { word }
        });
        if old.is_staged_in(frame) { Refused::BringBack } else { Refused::Returned }
    }

    /// Transition: any settled state to taken, for dropping. Says what it was.
    pub fn take_to_drop(&self) -> Drop {
        let old = self.change(|word| match word.state() {
            _ if word.has(Word::FOLDING) => None,
            State::Resident if word.pins() == 0 => Some(word.with_state(State::Taken)),
            State::Staged | State::Folded => Some(word.with_state(State::Taken)),
            _ => None,
        });
        match old {
            Ok(old) => Drop::Taken { was: old.state(), has_copy: old.has(Word::COPY) },
            Err(word) => match word.state() {
                State::Untouched => Drop::Nothing,
                State::Resident if word.pins() > 0 => Drop::Pinned,
                _ => Drop::Busy(Seen(word.0)),
            },
        }
    }

    /// Transition: taken, everything of it dropped, to untouched.
    pub fn finish_drop(&self) {
        self.must(|word| word.only_waited());
    }

    /// Pins a resident page: it is not taken until it is unpinned as often. False if it is not resident, or has
    /// [`PINS_MAX`] pins.
    pub fn pin(&self) -> bool {
        let pin = |word: Word| {
            let can = word.state() == State::Resident && word.pins() < PINS_MAX;
            can.then(|| word.with_payload(word.pins() + 1))
        };
        self.change(pin).is_ok()
    }

    /// Pins of a resident page, also while it is looked at again.
    pub fn pins(&self) -> u32 {
        self.load().pins()
    }

    /// Undoes one [`PageWord::pin`].
    pub fn unpin(&self) {
        self.must(|word| word.with_payload(word.pins().saturating_sub(1)));
    }
}

impl Default for PageWord {
    fn default() -> Self {
        PageWord::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
