//! The state of one page of a region: a word of four bytes, and the transitions between its states.
//!
//! | state | where the bytes are | mapped in the region |
//! |---|---|---|
//! | untouched | nowhere: the page is zero, or has the bytes of the region's file | no |
//! | resident | in the region; *clean* while the store has a copy of what was loaded, else *dirty* | yes |
//! | taken | in the region, or nowhere any more: one thread is moving the page out or dropping it | either |
//! | staged | in a frame of the staging area | no |
//! | returning | in a frame; a thread that faulted on the page is bringing it back from there | no |
//! | loading | in the store, or nowhere yet; a thread that faulted on the page is bringing it in | no |
//! | folded | in the store | no |
//! | unregistered | in the region, or nowhere yet: the kernel fills the page without a fault of ours | either |
//!
//! The flag *folding* says, besides the state, that a thread is writing the page from its frame to the store.
//! Meanwhile the page may be brought back if there is memory to charge, but not moved out again or dropped, so that an
//! old version never overwrites a new one.
//!
//! A taken, returning or loading page is owned by the thread that changed the word to this state; other threads wait
//! on the word, a futex. The word is the only lock of a page. Its state changes only through the functions of
//! [`PageWord`], each named for its transition.
//!
//! In a region with a file, an untouched page has the file's bytes, unless the flag *zeroed* says that it was dropped.
//! The flag *file hash* says that the hash in the table is that of the file's bytes, so that a page with the same hash
//! can be dropped. An untouched page has the flag if it was dropped so: the next read of the file brings it back.
//!
//! The flag *rewritten* says that the page was written between its last two foldings, so that it will probably be written
//! again. Its copy is dropped when it is loaded, where that is possible. The hash in the table stays that of the last
//! folding, so that the next one tells whether the page was written.
//!
//! The flag *protected* says of a resident page that it was write-protected when it was loaded, and still is. If the store
//! still has its copy, the page is *unwritten*: it equals the copy, and is dropped where other pages are moved. Before a
//! thread, a system call or a device writes to it, there is a fault. A thread that serves such a fault owns the page, by a
//! recheck, while it removes the protection, so that no evictor drops the page between the end of the protection and that
//! of the flag.
//!
//! A *clean* page may have been written since it was loaded. Whether it still equals its copy is known only when it
//! can no longer be written, by its hash (see `evict`).
//!
//! A word of zero bits is an untouched page, so zeroed memory is a table of untouched pages.

mod claim;
mod clock;
mod whole;
mod word;

use crate::sync::{AtomicU32, Ordering, WAKE_ALL, wait, wake};
pub use claim::{DropClaim, FaultClaim, FoldResult, ObservedWord, RefusalResult};
#[cfg(any(test, loom))]
pub use clock::HOT_ROUNDS;
pub use clock::{Arrival, Candidates, EARLY_REFAULT_TICKS, Visit};
pub use whole::{OverwriteClaim, Whereabouts};
use word::Word;
pub use word::{FoldTime, Frame, PINS_MAX, State};

/// Chances of a page that the program has said it will need.
const ADVISED_CHANCES: u32 = 3;

/// The state word of one page.
#[derive(Debug)]
#[repr(transparent)]
pub struct PageWord(AtomicU32);

impl PageWord {
    /// Makes the word of an untouched page.
    pub fn new() -> Self {
        PageWord(AtomicU32::new(0))
    }

    fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Changes the word to the result of `next` and wakes its waiters. Returns the old word; as an error, the present
    /// word, if `next` returns `None`.
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

    /// Makes a transition of a page that the caller owns, so that no other thread can make it impossible. Returns the
    /// old word.
    fn change_owned(&self, next: impl Fn(Word) -> Word) -> Word {
        match self.change(|word| Some(next(word))) {
            Ok(old) | Err(old) => old,
        }
    }

    /// Returns the state at this moment, which another thread may change at once: only tests can rely on it.
    #[cfg(any(test, loom))]
    pub fn state(&self) -> State {
        self.load().state()
    }

    /// Returns whether the store has a copy of the page, perhaps of an older version.
    pub fn has_copy(&self) -> bool {
        self.load().has(Word::COPY)
    }

    /// Returns whether nothing has written to a resident or taken page since it was loaded, and it equals its copy. It stays
    /// so while the caller owns the page, which is taken.
    pub fn is_unwritten(&self) -> bool {
        self.load().is_unwritten()
    }

    /// Returns whether a resident or taken page is write-protected since it was loaded.
    pub fn is_protected(&self) -> bool {
        self.load().is_protected()
    }

    /// Notes that the caller has removed the protection of the page, which is taken.
    pub fn end_protection(&self) {
        self.change_owned(|word| word.without(Word::PROTECTED));
    }

    /// Returns whether the page was written between its last two foldings.
    pub fn is_rewritten(&self) -> bool {
        self.load().has(Word::REWRITTEN)
    }

    /// Returns whether the hash in the table is that of the page's last folding. The caller is folding the page.
    pub fn has_fold_hash(&self) -> bool {
        let word = self.load();
        word.has(Word::COPY) || word.has(Word::REWRITTEN)
    }

    /// Notes whether the page was written since its last folding. The caller is folding the page.
    pub fn note_rewritten(&self, is_rewritten: bool) {
        let note = |word: Word| match is_rewritten {
            true => word.with(Word::REWRITTEN),
            false => word.without(Word::REWRITTEN),
        };
        self.change(|word| (word.has(Word::REWRITTEN) != is_rewritten).then(|| note(word))).ok();
    }

    /// Returns whether only the store has the page at this moment, which another thread may change at once.
    pub fn is_folded(&self) -> bool {
        self.load().state() == State::Folded
    }

    /// Returns whether the page is untouched at this moment, which another thread may change at once.
    pub fn is_untouched(&self) -> bool {
        self.load().state() == State::Untouched
    }

    /// Returns whether the page has the highest heat. It will not be folded soon, so a copy of it is of little use.
    pub fn is_hot(&self) -> bool {
        clock::is_hot(self.load())
    }

    /// Sleeps until the word differs from `seen`. May return early.
    pub fn wait(&self, seen: ObservedWord) {
        let seen = Word(seen.0);
        let marked = seen.waited();
        let set = self.0.compare_exchange(seen.0, marked.0, Ordering::AcqRel, Ordering::Acquire);
        if set.is_ok() || seen.is_waited() {
            wait(&self.0, marked.0);
        }
    }

    /// Transition of a fault: untouched or folded to loading, staged to returning, and resident to loading for a recheck.
    /// Other states do not change.
    ///
    /// One change decides: between two looks, an evictor could take the page, and nobody would wake the thread that has
    /// faulted.
    pub fn claim_fault(&self) -> FaultClaim {
        let taken = self.change(|word| match word.state() {
            State::Untouched | State::Folded => Some(word.with_state(State::Loading)),
            State::Staged => Some(word.with_state(State::Returning)),
            State::Resident => Some(word.with_state(State::Loading).with(Word::RECHECK)),
            _ => None,
        });
        match taken {
            Ok(old) => match old.state() {
                State::Untouched => zero_claim(old),
                State::Folded => FaultClaim::Load,
                State::Resident => FaultClaim::Recheck,
                _ => FaultClaim::Return { frame: old.frame(), is_folding: old.has(Word::FOLDING) },
            },
            Err(word) if word.state() == State::Unregistered => FaultClaim::Unregistered,
            Err(word) => FaultClaim::Busy(ObservedWord(word.0)),
        }
    }

    /// Transition of readahead: folded or untouched to loading. `None` if the page is neither.
    pub fn claim_readahead(&self) -> Option<FaultClaim> {
        let old = self.change(|word| match word.state() {
            State::Untouched | State::Folded => Some(word.with_state(State::Loading)),
            _ => None,
        });
        let old = old.ok()?;
        Some(if old.state() == State::Untouched { zero_claim(old) } else { FaultClaim::Load })
    }

    /// Transition: loading to resident. The page is clean if it came from the store. Its heat grows if it was folded a
    /// short while ago (an early refault); else it becomes cold, or as hot as pages of rows are.
    pub fn finish_load(&self, now: FoldTime, arrival: Arrival) {
        self.change_owned(|word| clock::loaded(word, now, arrival));
    }

    /// Transition: loading to resident and dirty, like [`PageWord::finish_load`], of a page whose copy the caller has
    /// dropped since it read it.
    pub fn finish_load_without_copy(&self, now: FoldTime, arrival: Arrival) {
        self.change_owned(|word| clock::loaded(word, now, arrival).without(Word::COPY));
    }

    /// Transition: loading to resident and protected, like [`PageWord::finish_load`], of a page that the caller has
    /// loaded from the store and write-protected in the same moment.
    pub fn finish_load_protected(&self, now: FoldTime, arrival: Arrival) {
        self.change_owned(|word| clock::loaded(word, now, arrival).with(Word::PROTECTED));
    }

    /// Transition: loading back to the state before, because the page could not be brought in.
    pub fn abandon_load(&self) {
        self.change_owned(|word| {
            word.with_state(if word.has(Word::COPY) { State::Folded } else { State::Untouched })
        });
    }

    /// Transition: returning to resident. The page was used again soon, so its heat grows.
    pub fn finish_return(&self) {
        self.change_owned(|word| clock::hotter(word).with_state(State::Resident).with_payload(0));
    }

    /// Transition: returning to resident, after the store refused the page. The page gets all chances, so that
    /// evictors do not try it again soon.
    pub fn finish_refusal(&self) {
        let settled = |word: Word| word.with_state(State::Resident).with_payload(0);
        self.change_owned(|word| settled(word).with_chances(Word::CHANCES_MAX));
    }

    /// Transition: returning back to staged, because the page could not be brought back.
    pub fn abandon_return(&self) {
        self.change_owned(|word| word.with_state(State::Staged));
    }

    /// Transition: loading, after [`FaultClaim::Recheck`], back to resident, and no longer protected: the caller has
    /// removed the protection, if there was any.
    pub fn end_recheck(&self) {
        self.change_owned(|word| word.with_state(State::Resident).without(Word::RECHECK));
    }

    /// Visit of the clock hand. Transition: resident to taken, if the page is not pinned or being folded, and is cold
    /// or `candidates` is `Any`. Otherwise the page loses a chance.
    ///
    /// The hottest pages lose a chance only in one of [`HOT_ROUNDS`] rounds.
    pub fn visit(&self, candidates: Candidates, round: u64) -> Visit {
        let old =
            self.change(|word| word.is_free_to_take().then(|| clock::after_visit(word, candidates, round)));
        let Ok(old) = old else { return Visit::NotFree };
        match clock::after_visit(old, candidates, round).state() {
            State::Taken => Visit::Taken,
            _ => Visit::Kept,
        }
    }

    /// Gives a resident page chances, because the program has said that it will need the page.
    pub fn spare(&self) {
        let spare = |word: Word| word.with_chances(word.chances().max(ADVISED_CHANCES));
        // A page that is not resident any more was taken in time.
        self.change(|word| (word.state() == State::Resident).then(|| spare(word))).ok();
    }

    /// Transition: resident to taken, whatever the chances, unless the page is pinned or being folded.
    pub fn take(&self) -> bool {
        self.change(|word| word.is_free_to_take().then(|| word.with_state(State::Taken))).is_ok()
    }

    /// Like [`PageWord::take`], for pages that a sequential stream has passed. Takes a page only if the store has a
    /// copy and it was not refaulted early.
    pub fn take_drop_behind(&self) -> bool {
        let is_of_no_more_use =
            |word: Word| word.is_free_to_take() && word.has(Word::COPY) && word.heat() == 0;
        self.change(|word| is_of_no_more_use(word).then(|| word.with_state(State::Taken))).is_ok()
    }

    /// Transition: taken back to resident, unchanged.
    pub fn put_back(&self) {
        self.change_owned(|word| word.with_state(State::Resident));
    }

    /// Transition: taken back to resident, because the kernel could not move the page. The page gets all chances, so
    /// that evictors do not try it again soon.
    pub fn put_back_busy(&self) {
        self.change_owned(|word| word.with_state(State::Resident).with_chances(Word::CHANCES_MAX));
    }

    /// Transition: taken to resident and dirty, after the caller dropped the copy.
    pub fn put_back_dirty(&self) {
        self.change_owned(|word| word.with_state(State::Resident).without(Word::COPY));
    }

    /// Transition: taken to folded, after the caller dropped the page from the region because it equals the store's
    /// copy.
    pub fn fold_clean(&self, now: FoldTime) {
        let folded = |word: Word| word.with_state(State::Folded).with_fold_time(now);
        self.change_owned(|word| folded(word).without(Word::REWRITTEN).without(Word::PROTECTED));
    }

    /// Transition: taken to staged, after the page's bytes went from the region to the frame.
    pub fn stage(&self, frame: Frame) {
        let staged = |word: Word| word.with_state(State::Staged).with_frame(frame);
        self.change_owned(|word| staged(word).without(Word::PROTECTED));
    }

    /// Begins to fold a page that is staged in this frame: sets *folding*. Returns false if the page is not staged
    /// there; then no other thread reads the frame. If a thread is bringing the page back from the frame, waits for
    /// it, because it may fail.
    pub fn begin_fold(&self, frame: Frame) -> bool {
        loop {
            match self.change(|word| word.is_staged_in(frame).then(|| word.with(Word::FOLDING))) {
                Ok(_) => return true,
                Err(word) if word.is_returning_from(frame) => self.wait(ObservedWord(word.0)),
                Err(_) => return false,
            }
        }
    }

    /// Ends folding after the store has written the page. Transition: staged to folded. If the page was brought back
    /// meanwhile, it becomes clean instead.
    pub fn finish_fold(&self, frame: Frame, now: FoldTime) -> FoldResult {
        let old = self.change_owned(|word| {
            let word = word.without(Word::FOLDING).with(Word::COPY);
            match word.is_staged_in(frame) {
                true => word.with_state(State::Folded).with_fold_time(now),
                false => word,
            }
        });
        if old.is_staged_in(frame) { FoldResult::Folded } else { FoldResult::Returned }
    }

    /// Ends folding after the store refused the page. Transition: staged to returning, owned by the caller. If another
    /// thread is bringing the page back or has done so, the state does not change.
    pub fn refuse_fold(&self, frame: Frame) -> RefusalResult {
        let old = self.change_owned(|word| {
            let word = word.without(Word::FOLDING);
            if word.is_staged_in(frame) { word.with_state(State::Returning) } else { word }
        });
        if old.is_staged_in(frame) { RefusalResult::BringBack } else { RefusalResult::Returned }
    }

    /// Transition for dropping: resident, staged or folded to taken, unless the page is pinned or being folded.
    pub fn claim_drop(&self) -> DropClaim {
        let old = self.change(|word| match word.state() {
            _ if word.has(Word::FOLDING) => None,
            State::Resident if word.pins() == 0 => Some(word.with_state(State::Taken)),
            State::Staged | State::Folded => Some(word.with_state(State::Taken)),
            _ => None,
        });
        match old {
            Ok(old) => DropClaim::Taken { was: old.state(), has_copy: old.has(Word::COPY) },
            Err(word) => match word.state() {
                State::Untouched => DropClaim::Nothing,
                State::Unregistered => DropClaim::Unregistered,
                State::Resident if word.pins() > 0 => DropClaim::Pinned,
                _ => DropClaim::Busy(ObservedWord(word.0)),
            },
        }
    }

    /// Transition: taken to untouched, after the caller dropped the page's memory and copy.
    pub fn finish_drop(&self) {
        self.change_owned(|word| word.only_waited());
    }

    /// Transition: taken to untouched, like [`PageWord::finish_drop`], in a region with a file: the page is zero, and
    /// the file has other bytes.
    pub fn finish_drop_to_zero(&self) {
        self.change_owned(|word| word.only_waited().with(Word::ZEROED));
    }

    /// Transition: taken to untouched, like [`PageWord::finish_drop`], of a page that equals the file's bytes.
    pub fn finish_drop_folded_in_file(&self) {
        self.change_owned(|word| word.only_waited().with(Word::FILE_HASH));
    }

    /// Makes an untouched page zero, in a region with a file. Returns false if the page is not untouched.
    pub fn zero_untouched(&self) -> bool {
        let zeroed = |word: Word| word.with(Word::ZEROED).without(Word::FILE_HASH);
        let zero = |word: Word| (word.state() == State::Untouched).then(|| zeroed(word));
        self.change(zero).is_ok()
    }

    /// Notes that the hash in the table is that of the file's bytes. The caller is loading the page from the file.
    pub fn set_file_hash(&self) {
        self.change_owned(|word| word.with(Word::FILE_HASH));
    }

    /// Notes that the hash in the table will be that of other bytes. The caller is folding the page.
    pub fn clear_file_hash(&self) {
        self.change(|word| word.has(Word::FILE_HASH).then(|| word.without(Word::FILE_HASH))).ok();
    }

    /// Returns whether the hash in the table is that of the file's bytes: of a page that is being loaded from the file,
    /// whether it was read before.
    pub fn has_file_hash(&self) -> bool {
        self.load().has(Word::FILE_HASH)
    }

    /// Transition: folded to taken, if the store's copy equals the file's bytes.
    pub fn take_folded_in_file(&self) -> bool {
        let is_in_file = |word: Word| word.state() == State::Folded && word.has(Word::FILE_HASH);
        self.change(|word| is_in_file(word).then(|| word.with_state(State::Taken))).is_ok()
    }

    /// Ends folding of a page that equals the file's bytes and that the store refused. Transition: staged to untouched.
    /// If the page was brought back meanwhile, it stays.
    pub fn finish_drop_to_file(&self, frame: Frame) -> FoldResult {
        let old = self.change_owned(|word| {
            let word = word.without(Word::FOLDING);
            if word.is_staged_in(frame) { word.only_waited().with(Word::FILE_HASH) } else { word }
        });
        if old.is_staged_in(frame) { FoldResult::Folded } else { FoldResult::Returned }
    }

    /// Transition: untouched to unregistered. Returns false if the page is not untouched.
    pub fn unregister(&self) -> bool {
        self.change(|word| (word.state() == State::Untouched).then(|| word.with_state(State::Unregistered)))
            .is_ok()
    }

    /// Transition: unregistered to resident if the page has memory, else to untouched. Returns whether it is resident.
    /// The caller alone ends this state, and knows that the kernel no longer fills the page. A pinned page has memory.
    pub fn register(&self, is_populated: bool) -> bool {
        let is_resident = |word: Word| is_populated || word.pins() > 0;
        let old = self.change_owned(|word| match is_resident(word) {
            true => word.with_state(State::Resident),
            false => word.only_waited(),
        });
        is_resident(old)
    }

    /// Pins an unregistered page. The caller makes sure that the page has memory before its chunk is registered.
    /// Returns false if the page is not unregistered any more, or has [`PINS_MAX`] pins.
    pub fn pin_unregistered(&self) -> bool {
        let pin = |word: Word| {
            let can = word.state() == State::Unregistered && word.pins() < PINS_MAX;
            can.then(|| word.with_payload(word.pins() + 1))
        };
        self.change(pin).is_ok()
    }

    /// Returns whether the kernel fills the page by itself at this moment, which another thread may change at once.
    pub fn is_unregistered(&self) -> bool {
        self.load().state() == State::Unregistered
    }

    /// Pins a resident page, so that it is not taken until it is unpinned as often. Returns false if the page is not
    /// resident, is protected (system calls could not write to it), or has [`PINS_MAX`] pins.
    pub fn pin(&self) -> bool {
        let pin = |word: Word| {
            let is_writable = word.state() == State::Resident && !word.is_protected();
            let can = is_writable && word.pins() < PINS_MAX;
            can.then(|| word.with_payload(word.pins() + 1))
        };
        self.change(pin).is_ok()
    }

    /// Returns the pins of a resident or unregistered page, during a recheck too.
    pub fn pins(&self) -> u32 {
        self.load().pins()
    }

    /// Removes one pin.
    pub fn unpin(&self) {
        self.change_owned(|word| word.with_payload(word.pins().saturating_sub(1)));
    }
}

/// Returns the claim of a page that was untouched.
fn zero_claim(old: Word) -> FaultClaim {
    if old.has(Word::ZEROED) { FaultClaim::Zeroed } else { FaultClaim::Zero }
}

impl Default for PageWord {
    fn default() -> Self {
        PageWord::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
