//! Notes what is read of a mounted image, for a list.
//!
//! The file system reports the directories and inodes that it reads, the names that it returns, and the ranges of contents
//! that the kernel asks for. The kernel asks once for what it caches, and reads ahead: so an entry is a range that was
//! read first, perhaps somewhat longer than what the program wanted.
//!
//! A range that continues one of the last entries makes that entry longer; other ranges are new entries. Bytes that an entry
//! has already are not noted again. The numbers of entries and the bytes of names are limited; what does not fit is
//! counted. One mutex guards all, held for a few look-ups for each request; after the end of the recording, it is not
//! locked any more.

use super::list::{self, LIST_BYTES_MAX, LIST_ENTRIES_MAX};
use crate::Nid;
use crate::walk::DEPTH_MAX;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most bytes for names, with what the table takes for each.
const NAMES_BYTES_MAX: usize = 16 << 20;
/// Bytes of the table for a name, beside the name itself.
const NAME_OVERHEAD_BYTES: usize = 64;
/// Last entries that a range can continue: programs that start read a few files at once.
const RECENT_ENTRIES: usize = 32;

/// Records what is read, until [`Recorder::stop`].
#[derive(Debug)]
pub struct Recorder {
    root: Nid,
    is_on: AtomicBool,
    state: Mutex<State>,
}

/// A finished recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The text of the list.
    pub text: Vec<u8>,
    /// Entries in it.
    pub entries: u64,
    /// Reads that are not in it, for lack of room or of a name.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The parent and the name of an inode, as they were first seen.
    names: HashMap<Nid, (Nid, Box<[u8]>)>,
    names_bytes: usize,
    entries: Vec<Entry>,
    /// The entries by inode and first byte.
    by_start: BTreeMap<(Nid, u64), usize>,
    lost: u64,
}

#[derive(Debug)]
struct Entry {
    nid: Nid,
    range: Range<u64>,
    is_directory: bool,
}

impl Recorder {
    /// Begins a recording of an image with this root directory.
    pub fn new(root: Nid) -> Self {
        Recorder { root, is_on: AtomicBool::new(true), state: Mutex::default() }
    }

    /// The state; `None` if the recording has ended.
    fn recording(&self) -> Option<MutexGuard<'_, State>> {
        self.is_on.load(Ordering::Relaxed).then(|| self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes the name of an inode, which was read, in a directory.
    pub(crate) fn note_entry(&self, parent: Nid, name: &[u8], nid: Nid) {
        let Some(mut state) = self.recording() else { return };
        if !matches!(name, b"." | b"..") {
            state.add_name(parent, name, nid);
            state.add(nid, 0..0, false);
        }
    }

    /// Notes that the inode was read.
    pub(crate) fn note_inode(&self, nid: Nid) {
        self.note_range(nid, 0..0);
    }

    /// Notes that a directory of this length was searched or listed.
    pub(crate) fn note_directory(&self, nid: Nid, len_bytes: u64) {
        let Some(mut state) = self.recording() else { return };
        state.add(nid, 0..len_bytes, true);
    }

    /// Notes that a range of a file was read.
    pub(crate) fn note_range(&self, nid: Nid, range: Range<u64>) {
        let Some(mut state) = self.recording() else { return };
        state.add(nid, range, false);
    }

    /// Ends the recording, and returns the list; an empty record if it had ended before.
    pub fn stop(&self) -> Record {
        let Some(mut state) = self.recording() else { return Record::default() };
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *state).into_record(self.root)
    }
}

impl State {
    fn add_name(&mut self, parent: Nid, name: &[u8], nid: Nid) {
        let needed = name.len() + NAME_OVERHEAD_BYTES;
        if self.names_bytes + needed > NAMES_BYTES_MAX || self.names.contains_key(&nid) {
            return;
        }
        self.names_bytes += needed;
        self.names.insert(nid, (parent, name.into()));
    }

    /// Adds what no entry has of a range.
    fn add(&mut self, nid: Nid, range: Range<u64>, is_directory: bool) {
        let mut start = range.start;
        let before = self.by_start.range((nid, 0)..=(nid, start)).next_back();
        if let Some((_, &index)) = before {
            let is_recent = index + RECENT_ENTRIES >= self.entries.len();
            let entry = &mut self.entries[index];
            if range.end <= entry.range.end {
                return;
            }
            if start <= entry.range.end {
                if is_recent {
                    entry.range.end = range.end;
                    entry.is_directory |= is_directory;
                    return;
                }
                start = entry.range.end;
            }
        }
        if self.entries.len() >= LIST_ENTRIES_MAX {
            self.lost += 1;
            return;
        }
        self.by_start.insert((nid, start), self.entries.len());
        self.entries.push(Entry { nid, range: start..range.end, is_directory });
    }

    fn into_record(self, root: Nid) -> Record {
        let mut record = Record { text: list::HEADING.to_vec(), entries: 0, lost: self.lost };
        for Entry { nid, range, is_directory } in &self.entries {
            let is_full = record.text.len() >= LIST_BYTES_MAX / 2;
            match self.path(*nid, root, *is_directory).filter(|_| !is_full) {
                Some(path) => {
                    list::push_line(&mut record.text, &path, range);
                    record.entries += 1;
                }
                None => record.lost += 1,
            }
        }
        record
    }

    /// The path of an inode; `None` if a name is missing.
    fn path(&self, mut nid: Nid, root: Nid, is_directory: bool) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        while nid != root {
            let (parent, name) = self.names.get(&nid)?;
            names.push(name);
            // A damaged image could have a directory in itself.
            if names.len() > DEPTH_MAX {
                return None;
            }
            nid = *parent;
        }
        let mut path: Vec<u8> =
            names.iter().rev().flat_map(|name| std::iter::once(&b'/').chain(name.iter())).copied().collect();
        if is_directory || path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Nid = Nid(36);

    fn recorder() -> Recorder {
        let recorder = Recorder::new(ROOT);
        recorder.note_directory(ROOT, 100);
        recorder.note_entry(ROOT, b"d", Nid(1));
        recorder.note_directory(Nid(1), 50);
        recorder.note_entry(Nid(1), b"a\tb", Nid(2));
        recorder
    }

    fn text(record: &Record) -> String {
        let text = String::from_utf8(record.text.clone()).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn reads_are_noted_once_in_the_order_of_first_use_and_merged() {
        let recorder = recorder();
        recorder.note_entry(ROOT, b"e", Nid(3));
        recorder.note_entry(ROOT, b"..", ROOT);
        recorder.note_range(Nid(2), 0..4096);
        recorder.note_range(Nid(3), 8192..12288);
        recorder.note_range(Nid(2), 4096..8192);
        recorder.note_range(Nid(2), 0..6000);
        recorder.note_range(Nid(3), 10000..20000);
        recorder.note_inode(Nid(3));
        recorder.note_range(Nid(2), 100_000..100_001);
        // Another name of an inode is not noted.
        recorder.note_entry(ROOT, b"hard", Nid(2));
        let record = recorder.stop();
        let expected = "/\t0\t100\n/d/\t0\t50\n/d/a\\011b\t0\t8192\n/e\t0\t0\n/e\t8192\t11808\n\
                        /d/a\\011b\t100000\t1\n";
        assert_eq!(text(&record), expected);
        assert_eq!((record.entries, record.lost), (6, 0));
        recorder.note_range(Nid(2), 1 << 20..2 << 20);
        assert_eq!(recorder.stop(), Record::default());
    }

    #[test]
    fn a_range_that_continues_an_old_entry_is_a_new_one() {
        let recorder = recorder();
        recorder.note_range(Nid(2), 0..10);
        for n in 0..RECENT_ENTRIES as u64 {
            recorder.note_entry(ROOT, format!("f{n}").as_bytes(), Nid(100 + n));
        }
        recorder.note_range(Nid(2), 5..20);
        let record = recorder.stop();
        assert!(text(&record).ends_with("\n/d/a\\011b\t10\t10\n"), "{}", text(&record));
    }

    #[test]
    fn what_has_no_name_or_no_room_is_counted() {
        let recorder = recorder();
        recorder.note_range(Nid(7), 0..10);
        // A directory in itself.
        recorder.note_entry(Nid(8), b"loop", Nid(8));
        assert_eq!((recorder.stop().entries, 2), (3, 2));
        let recorder = Recorder::new(ROOT);
        for n in 0..2 * LIST_ENTRIES_MAX as u64 {
            recorder.note_entry(ROOT, &[b'n'; 200], Nid(n + 1000));
        }
        {
            let state = recorder.recording().unwrap();
            assert!(state.names_bytes <= NAMES_BYTES_MAX && state.entries.len() == LIST_ENTRIES_MAX);
        }
        let record = recorder.stop();
        assert!(record.text.len() <= LIST_BYTES_MAX);
        assert_eq!(record.entries + record.lost, 2 * LIST_ENTRIES_MAX as u64);
    }
}
