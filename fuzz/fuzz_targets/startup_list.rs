//! Invariant: any text is parsed as a list of a start-up, within the limits of entries. Paths are normal, ranges do not wrap,
//! and each line is an entry, malformed or ignored. A list that is written again from its entries has the same entries, and
//! an order of files made from the same text has its own limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_image::startup::list::{LIST_ENTRIES_MAX, lines};
use pagefold_image::startup::{StartEntry, StartList};
use pagefold_image_build::SortList;

/// The line of an entry: every byte of its path as an escape sequence.
fn line(entry: &StartEntry) -> Vec<u8> {
    let mut line: Vec<u8> = entry.path.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes()).collect();
    if line.is_empty() {
        line.push(b'/');
    }
    if let Some(range) = &entry.range {
        line.extend(format!("\t{}\t{}", range.start, range.end - range.start).into_bytes());
    }
    line.push(b'\n');
    line
}

fuzz_target!(|text: &[u8]| {
    let list = StartList::parse(text);
    assert!(list.entries.len() <= LIST_ENTRIES_MAX);
    if !list.is_cut {
        let counted =
            text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && line[0] != b'#').count();
        assert_eq!(list.entries.len() as u64 + list.malformed, counted as u64);
        assert_eq!(lines(text).flatten().collect::<Vec<_>>(), list.entries);
    }
    for entry in &list.entries {
        let mut names = entry.path.split(|byte| *byte == b'/');
        assert!(entry.path.is_empty() || names.all(|name| !name.is_empty() && name != b"."));
        assert!(entry.range.as_ref().is_none_or(|range| range.start <= range.end));
    }
    let again: Vec<u8> = list.entries.iter().flat_map(line).collect();
    if again.len() < 1 << 20 {
        let again = StartList::parse(&again);
        assert_eq!((again.entries, again.malformed), (list.entries, 0));
    }
    let _ = SortList::parse(text);
});
