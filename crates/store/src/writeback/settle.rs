//! Applies the results of completed writes to the slots.

use crate::error::WritebackError;
use crate::layout::{Entry, LimitCharge, Source};
use crate::slot::{BackingLocation, Content};
use crate::writeback::control::Completed;
use crate::writeback::pass::Pass;
use crate::writeback::stats::add;
use pagefold_sys::cpu;

impl Pass<'_> {
    /// Applies the result of a write: its pages become written back, or stay where they were.
    pub(crate) fn settle(&mut self, completed: Completed) {
        let Completed { request, result } = completed;
        let counters = &self.writeback.counters;
        let is_cleaner = matches!(request.entries.first(), Some(Entry { from: Source::WrittenBack(_), .. }));
        add(&counters.writes, 1);
        match &result {
            Ok(()) if is_cleaner => add(&counters.cleaned_bytes, request.len as u64),
            Ok(()) => {
                add(&counters.written_bytes, request.len as u64);
                self.report.written_bytes += request.len as u64;
            }
            Err(e) => {
                self.is_full |= e.errno() == libc::ENOSPC;
                self.cleaner_failures += u64::from(is_cleaner);
                // Once the medium was full, this is the reason that the user can act on, whatever failed afterwards.
                self.report.error = Some(match self.is_full {
                    true => WritebackError::Full,
                    false => WritebackError::Io(e.clone()),
                });
            }
        }
        for entry in &request.entries {
            match (result.is_ok(), entry.from) {
                (true, Source::Memory(_)) => self.written_back(entry),
                (false, Source::Memory(charge)) => self.not_written_back(entry, charge),
                (true, Source::WrittenBack(from)) => self.moved(entry, from),
                (false, Source::WrittenBack(_)) => self.writeback.layout.release(entry.to),
            }
        }
        self.control.recycle(request);
    }

    /// The page is on the medium: if the slot still has the version that was copied, it takes the location, and the
    /// object is freed.
    fn written_back(&mut self, entry: &Entry) {
        let counters = &self.writeback.counters;
        let len = u64::from(entry.to.len_bytes);
        add(&counters.page_writes, 1);
        add(&counters.payload_bytes, len);
        self.report.payload_bytes += len;
        // Counted first: as soon as the slot is unlocked, another thread may promote or discard the page.
        self.writeback.count_written_back(entry.to);
        let slot = self.pages.table.get(entry.index);
        match slot.and_then(|slot| slot.lock().write_back(entry.generation, entry.to, &self.pages.intents)) {
            Some(old) => {
                self.pages.account(cpu::current(), old, Content::WrittenBack(entry.to));
                self.pages.free(old);
                self.report.written_back_pages += 1;
            }
            None => {
                self.writeback.release(entry.to);
                add(&counters.changed_pages, 1);
                self.report.changed_pages += 1;
            }
        }
    }

    /// The page is not on the medium: it stays in memory, and its charge, mark and place are undone.
    fn not_written_back(&mut self, entry: &Entry, charge: LimitCharge) {
        self.writeback.settings().refund(charge);
        if let Some(mut guard) = self.pages.table.get(entry.index).map(|slot| slot.lock())
            && guard.generation() == entry.generation
        {
            guard.end_writeback();
        }
        self.writeback.layout.release(entry.to);
        add(&self.writeback.counters.failed_pages, 1);
        self.report.failed_pages += 1;
    }

    /// The cleaner's copy is written: the slot takes the new location, unless the page has changed in the meantime.
    fn moved(&mut self, entry: &Entry, from: BackingLocation) {
        let slot = self.pages.table.get(entry.index);
        let is_moved =
            slot.is_some_and(|slot| slot.lock().move_written_back(from, entry.to, &self.pages.intents));
        self.writeback.layout.release(if is_moved { from } else { entry.to });
    }
}
