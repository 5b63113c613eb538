//! The real source of frames: one reserved range of address space.
//!
//! With one range, the address of a frame is a multiplication, and a handle needs no table. A second range contains
//! an array of links, two 32-bit frame numbers per frame. They chain free frames here, and the frames of a class in
//! the pool, so neither allocates. A frame is in one of four states:
//!
//! - *fresh*: never touched; a counter marks the first of these;
//! - *returned*: returned to the kernel; in a list;
//! - *ready*: free and backed by memory; in a list;
//! - *in use*: taken; counted by purpose. The count for objects is compared with the limit.
//!
//! Locks: `free`, the mutex of the free lists, is held for a few instructions and never during a system call.
//! `returning` guards the frames that are being returned to the kernel; `reserve_queue` is the fair mutex on which
//! writers queue for an empty reserve. Lock order: `returning` or `reserve_queue` first, then `free`.
//! [`Reserve`](crate::Reserve) decides how many frames are kept ready for a device used as swap.

mod frame_source;
#[cfg(not(miri))]
mod recovered;

use crate::error::SourceError;
use crate::frame::{FRAME_LEN, Frame, FrameId, Frames};
#[cfg(miri)]
use crate::heap::{DiscardBatch, Reservation};
#[cfg(not(miri))]
use pagefold_sys::mem::{DiscardBatch, Reservation};
use parking_lot::{Condvar, FairMutex, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Frames made ready at once: enough to amortise the system call, few enough to waste.
const BATCH: u32 = 32;
/// Ready frames kept in addition to a reserve; more are returned to the kernel. 4 MiB: the memory in use varies by
/// about that much when pages of one kind replace pages of another, and each frame returned too early costs two
/// system calls.
const READY_MAX: u32 = 1024;
/// Ready frames returned at once. Returning interrupts each CPU that runs a thread of this process, so it is done
/// rarely and for many frames.
const RETURN_BATCH: usize = 512;
const _: () = assert!(READY_MAX > BATCH && READY_MAX as usize > RETURN_BATCH);
/// Bytes of links per frame.
pub const LINK_LEN: usize = 8;
const LINKS_IN_PAGE: u64 = (FRAME_LEN / LINK_LEN) as u64;
/// The value of `limit` that means no limit.
const NO_LIMIT: u64 = u64::MAX / FRAME_LEN as u64;
/// How long a write waits for an empty reserve to which no frame is added, before it fails.
const RESERVE_WAIT: Duration = Duration::from_secs(1);
/// The longest part of that wait in one sleep. A sleep that took longer, because the process was stopped, counts as two.
const RESERVE_SLEEP: Duration = Duration::from_millis(50);

/// The number of the next arena.
static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);

/// The address space of frames, and the lists of free ones.
pub struct Arena {
    /// Which arena of the process it is: frames are of one arena.
    number: u32,
    /// In debug builds a byte for each frame: 1 while it is taken.
    #[cfg(debug_assertions)]
    taken: Reservation,
    frames: Reservation,
    links: Reservation,
    capacity: u32,
    free: Mutex<Free>,
    /// Locked before `free`, by a thread that returns frames.
    returning: Mutex<Returning>,
    /// The queue of writers that wait for the reserve. The mutex is fair, so writers get frames in the order of their
    /// arrival; locked before `free`.
    reserve_queue: FairMutex<()>,
    in_use: AtomicU64,
    slots_in_use: AtomicU64,
    in_use_max: AtomicU64,
    limit: AtomicU64,
    /// A request has come since the reserve's last check.
    used: AtomicBool,
    /// Signalled when the ready list of an arena with a reserve grows, or falls below its target.
    pub(crate) ready_changed: Condvar,
}

/// Frames being returned to the kernel. The memory of the lists is touched at creation, because they are filled by
/// threads that must not ask the kernel for memory, not even for more stack.
struct Returning {
    frames: Box<[u32]>,
    /// Number of frames.
    len: usize,
    parts: DiscardBatch,
}

impl Returning {
    fn new() -> Self {
        // Not zeroes: zeroed memory might be untouched.
        let frames = vec![u32::MAX; RETURN_BATCH].into();
        Returning { frames, len: 0, parts: DiscardBatch::new(RETURN_BATCH) }
    }
}

/// The lists of frames not in use.
pub(crate) struct Free {
    ready: FrameId,
    pub(crate) ready_len: u32,
    returned: FrameId,
    fresh: u32,
    /// The target length of a reserve; 0 without one, and then `obtain` makes frames ready itself.
    pub(crate) reserve_target: u32,
    /// Writers that wait for the reserve. While there are any, ready frames are reserved for them.
    waiting: u32,
    /// Number of additions to the ready list.
    additions: u64,
}

impl Free {
    fn are_ready(&self, count: usize) -> bool {
        self.ready_len as usize >= count
    }
}

/// The memory of an arena, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArenaStats {
    /// Frames in use for objects.
    pub in_use_bytes: u64,
    /// Frames in use for slots.
    pub slots_bytes: u64,
    /// The highest use for objects since the last reset.
    pub in_use_max_bytes: u64,
    /// Free frames that are backed by memory.
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
    /// Creates an arena for up to `len_bytes` bytes of frames, none of which is backed by memory yet.
    pub fn new(len_bytes: u64) -> Result<Self, SourceError> {
        let capacity = Self::frames_for(len_bytes);
        let frames = Reservation::new(capacity as usize * FRAME_LEN)?;
        let links = Reservation::new(capacity as usize * LINK_LEN)?;
        Self::over(frames, links, capacity)
    }

    /// The number of frames of an arena for up to `len_bytes` bytes of them.
    pub fn frames_for(len_bytes: u64) -> u32 {
        // Links are populated a page at a time, so their number is a multiple of a page; and no frame has the number
        // NIL.
        let capacity = (len_bytes / FRAME_LEN as u64 + 1).next_multiple_of(LINKS_IN_PAGE);
        capacity.min(u64::from(u32::MAX) / LINKS_IN_PAGE * LINKS_IN_PAGE) as u32
    }

    /// Creates an arena of this many frames, as [`Arena::frames_for`] returns it, in memory that outlives the process:
    /// `links` of [`LINK_LEN`] bytes and `frames` of [`FRAME_LEN`] bytes for each. They are new, or those of a former
    /// process, whose objects [`Recovery`](crate::Recovery) finds.
    #[cfg(not(miri))]
    pub fn in_shared(frames: Reservation, links: Reservation, capacity: u32) -> Result<Self, SourceError> {
        let is_long_enough = |range: &Reservation, len| range.len_bytes() >= capacity as usize * len;
        assert!(is_long_enough(&frames, FRAME_LEN) && is_long_enough(&links, LINK_LEN));
        assert!(u64::from(capacity).is_multiple_of(LINKS_IN_PAGE) && capacity != u32::MAX);
        Self::over(frames, links, capacity)
    }

    fn over(frames: Reservation, links: Reservation, capacity: u32) -> Result<Self, SourceError> {
        Ok(Arena {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            #[cfg(debug_assertions)]
            taken: Reservation::new(capacity as usize)?,
            frames,
            links,
            capacity,
            free: Mutex::new(Free {
                ready: FrameId::NIL,
                ready_len: 0,
                returned: FrameId::NIL,
                fresh: 0,
                reserve_target: 0,
                waiting: 0,
                additions: 0,
            }),
            returning: Mutex::new(Returning::new()),
            reserve_queue: FairMutex::new(()),
            in_use: AtomicU64::new(0),
            slots_in_use: AtomicU64::new(0),
            in_use_max: AtomicU64::new(0),
            limit: AtomicU64::new(NO_LIMIT),
            used: AtomicBool::new(false),
            ready_changed: Condvar::new(),
        })
    }

    /// Sets the limit on frames in use for objects, bytes. Frames in use beyond it stay.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes / FRAME_LEN as u64, Relaxed);
    }

    /// Records that the store is in use; see [`Reserve`](crate::Reserve).
    #[inline]
    pub fn mark_used(&self) {
        // Written only if necessary, so that the cache line stays shared between CPUs.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// Returns whether the store was used since the last call.
    pub(crate) fn clear_used(&self) -> bool {
        self.used.swap(false, Relaxed)
    }

    /// Resets the high-water mark to the present use.
    pub fn reset_in_use_max(&self) {
        self.in_use_max.store(self.in_use.load(Relaxed), Relaxed);
    }

    /// Bytes of frames in use for objects. Takes no lock.
    pub fn in_use_bytes(&self) -> u64 {
        bytes(self.in_use.load(Relaxed))
    }

    /// Whether writes take frames from a reserve, which a thread refills.
    pub fn has_reserve(&self) -> bool {
        self.free.lock().reserve_target > 0
    }

    /// The limit on frames for objects, bytes; `u64::MAX` is no limit. Takes no lock.
    pub fn limit_bytes(&self) -> u64 {
        match self.limit.load(Relaxed) {
            NO_LIMIT => u64::MAX,
            limit => bytes(limit),
        }
    }

    /// The memory of the arena.
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
        // Not `add`: safe code may have the number of a frame of another arena. Each access has its own proof.
        self.frames.base().as_ptr().wrapping_add(frame.0 as usize * FRAME_LEN)
    }

    /// The first byte of the first frame.
    pub fn first_frame(&self) -> *mut u8 {
        self.frames.base().as_ptr()
    }

    /// The number of this arena among all of the process.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Takes the number out of the token. From then on the caller owns the frame without a value that says so.
    ///
    /// Panics if the frame is not one of this arena: memory of another pool would be used under its number.
    pub fn take_id(&self, frame: Frame) -> FrameId {
        assert!(frame.arena == self.number, "a frame of another arena");
        frame.id()
    }

    /// Records in debug builds that a frame is taken, or not any more. Panics if it was so already: then two owners
    /// would have it.
    #[inline]
    fn set_taken(&self, frame: FrameId, is_taken: bool) {
        #[cfg(debug_assertions)]
        {
            // SAFETY: frame numbers are below `capacity`, the length of the reservation.
            let at = unsafe { self.taken.base().as_ptr().add(frame.0 as usize) };
            // SAFETY: zeroed by the kernel, accessed only as an atomic here, and valid as long as `self`.
            let was = unsafe { AtomicBool::from_ptr(at.cast()) }.swap(is_taken, Relaxed);
            assert_ne!(was, is_taken, "{frame:?}");
        }
        #[cfg(not(debug_assertions))]
        let _ = (frame, is_taken);
    }

    /// The number of frames in the range.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Whether the range contains a frame of this number, which may be any number.
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

    pub(crate) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock()
    }

    /// Takes `count` frames off the ready list, which contains at least as many.
    fn pop_ready(&self, free: &mut Free, count: usize) -> Frames {
        let mut frames = Frames::none();
        for _ in 0..count {
            let frame = free.ready;
            free.ready = self.next(frame);
            self.set_taken(frame, true);
            // SAFETY: it was on the ready list of this arena, whose frames nothing owns, and is on none now.
            frames.push(unsafe { Frame::new(frame, self.number) });
        }
        free.ready_len -= count as u32;
        frames
    }

    /// Puts a frame that was taken on the ready list.
    fn put_back(&self, free: &mut Free, frame: Frame) {
        let frame = self.take_id(frame);
        self.set_taken(frame, false);
        self.push_ready(free, frame);
    }

    /// Puts a frame on the ready list that nothing owns.
    fn push_ready(&self, free: &mut Free, frame: FrameId) {
        self.set_next(frame, free.ready);
        free.ready = frame;
        free.ready_len += 1;
        free.additions += 1;
    }

    /// Takes frames from the ready list, and makes more ready if there are too few. The caller gets the frames that
    /// it makes ready before other writers do.
    fn obtain_unreserved(&self, count: usize) -> Result<Frames, SourceError> {
        let mut obtained = Frames::none();
        let mut free = self.free.lock();
        loop {
            let some = (free.ready_len as usize).min(count - obtained.len());
            let mut taken = self.pop_ready(&mut free, some);
            while let Some(frame) = taken.pop() {
                obtained.push(frame);
            }
            if obtained.len() == count {
                return Ok(obtained);
            }
            drop(free);
            free = match self.make_ready() {
                Ok(free) => free,
                Err(error) => {
                    let mut free = self.free.lock();
                    while let Some(frame) = obtained.pop() {
                        self.put_back(&mut free, frame);
                    }
                    return Err(error);
                }
            };
        }
    }

    /// Takes frames of a reserve, which its thread refills: this thread must not ask the kernel for memory, because
    /// its write may be needed to free memory. Queues behind earlier writers, and then waits as long as frames are
    /// being added.
    fn obtain_reserved(&self, count: usize) -> Result<Frames, SourceError> {
        let (mut additions, mut waited) = {
            let mut free = self.free.lock();
            free.waiting += 1;
            self.ready_changed.notify_all();
            (free.additions, Duration::ZERO)
        };
        let place = self.reserve_queue.lock();
        let mut free = self.free.lock();
        let obtained = loop {
            if free.are_ready(count) {
                break Ok(self.pop_ready(&mut free, count));
            }
            if free.additions != additions {
                (additions, waited) = (free.additions, Duration::ZERO);
            }
            if waited >= RESERVE_WAIT || free.reserve_target == 0 {
                break Err(SourceError::ReserveEmpty);
            }
            let slept_from = Instant::now();
            self.ready_changed.wait_for(&mut free, RESERVE_SLEEP);
            waited += slept_from.elapsed().min(2 * RESERVE_SLEEP);
        };
        free.waiting -= 1;
        drop((free, place));
        obtained
    }

    /// Returns ready frames to the kernel until `keep` are left. Allocates nothing. Returns many frames per system
    /// call, because each call interrupts other CPUs.
    pub(crate) fn return_ready(&self, keep: u32) {
        self.return_by(&mut self.returning.lock(), keep);
    }

    fn return_by(&self, returning: &mut Returning, keep: u32) {
        while self.take_ready(keep, returning) && self.return_taken(returning) {}
    }

    /// Takes frames off the ready list until `keep` are left. Returns false if it took none.
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

    /// Returns the taken frames to the kernel. Returns false if the kernel refused any.
    fn return_taken(&self, returning: &mut Returning) -> bool {
        let Returning { frames, len, parts } = returning;
        let frames = &mut frames[..*len];
        // Sorted, so that neighbours become one part.
        frames.sort_unstable();
        parts.clear();
        for &frame in frames.iter() {
            parts.push(&self.frames, frame as usize * FRAME_LEN, FRAME_LEN);
        }
        // SAFETY: the frames were on the ready list and are now on none, so nothing lives in them.
        let returned = unsafe { self.frames.discard_batch(parts) } / FRAME_LEN;
        let mut free = self.free.lock();
        // A refused frame stays backed by memory, so it is ready.
        for (i, &frame) in frames.iter().enumerate() {
            let list = if i < returned { &mut free.returned } else { &mut free.ready };
            self.set_next(FrameId(frame), *list);
            *list = FrameId(frame);
        }
        free.ready_len += (frames.len() - returned) as u32;
        returned == frames.len()
    }

    /// Makes up to a batch of free frames ready. Returns the lock of the free lists, held since the frames were
    /// added.
    pub(crate) fn make_ready(&self) -> Result<MutexGuard<'_, Free>, SourceError> {
        let first = {
            let mut free = self.free.lock();
            if !free.returned.is_nil() {
                // Returned frames are scattered: populate one at a time.
                let frame = free.returned;
                free.returned = self.next(frame);
                drop(free);
                return self.populate(frame, 1);
            }
            // Batches start at multiples of BATCH, so each page of links starts with a batch.
            let first = free.fresh;
            if first >= self.capacity {
                return Err(SourceError::Exhausted { frames: self.capacity });
            }
            free.fresh = (first + BATCH).min(self.capacity);
            first
        };
        self.populate(FrameId(first), BATCH.min(self.capacity - first))
    }

    /// Populates `count` frames from `first` and puts them on the ready list, or on the returned list if the kernel
    /// has no memory.
    fn populate(&self, first: FrameId, count: u32) -> Result<MutexGuard<'_, Free>, SourceError> {
        let links_from = first.0 as usize * LINK_LEN;
        let links = match links_from.is_multiple_of(FRAME_LEN) {
            true => self.links.populate(links_from, FRAME_LEN),
            false => Ok(()),
        };
        let frames_from = first.0 as usize * FRAME_LEN;
        let result = links.and_then(|()| self.frames.populate(frames_from, count as usize * FRAME_LEN));
        let mut free = self.free.lock();
        for frame in (first.0..first.0 + count).rev().map(FrameId) {
            if result.is_ok() {
                self.push_ready(&mut free, frame);
            } else {
                self.set_next(frame, free.returned);
                free.returned = frame;
            }
        }
        result?;
        self.ready_changed.notify_all();
        Ok(free)
    }
}
