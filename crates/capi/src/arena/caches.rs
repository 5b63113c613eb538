//! Each thread's cache of blocks for each arena, so that most calls take no lock.
//!
//! jemalloc's automatic cache of a thread serves all arenas but those with hooks. Here a thread takes a cache from the
//! arena's pool when it first uses the arena, and returns it, empty, when it ends. Beside it, the thread keeps a few
//! larger blocks.

use super::freed::FreedBlocks;
use super::inner::Inner;
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

/// The cache of a thread for one arena.
struct Entry {
    /// The arena's number, which no other arena of the process has had.
    id: u64,
    cache: Option<u32>,
    freed: FreedBlocks,
    arena: Weak<Inner>,
}

/// The entries of a thread.
struct Entries(Vec<Entry>);

impl Drop for Entries {
    fn drop(&mut self) {
        for entry in self.0.drain(..) {
            if let Some(arena) = entry.arena.upgrade()
                && arena.shared.check_process().is_ok()
            {
                arena.caches.put(entry.cache, entry.freed);
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
    with_entry(arena, |entry| entry.cache).flatten()
}

/// Takes a block that the calling thread keeps.
pub(crate) fn take_freed(arena: &Arc<Inner>, usable: usize, alignment: usize) -> Option<*mut c_void> {
    with_entry(arena, |entry| entry.freed.take(usable, alignment)).flatten()
}

/// Keeps a freed block for the calling thread. Returns the blocks that are to be released instead.
pub(crate) fn keep(arena: &Arc<Inner>, block: *mut c_void, usable: usize) -> FreedBlocks {
    let freed = with_entry(arena, |entry| entry.freed.push(block, usable));
    freed.unwrap_or_else(|| FreedBlocks::one(block, usable))
}

/// Returns all blocks that the calling thread keeps.
pub(crate) fn take_all_freed(arena: &Arc<Inner>) -> FreedBlocks {
    with_entry(arena, |entry| std::mem::take(&mut entry.freed)).unwrap_or_default()
}

/// Calls a function with the calling thread's entry of an arena. A thread that is ending has none.
#[inline]
fn with_entry<T>(arena: &Arc<Inner>, call: impl FnOnce(&mut Entry) -> T) -> Option<T> {
    let find = |entries: &RefCell<Entries>| {
        let mut entries = entries.borrow_mut();
        let found = entries.0.iter().position(|entry| entry.id == arena.id);
        let at = found.unwrap_or_else(|| entries.add(arena));
        call(&mut entries.0[at])
    };
    ENTRIES.try_with(find).ok()
}

impl Entries {
    /// Adds an entry and returns its place.
    #[cold]
    fn add(&mut self, arena: &Arc<Inner>) -> usize {
        self.0.retain(|entry| entry.arena.strong_count() > 0);
        let (cache, freed) = (arena.caches.take(), FreedBlocks::default());
        self.0.push(Entry { id: arena.id, cache, freed, arena: Arc::downgrade(arena) });
        self.0.len() - 1
    }
}
