//! A store with writeback to a medium, and the expected contents of its pages.

use super::content::Content;
use crate::engine::new_store;
use pagefold_backing::Backing;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::Store;
use pagefold_store::writeback::{LayoutKind, Selection, WritebackConfig, WritebackReport, WritebackStats};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

/// Threads that verify pages at the end; several, because a slow medium serves several reads at once.
const CHECKERS: u64 = 8;

/// A store to measure. A single thread writes pages and writes them back.
pub struct TestStore<'a> {
    store: Store,
    content: Content<'a>,
    /// The version of each page; `None` for a page that was never written or was freed.
    versions: Vec<Option<u32>>,
    /// The version of the pages that the next call of [`TestStore::put`] writes.
    next_version: u32,
}

/// The result of a writeback pass, and its time.
pub struct Pass {
    pub report: WritebackReport,
    pub seconds: f64,
}

impl Pass {
    /// Pages written back per second.
    pub fn pages_per_s(&self) -> f64 {
        self.report.written_back_pages as f64 / self.seconds
    }
}

impl<'a> TestStore<'a> {
    /// Makes an empty store of `pages` pages with writeback to `backing`.
    pub fn new(
        layout: LayoutKind,
        backing: Arc<dyn Backing>,
        pages: u64,
        content: Content<'a>,
    ) -> anyhow::Result<Self> {
        let mut store = new_store(pages * PAGE_SIZE as u64)?;
        store.attach(WritebackConfig { backing, layout })?;
        Ok(TestStore { store, content, versions: vec![None; pages as usize], next_version: 0 })
    }

    /// The engine's store.
    pub fn inner(&self) -> &Store {
        &self.store
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

    /// Writes pages with new contents: increments the version.
    pub fn put(&mut self, pages: impl IntoIterator<Item = u64>) -> anyhow::Result<()> {
        let version = self.next_version;
        self.next_version += 1;
        let mut scratch = [0; PAGE_SIZE];
        for index in pages {
            let page = self.content.page(index, version, &mut scratch);
            self.store.write(index * PAGE_SIZE as u64, page)?;
            self.versions[index as usize] = Some(version);
        }
        Ok(())
    }

    /// Frees pages.
    pub fn free(&mut self, pages: impl IntoIterator<Item = u64>) -> anyhow::Result<()> {
        for index in pages {
            self.store.discard(index * PAGE_SIZE as u64, PAGE_SIZE as u64)?;
            self.versions[index as usize] = None;
        }
        Ok(())
    }

    /// Writes back all pages of the range that are in memory. Fails if one of them stays in memory.
    pub fn write_back(&self, pages: Range<u64>) -> anyhow::Result<Pass> {
        let selection = Selection::pages(PageIndex(pages.start), PageIndex(pages.end.max(1) - 1))?;
        let started = Instant::now();
        let report = self.store.write_back(&selection, &mut |_| ControlFlow::Continue(()))?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Pass { report: report.result()?, seconds })
    }

    /// Size of the store, in pages.
    pub fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Reads every page with several threads and compares it with its expected content.
    pub fn verify(&self) -> anyhow::Result<()> {
        let share = self.len().div_ceil(CHECKERS);
        std::thread::scope(|scope| {
            let check = |n: u64| {
                let pages = (n * share).min(self.len())..((n + 1) * share).min(self.len());
                scope.spawn(move || self.verify_range(pages))
            };
            let threads: Vec<_> = (0..CHECKERS).map(check).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a checking thread panicked")))
            })
        })?;
        let stats = self.stats();
        let failed = stats.unreadable_pages + stats.corrupt_pages;
        anyhow::ensure!(failed == 0, "{failed} pages were unreadable or corrupt");
        Ok(())
    }

    fn verify_range(&self, pages: Range<u64>) -> anyhow::Result<()> {
        let mut page = [0; PAGE_SIZE];
        for index in pages {
            self.store.read(index * PAGE_SIZE as u64, &mut page)?;
            let is_right = match self.versions[index as usize] {
                Some(version) => self.content.is(index, version, &page),
                None => page == [0; PAGE_SIZE],
            };
            anyhow::ensure!(is_right, "page {index} was read back with other contents than were stored");
        }
        Ok(())
    }
}

/// Size of a medium, bytes, that has room for this many pages in every layout, with a header each, and for more.
pub fn ample_len(pages: u64) -> u64 {
    (1 << 20) + (pages * (PAGE_SIZE as u64 + 64) + (16 << 20)).next_multiple_of(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::writeback::medium;

    #[test]
    fn pages_are_written_back_and_a_wrong_page_is_detected() {
        for layout in [LayoutKind::Log, LayoutKind::Blocks] {
            let backing = medium::memory(ample_len(300)).unwrap();
            let mut store = TestStore::new(layout, backing, 300, Content::Random).unwrap();
            store.put(0..300).unwrap();
            assert_eq!(store.write_back(0..300).unwrap().report.written_back_pages, 300);
            store.free((0..300).step_by(3)).unwrap();
            store.put((1..300).step_by(3)).unwrap();
            store.verify().unwrap();
            store.inner().write(17 * 4096, &[1; 4096]).unwrap();
            assert!(store.verify().is_err());
        }
    }
}
