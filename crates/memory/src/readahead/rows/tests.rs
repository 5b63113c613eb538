//! Programs that go over parts of rows, and accesses that look like it by chance.

use super::super::{Readahead, Window};
use super::*;
use std::collections::BTreeSet;

/// The length of a row of 4729 numbers.
const ROW: u64 = 8 * 4729;

/// A program whose resident pages are never evicted.
struct Program {
    readahead: Readahead,
    resident: BTreeSet<u64>,
    touched: BTreeSet<u64>,
    faults: usize,
}

impl Program {
    fn new() -> Self {
        let (resident, touched) = (BTreeSet::new(), BTreeSet::new());
        Program { readahead: Readahead::new(1 << 15), resident, touched, faults: 0 }
    }

    fn access(&mut self, offset: u64) {
        let page = page_of(offset);
        self.touched.insert(page);
        if !self.resident.insert(page) {
            return;
        }
        self.faults += 1;
        match self.readahead.record_fault(offset, true) {
            Window::Strided { pages, stride } => {
                (0..pages as i64).for_each(|i| _ = self.resident.insert((page as i64 + i * stride) as u64));
            }
            Window::Rows(rows) => {
                let before = self.resident.len();
                self.resident.extend(rows.pages().map(|page| page.0));
                self.readahead.note_rows_brought(rows, (self.resident.len() - before) as u64);
                self.readahead.count_brought((self.resident.len() - before) as u64);
            }
            Window::Gather(gather) => self.resident.extend(gather.pages().map(|page| page.0)),
        }
    }

    /// Accesses bytes of each row, in groups of four rows: first the beginning of each, then the rest.
    fn tile(&mut self, rows: impl Iterator<Item = u64>, from: u64, bytes: u64) {
        for group in rows.collect::<Vec<_>>().chunks(4) {
            for at in (0..bytes).step_by(64) {
                group.iter().for_each(|row| self.access(row * ROW + from + at));
            }
        }
    }

    fn wasted(&self) -> usize {
        self.resident.difference(&self.touched).count()
    }
}

#[test]
fn parts_of_rows_come_in_together() {
    for goes_up in [true, false] {
        let mut program = Program::new();
        let rows = |i: u64| if goes_up { 100 + i } else { 4099 - i };
        program.tile((0..4000).map(rows), 8 * 1234, 1536);
        let (faults, pages) = (program.faults, program.touched.len());
        assert!(faults * 10 < pages, "up {goes_up}: {faults} faults for {pages} pages");
        assert!(program.wasted() * 20 < pages, "{} of {pages} in vain", program.wasted());
        let (brought, used) = program.readahead.counts();
        assert!(brought > 4000 && used * 10 > brought * 9, "{used} of {brought}");
        // The next part of each row begins in a page that is resident.
        program.tile((0..4000).map(rows), 8 * 1234 + 1536, 1536);
        let (faults, pages) = (program.faults - faults, program.touched.len() - pages);
        assert!(faults * 6 < pages, "up {goes_up}: {faults} faults for {pages} more pages");
    }
}

#[test]
fn two_threads_go_over_rows_at_the_same_time() {
    let mut program = Program::new();
    for row in (0..4000).step_by(4) {
        program.tile(row..row + 4, 0, 1536);
        program.tile(row + 3000..row + 3004, 16_000, 1536);
    }
    let (faults, pages) = (program.faults, program.touched.len());
    assert!(faults * 10 < pages, "{faults} faults for {pages} pages");
}

#[test]
fn random_accesses_begin_no_sweep() {
    let mut program = Program::new();
    let mut x = 1_u64;
    for _ in 0..50_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        program.access(x >> 34);
    }
    assert!(program.wasted() < 1000, "{} in vain", program.wasted());
}

/// A table of 64-byte entries in a small part of memory, where distances are equal by chance now and then.
#[test]
fn random_accesses_in_little_memory_begin_no_sweep() {
    for table_bytes in [16 << 20, 64 << 20] {
        let (readahead, mut x, mut brought) = (Readahead::new(1 << 15), 1_u64, 0);
        for _ in 0..200_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset = (x >> 33) % (table_bytes / 64) * 64;
            match readahead.record_fault(offset, true) {
                Window::Rows(rows) => brought += rows.pages().count() - 1,
                Window::Gather(gather) => brought += gather.pages().count(),
                Window::Strided { .. } => {}
            }
        }
        assert!(brought < 2000, "{table_bytes}: {brought} pages");
    }
}

#[test]
fn rows_at_the_ends_of_the_offsets_do_not_overflow() {
    for (first, step) in [(60 * ROW, -(ROW as i64)), ((1 << 56) - 60 * ROW, ROW as i64)] {
        let (rows, mut windows) = (Rows::new(), 0);
        for i in 0..60 {
            let offset = first.saturating_add_signed(step * i);
            let window = rows.follow(offset).map(|(window, _)| window).or_else(|| rows.detect(offset));
            if let Some(rows) = window {
                windows += 1;
                assert!(rows.pages().all(|page| page.0 <= 1 << 44));
            }
        }
        assert!(windows > 3, "{windows}");
    }
}
