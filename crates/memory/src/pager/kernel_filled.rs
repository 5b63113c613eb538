//! The state of the parts of the range that the kernel fills by itself.

use crate::config::RegionConfig;
use crate::table::CHUNK_PAGES;
use pagefold_page::PAGE_SIZE;
use pagefold_sys::SysError;
use pagefold_sys::pagemap::{Pagemap, Run};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Runs of pages that one scan returns.
const RUNS: usize = 64;
/// The alignment of the range: a huge page.
pub(super) const RANGE_ALIGN_BYTES: usize = 2 << 20;
pub(super) const CHUNK_BYTES: usize = CHUNK_PAGES as usize * PAGE_SIZE;

/// A bit for each page of a chunk.
pub(super) type PageBits = [u64; CHUNK_PAGES as usize / 64];
const ALL_PAGES: PageBits = [u64::MAX; CHUNK_PAGES as usize / 64];

/// The unregistered chunks of a region.
pub(super) struct Unregistered {
    /// `None` if no chunk may be unregistered.
    pub(super) pagemap: Option<Pagemap>,
    pub(super) huge_pages: bool,
    /// Unregistered chunks, those included that are about to be.
    pub(super) chunks: AtomicU64,
    /// Where to look next for a chunk to register.
    pub(super) cursor: AtomicU64,
    /// Held by a thread that registers, drops or pins what the kernel fills. Faults never take it.
    registering: Mutex<()>,
}

impl Unregistered {
    pub(super) fn new(config: &RegionConfig, has_file: bool) -> Result<Self, SysError> {
        let is_wanted = config.register_late && !has_file;
        let pagemap = if is_wanted { Some(Pagemap::open()?) } else { None };
        Ok(Unregistered {
            pagemap: pagemap.filter(Pagemap::is_supported),
            huge_pages: config.huge_pages,
            chunks: AtomicU64::new(0),
            cursor: AtomicU64::new(0),
            registering: Mutex::new(()),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
        self.registering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a bit for each page of the chunk at this address that has memory. After an error all bits are set, which is
    /// safe: a page that counts as resident and has no memory is zero.
    pub(super) fn populated_pages(&self, start: usize) -> PageBits {
        let mut bits = [0; CHUNK_PAGES as usize / 64];
        let mut runs = [Run::default(); RUNS];
        let mut at = start;
        while at < start + CHUNK_BYTES {
            let scan = match &self.pagemap {
                Some(pagemap) => pagemap.populated(at, start + CHUNK_BYTES - at, &mut runs),
                None => return ALL_PAGES,
            };
            match scan {
                Ok(scan) if scan.end > at => at = scan.end,
                _ => return ALL_PAGES,
            }
            for run in &runs[..scan.map_or(0, |scan| scan.runs)] {
                let page = (run.start() - start) / PAGE_SIZE;
                (page..page + run.len_bytes() / PAGE_SIZE).for_each(|i| bits[i / 64] |= 1 << (i % 64));
            }
        }
        bits
    }
}
