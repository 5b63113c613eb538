//! What becomes of a write that has completed.

use crate::parking::ParkError;
use crate::parking::control::Completed;
use crate::parking::pass::Pass;
use crate::parking::request::{Entry, Source};
use crate::parking::settings::Charge;
use crate::parking::stats::add;
use crate::slot::{Content, Parked};
use pagefold_sys::cpu;

impl Pass<'_> {
    /// Takes the result of a write: pages are parked, or stay where they were.
    pub(crate) fn settle(&mut self, completed: Completed) {
        let Completed { request, result } = completed;
        let counters = self.parking.counters();
        let is_cleaner = matches!(request.entries.first(), Some(Entry { from: Source::Parked(_), .. }));
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
                self.report.error = Some(match self.is_full {
                    true => ParkError::Full,
                    false => ParkError::Io(e.clone()),
                });
            }
        }
        for entry in &request.entries {
            match (result.is_ok(), entry.from) {
                (true, Source::Memory(_)) => self.parked(entry),
                (false, Source::Memory(charge)) => self.not_parked(entry, charge),
                (true, Source::Parked(from)) => self.moved(entry, from),
                (false, Source::Parked(_)) => self.parking.release_place(entry.to),
            }
        }
        self.control.recycle(request);
    }

    /// The page is on the medium: if it is still the one that was copied, its memory is freed.
    fn parked(&mut self, entry: &Entry) {
        let counters = self.parking.counters();
        let len = u64::from(entry.to.len_bytes);
        add(&counters.page_writes, 1);
        add(&counters.payload_bytes, len);
        self.report.payload_bytes += len;
        // Counted first: as soon as the slot says so, somebody may take the page back.
        self.parking.count_parked(entry.to);
        let slot = self.store.table.get(entry.index);
        match slot.and_then(|slot| slot.lock().park(entry.generation, entry.to)) {
            Some(old) => {
                self.store.account(cpu::current(), old, Content::Parked(entry.to));
                self.store.release(old);
                self.report.parked_pages += 1;
            }
            None => {
                self.parking.release(entry.to);
                add(&counters.changed_pages, 1);
                self.report.changed_pages += 1;
            }
        }
    }

    /// The page is not on the medium: it stays in memory, untouched.
    fn not_parked(&mut self, entry: &Entry, charge: Charge) {
        self.parking.settings().budget.refund(charge);
        if let Some(mut guard) = self.store.table.get(entry.index).map(|slot| slot.lock())
            && guard.generation() == entry.generation
        {
            guard.deselect();
        }
        self.parking.release_place(entry.to);
        add(&self.parking.counters().failed_pages, 1);
        self.report.failed_pages += 1;
    }

    /// The record is in its new place: the old one is live no more, unless the page has gone meanwhile.
    fn moved(&mut self, entry: &Entry, from: Parked) {
        let slot = self.store.table.get(entry.index);
        let is_moved = slot.is_some_and(|slot| slot.lock().move_parked(from, entry.to));
        self.parking.release_place(if is_moved { from } else { entry.to });
    }
}
