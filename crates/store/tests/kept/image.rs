//! Copies of files in memory: their pages, without the holes.

use crate::child::file_of;
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_sys::sharedmem::SharedMemory;
use std::fmt::Write as _;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PAGE: usize = 4096;
/// The offset of the notes, and the length of one; see `docs/formats/shared-memory.md`.
const NOTES_AT: u64 = 4096;
const NOTE_LEN: usize = 64;

/// The bytes of a file at one moment.
#[derive(Clone)]
pub struct Image {
    pub len_bytes: u64,
    /// The pages that use memory, by their offsets. Images of similar files share pages.
    pub pages: Vec<(u64, Arc<PageCopy>)>,
}

/// A page of a file.
pub struct PageCopy {
    pub bytes: [u8; PAGE],
    hash: u64,
}

impl PageCopy {
    pub fn new(bytes: [u8; PAGE]) -> Self {
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        PageCopy { bytes, hash: hasher.finish() }
    }
}

impl Image {
    /// Copies a file.
    pub fn of(file: &File) -> Self {
        Image { len_bytes: 0, pages: Vec::new() }.next(file)
    }

    /// Copies the file again.
    pub fn next(&self, file: &File) -> Self {
        let len_bytes = file.metadata().unwrap().len();
        let mut pages = Vec::with_capacity(self.pages.len());
        let mut at = 0;
        while let Some(from) = seek(file, at, libc::SEEK_DATA).filter(|from| *from < len_bytes) {
            at = seek(file, from, libc::SEEK_HOLE).unwrap();
            for offset in (from / PAGE as u64 * PAGE as u64..at).step_by(PAGE) {
                let mut bytes = [0; PAGE];
                let len = PAGE.min((len_bytes - offset) as usize);
                file.read_exact_at(&mut bytes[..len], offset).unwrap();
                let same = self.page(offset).filter(|before| before.bytes == bytes);
                pages.push((offset, same.cloned().unwrap_or_else(|| Arc::new(PageCopy::new(bytes)))));
            }
        }
        Image { len_bytes, pages }
    }

    /// Whether it is the same as an image from which it was copied again.
    pub fn is_unchanged_since(&self, before: &Image) -> bool {
        let is_same = |((offset, page), (offset_before, page_before)): (&(u64, Arc<_>), &(u64, Arc<_>))| {
            offset == offset_before && Arc::ptr_eq(page, page_before)
        };
        let len = (self.len_bytes, self.pages.len());
        len == (before.len_bytes, before.pages.len()) && self.pages.iter().zip(&before.pages).all(is_same)
    }

    /// Writes the bytes to a file in the folder for files of tests, and returns its path.
    pub fn save(&self, name: &str) -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        self.write_to(&File::create(&path).unwrap());
        path
    }

    /// New memory with the same bytes and the same holes.
    pub fn to_memory(&self) -> SharedMemory {
        let memory = SharedMemory::new().unwrap();
        self.write_to(&file_of(&memory));
        memory
    }

    /// A byte; 0 in a hole.
    pub fn byte(&self, at: u64) -> u8 {
        let page = self.page(at / PAGE as u64 * PAGE as u64);
        page.map_or(0, |page| page.bytes[at as usize % PAGE])
    }

    /// Changes bytes that lie in one page, which uses memory.
    pub fn set(&mut self, at: u64, bytes: &[u8]) {
        let found =
            self.pages.binary_search_by_key(&(at / PAGE as u64 * PAGE as u64), |page| page.0).unwrap();
        let mut changed = self.pages[found].1.bytes;
        changed[at as usize % PAGE..][..bytes.len()].copy_from_slice(bytes);
        self.pages[found].1 = Arc::new(PageCopy::new(changed));
    }

    /// The same with the notes of changes at other places of their page: as if threads had used the places before.
    pub fn with_notes_moved(&self, by: usize) -> Self {
        let mut image = self.clone();
        for (offset, page) in &mut image.pages {
            if *offset != NOTES_AT {
                continue;
            }
            let mut bytes = page.bytes;
            bytes.rotate_right(by * NOTE_LEN % PAGE);
            *page = Arc::new(PageCopy::new(bytes));
        }
        image
    }

    /// A new medium with the same bytes; none if there are no bytes.
    pub fn to_backing(&self) -> Option<Arc<dyn Backing>> {
        let backing = MemoryBacking::new(self.len_bytes as usize);
        self.pages.iter().for_each(|(offset, page)| {
            let len = PAGE.min((self.len_bytes - offset) as usize);
            backing.write_at(*offset, &page.bytes[..len]).unwrap();
        });
        (self.len_bytes > 0).then(|| Arc::new(backing) as Arc<dyn Backing>)
    }

    /// Gives an empty file the same bytes.
    pub fn write_to(&self, file: &File) {
        file.set_len(self.len_bytes).unwrap();
        for (offset, page) in &self.pages {
            let len = PAGE.min((self.len_bytes - offset) as usize);
            file.write_all_at(&page.bytes[..len], *offset).unwrap();
        }
    }

    pub fn hash_value(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.len_bytes.hash(&mut hasher);
        self.pages.iter().for_each(|(offset, page)| (offset, page.hash).hash(&mut hasher));
        hasher.finish()
    }

    fn page(&self, offset: u64) -> Option<&Arc<PageCopy>> {
        self.pages.binary_search_by_key(&offset, |page| page.0).ok().map(|at| &self.pages[at].1)
    }

    /// The words that differ from those of `before`, for messages.
    pub fn changes_since(&self, before: &Image) -> String {
        let offsets = self.pages.iter().chain(&before.pages).map(|page| page.0);
        let offsets: std::collections::BTreeSet<u64> = offsets.collect();
        let mut text = String::new();
        for offset in offsets {
            let bytes = |page: &'_ Arc<PageCopy>| page.bytes;
            match (before.page(offset).map(bytes), self.page(offset).map(bytes)) {
                (Some(old), Some(new)) => {
                    let words = (0..PAGE).step_by(8).filter(|at| old[*at..*at + 8] != new[*at..*at + 8]);
                    for at in words.take(16) {
                        let word =
                            |page: &[u8; PAGE]| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
                        let (old, new) = (word(&old), word(&new));
                        writeln!(text, "  {:#x}: {old:#018x} -> {new:#018x}", offset + at as u64).unwrap();
                    }
                }
                (None, Some(_)) => writeln!(text, "  {offset:#x}: a page more").unwrap(),
                (Some(_), None) => writeln!(text, "  {offset:#x}: a page fewer").unwrap(),
                (None, None) => {}
            }
        }
        text
    }
}

/// The next data or hole at or after `offset`.
fn seek(file: &File, offset: u64, whence: i32) -> Option<u64> {
    // SAFETY: the call takes an open descriptor and numbers. It moves the position of the file, which nothing uses.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, whence) };
    u64::try_from(found).ok()
}
