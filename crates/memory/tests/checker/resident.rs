//! The kernel's count of pages that have memory.
//!
//! A region's range and staging area are the only mappings of these tests that a child does not get and that have
//! advice on huge pages. All present pages there are counted, pages of zeroes as well.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Pages present in the ranges and staging areas of all regions of the process.
pub fn present_pages() -> u64 {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    mappings().iter().map(|(start, end)| present(&pagemap, *start, *end)).sum()
}

fn mappings() -> Vec<(u64, u64)> {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
            found.extend(current.filter(|_| has("dc") && (has("nh") || has("hg"))));
        } else if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            current = number(start).zip(number(end)).or(current);
        }
    }
    found
}

fn present(pagemap: &File, start: u64, end: u64) -> u64 {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    let mut bytes = vec![0; ((end - start) / 4096 * 8) as usize];
    pagemap.read_exact_at(&mut bytes, start / 4096 * 8).unwrap();
    let entries = bytes.chunks(8).map(|entry| u64::from_le_bytes(entry.try_into().unwrap()));
    entries.filter(|entry| entry & (PRESENT | SWAPPED) != 0).count() as u64
}
