//! Page sets: files that `bench/capture.py` wrote, or a stand-in if there are none.

use crate::random::{Random, SEED};
use crate::report::Report;
use anyhow::Context;
use pagefold_codec::same_filled;
use pagefold_page::{AlignedBytes, PAGE_SIZE, Page};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Default folder of captured pages.
const CAPTURED: &str = "bench/out";
/// Pages of the stand-in, about as many as in a captured set.
const STAND_IN_PAGES: usize = 26_000;
/// Pages in a large request; page sets are cut to a multiple of this.
pub const LARGE_PAGES: usize = 256;

/// A named sequence of pages.
pub struct PageSet {
    /// Short name, printed in the report.
    pub name: String,
    data: AlignedBytes,
}

impl PageSet {
    /// Copies at most `pages_max` pages, a multiple of [`LARGE_PAGES`]. Fails if there are fewer than that.
    fn new(name: String, bytes: &[u8], pages_max: usize) -> anyhow::Result<Self> {
        let pages = (bytes.len() / PAGE_SIZE).min(pages_max) / LARGE_PAGES * LARGE_PAGES;
        anyhow::ensure!(pages > 0, "page set '{name}' has fewer than {LARGE_PAGES} pages");
        let mut data = AlignedBytes::new(pages * PAGE_SIZE, 0);
        data.copy_from_slice(&bytes[..pages * PAGE_SIZE]);
        Ok(PageSet { name, data })
    }

    /// Reads a file; without one makes the stand-in, which is the same each time.
    pub fn read(file: Option<&Path>, pages_max: usize) -> anyhow::Result<Self> {
        let Some(path) = file else {
            let mut random = Random(SEED);
            let pages = (0..STAND_IN_PAGES.min(pages_max)).map(|_| generated(&mut random));
            return PageSet::new("stand-in".into(), pages.collect::<Vec<_>>().as_flattened(), pages_max);
        };
        let mut bytes = Vec::new();
        let most = pages_max.saturating_mul(PAGE_SIZE) as u64;
        File::open(path)
            .and_then(|file| file.take(most).read_to_end(&mut bytes))
            .with_context(|| format!("reading pages from '{}'", path.display()))?;
        PageSet::new(path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), &bytes, pages_max)
    }

    /// The number of pages, a multiple of [`LARGE_PAGES`].
    pub fn len(&self) -> usize {
        self.pages().len()
    }

    /// All pages.
    pub fn pages(&self) -> &[Page] {
        self.bytes().as_chunks().0
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// The `len` bytes to store at byte `at` of a subject in a round whose shift is `shift_pages`.
    ///
    /// `at` and `len` are multiples of a page, and the range must not cross the end of the set after the shift.
    pub fn shifted(&self, at: usize, len: usize, shift_pages: usize) -> &[u8] {
        let from = (at + shift_pages * PAGE_SIZE) % self.bytes().len();
        &self.bytes()[from..from + len]
    }

    /// The pages that are not same-filled.
    pub fn not_same_filled(&self) -> Vec<&Page> {
        self.pages().iter().filter(|page| same_filled(page).is_none()).collect()
    }
}

/// The files of the page sets to measure, by default all captured ones, sorted by name; without any, notes that the
/// stand-in is measured.
pub fn files(given: &[PathBuf], report: &mut Report) -> Vec<PathBuf> {
    let mut files = given.to_vec();
    if given.is_empty() {
        let captured = std::fs::read_dir(CAPTURED).into_iter().flatten().flatten().map(|entry| entry.path());
        files.extend(captured.filter(|path| path.extension().is_some_and(|e| e == "pages")));
        files.sort();
    }
    if files.is_empty() {
        report.comparable = false;
        report.note(format!(
            "no captured pages in {CAPTURED}: run bench/capture.py; measured with generated pages; the figures are \
             not comparable with other runs"
        ));
    }
    files
}

/// Reads the page sets to measure, as [`files`] finds them.
pub fn load(given: &[PathBuf], report: &mut Report) -> anyhow::Result<Vec<PageSet>> {
    let pages_max = report.pick(1 << 20, 2048);
    let files = files(given, report);
    match files.is_empty() {
        true => Ok(vec![PageSet::read(None, pages_max)?]),
        false => files.iter().map(|path| PageSet::read(Some(path), pages_max)).collect(),
    }
}

/// Generates a page that looks like a heap: pointers, small numbers and text, often with zeroes at the end.
fn generated(random: &mut Random) -> Page {
    const WORDS: [&[u8]; 8] =
        [b"name", b"value ", b"request", b"index", b"customer ", b"total", b"\0\0\0\0", b"status "];
    let mut page = [0; PAGE_SIZE];
    let mut at = 0;
    let end = random.below(PAGE_SIZE as u64 * 5 / 4) as usize;
    while at + 16 <= PAGE_SIZE.min(end) {
        let drawn = random.next();
        match drawn % 4 {
            0 => page[at..at + 8].copy_from_slice(&(0x7f12_3400_0000 | (drawn >> 40) << 4).to_le_bytes()),
            1 => page[at] = (drawn >> 8) as u8,
            2 => page[at..at + 8].copy_from_slice(&random.next().to_le_bytes()),
            _ => {
                let word = WORDS[(drawn >> 8) as usize % WORDS.len()];
                page[at..at + word.len()].copy_from_slice(word);
            }
        }
        at += 8 + (drawn >> 61) as usize;
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifted_returns_the_right_pages_and_wraps_at_the_end() {
        let bytes: Vec<u8> = (0..3 * LARGE_PAGES).flat_map(|n| [n as u8; PAGE_SIZE]).collect();
        let set = PageSet::new("x".into(), &bytes, usize::MAX).unwrap();
        let last = (set.len() - 1) * PAGE_SIZE;
        assert_eq!(set.shifted(last, PAGE_SIZE, 0), &set.pages()[set.len() - 1]);
        assert_eq!(set.shifted(last, PAGE_SIZE, 1), &set.pages()[0]);
        assert_eq!(set.shifted(0, PAGE_SIZE, LARGE_PAGES), &set.pages()[LARGE_PAGES]);
        assert_eq!(set.bytes().as_ptr().align_offset(PAGE_SIZE), 0);
    }

    #[test]
    fn the_stand_in_has_distinct_pages_the_same_each_time() {
        let [set, again] = [(); 2].map(|()| PageSet::read(None, 2 * LARGE_PAGES).unwrap());
        assert_eq!((set.len(), set.bytes()), (2 * LARGE_PAGES, again.bytes()));
        let distinct: std::collections::BTreeSet<_> = set.pages().iter().collect();
        assert!(distinct.len() > set.len() * 9 / 10);
    }
}
