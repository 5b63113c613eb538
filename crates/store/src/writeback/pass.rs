//! A pass: copies the pages of a selection from their slots to write requests, and submits these.
//!
//! For each page, the packer gets room, `writeback_limit` is charged, and the page is copied under its slot's lock
//! and marked as under writeback. A full write is submitted; completions are handled as they arrive (`settle`).
//! However the pass ends, it waits for all submitted writes, and undoes the mark, the charge and the place of each
//! page that was not written back.

use crate::error::WritebackError;
use crate::layout::{
    BlockPacker, CLEANER_SPARE, Head, Layout, LayoutKind, LimitCharge, LogPacker, NextStep, NoSpace,
    PackedPage, Packer, Source, WriteRequest,
};
use crate::pages::Pages;
use crate::report::{Progress, WritebackReport};
use crate::slot::{Content, Generation, Slot, SlotSnapshot};
use crate::writeback::control::Control;
use crate::writeback::selection::Selection;
use crate::writeback::{Writeback, Writer};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_pool::Handle;
use pagefold_sys::cpu;
use std::any::Any;
use std::mem::MaybeUninit;
use std::ops::{ControlFlow, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Slots examined between two reports of progress.
const SLOTS_PER_REPORT: u64 = 512;

/// Decides by a snapshot whether a page is written back.
pub(crate) type PageFilter<'w> = dyn FnMut(PageIndex, &Slot, &SlotSnapshot) -> bool + 'w;
/// Receives the progress of a pass, and decides whether it continues.
pub(crate) type OnProgress<'p> = dyn FnMut(&Progress) -> ControlFlow<()> + 'p;

/// The state of a running pass. The holder of the writer's lock owns it.
pub(crate) struct Pass<'a> {
    pub(crate) pages: &'a Pages,
    pub(crate) writeback: &'a Writeback,
    pub(crate) control: &'a mut Control,
    /// The cleaner's position in the log.
    pub(crate) clean_head: &'a mut Option<Head>,
    pub(crate) report: WritebackReport,
    pub(crate) progress: Progress,
    /// The medium reported that it is full.
    pub(crate) is_full: bool,
    /// Failed writes of the cleaner.
    pub(crate) cleaner_failures: u64,
    /// The panic of the caller's progress function; resumed when no write is in flight and no slot is marked.
    panic: Option<Box<dyn Any + Send>>,
}

/// The result of copying one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyResult {
    /// The page is in a write.
    Copied,
    /// The page is not an object any more, is under writeback already, or does not decompress.
    Skipped,
    /// The page has another length than in the snapshot: retry.
    Changed,
}

impl Writeback {
    /// Writes back the pages of a selection: `Store::write_back`.
    pub(crate) fn write_back(
        &self,
        pages: &Pages,
        selection: &Selection,
        progress: &mut OnProgress,
    ) -> Result<WritebackReport, WritebackError> {
        let count = pages.table.page_count();
        selection.check(count)?;
        pages.tick();
        // The clock goes on during a pass: a page that is read meanwhile must not look old.
        let highest = pages.codecs.highest();
        let mut filter = |index, _: &_, seen: &SlotSnapshot| {
            selection.selects(index, seen, seen.last_access().age_s(pages.clock.now()), highest)
        };
        self.run_pass(pages, &selection.runs(count), &mut filter, progress)
    }

    /// Writes back the pages in `runs` that `filter` selects. One pass runs at a time; another waits here.
    pub(super) fn run_pass(
        &self,
        pages: &Pages,
        runs: &[RangeInclusive<u64>],
        filter: &mut PageFilter,
        on_progress: &mut OnProgress,
    ) -> Result<WritebackReport, WritebackError> {
        let mut writer = self.writer.lock();
        self.prepare(&mut writer)?;
        let Writer { control, write_head, clean_head } = &mut *writer;
        if let Some(log) = self.layout.log() {
            log.segments.clear_deferred();
        }
        let mut packer: Box<dyn Packer> = match &self.layout {
            Layout::Log(log) => Box::new(LogPacker::new(&log.segments, log.id, write_head, CLEANER_SPARE)),
            Layout::Blocks(blocks) => Box::new(BlockPacker::new(blocks)),
        };
        let pass = Pass::new(pages, self, control, clean_head);
        Ok(pass.run(&mut *packer, runs, filter, on_progress))
    }

    /// Makes the ring ready for a pass.
    pub(super) fn prepare(&self, writer: &mut Writer) -> Result<(), WritebackError> {
        let batch = self.settings.writeback_batch_size() as usize;
        writer.control.begin_pass(batch).map_err(WritebackError::Io)
    }
}

impl<'a> Pass<'a> {
    pub(crate) fn new(
        pages: &'a Pages,
        writeback: &'a Writeback,
        control: &'a mut Control,
        clean_head: &'a mut Option<Head>,
    ) -> Self {
        let (report, progress) = Default::default();
        Pass {
            pages,
            writeback,
            control,
            clean_head,
            report,
            progress,
            is_full: false,
            cleaner_failures: 0,
            panic: None,
        }
    }

    /// Walks the runs, writes back the selected pages, and completes all writes.
    pub(crate) fn run(
        mut self,
        packer: &mut dyn Packer,
        runs: &[RangeInclusive<u64>],
        filter: &mut PageFilter,
        on_progress: &mut OnProgress,
    ) -> WritebackReport {
        self.progress.total_pages = runs.iter().map(|run| run.end() - run.start() + 1).sum();
        let end = runs.iter().find_map(|run| self.walk(packer, run, filter, on_progress).err());
        self.finish(packer);
        self.progress.seen_pages = match &end {
            None => self.progress.total_pages,
            Some(_) => self.progress.seen_pages,
        };
        if self.panic.is_none() {
            // The pass is over, so the result does not matter.
            let _ = self.report_progress(on_progress);
        }
        if let Some(panic) = self.panic.take() {
            resume_unwind(panic);
        }
        if end.is_some() {
            self.report.error = end;
        }
        std::mem::take(&mut self.report)
    }

    fn walk(
        &mut self,
        packer: &mut dyn Packer,
        run: &RangeInclusive<u64>,
        filter: &mut PageFilter,
        on_progress: &mut OnProgress,
    ) -> Result<(), WritebackError> {
        let before = self.progress.seen_pages;
        let mut index = PageIndex(*run.start());
        let mut next_report = index.0;
        loop {
            index = self.pages.table.next_allocated(index, run.end().saturating_add(1));
            self.progress.seen_pages = before + index.0.min(run.end() + 1) - run.start();
            if index.0 >= next_report || self.report.written_back_pages != self.progress.written_back_pages {
                next_report = index.0 + SLOTS_PER_REPORT;
                self.report_progress(on_progress)?;
            }
            if index.0 > *run.end() {
                return Ok(());
            }
            if let Some(slot) = self.pages.table.get(index) {
                self.visit_slot(packer, index, slot, filter)?;
            }
            index = PageIndex(index.0 + 1);
        }
    }

    fn report_progress(&mut self, on_progress: &mut OnProgress) -> Result<(), WritebackError> {
        self.progress.written_back_pages = self.report.written_back_pages;
        self.progress.written_bytes = self.report.written_bytes;
        // The state that the caller's function may have left inconsistent is the caller's, and the panic continues
        // there.
        match catch_unwind(AssertUnwindSafe(|| on_progress(&self.progress))) {
            Ok(ControlFlow::Continue(())) => Ok(()),
            Ok(ControlFlow::Break(())) => Err(WritebackError::Stopped),
            Err(panic) => {
                self.panic = Some(panic);
                Err(WritebackError::Stopped)
            }
        }
    }

    /// Writes back a page if the filter selects it.
    fn visit_slot(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        filter: &mut PageFilter,
    ) -> Result<(), WritebackError> {
        loop {
            let seen = slot.snapshot();
            if !seen.is_object() || !filter(index, slot, &seen) {
                return Ok(());
            }
            if self.add_page(packer, index, slot, &seen)? != CopyResult::Changed {
                return Ok(());
            }
        }
    }

    /// Adds a page to a write. Errors end the pass.
    fn add_page(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        seen: &SlotSnapshot,
    ) -> Result<CopyResult, WritebackError> {
        let len_bytes = seen.object_len_bytes();
        if self.prepare_write(packer, len_bytes).is_err() {
            let is_cleaned = self.clean_for_room();
            let has_space = is_cleaned && self.prepare_write(packer, len_bytes).is_ok();
            if !has_space {
                return Err(WritebackError::Full);
            }
        }
        if self.is_full {
            return Err(WritebackError::Full);
        }
        let settings = self.writeback.settings();
        let charge = settings.charge().ok_or(WritebackError::Budget)?;
        let result = self.copy(packer, index, slot, seen, charge);
        if result != CopyResult::Copied {
            settings.refund(charge);
        }
        Ok(result)
    }

    /// Gets room for a page of `len_bytes` in a write; submits full writes and waits if necessary.
    pub(crate) fn prepare_write(&mut self, packer: &mut dyn Packer, len_bytes: usize) -> Result<(), NoSpace> {
        loop {
            match packer.prepare(len_bytes)? {
                NextStep::Ready => return Ok(()),
                NextStep::Begin => packer.begin(self.control.take_idle()),
                NextStep::Submit(request) => self.submit(request),
            }
        }
    }

    /// Copies a page to its write and marks it as under writeback.
    fn copy(
        &mut self,
        packer: &mut dyn Packer,
        index: PageIndex,
        slot: &Slot,
        seen: &SlotSnapshot,
        charge: LimitCharge,
    ) -> CopyResult {
        let decompresses = packer.wants_pages() && !seen.is_raw();
        let mut compressed = [MaybeUninit::uninit(); PAGE_SIZE];
        let payload = packer.payload_buf();
        let mut guard = slot.lock();
        let (handle, len_bytes, priority) = match guard.content() {
            Content::Folded { handle, len_bytes, priority } => (handle, len_bytes, priority),
            Content::Raw { handle } => (handle, PAGE_SIZE as u16, 0),
            Content::Empty | Content::SameFilled(_) | Content::WrittenBack(_) | Content::Lost => {
                return CopyResult::Skipped;
            }
        };
        let len = usize::from(len_bytes);
        if len != seen.object_len_bytes() {
            return CopyResult::Changed;
        }
        if !guard.begin_writeback() {
            return CopyResult::Skipped;
        }
        let generation = guard.generation();
        let object = Handle::from_bits(handle);
        if !decompresses {
            // SAFETY: the slot is locked and contains the handle, so no thread frees the object, and `relocate`
            // refuses to move it. The object has `len` bytes.
            unsafe { self.pages.pool.copy_over(object, &mut payload[..len]) };
            drop(guard);
        } else {
            // SAFETY: the slot is locked and contains the handle, so no thread frees the object, and `relocate`
            // refuses to move it. The object has `len` bytes.
            let bytes = unsafe { self.pages.pool.copy_out(object, &mut compressed[..len]) };
            drop(guard);
            let page = payload.first_chunk_mut::<PAGE_SIZE>();
            if page.is_none_or(|page| self.pages.expand(cpu::current(), priority, bytes, page).is_err()) {
                self.skip_corrupt(slot, generation);
                return CopyResult::Skipped;
            }
        }
        let from = Source::Memory(charge);
        packer.add(PackedPage { index, generation, len_bytes, priority, from, birth: None });
        CopyResult::Copied
    }

    /// Leaves a page that does not decompress in memory, so that readers still detect that it is corrupt.
    fn skip_corrupt(&mut self, slot: &Slot, generation: Generation) {
        let mut guard = slot.lock();
        if guard.generation() == generation {
            guard.end_writeback();
        }
        self.report.failed_pages += 1;
    }

    /// Submits a write as soon as the batch size permits, and handles completions.
    pub(crate) fn submit(&mut self, request: WriteRequest) {
        let pages = request.entries.len();
        if pages == 0 {
            self.control.recycle(request);
            return;
        }
        let batch = self.writeback.settings().writeback_batch_size() as usize;
        // Wait for several completions at once, because each wait is a system call.
        let some = if self.writeback.layout() == LayoutKind::Blocks { (batch / 4).max(1) } else { 1 };
        while !self.control.can_submit(pages, batch) {
            self.complete(some);
        }
        if let Some(refused) = self.control.submit(request, batch) {
            self.settle(refused);
        }
        self.complete(0);
    }

    /// Waits for at least `min` completions, and handles all that have arrived.
    pub(crate) fn complete(&mut self, min: usize) {
        for completed in self.control.wait(min) {
            self.settle(completed);
        }
    }

    /// Submits the last write and waits until no write is in flight.
    pub(crate) fn finish(&mut self, packer: &mut dyn Packer) {
        if let Some(request) = packer.finish() {
            self.submit(request);
        }
        while self.control.is_busy() {
            self.complete(1);
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.control.end_pass();
    }
}
