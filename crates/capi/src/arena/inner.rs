//! [`Inner`]: a part of a region with jemalloc's arena of it.

use super::hooks::Hooks;
use super::jemalloc;
use super::pool::CachePool;
use super::sizes::BlockSizes;
use crate::error::{Code, Error};
use crate::shared::Shared;
use pagefold_page::PAGE_SIZE;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The least part: jemalloc's first piece has this size.
const LEN_MIN_BYTES: usize = 2 << 20;
/// Memory of freed blocks of this size is released at once if memory is tight. Otherwise, and for smaller ones,
/// jemalloc releases it after [`KEEP_MS`], once no thread keeps the block.
pub(super) const LARGE_BYTES: usize = 1 << 20;
const KEEP_MS: isize = 1000;

/// An arena: a part of a region, and jemalloc's arena that has its memory from there.
pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    /// A number that no other arena of the process has had.
    pub(super) id: u64,
    /// Offsets in the region, whole pages.
    part: Range<usize>,
    hooks: Box<Hooks>,
    /// jemalloc's number of the arena, which others may have later.
    pub(super) index: u32,
    pub(super) sizes: BlockSizes,
    pub(super) caches: CachePool,
}

/// Reserves the whole pages of a part for an arena, and makes them zero.
fn reserve(shared: &Shared, start: usize, len_bytes: usize) -> Result<Range<usize>, Error> {
    // Locked in this order, and by a change of the size too.
    let region = shared.region()?;
    let asked = shared.locate(start, len_bytes)?;
    let part = asked.start.next_multiple_of(PAGE_SIZE)..asked.end / PAGE_SIZE * PAGE_SIZE;
    if part.len() < LEN_MIN_BYTES {
        return Err(Error::invalid(format_args!("an arena needs at least {LEN_MIN_BYTES} bytes")));
    }
    let mut arenas = shared.arenas.lock();
    if arenas.iter().any(|other| part.start < other.end && other.start < part.end) {
        return Err(Error::new(Code::Busy, "another arena has some of these bytes"));
    }
    // SAFETY: the caller gives the part up, and Rust has no references into a region of C.
    unsafe { region.discard_shared(part.clone()) }?;
    arenas.push(part.clone());
    Ok(part)
}

impl Inner {
    /// Makes an arena of the whole pages of a part.
    pub(super) fn new(shared: &Arc<Shared>, start: usize, len_bytes: usize) -> Result<Self, Error> {
        let part = reserve(shared, start, len_bytes)?;
        let release = |error| {
            shared.arenas.lock().retain(|other| *other != part);
            error
        };
        let sizes = BlockSizes::new(shared.start + part.start, part.len()).map_err(release)?;
        let hooks = Hooks::new(shared.clone(), &part);
        // SAFETY: the hooks are written for jemalloc, and live as long as this, which destroys the arena.
        let index = unsafe { jemalloc::create_arena(hooks.as_table()) }.map_err(release)?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let caches = CachePool::default();
        let arena = Inner { shared: shared.clone(), id, part, hooks, index, sizes, caches };
        if let Err(error) = jemalloc::set_up_arena(index, KEEP_MS) {
            // Nobody has had a block of it. The first error is the one to report.
            let _ = arena.close();
            return Err(error);
        }
        Ok(arena)
    }

    /// Returns all blocks. Nobody uses the arena.
    pub(super) fn close(&self) -> Result<(), Error> {
        self.caches.close();
        self.hooks.is_closing.store(true, Relaxed);
        // SAFETY: the caches are gone, and the caller guarantees that nobody uses the arena.
        unsafe { jemalloc::destroy_arena(self.index) }?;
        // Pinned pages stay as they are: the part belongs to the caller again.
        let region = self.shared.region()?;
        // SAFETY: the blocks are gone, and Rust has no references into a region of C.
        let _ = unsafe { region.discard_shared(self.part.clone()) };
        drop(region);
        self.shared.arenas.lock().retain(|part| *part != self.part);
        Ok(())
    }

    /// Refuses a block that cannot be of this arena.
    #[inline]
    pub(super) fn check(&self, block: *const c_void) -> Result<(), Error> {
        match self.part.contains(&block.addr().wrapping_sub(self.shared.start)) {
            true => Ok(()),
            false => Err(Error::new(
                Code::Range,
                format_args!("the block {:#x} is not of this arena", block.addr()),
            )),
        }
    }
}
