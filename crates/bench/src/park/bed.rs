//! A store on a medium, and what its pages must be.

use super::content::Content;
use crate::engine::new_store;
use pagefold_backing::Backing;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::Store;
use pagefold_store::parking::{LayoutKind, ParkConfig, ParkReport, ParkStats, Selection};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;

/// Threads that read pages back at the end: a slow medium is read by many at once.
const CHECKERS: u64 = 8;

/// A store being measured. One thread writes and parks.
pub struct Bed<'a> {
    store: Store,
    content: Content<'a>,
    /// The version of each page; `None` for a page that was never written or was freed.
    versions: Vec<Option<u32>>,
    /// The version that the next page written has.
    next_version: u32,
}

/// A pass, and how long it took.
pub struct Pass {
    pub report: ParkReport,
    pub seconds: f64,
}

impl Pass {
    /// Pages parked per second.
    pub fn pages_per_s(&self) -> f64 {
        self.report.parked_pages as f64 / self.seconds
    }
}

impl<'a> Bed<'a> {
    /// An empty store of so many pages on a medium.
    pub fn new(
        layout: LayoutKind,
        backing: Arc<dyn Backing>,
        pages: u64,
        content: Content<'a>,
    ) -> anyhow::Result<Self> {
        let mut store = new_store(pages * PAGE_SIZE as u64)?;
        store.attach(ParkConfig { backing, layout })?;
        Ok(Bed { store, content, versions: vec![None; pages as usize], next_version: 0 })
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Pages in flight from now on.
    pub fn set_batch(&self, pages: u32) {
        if let Some(parking) = self.store.parking() {
            parking.settings().set_writeback_batch_size(pages);
        }
    }

    /// What parking has counted.
    pub fn stats(&self) -> ParkStats {
        self.store.parking().map(|parking| parking.stats()).unwrap_or_default()
    }

    /// Writes pages anew, each with another content than before.
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

    /// Parks all pages that are in memory; it is an error if any stays there.
    pub fn park(&self, pages: Range<u64>) -> anyhow::Result<Pass> {
        let selection = Selection::pages(PageIndex(pages.start), PageIndex(pages.end.max(1) - 1))?;
        let started = Instant::now();
        let report = self.store.park(&selection, &mut |_| ControlFlow::Continue(()))?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Pass { report: report.result()?, seconds })
    }

    /// The number of pages that the store has room for.
    pub fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Reads every page back and compares it.
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

/// Bytes that a medium needs so that so many pages fit in every layout, each with a header, and room to spare.
pub fn roomy_len(pages: u64) -> u64 {
    (1 << 20) + (pages * (PAGE_SIZE as u64 + 64) + (16 << 20)).next_multiple_of(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::park::medium;

    #[test]
    fn pages_are_parked_and_a_wrong_one_is_noticed() {
        for layout in [LayoutKind::Log, LayoutKind::Blocks] {
            let backing = medium::memory(roomy_len(300)).unwrap();
            let mut bed = Bed::new(layout, backing, 300, Content::Random).unwrap();
            bed.put(0..300).unwrap();
            assert_eq!(bed.park(0..300).unwrap().report.parked_pages, 300);
            bed.free((0..300).step_by(3)).unwrap();
            bed.put((1..300).step_by(3)).unwrap();
            bed.verify().unwrap();
            bed.store().write(17 * 4096, &[1; 4096]).unwrap();
            assert!(bed.verify().is_err());
        }
    }
}
