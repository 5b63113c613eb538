//! The pool: its size classes and its operations.

use crate::class::{Class, MoveResult, likely_pieces, pieces, word};
use crate::error::SourceError;
use crate::frame::{Frames, Handle, Pos};
use crate::owner::Owner;
use crate::size_class::{CLASS_COUNT, OBJECT_LEN_MAX, OWNER_LEN, class_index, stride};
use crate::source::FrameSource;
use pagefold_sys::prefetch;
use parking_lot::Mutex;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The owners of a pool's objects, which the pool calls to move an object.
///
/// # Safety
/// The pool reuses the old place of an object after a successful call. An implementation returns true only if `owner`
/// had `old`, no thread is reading through it, and all later readers get `new`.
pub unsafe trait Relocate {
    /// Replaces `old` by `new` and returns true, if `owner` still has `old`. The bytes are copied already.
    ///
    /// Called with a class's lock held: it must not call into the pool, and must not wait for anything that might. It
    /// may always return false, for example because the owner is locked; then the object stays.
    fn relocate(&self, owner: Owner, old: Handle, new: Handle) -> bool;
}

/// The reason why an object was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// The object needs `frames` frames, and too few are ready. The caller releases all locks and streams, takes the
    /// frames with a [`BackedFrames`](crate::BackedFrames), and retries.
    #[error("{frames} frames of memory are needed, and too few are ready")]
    NotReady {
        /// Number of frames.
        frames: usize,
    },
    /// The object needs `frames` frames, and they cannot be taken.
    #[error("{source}")]
    NoMemory {
        /// Number of frames.
        frames: usize,
        /// The reason.
        source: SourceError,
    },
}

/// How an object's place fits another object; see [`Pool::fit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFit {
    /// It is too short.
    TooShort,
    /// The other object would have a place of the same length.
    Same,
    /// The other object fits, and a shorter place would do.
    Longer,
}

/// The result of [`Pool::compact`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compaction {
    /// Frames that became free.
    pub freed_frames: u64,
    /// Holes were left, because other threads were using the objects that would have filled them.
    pub is_hindered: bool,
}

/// The counts of one size class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes per object, owner word included.
    pub stride_bytes: usize,
    /// Objects.
    pub live: u64,
    /// Holes between objects.
    pub holes: u64,
    /// Frames.
    pub frames: u64,
}

/// The most moves per freed object: with two, holes are closed faster than they appear.
const MOVES_PER_FREE: usize = 2;
/// The most moves of [`Pool::compact`] before it releases the class's lock.
const MOVES_PER_LOCK: usize = 32;
/// Holes that a class may have in addition to a share of its objects.
const HOLES_FREE: u64 = 2;
/// The share: one hole for this many objects.
const HOLES_SHARE: u64 = 128;

/// A dense allocator of objects of 1 to [`OBJECT_LEN_MAX`] bytes.
pub struct Pool {
    classes: Box<[Mutex<Class>]>,
    source: Arc<dyn FrameSource>,
    moved: AtomicU64,
    frames_compacted: AtomicU64,
}

impl Pool {
    /// Creates an empty pool that takes its frames from `source`.
    pub fn new(source: Arc<dyn FrameSource>) -> Self {
        Self::of((0..CLASS_COUNT).map(|i| Class::new(stride(i))), source)
    }

    /// A pool of these classes, one of each, by size.
    pub(crate) fn of(classes: impl Iterator<Item = Class>, source: Arc<dyn FrameSource>) -> Self {
        let classes = classes.map(Mutex::new).collect();
        Pool { classes, source, moved: AtomicU64::new(0), frames_compacted: AtomicU64::new(0) }
    }

    /// The frame source.
    pub fn source(&self) -> &dyn FrameSource {
        &*self.source
    }

    /// Stores `bytes`, 1 to [`OBJECT_LEN_MAX`] of them, for `owner`. Never sleeps.
    #[inline]
    pub fn try_put(&self, bytes: &[u8], owner: Owner) -> Result<Handle, PutError> {
        self.try_put_from(&mut Frames::none(), bytes, owner)
    }

    /// Like [`Pool::try_put`], but takes the frames that the object needs out of `backed` first. Succeeds if `backed`
    /// contains as many as an earlier error named.
    pub fn try_put_from(&self, backed: &mut Frames, bytes: &[u8], owner: Owner) -> Result<Handle, PutError> {
        debug_assert!((1..=OBJECT_LEN_MAX).contains(&bytes.len()));
        let index = class_index(bytes.len());
        let grown = self.classes[index].lock().allocate(&*self.source, backed);
        let pos = grown.map_err(|e| match e.source {
            None => PutError::NotReady { frames: e.frames },
            Some(source) => PutError::NoMemory { frames: e.frames, source },
        })?;
        let arena = self.source.arena();
        // SAFETY: the place was just allocated and is marked busy, so no other thread accesses it, and objects of its
        // class have at least so many bytes.
        unsafe { self.copy_in(pos, bytes) };
        // Release: a thread that reads the owner word sees the object's bytes (`Class::move_last`).
        word(arena, pos).store(owner.to_bits(), Ordering::Release);
        Ok(Handle::new(index, pos))
    }

    /// Whether the place of an object is long enough for an object of `len_bytes`, and whether a place of a smaller
    /// class is.
    pub fn fit(&self, handle: Handle, len_bytes: usize) -> ObjectFit {
        match class_index(len_bytes).cmp(&handle.class_index()) {
            std::cmp::Ordering::Less => ObjectFit::Longer,
            std::cmp::Ordering::Equal => ObjectFit::Same,
            std::cmp::Ordering::Greater => ObjectFit::TooShort,
        }
    }

    /// Overwrites the bytes of an object with `bytes`, which fit its place, see [`Pool::fit`]. Takes no memory and never
    /// sleeps.
    ///
    /// `lock_owner` is called first, with the lock of the object's class held: it must not call into the pool, and must
    /// not wait. It locks the owner if that still has the handle, and returns the guard, which is returned when the
    /// bytes are written. If it returns `None`, nothing is changed.
    ///
    /// # Safety
    /// `handle` came from this pool; it may be outdated. Its place is long enough. If `lock_owner` returns a guard, the object is live, and until
    /// the guard is dropped no other thread reads or frees it, and [`Relocate::relocate`] refuses to move it.
    pub unsafe fn overwrite<G>(
        &self,
        handle: Handle,
        bytes: &[u8],
        lock_owner: impl FnOnce() -> Option<G>,
    ) -> Option<G> {
        debug_assert!(self.fit(handle, bytes.len()) != ObjectFit::TooShort);
        // Locked, so that no move of the object is between its copy and its exchange, and would bring the old bytes
        // back.
        let _class = self.classes[handle.class_index()].lock();
        let guard = lock_owner()?;
        // SAFETY: the object is live, and its owner and its class are locked, so no other thread accesses its bytes;
        // its place is long enough.
        unsafe { self.copy_in(handle.pos(), bytes) };
        Some(guard)
    }

    /// Copies `bytes` into the place at `pos`, behind the owner word.
    ///
    /// # Safety
    /// The place belongs to a class whose objects have at least so many bytes, and no other thread accesses these.
    #[inline]
    unsafe fn copy_in(&self, pos: Pos, bytes: &[u8]) {
        let mut at = 0;
        for (piece, len) in pieces(self.source.arena(), pos, OWNER_LEN, bytes.len()) {
            if len > 0 {
                // SAFETY: no other thread accesses the bytes (the caller's duty); the piece is `len` bytes inside a
                // frame, and the source slice has as many.
                unsafe { std::ptr::copy_nonoverlapping(bytes[at..at + len].as_ptr(), piece, len) };
            }
            at += len;
        }
    }

    /// Copies the object's first `dst.len()` bytes out and returns them.
    ///
    /// # Safety
    /// - `handle` came from this pool, is live, and its object has at least `dst.len()` bytes;
    /// - until the call returns no thread frees it, and [`Relocate::relocate`] refuses to move it.
    pub unsafe fn copy_out<'a>(&self, handle: Handle, dst: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let len_bytes = dst.len();
        // SAFETY: `dst` is writable for its length, and not in a frame, which no reference leads to; the rest is the
        // caller's duty.
        unsafe { self.copy_to(handle, dst.as_mut_ptr().cast(), len_bytes) };
        // SAFETY: `copy_to` has initialised every byte of `dst`.
        unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), len_bytes) }
    }

    /// Copies the object's first `dst.len()` bytes over the contents of `dst`.
    ///
    /// # Safety
    /// As for [`Pool::copy_out`].
    pub unsafe fn copy_over(&self, handle: Handle, dst: &mut [u8]) {
        // SAFETY: `dst` is writable for its length, and not in a frame, which no reference leads to; the rest is the
        // caller's duty.
        unsafe { self.copy_to(handle, dst.as_mut_ptr(), dst.len()) };
    }

    /// Copies the object's first `len_bytes` bytes to `dst`.
    ///
    /// # Safety
    /// As for [`Pool::copy_out`], and `dst` is writable for `len_bytes` bytes that lie in no frame.
    #[inline]
    unsafe fn copy_to(&self, handle: Handle, dst: *mut u8, len_bytes: usize) {
        let mut at = 0;
        for (piece, len) in pieces(self.source.arena(), handle.pos(), OWNER_LEN, len_bytes) {
            if len > 0 {
                // SAFETY: the object is live and stays in place (the caller's duty), so its bytes are
                // initialised and unchanging; the piece is `len` bytes inside a frame, and the lengths of the pieces
                // add up to `len_bytes`, for which `dst` is writable.
                unsafe { std::ptr::copy_nonoverlapping(piece, dst.add(at), len) };
            }
            at += len;
        }
    }

    /// Prefetches the object's first `len_bytes` bytes, at most [`OBJECT_LEN_MAX`], before they are copied out.
    ///
    /// A hint: the object may have been freed or moved, and the handle may be any number.
    #[inline]
    pub fn prefetch(&self, handle: Handle, len_bytes: usize) {
        for (piece, len) in likely_pieces(self.source.arena(), handle.pos(), OWNER_LEN, len_bytes) {
            prefetch::lines(piece, len);
        }
    }

    /// Frees an object, and compacts its class by moving other objects with their owners' consent.
    ///
    /// # Safety
    /// `handle` came from this pool and is live; no other thread reads or frees it; and `owners`, the owners of this
    /// pool's objects, no longer return it to any thread.
    pub unsafe fn free(&self, handle: Handle, owners: &dyn Relocate) {
        let arena = self.source.arena();
        let emptied = {
            let mut class = self.classes[handle.class_index()].lock();
            class.release(arena, handle.pos());
            let mut emptied = class.trim(&*self.source);
            for _ in 0..MOVES_PER_FREE {
                if class.holes() <= HOLES_FREE + class.live() / HOLES_SHARE {
                    break;
                }
                let MoveResult::Moved = self.move_last(&mut class, handle.class_index(), owners) else {
                    break;
                };
                emptied += class.trim(&*self.source);
            }
            emptied
        };
        if emptied > 0 {
            self.source.shrink();
        }
    }

    /// Compacts all classes: closes all holes that can be closed now.
    ///
    /// Runs concurrently with all other operations, and holds a class's lock for a few moves at a time.
    ///
    /// # Safety
    /// `owners` are the owners of this pool's objects, not of another's.
    pub unsafe fn compact(&self, owners: &dyn Relocate) -> Compaction {
        let mut done = Compaction::default();
        for index in 0..self.classes.len() {
            while self.compact_some(index, owners, &mut done) {
                std::thread::yield_now();
            }
            self.source.shrink();
        }
        self.frames_compacted.fetch_add(done.freed_frames, Ordering::Relaxed);
        done
    }

    /// Makes a few moves in one class. Returns whether more may be possible now.
    fn compact_some(&self, index: usize, owners: &dyn Relocate, done: &mut Compaction) -> bool {
        let mut class = self.classes[index].lock();
        for _ in 0..MOVES_PER_LOCK {
            match self.move_last(&mut class, index, owners) {
                MoveResult::Moved => done.freed_frames += class.trim(&*self.source),
                MoveResult::NothingToMove => return false,
                MoveResult::Busy => {
                    done.is_hindered = true;
                    return false;
                }
            }
        }
        true
    }

    fn move_last(&self, class: &mut Class, index: usize, owners: &dyn Relocate) -> MoveResult {
        let mut exchange = |owner: Owner, old: Pos, new: Pos| {
            owners.relocate(owner, Handle::new(index, old), Handle::new(index, new))
        };
        let moved = class.move_last(self.source.arena(), &mut exchange);
        if matches!(moved, MoveResult::Moved) {
            self.moved.fetch_add(1, Ordering::Relaxed);
        }
        moved
    }

    /// The counts of all classes that have frames.
    pub fn class_stats(&self) -> Vec<ClassStats> {
        let count = |(index, class): (usize, &Mutex<Class>)| {
            let class = class.lock();
            let (live, holes, frames) = (class.live(), class.holes(), class.frames());
            ClassStats { stride_bytes: stride(index), live, holes, frames }
        };
        self.classes.iter().enumerate().map(count).filter(|c| c.frames > 0).collect()
    }

    /// Objects moved since the pool was created.
    pub fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Frames freed by [`Pool::compact`] since the pool was created.
    pub fn frames_compacted(&self) -> u64 {
        self.frames_compacted.load(Ordering::Relaxed)
    }
}
