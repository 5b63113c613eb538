//! Programs that gather elements of columns, and accesses that look like it by chance.

use super::super::{Readahead, Window};
use super::*;
use std::collections::{BTreeSet, VecDeque};

const LIMIT_PAGES: u64 = 1 << 15;

/// A program with a number of resident pages, of which those that came in first leave first.
struct Program {
    readahead: Readahead,
    resident: BTreeSet<u64>,
    order: VecDeque<u64>,
    most: usize,
    touched: BTreeSet<u64>,
    brought: BTreeSet<u64>,
    faults: usize,
}

impl Program {
    fn new(limit_pages: u64, most: usize) -> Self {
        Program {
            readahead: Readahead::new(limit_pages),
            resident: BTreeSet::new(),
            order: VecDeque::new(),
            most,
            touched: BTreeSet::new(),
            brought: BTreeSet::new(),
            faults: 0,
        }
    }

    fn bring(&mut self, page: u64) -> bool {
        let is_new = self.resident.insert(page);
        if is_new {
            self.order.push_back(page);
            if self.order.len() > self.most {
                self.order.pop_front().map(|oldest| self.resident.remove(&oldest));
            }
        }
        is_new
    }

    fn access(&mut self, offset: u64) {
        let page = offset / PAGE_SIZE as u64;
        self.touched.insert(page);
        if !self.bring(page) {
            return;
        }
        self.faults += 1;
        match self.readahead.record_fault(offset, true) {
            Window::Gather(gather) => {
                let new = gather.pages().filter(|page| self.bring(page.0)).collect::<Vec<_>>();
                self.readahead.note_gather_brought(new.len() as u64);
                self.readahead.count_brought(new.len() as u64);
                self.brought.extend(new.iter().map(|page| page.0));
            }
            Window::Strided { pages, stride } => {
                (1..pages as i64).for_each(|i| _ = self.bring((page as i64 + i * stride) as u64));
            }
            Window::Rows(rows) => rows.pages().for_each(|page| _ = self.bring(page.0)),
        }
    }

    /// Takes elements of a column by indices. Returns how many faults that took.
    fn gather(&mut self, column: Column, indices: &[u64]) -> usize {
        let before = self.faults;
        indices.iter().for_each(|i| self.access(column.base + i * column.element));
        self.faults - before
    }

    fn wasted(&self) -> usize {
        self.brought.difference(&self.touched).count()
    }
}

#[derive(Clone, Copy)]
struct Column {
    base: u64,
    /// Bytes.
    element: u64,
}

/// Random numbers below a bound.
fn indices(seed: u64, count: usize, bound: u64) -> Vec<u64> {
    let mut x = seed;
    let next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 20) % bound
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Columns of a table of 40 million rows.
const COLUMNS: [Column; 4] = [
    Column { base: 4096 + 64, element: 4 },
    Column { base: (1 << 30) + 16, element: 8 },
    Column { base: (3 << 30) + 128, element: 2 },
    Column { base: 5 << 30, element: 8 },
];
const ROWS: u64 = 40_000_000;

#[test]
fn the_second_column_of_a_gather_is_brought_in_ahead() {
    let mut program = Program::new(LIMIT_PAGES, LIMIT_PAGES as usize);
    // A fourth of the pages is resident.
    indices(3, 40_000, ROWS).iter().for_each(|row| program.access(COLUMNS[1].base + row * 8));
    for round in 1..4 {
        let rows = indices(round, 6_000, ROWS);
        let first = program.gather(COLUMNS[0], &rows);
        for column in &COLUMNS[1..] {
            let faults = program.gather(*column, &rows);
            assert!(faults * 3 < first, "round {round}, {:#x}: {faults} of {first}", column.base);
        }
    }
    // The window at the end of each of nine lists names pages of what came after it.
    assert!(program.wasted() < 200, "{}", program.wasted());
    let (brought, used) = program.readahead.counts();
    assert!(used * 10 > brought * 9, "{used} of {brought}");
}

#[test]
fn the_same_list_for_the_same_column_is_brought_in_ahead() {
    let mut program = Program::new(LIMIT_PAGES, 2_000);
    let rows = indices(1, 6_000, ROWS);
    let first = program.gather(COLUMNS[1], &rows);
    let second = program.gather(COLUMNS[1], &rows);
    assert!(second * 8 < first, "{second} of {first}");
}

/// Takes a part of the elements of the second column. Returns the pages brought in, the faults and the elements.
fn gather_part(is_taken: impl Fn(usize) -> bool) -> (u64, u64, u64) {
    let mut program = Program::new(LIMIT_PAGES, LIMIT_PAGES as usize);
    let rows = indices(1, 10_000, ROWS);
    program.gather(COLUMNS[0], &rows);
    let rows: Vec<_> = (0..rows.len()).filter(|i| is_taken(*i)).map(|i| rows[i]).collect();
    let faults = program.gather(COLUMNS[1], &rows);
    (program.readahead.counts().0, faults as u64, rows.len() as u64)
}

#[test]
fn a_list_of_which_a_small_part_is_taken_is_not_followed() {
    let (brought, faults, _) = gather_part(|i| i % 10 == 0);
    assert!(brought * 4 < faults, "{brought} with {faults} faults");
    let chance = indices(2, 10_000, 100);
    for percent in [5, 10] {
        let (brought, faults, _) = gather_part(|i| chance[i] < percent);
        assert!(brought * 4 < faults, "{percent} %: {brought} with {faults} faults");
    }
    // Pairs of neighbours begin a sequence each time.
    let (brought, faults, _) = gather_part(|i| i % 30 < 4);
    assert!(brought < faults * 5, "{brought} with {faults} faults");
    for percent in [50, 75] {
        let (brought, faults, taken) = gather_part(|i| chance[i] < percent);
        assert!(faults * 4 < taken && brought < 10_000, "{percent} %: {faults} of {taken}");
    }
}

#[test]
fn random_accesses_bring_nothing() {
    let mut program = Program::new(LIMIT_PAGES, LIMIT_PAGES as usize);
    program.gather(COLUMNS[1], &indices(1, 100_000, ROWS));
    assert!(program.brought.len() < 50, "{}", program.brought.len());
    // Of few pages, distances repeat by chance.
    let mut program = Program::new(LIMIT_PAGES, 1_000);
    program.gather(Column { base: 0, element: PAGE_SIZE as u64 }, &indices(1, 100_000, 4_000));
    let brought = program.readahead.counts().0;
    assert!(brought < 1_000, "{brought} with {} faults", program.faults);
    let mut program = Program::new(128, 128);
    program.gather(Column { base: 0, element: PAGE_SIZE as u64 }, &indices(1, 100_000, 500));
    let brought = program.readahead.counts().0;
    assert!(brought < 1_000, "{brought} with {} faults", program.faults);
}

#[test]
fn a_list_that_is_longer_than_the_history_is_not_followed() {
    let entries = State::new(1).history.len();
    let mut program = Program::new(1, 1_000);
    let rows = indices(1, entries * 4, ROWS);
    let first = program.gather(COLUMNS[0], &rows);
    let second = program.gather(COLUMNS[1], &rows);
    assert!(second * 10 > first * 9, "{second} of {first}");
    assert!(program.brought.is_empty());
}

#[test]
fn another_gather_takes_the_place_of_one_that_ended() {
    let mut program = Program::new(LIMIT_PAGES, LIMIT_PAGES as usize);
    let lists = [indices(1, 2_000, ROWS), indices(2, 2_000, ROWS)];
    let first: usize = lists.iter().map(|rows| program.gather(COLUMNS[0], rows)).sum();
    let second: usize = lists.iter().rev().map(|rows| program.gather(COLUMNS[1], rows)).sum();
    assert!(second * 4 < first, "{second} of {first}");
}

#[test]
fn distances_are_scaled_exactly_or_not_at_all() {
    for (distance, shift, expected) in [
        (12, 2, Some(48)),
        (-12, 1, Some(-24)),
        (-12, -2, Some(-3)),
        (12, -3, None),
        (i64::MAX, 1, None),
        (i64::MIN, -4, Some(i64::MIN / 16)),
        (0, -4, Some(0)),
    ] {
        assert_eq!(scaled(distance, shift), expected, "{distance} {shift}");
    }
}

#[test]
fn faults_at_both_ends_of_the_largest_region_are_recorded() {
    let gathers = Gathers::new(u64::MAX);
    let end = 1_u64 << 44;
    for i in 0..2_000 {
        for offset in [0, end - 1 - i * PAGE_SIZE as u64, i] {
            gathers.record(offset);
        }
    }
    let offsets: Vec<_> = indices(5, 2_000, 1 << 32).iter().flat_map(|i| [*i, end - 1 - i * 7]).collect();
    let pages: BTreeSet<_> = offsets.iter().map(|offset| offset / PAGE_SIZE as u64).collect();
    offsets.iter().for_each(|offset| _ = gathers.record(*offset));
    let windows: Vec<_> = offsets.iter().filter_map(|offset| gathers.record(*offset)).collect();
    assert!(windows.len() > 1_000, "{}", windows.len());
    for (window, _) in windows {
        assert!(window.pages().all(|page| pages.contains(&page.0)), "{window:?}");
    }
}

/// The obvious way to find a distance in the history: by a look at every entry.
#[test]
fn the_hash_of_distances_finds_the_last_entry_with_a_distance() {
    let mut state = State::new(LIMIT_PAGES);
    let rows = indices(9, 3_000, ROWS);
    rows.iter().for_each(|row| state.push(row * 8));
    let mut found = 0;
    for i in 1..2_000 {
        let now = distance(rows[i - 1] * 8, rows[i] * 8);
        let slow = (1..rows.len()).rev().find(|j| distance(rows[j - 1] * 8, rows[*j] * 8) == now);
        let fast = state.by_distance[state.slot_of(now)];
        found += usize::from(slow == Some(fast as usize));
    }
    // Entries with other distances take the place of some.
    assert!(found > 1_500, "{found}");
}

#[test]
fn a_call_that_interrupts_another_is_not_recorded() {
    let value = TryOnly::new(1);
    let seen = value.with(|value_in_use| {
        assert_eq!(value.with(|_| ()), None);
        *value_in_use += 1;
        *value_in_use
    });
    assert_eq!((seen, value.with(|value| *value)), (Some(2), Some(2)));
}
