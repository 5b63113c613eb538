//! Page sets: files that `bench/capture.py` wrote, or a stand-in if there are none.

use super::plan::{LARGE_PAGES, SEED};
use super::stats::Random;
use anyhow::Context;
use pagefold_codec::same_filled;
use pagefold_page::{AlignedBytes, PAGE_SIZE, Page};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Default folder of captured pages.
const CAPTURED: &str = "bench/out";
/// Pages of the stand-in, about as many as in a captured set.
const STAND_IN_PAGES: usize = 26_000;
/// Maximum number of the stand-in's pages that are copied from this process; the rest is generated.
const OWN_PAGES_MAX: usize = 8_192;

/// A named sequence of pages.
pub struct PageSet {
    /// Short name, printed in the report.
    pub name: String,
    /// Whether the pages were captured, so that figures are comparable with other runs.
    pub comparable: bool,
    data: AlignedBytes,
}

impl PageSet {
    /// Copies at most `pages_max` pages, a multiple of [`LARGE_PAGES`]. Fails if there are fewer than that.
    fn new(name: String, comparable: bool, bytes: &[u8], pages_max: usize) -> anyhow::Result<Self> {
        let pages = (bytes.len() / PAGE_SIZE).min(pages_max) / LARGE_PAGES * LARGE_PAGES;
        anyhow::ensure!(pages > 0, "page set '{name}' has fewer than {LARGE_PAGES} pages");
        let mut data = AlignedBytes::new(pages * PAGE_SIZE, 0);
        data.copy_from_slice(&bytes[..pages * PAGE_SIZE]);
        Ok(PageSet { name, comparable, data })
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

/// Reads the page sets to measure, by default all captured ones; without any, makes the stand-in and returns a note.
pub fn load(files: &[PathBuf], pages_max: usize) -> anyhow::Result<(Vec<PageSet>, Vec<String>)> {
    let files = if files.is_empty() { captured() } else { files.to_vec() };
    if files.is_empty() {
        let note = format!(
            "no captured pages in {CAPTURED}: run bench/capture.py; measured with pages of this process and \
             generated pages; the figures are not comparable with other runs"
        );
        let set = PageSet::new("stand-in".into(), false, &stand_in(), pages_max)?;
        return Ok((vec![set], vec![note]));
    }
    let sets = files.iter().map(|path| read(path, pages_max)).collect::<anyhow::Result<_>>()?;
    Ok((sets, Vec::new()))
}

/// The captured files, sorted by name.
fn captured() -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(CAPTURED) else { return Vec::new() };
    let mut files: Vec<_> = folder.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "pages"));
    files.sort();
    files
}

fn read(path: &Path, pages_max: usize) -> anyhow::Result<PageSet> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut bytes = Vec::new();
    let most = pages_max.saturating_mul(PAGE_SIZE) as u64;
    File::open(path)
        .and_then(|file| file.take(most).read_to_end(&mut bytes))
        .with_context(|| format!("reading pages from '{}'", path.display()))?;
    PageSet::new(name, true, &bytes, pages_max)
}

/// Makes the bytes of the stand-in: pages of this process, then generated pages.
fn stand_in() -> Vec<u8> {
    let mut bytes = own_pages().unwrap_or_default();
    let mut random = Random(SEED);
    while bytes.len() < STAND_IN_PAGES * PAGE_SIZE {
        bytes.extend_from_slice(&generated(&mut random));
    }
    bytes
}

/// Copies private anonymous memory of this process, at most [`OWN_PAGES_MAX`] pages.
fn own_pages() -> std::io::Result<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let memory = File::open("/proc/self/mem")?;
    let mut bytes = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (range, mode, inode) = (fields.next(), fields.next(), fields.nth(2));
        let Some((start, end)) = range.and_then(|r| r.split_once('-')) else { continue };
        if !mode.is_some_and(|m| m.starts_with("rw")) || inode != Some("0") {
            continue;
        }
        let parse = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        for address in (parse(start)..parse(end)).step_by(PAGE_SIZE) {
            let mut page = [0; PAGE_SIZE];
            if bytes.len() >= OWN_PAGES_MAX * PAGE_SIZE || memory.read_exact_at(&mut page, address).is_err() {
                break;
            }
            bytes.extend_from_slice(&page);
        }
    }
    Ok(bytes)
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
        let set = PageSet::new("x".into(), true, &bytes, usize::MAX).unwrap();
        let last = (set.len() - 1) * PAGE_SIZE;
        assert_eq!(set.shifted(last, PAGE_SIZE, 0), &set.pages()[set.len() - 1]);
        assert_eq!(set.shifted(last, PAGE_SIZE, 1), &set.pages()[0]);
        assert_eq!(set.shifted(0, PAGE_SIZE, LARGE_PAGES), &set.pages()[LARGE_PAGES]);
        assert_eq!(set.bytes().as_ptr().align_offset(PAGE_SIZE), 0);
    }

    #[test]
    fn the_stand_in_has_distinct_pages() {
        let (sets, notes) = load(&[], 4096).unwrap();
        assert!(sets[0].len() >= LARGE_PAGES);
        // There is a note only if there are no captured pages.
        assert_eq!(notes.is_empty(), sets[0].comparable);
        let distinct: std::collections::BTreeSet<_> = generated_pages().into_iter().collect();
        assert!(distinct.len() > 90);
    }

    fn generated_pages() -> Vec<Page> {
        let mut random = Random(SEED);
        (0..100).map(|_| generated(&mut random)).collect()
    }
}
