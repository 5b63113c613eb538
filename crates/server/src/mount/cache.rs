//! The cache of remote images, as a fetcher has opened it.
//!
//! A folder that cannot be used is no error: images are read without a cache, and users see the reason.

use pagefold_control::media::CacheConfig;
use pagefold_control::report::mount::CacheReport;
use pagefold_remote::cache::{Cache, CacheStats, CacheUse, Key};
use std::sync::Arc;

/// A cache, or the reason that there is none.
#[derive(Clone)]
pub struct OpenedCache {
    config: CacheConfig,
    cache: Result<Arc<Cache>, String>,
}

impl OpenedCache {
    /// Opens the folder with the rights of the calling thread. `report` gets a sentence when the cache begins to fail later.
    pub fn open(config: &CacheConfig, report: fn(&str)) -> Self {
        // A cache that cannot grow must not end the process.
        pagefold_sys::signal::ignore_file_size_signal();
        let opened = Cache::open(&config.folder, config.size_bytes, Box::new(report));
        let cache = opened.map_err(|e| format!("remote images are not cached: {e}"));
        OpenedCache { config: config.clone(), cache }
    }

    /// The reason that there is no cache, for the user.
    pub fn warning(&self) -> Option<&str> {
        self.cache.as_ref().err().map(String::as_str)
    }

    /// The use of the cache by a source, whose contents have a key if all its bytes are verified.
    pub(crate) fn for_source(&self, content: Option<Key>) -> Option<CacheUse> {
        let cache = self.cache.as_ref().ok()?.clone();
        Some(CacheUse { cache, content })
    }

    /// Removes contents that have proved wrong.
    pub(crate) fn remove(&self, content: &Key) {
        self.cache.iter().for_each(|cache| cache.remove(content));
    }

    /// The present report. Looks at each file of the cache.
    pub fn report(&self) -> CacheReport {
        let (stats, used_bytes, error) = match &self.cache {
            Ok(cache) => {
                let stats = cache.stats();
                (stats.clone(), cache.used_bytes(), stats.error)
            }
            Err(e) => (CacheStats::default(), 0, Some(e.clone())),
        };
        CacheReport {
            folder: self.config.folder.clone(),
            size_bytes: self.config.size_bytes,
            used_bytes,
            hit_bytes: stats.hit_bytes,
            written_bytes: stats.written_bytes,
            evicted_bytes: stats.evicted_bytes,
            refused_blocks: stats.refused_blocks,
            waits: stats.waits,
            error,
        }
    }
}
