//! A pass: pages of a selection, from their slots to the medium.
//!
//! For each page: room is made, the budget charged, the page copied under its slot's
//! lock and marked; when a write is full it is submitted; completions are taken as
//! they come. Whatever ends the pass, what was submitted is completed, and every mark,
//! charge and place that did not lead to a parked page is given back.

use crate::engine::Store;
use crate::parking::control::Control;
use crate::parking::log::Head;
use crate::parking::packer::{NoRoom, Packed, Packer, Room};
use crate::parking::request::{Source, WriteRequest};
use crate::parking::settings::Charge;
use crate::parking::{LayoutKind, ParkError, ParkReport, Parking, Progress};
use crate::slot::{Content, Generation, Peek, Slot};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_pool::Handle;
use pagefold_sys::cpu;
use std::any::Any;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Slots looked at between two reports of progress.
const SLOTS_PER_REPORT: u64 = 512;

/// Whether a page, seen without its lock, is to be parked.
pub(crate) type Wants<'w> = dyn FnMut(PageIndex, &Slot, &Peek) -> bool + 'w;
/// Told how far a pass is; says whether it is to go on.
pub(crate) type OnProgress<'p> = dyn FnMut(&Progress) -> ControlFlow<()> + 'p;

/// What a pass works with.
pub(crate) struct Pass<'a> {
    pub(crate) store: &'a Store,
    pub(crate) parking: &'a Parking,
    pub(crate) control: Control<'a>,
    /// Where the cleaner writes.
    pub(crate) clean_head: &'a mut Option<Head>,
    pub(crate) report: ParkReport,
    pub(crate) progress: Progress,
    /// Set when the medium said that it is full.
    pub(crate) is_full: bool,
    /// Writes of the cleaner that failed.
    pub(crate) cleaner_failures: u64,
    /// What the caller's function panicked with. Kept until what is in flight is complete and no slot is marked.
    panic: Option<Box<dyn Any + Send>>,
}

/// What became of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// It is in a write.
    Yes,
    /// It is not there any more, or another pass works on it.
    No,
    /// It has another length than was seen: look again.
    Changed,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        store: &'a Store,
        parking: &'a Parking,
        control: Control<'a>,
        clean_head: &'a mut Option<Head>,
    ) -> Self {
        let (report, progress) = Default::default();
        Pass {
            store,
            parking,
            control,
            clean_head,
            report,
            progress,
            is_full: false,
            cleaner_failures: 0,
            panic: None,
        }
    }

    /// Walks the runs, parks what is wanted, and completes all of it.
    pub(crate) fn run(
        mut self,
        packer: &mut dyn Packer,
        runs: &[RangeInclusive<u64>],
        wants: &mut Wants,
        on_progress: &mut OnProgress,
    ) -> ParkReport {
        self.progress.total_pages = runs.iter().map(|run| run.end() - run.start() + 1).sum();
        let end = runs.iter().find_map(|run| self.walk(packer, run, wants, on_progress).err());
        self.finish(packer);
        self.progress.seen_pages = match &end {
            None => self.progress.total_pages,
            Some(_) => self.progress.seen_pages,
        };
        if self.panic.is_none() {
            // The pass is over, whatever is answered.
            let _ = self.tell(on_progress);
        }
        if let Some(panic) = self.panic {
            resume_unwind(panic);
        }
        if end.is_some() {
            self.report.error = end;
        }
        self.report
    }

    fn walk(
        &mut self,
        packer: &mut dyn Packer,
        run: &RangeInclusive<u64>,
        wants: &mut Wants,
        on_progress: &mut OnProgress,
    ) -> Result<(), ParkError> {
        let before = self.progress.seen_pages;
        let mut index = PageIndex(*run.start());
        let mut next_report = index.0;
        loop {
            index = self.store.table.next_allocated(index);
            self.progress.seen_pages = before + index.0.min(run.end() + 1) - run.start();
            if index.0 >= next_report || self.report.parked_pages != self.progress.parked_pages {
                next_report = index.0 + SLOTS_PER_REPORT;
                self.tell(on_progress)?;
            }
            if index.0 > *run.end() {
                return Ok(());
            }
            if let Some(slot) = self.store.table.get(index) {
                self.look(packer, index, slot, wants)?;
            }
            index = PageIndex(index.0 + 1);
        }
    }

    fn tell(&mut self, on_progress: &mut OnProgress) -> Result<(), ParkError> {
        self.progress.parked_pages = self.report.parked_pages;
        self.progress.written_bytes = self.report.written_bytes;
        // Whatever the caller's function leaves half done is the caller's: it goes on unwinding there.
        match catch_unwind(AssertUnwindSafe(|| on_progress(&self.progress))) {
            Ok(ControlFlow::Continue(())) => Ok(()),
            Ok(ControlFlow::Break(())) => Err(ParkError::Stopped),
            Err(panic) => {
                self.panic = Some(panic);
                Err(ParkError::Stopped)
            }
        }
    }

    /// Parks a page if it is wanted.
    fn look(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        wants: &mut Wants,
    ) -> Result<(), ParkError> {
        loop {
            let seen = slot.peek();
            if !seen.is_object() || !wants(index, slot, &seen) {
                return Ok(());
            }
            if self.take_page(packer, index, slot, &seen)? != Taken::Changed {
                return Ok(());
            }
        }
    }

    /// Puts one page into a write, unless it changed since it was seen. Errors end the pass.
    fn take_page(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        seen: &Peek,
    ) -> Result<Taken, ParkError> {
        let len_bytes = seen.object_len_bytes();
        if self.make_room(packer, len_bytes).is_err() {
            let is_cleaner = self.clean_for_room();
            let has_room = is_cleaner && self.make_room(packer, len_bytes).is_ok();
            if !has_room {
                return Err(ParkError::Full);
            }
        }
        if self.is_full {
            return Err(ParkError::Full);
        }
        let budget = &self.parking.settings().budget;
        let charge = budget.charge().ok_or(ParkError::Budget)?;
        let taken = self.copy(packer, index, slot, seen, charge);
        if taken != Taken::Yes {
            budget.refund(charge);
        }
        Ok(taken)
    }

    /// Gets room for a page of so many bytes; submits and waits as need be.
    pub(crate) fn make_room(&mut self, packer: &mut dyn Packer, len_bytes: usize) -> Result<(), NoRoom> {
        loop {
            match packer.room(len_bytes)? {
                Room::Ready => return Ok(()),
                Room::Begin => packer.begin(self.control.take_idle()),
                Room::Submit(request) => self.submit(request),
            }
        }
    }

    /// Copies a page to its place in a write and marks it.
    fn copy(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        seen: &Peek,
        charge: Charge,
    ) -> Taken {
        let unfolds = packer.wants_pages() && !seen.is_raw();
        let mut compressed = [MaybeUninit::uninit(); PAGE_SIZE];
        let place = packer.place();
        let mut guard = slot.lock();
        let (handle, len_bytes, priority) = match guard.content() {
            Content::Folded { handle, len_bytes, priority } => (handle, len_bytes, priority),
            Content::Raw { handle } => (handle, PAGE_SIZE as u16, 0),
            Content::Empty | Content::SameFilled(_) | Content::Parked(_) => return Taken::No,
        };
        let len = usize::from(len_bytes);
        if len != seen.object_len_bytes() {
            return Taken::Changed;
        }
        if !guard.select() {
            return Taken::No;
        }
        let generation = guard.generation();
        let object = Handle::from_bits(handle);
        if !unfolds {
            // SAFETY: the slot is locked and holds the handle: nobody frees it, and `relocate` refuses to move
            // it; its object has `len` bytes.
            unsafe { self.store.pool.copy_over(object, &mut place[..len]) };
            drop(guard);
        } else {
            // SAFETY: the slot is locked and holds the handle: nobody frees it, and `relocate` refuses to move
            // it; its object has `len` bytes.
            let bytes = unsafe { self.store.pool.copy_out(object, &mut compressed[..len]) };
            drop(guard);
            let page = place.first_chunk_mut::<PAGE_SIZE>();
            if page.is_none_or(|page| self.store.expand(cpu::current(), bytes, page).is_err()) {
                self.give_up(slot, generation);
                return Taken::No;
            }
        }
        let from = Source::Memory(charge);
        packer.add(Packed { index, generation, len_bytes, priority, from, birth: None });
        Taken::Yes
    }

    /// Leaves a page alone that does not decompress. Whoever reads it is told that it is corrupt; it is not
    /// made to look sound on the medium.
    fn give_up(&mut self, slot: &Slot, generation: Generation) {
        let mut guard = slot.lock();
        if guard.generation() == generation {
            guard.deselect();
        }
        self.report.failed_pages += 1;
    }

    /// Submits a write as soon as the batch size allows it, taking completions meanwhile.
    pub(crate) fn submit(&mut self, request: WriteRequest) {
        let pages = request.entries.len();
        if pages == 0 {
            self.control.recycle(request);
            return;
        }
        let batch = self.parking.settings().writeback_batch_size() as usize;
        // A few completions at once: each wait costs a system call.
        let some = if self.parking.layout() == LayoutKind::Blocks { (batch / 4).max(1) } else { 1 };
        while !self.control.has_room(pages, batch) {
            self.complete(some);
        }
        if let Some(refused) = self.control.submit(request, batch) {
            self.settle(refused);
        }
        self.complete(0);
    }

    /// Waits for at least `min` completions, and takes all there are.
    pub(crate) fn complete(&mut self, min: usize) {
        for completed in self.control.wait(min) {
            self.settle(completed);
        }
    }

    /// Submits what is left and waits until nothing is in flight.
    pub(crate) fn finish(&mut self, packer: &mut dyn Packer) {
        if let Some(request) = packer.finish() {
            self.submit(request);
        }
        while self.control.is_busy() {
            self.complete(1);
        }
    }
}
