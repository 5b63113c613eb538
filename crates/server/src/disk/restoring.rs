//! [`Restoring`]: a restore that goes on while the disk is used, and [`RestoreThread`], which fetches all pages.
//!
//! The thread goes through the indexes, of the newest file first, and lets the store fetch each page that it does not have. It
//! steps aside for readers. At the memory limit of a disk without a backing it waits; the rest stays in the file. Pages that
//! cannot be read are counted, and tried again after a while. When the store has all pages, the restore ends, and the files
//! are closed.

use super::saved_source::SavedSource;
use crate::log;
use pagefold_control::report::disk::RestoringReport;
use pagefold_control::text::counted;
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_saved::Place;
use pagefold_store::{Store, StoreError};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread waits for readers.
const YIELD_PAUSE: Duration = Duration::from_millis(1);
/// How long it waits for memory before it looks again.
const MEMORY_PAUSE: Duration = Duration::from_secs(1);
/// The same on a disk with a backing.
const WRITEBACK_PAUSE: Duration = Duration::from_millis(50);
/// Memory below the limit with which it goes on, bytes.
const FREE_BYTES: u64 = 256 << 10;
/// Pages that are counted before the thread looks whether it is to end.
const COUNTED_PAGES: usize = 1 << 20;
/// How long it waits before it tries again to read pages that it could not read.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// A restore in progress.
pub struct Restoring {
    /// `None` when it has ended.
    source: Mutex<Option<Arc<SavedSource>>>,
    total_pages: u64,
    seen_pages: AtomicU64,
    waits_for_memory: AtomicBool,
    failures: Mutex<Failures>,
}

/// Pages that could not be read in the last pass.
#[derive(Default, Clone, PartialEq)]
struct Failures {
    pages: u64,
    /// The reason of the first one.
    first: Option<String>,
}

impl Restoring {
    /// That of a source which the store has.
    pub fn new(source: Arc<SavedSource>) -> Self {
        Restoring {
            total_pages: source.total_pages(),
            source: Mutex::new(Some(source)),
            seen_pages: AtomicU64::new(0),
            waits_for_memory: AtomicBool::new(false),
            failures: Mutex::default(),
        }
    }

    /// The files; `None` when the restore has ended.
    pub fn source(&self) -> Option<Arc<SavedSource>> {
        lock(&self.source).clone()
    }

    /// Its progress into `store`; `None` when it has ended.
    pub fn report(&self, store: &Store) -> Option<RestoringReport> {
        let path = self.source()?.files().first()?.path.clone();
        let Failures { pages, first } = lock(&self.failures).clone();
        Some(RestoringReport {
            path,
            seen_pages: self.seen_pages.load(Relaxed).min(self.total_pages),
            total_pages: self.total_pages,
            unreadable_pages: pages,
            first_unreadable: first,
            // The thread notices later that the limit was raised.
            waits_for_memory: self.waits_for_memory.load(Relaxed) && !has_room(store),
        })
    }

    /// Fetches all pages, again and again until none fails. Returns early when `end` says so.
    fn run(&self, store: &Store, end: &End) {
        let Some(source) = self.source() else { return };
        while let Some(failures) = self.pass(store, &source, end) {
            if failures.pages == 0 {
                store.end_restore();
                *lock(&self.source) = None;
                log::info(format_args!(
                    "the restore has ended: {}",
                    counted(self.total_pages, "page", "pages")
                ));
                return;
            }
            let former = std::mem::replace(&mut *lock(&self.failures), failures.clone());
            if former != failures {
                let pages = counted(failures.pages, "page", "pages");
                let first = failures.first.unwrap_or_default();
                log::error(format_args!("{pages} of the saved disk cannot be read, the first: {first}"));
            }
            if end.wait(FAILED_PAUSE) {
                return;
            }
        }
    }

    /// Fetches all pages once. Returns those that failed; `None` if it is to end.
    fn pass(&self, store: &Store, source: &SavedSource, end: &End) -> Option<Failures> {
        let mut failures = Failures::default();
        let leaves = match source.leaves() {
            Ok(leaves) => leaves,
            Err(e) => {
                return Some(Failures::of(
                    unfetched(store, 0..store.len_bytes().div_ceil(PAGE_SIZE as u64), end),
                    e,
                ));
            }
        };
        self.seen_pages.store(0, Relaxed);
        // The block that could not be read last: its other pages are not tried.
        let mut broken: Option<(usize, u64)> = None;
        for number in leaves {
            let leaf = match source.leaf(number) {
                Ok(leaf) => leaf,
                Err(e) => {
                    let pages = source.span_of_leaf(number);
                    failures.add(unfetched(store, pages, end), || e.to_string());
                    continue;
                }
            };
            for page in leaf.pages() {
                if end.is_requested() {
                    return None;
                }
                self.seen_pages.fetch_add(1, Relaxed);
                if !store.is_unfetched(PageIndex(page)) {
                    continue;
                }
                let place = source.locate(page);
                if broken.is_some() && block_of(&place) == broken {
                    failures.add(1, String::new);
                    continue;
                }
                if let Err(e) = self.fetch(store, source, PageIndex(page), end)? {
                    broken = block_of(&place);
                    failures.add(1, || e);
                }
            }
        }
        Some(failures)
    }

    /// Fetches a page, and waits for memory. Returns the reason if it cannot be read; `None` if the thread is to end.
    fn fetch(
        &self,
        store: &Store,
        source: &SavedSource,
        page: PageIndex,
        end: &End,
    ) -> Option<Result<(), String>> {
        if source.is_busy() && end.wait(YIELD_PAUSE) {
            return None;
        }
        loop {
            match store.fetch_ahead(page) {
                Ok(_) => return Some(Ok(())),
                Err(StoreError::NoMemory { .. }) => {
                    self.waits_for_memory.store(true, Relaxed);
                    // Writeback makes room all the time, and others take it.
                    match store.writeback() {
                        Some(_) => _ = end.wait(WRITEBACK_PAUSE),
                        None => while !end.wait(MEMORY_PAUSE) && !has_room(store) {},
                    }
                    self.waits_for_memory.store(false, Relaxed);
                    if end.is_requested() {
                        return None;
                    }
                }
                Err(e) => return Some(Err(e.to_string())),
            }
        }
    }
}

/// Whether there is memory below the limit to go on with.
fn has_room(store: &Store) -> bool {
    store.in_use_bytes().saturating_add(FREE_BYTES) <= store.mem_limit_bytes()
}

/// The number of pages in the range that the store does not have: each counts, because it is not known which of them are in
/// the file. Stops early when the thread is to end.
fn unfetched(store: &Store, pages: Range<u64>, end: &End) -> u64 {
    let is_unfetched = |page: &u64| store.is_unfetched(PageIndex(*page));
    let counts = pages.clone().step_by(COUNTED_PAGES).take_while(|_| !end.is_requested()).map(|start| {
        (start..pages.end.min(start + COUNTED_PAGES as u64)).filter(is_unfetched).count() as u64
    });
    // Also if the thread is to end, there is something left to do.
    counts.sum::<u64>().max(end.is_requested().into())
}

fn block_of(place: &io::Result<Option<(usize, Place)>>) -> Option<(usize, u64)> {
    place.as_ref().ok()?.map(|(file, place)| (file, place.offset))
}

impl Failures {
    fn of(pages: u64, reason: String) -> Self {
        let mut failures = Failures::default();
        failures.add(pages, || reason);
        failures
    }

    fn add(&mut self, pages: u64, reason: impl FnOnce() -> String) {
        self.pages += pages;
        if pages > 0 {
            self.first.get_or_insert_with(reason);
        }
    }
}

/// The thread of a restore. Dropping it ends it.
pub struct RestoreThread {
    end: Arc<End>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the thread is to end.
#[derive(Default)]
struct End {
    is_requested: Mutex<bool>,
    requested: Condvar,
}

impl End {
    fn is_requested(&self) -> bool {
        *lock(&self.is_requested)
    }

    /// Waits for so long, or until the end is requested. Returns whether it is.
    fn wait(&self, timeout: Duration) -> bool {
        let guard = lock(&self.is_requested);
        let waited = self.requested.wait_timeout_while(guard, timeout, |requested| !*requested);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl RestoreThread {
    /// Starts it.
    pub fn start(store: Arc<Store>, restoring: Arc<Restoring>) -> io::Result<Self> {
        let end = Arc::<End>::default();
        let run = {
            let end = end.clone();
            move || restoring.run(&store, &end)
        };
        let thread = Some(std::thread::Builder::new().name("restore".into()).spawn(run)?);
        Ok(RestoreThread { end, thread })
    }
}

impl Drop for RestoreThread {
    fn drop(&mut self) {
        *lock(&self.end.is_requested) = true;
        self.end.requested.notify_all();
        // Its panic has ended the process.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
