//! The threads of a process that is killed.

use super::notes::{How, Notes, PAGES, contents};
use crate::support::Random;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::writeback::{Selection, Which};
use pagefold_store::{Store, StoreError};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering::SeqCst;

const PAGE: u64 = PAGE_SIZE as u64;
/// Threads that write. Each has its own runs of pages.
pub const WRITERS: u64 = 3;
/// Pages in a run.
const RUN: u64 = 8;

/// Writes, discards and reads pages until the process is killed.
pub fn write(store: &Store, notes: &Notes, writer: u64, mut random: Random) {
    loop {
        let run = (random.below(PAGES / RUN / WRITERS) * WRITERS + writer) * RUN;
        let first = run + random.below(RUN);
        let count = if random.below(4) == 0 { 1 + random.below(run + RUN - first) } else { 1 };
        if random.below(4) == 0 {
            read(store, notes, first);
        } else {
            write_pages(store, notes, first..first + count);
        }
    }
}

fn read(store: &Store, notes: &Notes, index: u64) {
    let mut page = [0; PAGE_SIZE];
    store.read(index * PAGE, &mut page).unwrap_or_else(|e| panic!("reading {index}: {e}"));
    let (_, version) = notes.versions(index);
    assert!(page == contents(index, version).1, "page {index} does not read as version {version}");
}

fn write_pages(store: &Store, notes: &Notes, pages: Range<u64>) {
    // One number for all pages, above each one's last.
    let version = 1 + pages.clone().map(|index| notes.versions(index).1).max().unwrap_or(0);
    let bytes: Vec<_> = pages.clone().map(|index| contents(index, version).1).collect();
    pages.clone().for_each(|index| notes.begin(index, version));
    let offset = pages.start * PAGE;
    let how = if bytes.len() == 1 { contents(pages.start, version).0 } else { How::Write };
    let written = match how {
        How::Discard => store.discard(offset, PAGE),
        How::Zeroes => store.write_zeroes(offset, PAGE),
        How::Fill(word) => store.write_same_filled(PageIndex(pages.start), word),
        How::Write => store.write(offset, bytes.as_flattened()),
    };
    let first_refused = match written {
        Ok(()) => pages.end,
        Err(StoreError::NoMemory { index, .. }) => index.0,
        Err(error) => panic!("writing pages {pages:?}: {error}"),
    };
    notes.writes().fetch_add(1, SeqCst);
    notes.refused_writes().fetch_add(u64::from(first_refused < pages.end), SeqCst);
    for index in pages {
        // A page that was refused keeps its last version.
        let settled = if index < first_refused { version } else { notes.versions(index).1 };
        notes.settle(index, settled);
    }
}

/// Compacts, recompresses, writes back and cleans until the process is killed.
pub fn maintain(store: &Store, mut random: Random) {
    let on = &mut |_: &_| ControlFlow::Continue(());
    loop {
        let first = random.below(PAGES);
        let last = (first + random.below(100)).min(PAGES - 1);
        let range = Selection::pages(PageIndex(first), PageIndex(last)).unwrap();
        match random.below(8) {
            0 | 1 => drop(store.compact().to_string()),
            2 => drop(store.recompress(&"".parse().unwrap(), &mut |_| ControlFlow::Continue(())).unwrap()),
            3 => {
                store.mark_idle(0);
            }
            4 | 5 if store.writeback().is_some() => drop(store.write_back(&range, on)),
            6 if store.writeback().is_some() => drop(store.write_back(&Selection::of(Which::Idle), on)),
            _ => store.run_maintenance(true),
        }
    }
}
