//! [`CachePool`]: jemalloc's caches for the threads that use an arena.

use super::freed::FreedBlocks;
use super::jemalloc;
use parking_lot::Mutex;

/// The caches of an arena.
#[derive(Default)]
pub(super) struct CachePool {
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
    pub(super) fn take(&self) -> Option<u32> {
        let mut caches = self.caches.lock();
        if let Some(cache) = caches.idle.pop() {
            return Some(cache);
        }
        let cache = jemalloc::create_cache().ok()?;
        caches.all.push(cache);
        Some(cache)
    }

    /// Empties the cache of a thread that ends, and releases the blocks that it had freed. Does nothing after
    /// [`CachePool::close`].
    pub(super) fn put(&self, cache: Option<u32>, freed: FreedBlocks) {
        let mut caches = self.caches.lock();
        if caches.is_closed {
            return;
        }
        // SAFETY: these are blocks of the arena, which exists: `close` waits for this lock.
        unsafe { freed.release() };
        if let Some(cache) = cache
            && jemalloc::flush_cache(cache).is_ok()
        {
            caches.idle.push(cache);
        }
    }

    /// Destroys all caches. No thread uses one.
    pub(super) fn close(&self) {
        let mut caches = self.caches.lock();
        caches.is_closed = true;
        // Destroying a cache that exists cannot fail.
        caches.all.drain(..).for_each(|cache| drop(jemalloc::destroy_cache(cache)));
    }
}
