//! The writers' side of a save: a page that changes before the save has reached it is captured first.
//!
//! A save has the contents at one moment. Writers go on, so each of them, before it replaces the contents of a page,
//! checks under the slot's lock whether the save still needs the old ones ([`Store::lock_to_change`]). If so, it copies
//! them to a buffer and queues that for the save ([`Store::capture`]). All functions that replace contents do so; without
//! a save this costs one load. The same check notes which pages change, if incremental saves are made (`changes`).
//!
//! Writeback, the cleaner, promotion, recompression and compaction keep the contents of a page and only move its bytes.
//! They do not capture: the save reads a page where it lies when it comes to it, and the slot's generation, which these
//! do not change, shows that the contents are still the same.
//!
//! Bytes are copied rather than objects kept: the memory of a save has a separate bound beside the limit of the store,
//! compaction meets no object without a slot, and a process that dies leaves nothing to clean up. All buffers are made
//! when the save begins, because a writer may be the kernel that swaps. A writer that finds no buffer waits for the save.
//! If the save takes fewer than [`BUFFERS`] captured pages while writers wait for [`STALL_TIMEOUT`], it is given up, and
//! writers go on: a request of many pages waits for each of them, so that some progress is not enough.

use crate::engine::changes::{Changes, Moment, SaveDigest};
use crate::engine::store::Store;
use crate::error::{SaveError, StoreError};
use crate::slot::{Content, Slot, SlotGuard};
use crate::writeback::{FetchError, LayoutKind, PageVersion, Reader, Writeback};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::Handle;
use pagefold_sys::lazybits::LazyBits;
use pagefold_sys::{SysError, cpu};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// Buffers of captured pages.
const BUFFERS: usize = 4096;
/// How long writers wait for the save to take [`BUFFERS`] captured pages: the kernel's timeout for a request to a disk.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest sleep of a waiting writer, and the most that a sleep counts.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Whether a store is being saved, the captures of that save, and the changes since the last tracked one.
#[derive(Default)]
pub(crate) struct Saving {
    /// Whether a writer has to look at the state.
    is_active: AtomicBool,
    /// Locked for a few instructions. Writers note a change and decide about a capture under one lock, and a save begins
    /// under it, so that a change is of the time before that moment or after it.
    state: RwLock<SavingState>,
}

#[derive(Default)]
struct SavingState {
    capture: Option<Arc<Capture>>,
    /// `None` until the first tracked save.
    changes: Option<Changes>,
}

/// The captures of one save.
pub(crate) struct Capture {
    /// The save has come to all pages before this one. It advances under the lock of the slot that it passes.
    reached: AtomicU64,
    /// Pages behind it that were captured. Added under their slots' locks.
    early: LazyBits,
    /// The pages that the save needs; `None`: all.
    selected: Option<Arc<LazyBits>>,
    /// The save has ended or was given up: nothing is captured any more.
    is_over: AtomicBool,
    /// Whether there may be captured pages.
    has_captured: AtomicBool,
    queue: Mutex<Queue>,
    /// Writers wait on it for a buffer.
    room: Condvar,
    /// The save waits on it for writers that have a buffer.
    captured: Condvar,
    stall_timeout: Duration,
}

#[derive(Default)]
struct Queue {
    free: Vec<Box<Page>>,
    captured: VecDeque<CapturedPage>,
    /// Buffers that writers have and have not queued yet.
    taken: usize,
    /// How many pages the save has taken from the queue.
    drained: usize,
    /// How long writers have waited since the save has taken [`BUFFERS`] of them.
    waited: Duration,
    /// Until when this is counted: several writers wait at the same time.
    counted: Option<Instant>,
    /// A writer has waited too long.
    is_stalled: bool,
}

/// The former contents of a page, in a buffer.
pub(crate) struct CapturedPage {
    pub(crate) index: PageIndex,
    pub(crate) form: Result<Form, StoreError>,
    pub(crate) buffer: Box<Page>,
}

/// The form of contents whose bytes, if there are any, are in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Reads as zeroes.
    Zeroes,
    /// Repeats a word.
    SameFilled(u64),
    /// So many bytes, made by the codec of this priority; [`PAGE_SIZE`] of them are the page itself.
    Bytes(usize, u8),
    /// The contents are lost.
    Lost,
}

/// The result of copying the contents of a page.
pub(crate) enum FormCopy<'s> {
    /// The save has them already.
    NotNeeded,
    /// The page was changed or moved meanwhile: the caller retries.
    Changed,
    /// Their form, or the error of the medium. The slot is still locked.
    Copied(SlotGuard<'s>, Result<Form, StoreError>),
}

/// A buffer that a writer has taken. It goes back to the queue when it is dropped.
struct TakenBuffer<'a> {
    capture: &'a Capture,
    buffer: Option<Box<Page>>,
}

impl Saving {
    /// Notes that the contents of a page are replaced, and returns whether they must be captured before. The caller holds
    /// the lock of its slot.
    #[inline]
    pub(crate) fn note_change(&self, index: PageIndex) -> bool {
        // Relaxed: the save locks the slot before it reads the page, and so after this thread or before it. For a slot in
        // a chunk that the save has not seen, see `begin`.
        self.is_active.load(Ordering::Relaxed) && self.note_in_state(index)
    }

    #[cold]
    fn note_in_state(&self, index: PageIndex) -> bool {
        // Without a clone, which could be the last and be dropped under the slot's lock.
        let state = self.state();
        if let Some(changes) = &state.changes {
            changes.add(index);
        }
        state.capture.as_ref().is_some_and(|capture| !capture.has(index))
    }

    fn state(&self) -> RwLockReadGuard<'_, SavingState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_to_change(&self) -> RwLockWriteGuard<'_, SavingState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn capture(&self) -> Option<Arc<Capture>> {
        self.state().capture.clone()
    }

    /// Begins a save of a store of `page_count` pages. `populates`: takes all memory now. `tracked`: notes the changes from
    /// now on, and saves only those since the last tracked save if that has the digest in it.
    pub(crate) fn begin(
        &self,
        page_count: u64,
        populates: bool,
        tracked: Option<Option<SaveDigest>>,
    ) -> Result<(Arc<Capture>, Option<Moment>), SaveError> {
        let bits = || {
            let bits = LazyBits::new(page_count)?;
            if populates {
                bits.populate()?;
            }
            Ok(bits)
        };
        let failed = |e: SysError| SaveError::SetUp(e.into());
        let early = bits().map_err(failed)?;
        let fresh = tracked.map(|_| bits()).transpose().map_err(failed)?;
        let mut new = Capture::new(early, STALL_TIMEOUT);
        let mut state = self.state_to_change();
        if state.capture.is_some() {
            return Err(SaveError::Busy);
        }
        let moment = fresh.map(|fresh| Changes::begin_save(&mut state.changes, fresh, tracked.flatten()));
        new.selected = moment.as_ref().and_then(Moment::selected);
        let new = Arc::new(new);
        state.capture = Some(new.clone());
        self.is_active.store(true, Ordering::Release);
        drop(state);
        // The counterpart is in `SlotTable::ensure`: either the save sees a new chunk of slots, or the writer that
        // has made it, and those that found it, see that changes are noted.
        fence(Ordering::SeqCst);
        Ok((new, moment))
    }

    /// Ends the save. `moment`: that of a tracked save, which has failed if the digest is `None`.
    pub(crate) fn end(&self, moment: Option<(Moment, Option<SaveDigest>)>, store: &Store) {
        if let Some((moment, None)) = &moment {
            // Without the lock: no other save begins before the capture is taken away.
            let since_moment = self.state().changes.as_ref().map(Changes::pages);
            since_moment.iter().for_each(|pages| moment.merge_into(pages, &store.pages.table));
        }
        let mut state = self.state_to_change();
        let capture = state.capture.take();
        let former = moment.as_ref().and_then(|(_, digest)| Changes::end_save(&mut state.changes, *digest));
        self.is_active.store(state.changes.is_some(), Ordering::Release);
        drop(state);
        capture.iter().for_each(|capture| capture.end());
        // Freed without the lock.
        drop((former, moment));
    }
}

impl Capture {
    fn new(early: LazyBits, stall_timeout: Duration) -> Self {
        // Not zeroed memory, of which the kernel would take each page later.
        let page = |_| Box::new([0xff; PAGE_SIZE]);
        let captured = |buffer| CapturedPage { index: PageIndex(0), form: Ok(Form::Lost), buffer };
        // So the memory of the queue is touched, too.
        let mut captured: VecDeque<_> = (0..BUFFERS).map(page).map(captured).collect();
        let free = captured.drain(..).map(|captured| captured.buffer).collect();
        let queue = Queue { free, captured, ..Queue::default() };
        Capture {
            reached: AtomicU64::new(0),
            early,
            selected: None,
            is_over: AtomicBool::new(false),
            has_captured: AtomicBool::new(false),
            queue: Mutex::new(queue),
            room: Condvar::new(),
            captured: Condvar::new(),
            stall_timeout,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the save has the contents of a page already, or needs none. True stays true.
    fn has(&self, index: PageIndex) -> bool {
        self.is_over.load(Ordering::Acquire)
            || index.0 < self.reached.load(Ordering::Acquire)
            || self.early.contains(index.0)
            || self.selected.as_ref().is_some_and(|selected| !selected.contains(index.0))
    }

    /// The pages that the save needs; `None`: all that have contents.
    pub(crate) fn selected(&self) -> Option<&LazyBits> {
        self.selected.as_deref()
    }

    /// Whether a writer has captured a page that the save has not come to. The caller holds the lock of its slot.
    pub(crate) fn is_captured(&self, index: PageIndex) -> bool {
        self.early.contains(index.0)
    }

    /// The first page that the save has not come to.
    pub(crate) fn reached(&self) -> PageIndex {
        PageIndex(self.reached.load(Ordering::Relaxed))
    }

    /// Notes that the save has all pages before `index`. The caller holds the lock of the slot before that, or no slot
    /// before that has contents.
    pub(crate) fn reach(&self, index: PageIndex) {
        self.reached.store(index.0, Ordering::Release);
    }

    /// Ends the capture of pages, and the waits for it. A save that runs has failed then.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        let _queue = self.queue();
        self.room.notify_all();
    }

    /// Takes a buffer for a page. Waits for the save if there is none; returns `None` if the save ends, or if this
    /// gives it up.
    fn take_buffer(&self) -> Option<TakenBuffer<'_>> {
        let mut queue = self.queue();
        loop {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(buffer) = queue.free.pop() {
                queue.taken += 1;
                return Some(TakenBuffer { capture: self, buffer: Some(buffer) });
            }
            let began = Instant::now();
            let slept = self.room.wait_timeout(queue, RECHECK_INTERVAL);
            queue = slept.unwrap_or_else(PoisonError::into_inner).0;
            queue.count_wait(began, Instant::now());
            if queue.waited >= self.stall_timeout {
                queue.is_stalled = true;
                self.is_over.store(true, Ordering::Release);
                self.room.notify_all();
            }
        }
    }

    /// The next captured page, if there is one.
    pub(crate) fn next(&self) -> Option<CapturedPage> {
        if !self.has_captured.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue();
        let next = queue.captured.pop_front();
        self.has_captured.store(!queue.captured.is_empty(), Ordering::Release);
        next
    }

    /// Takes the buffer of a captured page back.
    pub(crate) fn recycle(&self, buffer: Box<Page>) {
        let mut queue = self.queue();
        queue.free.push(buffer);
        queue.drained += 1;
        if queue.drained.is_multiple_of(BUFFERS) {
            queue.waited = Duration::ZERO;
        }
        self.room.notify_one();
    }

    /// Waits for a moment if a writer has a buffer and has not queued it. Returns false if all captured pages are in the
    /// queue or were taken from it, and no more will come: the save has reached all pages.
    pub(crate) fn wait_for_writers(&self) -> bool {
        let queue = self.queue();
        if queue.captured.is_empty() && queue.taken > 0 {
            let slept = self.captured.wait_timeout(queue, RECHECK_INTERVAL);
            drop(slept.unwrap_or_else(PoisonError::into_inner));
            return true;
        }
        !queue.captured.is_empty()
    }

    /// Whether a writer has given the save up.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_over() && self.queue().is_stalled
    }

    /// Whether nothing is captured any more, so that a save that runs has failed.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Queue {
    /// Counts the wait of a writer, but no moment twice.
    fn count_wait(&mut self, began: Instant, ended: Instant) {
        let from = self.counted.map_or(began, |counted| counted.max(began));
        // At most that long: the process may have been stopped meanwhile.
        self.waited += ended.saturating_duration_since(from).min(RECHECK_INTERVAL);
        self.counted = Some(ended);
    }
}

impl TakenBuffer<'_> {
    fn page(&mut self) -> Option<&mut Page> {
        self.buffer.as_deref_mut()
    }

    /// Queues the contents in the buffer for the save.
    fn queue(mut self, index: PageIndex, form: Result<Form, StoreError>) {
        if let Some(buffer) = self.buffer.take() {
            let mut queue = self.capture.queue();
            queue.taken -= 1;
            queue.captured.push_back(CapturedPage { index, form, buffer });
            self.capture.has_captured.store(true, Ordering::Release);
            self.capture.captured.notify_one();
        }
    }
}

impl Drop for TakenBuffer<'_> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let mut queue = self.capture.queue();
            queue.taken -= 1;
            queue.free.push(buffer);
            self.capture.room.notify_one();
            self.capture.captured.notify_one();
        }
    }
}

impl Store {
    /// Locks a slot whose contents the caller replaces. If a save needs them, captures them first, and may wait for the
    /// save: the caller holds no lock.
    #[inline]
    pub(crate) fn lock_to_change<'s>(&self, index: PageIndex, slot: &'s Slot) -> SlotGuard<'s> {
        loop {
            let guard = slot.lock();
            if !self.saving.note_change(index) {
                return guard;
            }
            drop(guard);
            self.capture(index, slot);
        }
    }

    /// Captures the contents of a page for the save that runs, unless it has them. From then on it has them.
    #[cold]
    pub(crate) fn capture(&self, index: PageIndex, slot: &Slot) {
        let Some(capture) = self.saving.capture() else { return };
        let Some(mut buffer) = capture.take_buffer() else { return };
        let Some(page) = buffer.page() else { return };
        let mut reader = Reader::default();
        reader.cpu = cpu::current();
        let copied = loop {
            match self.copy_form(&mut reader, index, slot, page, || capture.has(index)) {
                FormCopy::NotNeeded => break None,
                FormCopy::Changed => {}
                FormCopy::Copied(guard, form) => {
                    // Under the lock: the next writer finds that it need not capture.
                    capture.early.insert(index.0);
                    drop(guard);
                    break Some(form);
                }
            }
        };
        if let Some(writeback) = &self.writeback {
            writeback.end_reader(reader);
        }
        match copied {
            None => {}
            Some(Ok(Form::Zeroes)) if capture.selected().is_none() => {}
            Some(form) => buffer.queue(index, form),
        }
    }

    /// Copies the contents of a page to `page`, in the form that they have, and returns its slot locked. Copies nothing
    /// if `is_had` returns true when the slot is locked.
    pub(crate) fn copy_form<'s>(
        &self,
        reader: &mut Reader,
        index: PageIndex,
        slot: &'s Slot,
        page: &mut Page,
        is_had: impl Fn() -> bool,
    ) -> FormCopy<'s> {
        let guard = slot.lock();
        if is_had() {
            return FormCopy::NotNeeded;
        }
        let mut copy_object = |handle, len: usize, priority| {
            let bytes = &mut page[..len.min(PAGE_SIZE)];
            // SAFETY: the slot is locked and contains the handle, so no thread frees the object, and `relocate` refuses
            // to move it; the length is that of the object.
            unsafe { self.pages.pool.copy_over(Handle::from_bits(handle), bytes) };
            Form::Bytes(bytes.len(), priority)
        };
        let form = match (guard.content(), &self.writeback) {
            (Content::Empty | Content::SameFilled(0), _) => Form::Zeroes,
            (Content::SameFilled(word), _) => Form::SameFilled(word),
            (Content::Raw { handle }, _) => copy_object(handle, PAGE_SIZE, 0),
            (Content::Folded { handle, len_bytes, priority }, _) => {
                copy_object(handle, len_bytes.into(), priority)
            }
            (Content::WrittenBack(written_back), Some(writeback)) => {
                let version = PageVersion { index, generation: guard.generation(), written_back };
                return self.copy_written_back(writeback, reader, version, slot, guard, page, is_had);
            }
            // A store without a backing has no written-back pages.
            (Content::Lost | Content::WrittenBack(_), _) => Form::Lost,
        };
        FormCopy::Copied(guard, Ok(form))
    }

    /// Does the same for a written-back page: reads it without the lock, and locks the slot again. Promotes nothing.
    #[expect(clippy::too_many_arguments, reason = "the state of one read")]
    fn copy_written_back<'s>(
        &self,
        writeback: &Writeback,
        reader: &mut Reader,
        version: PageVersion,
        slot: &'s Slot,
        guard: SlotGuard<'s>,
        page: &mut Page,
        is_had: impl Fn() -> bool,
    ) -> FormCopy<'s> {
        writeback.layout.pin(version.written_back);
        drop(guard);
        let cpu = reader.cpu;
        let fetched = writeback.fetch(version, reader, |bytes| match writeback.layout() {
            LayoutKind::Log => {
                page[..bytes.len()].copy_from_slice(bytes);
                Form::Bytes(bytes.len(), version.written_back.priority)
            }
            LayoutKind::Blocks => self.compressed_form(cpu, bytes, page),
        });
        let (form, read) = match fetched {
            Ok(form) => (Some(form), Ok(None)),
            Err(e) => (None, Err(e)),
        };
        let read = self.finish_read(writeback, &mut reader.unverified, version, slot, read);
        let offset = writeback.layout.offset(version.written_back);
        let guard = slot.lock();
        // Others may have changed it, and then they have captured it.
        if is_had() {
            return FormCopy::NotNeeded;
        }
        match (form, read) {
            (Some(form), Ok(true)) if guard.generation() == version.generation => {
                FormCopy::Copied(guard, Ok(form))
            }
            (_, Ok(_)) => FormCopy::Changed,
            (_, Err(FetchError::Corrupt)) => FormCopy::Copied(guard, Ok(Form::Lost)),
            (_, Err(FetchError::Io(source))) => {
                let error = StoreError::ReadBack { index: version.index, offset, source };
                FormCopy::Copied(guard, Err(error))
            }
        }
    }

    /// Compresses a page that lies on the backing as it is.
    fn compressed_form(&self, cpu: usize, bytes: &[u8], buffer: &mut Page) -> Form {
        let compressed = bytes.try_into().ok().and_then(|page| self.pages.compress(cpu, page, buffer).ok());
        match compressed.map(<[u8]>::len) {
            Some(len) if len < PAGE_SIZE => Form::Bytes(len, 0),
            _ => {
                buffer[..bytes.len().min(PAGE_SIZE)].copy_from_slice(&bytes[..bytes.len().min(PAGE_SIZE)]);
                Form::Bytes(PAGE_SIZE, 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn capture(stall_timeout: Duration) -> Capture {
        Capture::new(LazyBits::new(1).unwrap(), stall_timeout)
    }

    #[test]
    fn a_writer_without_a_buffer_gives_the_save_up_after_a_while() {
        let capture = capture(3 * RECHECK_INTERVAL);
        let taken: Vec<_> = (0..BUFFERS).map(|_| capture.take_buffer().unwrap()).collect();
        assert!(!capture.is_stalled() && !capture.has(PageIndex(0)));
        assert!(capture.take_buffer().is_none());
        assert!(capture.is_stalled() && capture.has(PageIndex(0)));
        // Nobody waits any more, also if there are buffers.
        drop(taken);
        assert!(capture.take_buffer().is_none());
    }

    /// A request of many pages waits for each of them.
    #[test]
    fn a_save_that_takes_pages_slowly_is_given_up() {
        let capture = capture(4 * RECHECK_INTERVAL);
        let taken: Vec<_> = (0..BUFFERS).map(|_| capture.take_buffer().unwrap()).collect();
        let mut waits = 0;
        thread::scope(|s| {
            s.spawn(|| {
                // Much slower than the rate of the limit, and never that long without progress.
                for buffer in taken.into_iter().take(1000) {
                    thread::sleep(RECHECK_INTERVAL / 5);
                    drop(buffer);
                    capture.queue().drained += 1;
                    if capture.is_stalled() {
                        break;
                    }
                }
            });
            while let Some(mut buffer) = capture.take_buffer() {
                // It stays with the save.
                buffer.buffer = None;
                waits += 1;
            }
        });
        assert!(capture.is_stalled() && waits < 900, "{waits}");
    }

    /// Several waits at the same time are one, and a stop of the process is none.
    #[test]
    fn each_moment_of_a_wait_is_counted_once() {
        let mut queue = Queue::default();
        let (start, ms) = (Instant::now(), Duration::from_millis);
        for (began, ended, waited) in
            [(0, 30, 30), (10, 40, 40), (0, 40, 40), (60, 70, 50), (100, 5_000, 100), (4_990, 5_010, 110)]
        {
            queue.count_wait(start + ms(began), start + ms(ended));
            assert_eq!(queue.waited, ms(waited), "{began} to {ended}");
        }
    }

    #[test]
    fn a_writer_waits_as_long_as_the_save_goes_on() {
        let capture = capture(Duration::MAX);
        for index in 0..BUFFERS as u64 {
            capture.take_buffer().unwrap().queue(PageIndex(index), Ok(Form::Lost));
        }
        thread::scope(|s| {
            let writer = s.spawn(|| capture.take_buffer().map(drop));
            let CapturedPage { index, buffer, .. } = capture.next().unwrap();
            assert_eq!(index, PageIndex(0));
            capture.recycle(buffer);
            assert!(writer.join().unwrap().is_some());
            // The end of the save wakes the others.
            let others: Vec<_> = (0..BUFFERS).map_while(|_| capture.queue().free.pop()).collect();
            assert_eq!(others.len(), 1);
            let writer = s.spawn(|| capture.take_buffer().map(drop));
            capture.end();
            assert!(writer.join().unwrap().is_none());
        });
        assert!(!capture.is_stalled());
    }

    #[test]
    fn the_save_waits_for_writers_that_have_a_buffer() {
        let capture = capture(Duration::MAX);
        let buffer = capture.take_buffer().unwrap();
        assert!(capture.wait_for_writers());
        buffer.queue(PageIndex(0), Ok(Form::Zeroes));
        assert!(capture.wait_for_writers());
        let captured = capture.next().unwrap();
        assert!(!capture.wait_for_writers());
        capture.recycle(captured.buffer);
        drop(capture.take_buffer().unwrap());
        assert!(!capture.wait_for_writers());
    }
}
