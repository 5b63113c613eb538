//! A store with writeback to a medium, and the expected contents of its pages.

use crate::stats::in_threads;
use crate::store::subject::new_store;
use pagefold_backing::Backing;
use pagefold_page::{PAGE_SIZE, Page};
use pagefold_store::Store;
use pagefold_store::writeback::{
    LayoutKind, Selection, Which, WritebackConfig, WritebackReport, WritebackStats,
};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Threads that verify pages at the end; several, because a slow medium serves several reads at once.
const CHECKERS: u64 = 8;
/// Shift of the source pages along the indexes from version to version. It is prime, so that an overwrite usually
/// replaces a page with one of another compressed length.
const SHIFT: u64 = 9473;

/// A store to measure. A single thread writes pages and writes them back.
pub struct TestStore<'a> {
    store: Store,
    /// The source pages: index and version determine the contents of a page.
    pages: &'a [&'a Page],
    /// The version of each page.
    versions: Vec<u64>,
    /// The version of the pages that the next call of [`TestStore::put`] writes.
    next_version: u64,
}

impl<'a> TestStore<'a> {
    /// Makes a store of `count` pages, all in memory, with writeback to `backing`.
    pub fn new(
        layout: LayoutKind,
        backing: Arc<dyn Backing>,
        count: u64,
        pages: &'a [&'a Page],
    ) -> anyhow::Result<Self> {
        let mut store = new_store(count * PAGE_SIZE as u64)?;
        store.attach(WritebackConfig { backing, layout })?;
        let mut store = TestStore { store, pages, versions: vec![0; count as usize], next_version: 0 };
        store.put(0..count)?;
        Ok(store)
    }

    /// Sets the number of pages in flight from now on.
    pub fn set_batch(&self, pages: u32) {
        if let Some(writeback) = self.store.writeback() {
            writeback.settings().set_writeback_batch_size(pages);
        }
    }

    /// The counters of writeback.
    pub fn stats(&self) -> WritebackStats {
        self.store.writeback().map(|writeback| writeback.stats()).unwrap_or_default()
    }

    /// Bytes of the compressed pages in memory.
    pub fn compressed_bytes(&self) -> u64 {
        self.store.stats().mm.compr_data_size
    }

    /// Writes pages with new contents: increments the version.
    pub fn put(&mut self, indexes: impl IntoIterator<Item = u64>) -> anyhow::Result<()> {
        for index in indexes {
            self.store.write(index * PAGE_SIZE as u64, self.page(index, self.next_version))?;
            self.versions[index as usize] = self.next_version;
        }
        self.next_version += 1;
        Ok(())
    }

    fn page(&self, index: u64, version: u64) -> &Page {
        self.pages[((index + version * SHIFT) % self.pages.len() as u64) as usize]
    }

    /// Writes back all pages that are in memory. Fails if one of them stays in memory.
    pub fn write_back(&self) -> anyhow::Result<WritebackReport> {
        let report = self.store.write_back(&Selection::of(Which::All), &mut |_| ControlFlow::Continue(()))?;
        Ok(report.result()?)
    }

    /// Reads every page with several threads and compares it with its expected content.
    pub fn verify(&self) -> anyhow::Result<()> {
        let count = self.versions.len() as u64;
        let share = |n| (n * count / CHECKERS)..((n + 1) * count / CHECKERS);
        in_threads((0..CHECKERS).map(|n| move || self.verify_range(share(n))))?;
        let stats = self.stats();
        let failed = stats.unreadable_pages + stats.corrupt_pages;
        anyhow::ensure!(failed == 0, "{failed} pages were unreadable or corrupt");
        Ok(())
    }

    fn verify_range(&self, indexes: Range<u64>) -> anyhow::Result<()> {
        let mut page = [0; PAGE_SIZE];
        for index in indexes {
            self.store.read(index * PAGE_SIZE as u64, &mut page)?;
            let wanted = self.page(index, self.versions[index as usize]);
            anyhow::ensure!(
                page == *wanted,
                "page {index} was read back with other contents than were stored"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::medium;

    #[test]
    fn pages_are_written_back_and_a_wrong_page_is_detected() {
        let source: Vec<Page> = (0..100).map(|n| std::array::from_fn(|i| ((i * n) >> 4) as u8)).collect();
        let pages: Vec<&Page> = source.iter().skip(1).collect();
        for layout in [LayoutKind::Log, LayoutKind::Blocks] {
            let backing = Arc::new(medium::memory(medium::ample_len(300)).unwrap());
            let mut store = TestStore::new(layout, backing, 300, &pages).unwrap();
            assert_eq!(store.write_back().unwrap().written_back_pages, 300);
            store.put((1..300).step_by(3)).unwrap();
            store.verify().unwrap();
            store.store.write(17 * 4096, &[1; 4096]).unwrap();
            assert!(store.verify().is_err());
        }
    }
}
