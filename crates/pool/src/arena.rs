//! The real source of frames: one reserved range of address space.
//!
//! One range, so that a frame's address is a multiplication and a handle needs no
//! table. Beside it runs an array of links, two 32-bit frame numbers per frame:
//! they chain free frames here and a class's frames in the pool, so that neither
//! ever allocates. A frame is in one of four conditions:
//!
//! - *fresh*: never touched; a counter marks where these begin;
//! - *returned*: given back to the kernel; a list;
//! - *ready*: backed by memory and free; a list;
//! - *in use*: taken; counted by purpose, and the count of frames for objects is what the limit is
//!   checked against.
//!
//! It does not decide how many frames stand ready: [`Reserve`](crate::Reserve) does
//! where that matters.

use crate::frame::{FRAME_LEN, FrameId};
use crate::source::{PageSource, Purpose, SourceError, Take};
use pagefold_sys::mem::{Parts, Reservation};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Frames made ready at once: enough to hide the cost of the system call, little enough to waste.
const BATCH: u32 = 32;
/// Ready frames kept besides a reserve; more are returned to the kernel. 4 MiB: what is stored swings by
/// about that much when pages of one kind replace pages of another, and each frame returned too early
/// costs two system calls.
const READY_MAX: u32 = 1024;
/// Ready frames returned at once. Returning interrupts every CPU that runs a thread of this process, so it is
/// done seldom and for many.
const RETURN_BATCH: usize = 512;
const _: () = assert!(READY_MAX > BATCH && READY_MAX as usize > RETURN_BATCH);
/// Bytes of links per frame.
const LINK_LEN: usize = 8;
/// Frames of a limit that is none.
const NO_LIMIT: u64 = u64::MAX / FRAME_LEN as u64;
/// How long a write waits for an empty reserve before it fails.
const RESERVE_WAIT: Duration = Duration::from_millis(500);

/// Address space for frames, and the free ones.
pub struct Arena {
    frames: Reservation,
    links: Reservation,
    capacity: u32,
    free: Mutex<Free>,
    /// Locked before `free`, by who returns frames.
    returning: Mutex<Returning>,
    in_use: AtomicU64,
    slots_in_use: AtomicU64,
    in_use_max: AtomicU64,
    limit: AtomicU64,
    /// A request has come since the reserve last looked.
    used: AtomicBool,
    /// Signalled when the ready list of an arena with a reserve grows or falls below its target.
    pub(crate) ready_changed: Condvar,
}

/// Frames on their way back to the kernel. Touched when made: threads that may not ask for memory fill it, and their
/// stacks may not be touched as deep.
struct Returning {
    frames: Box<[u32]>,
    /// How many there are.
    len: usize,
    parts: Parts,
}

impl Returning {
    fn new() -> Self {
        // Not zeroes, which might be memory that was never touched.
        let frames = vec![u32::MAX; RETURN_BATCH].into();
        Returning { frames, len: 0, parts: Parts::new(RETURN_BATCH) }
    }
}

/// The frames not in use.
pub(crate) struct Free {
    ready: FrameId,
    pub(crate) ready_len: u32,
    returned: FrameId,
    fresh: u32,
    /// Ready frames that a reserve keeps; 0 without one, and then refilling is the taker's work.
    pub(crate) reserve_target: u32,
}

/// What an arena holds, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaStats {
    /// Frames in use for objects.
    pub in_use_bytes: u64,
    /// Frames in use for slots.
    pub slots_bytes: u64,
    /// The most that was ever in use for objects since the last reset.
    pub in_use_max_bytes: u64,
    /// Free frames kept backed by memory.
    pub ready_bytes: u64,
    /// The limit on frames for objects; `u64::MAX` is none.
    pub limit_bytes: u64,
    /// Memory of the link array for all frames touched so far.
    pub link_bytes: u64,
}

fn bytes(frames: u64) -> u64 {
    frames.saturating_mul(FRAME_LEN as u64)
}

impl Arena {
    /// An arena for up to `len_bytes` bytes of frames, of which none is backed by memory yet.
    pub fn new(len_bytes: u64) -> Result<Self, SourceError> {
        let capacity = (len_bytes / FRAME_LEN as u64 + 1).min(u64::from(u32::MAX) - 1) as u32;
        // The links are populated in steps of a batch of frames; round up so that a step fits.
        let capacity = capacity.next_multiple_of(FRAME_LEN as u32 / LINK_LEN as u32);
        Ok(Arena {
            frames: Reservation::new(capacity as usize * FRAME_LEN)?,
            links: Reservation::new(capacity as usize * LINK_LEN)?,
            capacity,
            free: Mutex::new(Free {
                ready: FrameId::NIL,
                ready_len: 0,
                returned: FrameId::NIL,
                fresh: 0,
                reserve_target: 0,
            }),
            returning: Mutex::new(Returning::new()),
            in_use: AtomicU64::new(0),
            slots_in_use: AtomicU64::new(0),
            in_use_max: AtomicU64::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            used: AtomicBool::new(false),
            ready_changed: Condvar::new(),
        })
    }

    /// Sets the most bytes of frames that may be in use. Frames in use beyond it stay.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes / FRAME_LEN as u64, Relaxed);
    }

    /// Notes that the store is in use; see [`Reserve`](crate::Reserve).
    #[inline]
    pub fn mark_used(&self) {
        // Written only if need be: the line stays shared between the CPUs.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Whether the store was used since the last time this was asked.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    /// Starts the high-water mark anew from what is in use now.
    pub fn reset_in_use_max(&self) {
        self.in_use_max.store(self.in_use.load(Relaxed), Relaxed);
    }

    /// Bytes of frames in use for objects; locks nothing.
    pub fn in_use_bytes(&self) -> u64 {
        bytes(self.in_use.load(Relaxed))
    }

    /// The limit on frames for objects, bytes; `u64::MAX` is none. Locks nothing.
    pub fn limit_bytes(&self) -> u64 {
        match self.limit.load(Relaxed) {
            NO_LIMIT => u64::MAX,
            limit => bytes(limit),
        }
    }

    /// What the arena holds.
    pub fn stats(&self) -> ArenaStats {
        let (ready_len, fresh) = {
            let free = self.free.lock();
            (free.ready_len, free.fresh)
        };
        ArenaStats {
            in_use_bytes: self.in_use_bytes(),
            slots_bytes: bytes(self.slots_in_use.load(Relaxed)),
            in_use_max_bytes: bytes(self.in_use_max.load(Relaxed)),
            ready_bytes: bytes(u64::from(ready_len)),
            limit_bytes: self.limit_bytes(),
            link_bytes: u64::from(fresh) * LINK_LEN as u64,
        }
    }

    /// The first byte of a frame; valid while the arena lives.
    #[inline]
    pub fn frame_ptr(&self, frame: FrameId) -> *mut u8 {
        debug_assert!(frame.0 < self.capacity);
        // SAFETY: frame numbers are handed out below `capacity`, so the byte is inside the reservation.
        unsafe { self.frames.base().as_ptr().add(frame.0 as usize * FRAME_LEN) }
    }

    /// How many frames there is room for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether there is room for a frame of this number, which may be any number.
    pub(crate) fn contains(&self, frame: FrameId) -> bool {
        frame.0 < self.capacity
    }

    fn link(&self, frame: FrameId, which: usize) -> &AtomicU32 {
        debug_assert!(frame.0 < self.capacity);
        let offset = frame.0 as usize * LINK_LEN + which * 4;
        // SAFETY: frame numbers are below `capacity`, so the four bytes lie in the links' reservation.
        let at = unsafe { self.links.base().as_ptr().add(offset) };
        // SAFETY: aligned (the base is page-aligned, the offset a multiple of 4), zeroed by the kernel,
        // accessed only as an atomic, and valid as long as `self`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// The frame that follows in a chain or list.
    pub(crate) fn next(&self, frame: FrameId) -> FrameId {
        FrameId(self.link(frame, 0).load(Relaxed))
    }

    pub(crate) fn set_next(&self, frame: FrameId, next: FrameId) {
        self.link(frame, 0).store(next.0, Relaxed);
    }

    /// The frame that precedes in a chain.
    pub(crate) fn prev(&self, frame: FrameId) -> FrameId {
        FrameId(self.link(frame, 1).load(Relaxed))
    }

    pub(crate) fn set_prev(&self, frame: FrameId, prev: FrameId) {
        self.link(frame, 1).store(prev.0, Relaxed);
    }

    fn refund(&self, purpose: Purpose) {
        match purpose {
            Purpose::Objects => self.in_use.fetch_sub(1, Relaxed),
            Purpose::Slots => self.slots_in_use.fetch_sub(1, Relaxed),
        };
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock()
    }

    /// Counts one more frame in use, or says that the limit is reached.
    fn charge(&self, purpose: Purpose) -> Result<(), SourceError> {
        if purpose == Purpose::Slots {
            self.slots_in_use.fetch_add(1, Relaxed);
            return Ok(());
        }
        let limit = self.limit.load(Relaxed);
        let before = self.in_use.fetch_add(1, Relaxed);
        if before >= limit {
            self.in_use.fetch_sub(1, Relaxed);
            return Err(SourceError::Limit { limit_bytes: limit.saturating_mul(FRAME_LEN as u64) });
        }
        self.in_use_max.fetch_max(before + 1, Relaxed);
        Ok(())
    }

    /// Returns ready frames to the kernel until `keep` are left. Asks the kernel for nothing.
    ///
    /// Many at a time, because each return interrupts the other CPUs.
    pub(crate) fn return_ready(&self, keep: u32) {
        self.return_by(&mut self.returning.lock(), keep);
    }

    fn return_by(&self, returning: &mut Returning, keep: u32) {
        while self.take_ready(keep, returning) && self.return_taken(returning) {}
    }

    /// Takes frames off the ready list as long as more than `keep` are on it. False if there was none to take.
    fn take_ready(&self, keep: u32, returning: &mut Returning) -> bool {
        let mut free = self.free.lock();
        let count = (free.ready_len.saturating_sub(keep) as usize).min(RETURN_BATCH);
        for frame in &mut returning.frames[..count] {
            *frame = free.ready.0;
            free.ready = self.next(free.ready);
        }
        free.ready_len -= count as u32;
        returning.len = count;
        count > 0
    }

    /// Returns the frames that were taken; false if the kernel refused any.
    fn return_taken(&self, returning: &mut Returning) -> bool {
        let Returning { frames, len, parts } = returning;
        let frames = &mut frames[..*len];
        // In order, so that neighbours become one part.
        frames.sort_unstable();
        parts.clear();
        for &frame in frames.iter() {
            parts.push(&self.frames, frame as usize * FRAME_LEN, FRAME_LEN);
        }
        // SAFETY: the frames were on the ready list and are now on none, so nothing lives in them.
        let returned = unsafe { self.frames.discard_parts(parts) } / FRAME_LEN;
        let mut free = self.free.lock();
        // A kernel that refuses leaves a frame backed, which is what "ready" means.
        for (i, &frame) in frames.iter().enumerate() {
            let list = if i < returned { &mut free.returned } else { &mut free.ready };
            self.set_next(FrameId(frame), *list);
            *list = FrameId(frame);
        }
        free.ready_len += (frames.len() - returned) as u32;
        returned == frames.len()
    }

    /// Backs up to a batch of free frames with memory and makes them ready. Returns how many.
    pub(crate) fn make_ready(&self) -> Result<u32, SourceError> {
        let first = {
            let mut free = self.free.lock();
            if !free.returned.is_nil() {
                // Returned frames are scattered: one at a time, touched by one small populate call.
                let frame = free.returned;
                free.returned = self.next(frame);
                drop(free);
                return self.populate(frame, 1);
            }
            // Batches start at multiples of BATCH, so each page of links begins with one.
            let first = free.fresh;
            if first >= self.capacity {
                return Err(SourceError::Exhausted { frames: self.capacity });
            }
            free.fresh = (first + BATCH).min(self.capacity);
            first
        };
        self.populate(FrameId(first), BATCH.min(self.capacity - first))
    }

    /// Populates `count` frames from `first` and puts them on the ready list, or on the returned list
    /// if the kernel has no memory.
    fn populate(&self, first: FrameId, count: u32) -> Result<u32, SourceError> {
        let links_from = first.0 as usize * LINK_LEN;
        let links = match links_from.is_multiple_of(FRAME_LEN) {
            true => self.links.populate(links_from, FRAME_LEN),
            false => Ok(()),
        };
        let frames_from = first.0 as usize * FRAME_LEN;
        let result = links.and_then(|()| self.frames.populate(frames_from, count as usize * FRAME_LEN));
        let mut free = self.free.lock();
        for frame in (first.0..first.0 + count).rev().map(FrameId) {
            let list = if result.is_ok() { &mut free.ready } else { &mut free.returned };
            self.set_next(frame, *list);
            *list = frame;
        }
        result?;
        free.ready_len += count;
        self.ready_changed.notify_all();
        Ok(count)
    }
}

impl PageSource for Arena {
    fn try_take(&self, purpose: Purpose) -> Take {
        if let Err(limit) = self.charge(purpose) {
            return Take::Refused(limit);
        }
        let mut free = self.free.lock();
        let frame = free.ready;
        if frame.is_nil() {
            self.refund(purpose);
            return Take::Dry;
        }
        free.ready = self.next(frame);
        free.ready_len -= 1;
        if free.reserve_target > 0 && free.ready_len * 2 < free.reserve_target {
            self.ready_changed.notify_all();
        }
        Take::Frame(frame)
    }

    fn refill(&self) -> Result<(), SourceError> {
        {
            let mut free = self.free.lock();
            if free.reserve_target > 0 {
                // Refilling is the reserve's work: a write of this thread may be what frees memory, so
                // it must not ask the kernel for any, and waits only so long.
                self.ready_changed.notify_all();
                let empty = |free: &mut Free| free.ready.is_nil();
                self.ready_changed.wait_while_for(&mut free, empty, RESERVE_WAIT);
                return if free.ready.is_nil() { Err(SourceError::ReserveEmpty) } else { Ok(()) };
            }
        }
        self.make_ready().map(|_| ())
    }

    fn give(&self, frame: FrameId, purpose: Purpose) {
        let mut free = self.free.lock();
        self.set_next(frame, free.ready);
        free.ready = frame;
        free.ready_len += 1;
        self.refund(purpose);
    }

    fn relieve(&self) {
        let keep = {
            let free = self.free.lock();
            let keep = free.reserve_target + READY_MAX;
            if free.ready_len <= keep {
                return;
            }
            // Down by a batch, so that the next freed frames do not come here again at once.
            keep - RETURN_BATCH as u32
        };
        // Whoever is at it returns these too, or the next to come here.
        if let Some(mut returning) = self.returning.try_lock() {
            self.return_by(&mut returning, keep);
        }
    }

    fn arena(&self) -> &Arena {
        self
    }
}
