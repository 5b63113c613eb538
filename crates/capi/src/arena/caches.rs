//! Each thread's cache of blocks for each arena, so that most calls take no lock.
//!
//! jemalloc's automatic cache of a thread serves all arenas but those with hooks. Here a thread takes a cache from the
//! arena's pool when it first uses the arena, and returns it, empty, when it ends.

use super::{Inner, jemalloc};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// The caches of an arena.
#[derive(Default)]
pub(crate) struct CachePool {
    caches: Mutex<Caches>,
}

#[derive(Default)]
struct Caches {
    /// All that exist.
    all: Vec<u32>,
    /// Those that no thread has.
    idle: Vec<u32>,
    is_closed: bool,
}

impl CachePool {
    /// Returns a cache for a thread, or none if jemalloc has no more: there are 4094 in a process.
    fn take(&self) -> Option<u32> {
        let mut caches = self.caches.lock();
        if let Some(cache) = caches.idle.pop() {
            return Some(cache);
        }
        let cache = jemalloc::create_cache().ok()?;
        caches.all.push(cache);
        Some(cache)
    }

    /// Empties the cache of a thread that ends. Does nothing after [`CachePool::close`].
    fn put(&self, cache: u32) {
        let mut caches = self.caches.lock();
        if !caches.is_closed && jemalloc::flush_cache(cache).is_ok() {
            caches.idle.push(cache);
        }
    }

    /// Destroys all caches. No thread uses one.
    pub(crate) fn close(&self) {
        let mut caches = self.caches.lock();
        caches.is_closed = true;
        // Destroying a cache that exists cannot fail.
        caches.all.drain(..).for_each(|cache| drop(jemalloc::destroy_cache(cache)));
    }
}

/// The cache of a thread for one arena.
struct Entry {
    /// The arena's number, which no other arena of the process has had.
    id: u64,
    cache: Option<u32>,
    arena: Weak<Inner>,
}

/// The entries of a thread.
struct Entries(Vec<Entry>);

impl Drop for Entries {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            if let (Some(cache), Some(arena)) = (entry.cache, entry.arena.upgrade())
                && arena.shared.check_process().is_ok()
            {
                arena.caches.put(cache);
            }
        }
    }
}

thread_local! {
    static ENTRIES: RefCell<Entries> = const { RefCell::new(Entries(Vec::new())) };
}

/// Returns the calling thread's cache for an arena. A thread that is ending has none.
#[inline]
pub(crate) fn cache(arena: &Arc<Inner>) -> Option<u32> {
    let found = |entries: &RefCell<Entries>| {
        let mut entries = entries.borrow_mut();
        match entries.0.iter().find(|entry| entry.id == arena.id) {
            Some(entry) => entry.cache,
            None => entries.add(arena),
        }
    };
    ENTRIES.try_with(found).ok().flatten()
}

impl Entries {
    #[cold]
    fn add(&mut self, arena: &Arc<Inner>) -> Option<u32> {
        self.0.retain(|entry| entry.arena.strong_count() > 0);
        let cache = arena.caches.take();
        self.0.push(Entry { id: arena.id, cache, arena: Arc::downgrade(arena) });
        cache
    }
}
