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
use crate::source::{Frames, PageSource, Purpose, SourceError, Take};
use pagefold_sys::mem::{Parts, Reservation};
use parking_lot::{Condvar, FairMutex, Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

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
/// How long a write waits for an empty reserve to which no frame is added before it fails.
const RESERVE_WAIT: Duration = Duration::from_secs(1);

/// Address space for frames, and the free ones.
pub struct Arena {
    frames: Reservation,
    links: Reservation,
    capacity: u32,
    free: Mutex<Free>,
    /// Locked before `free`, by who returns frames.
    returning: Mutex<Returning>,
    /// The turn of writers that wait for the reserve. Fair, so that each gets its frames in the order in which they
    /// came; locked before `free`.
    turn: FairMutex<()>,
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
    /// Writers that wait for the reserve. While there are any, ready frames are theirs.
    waiting: u32,
    /// Counts the additions to the ready list.
    additions: u64,
}

impl Free {
    fn are_ready(&self, count: usize) -> bool {
        self.ready_len as usize >= count
    }
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
        // The links are populated a page at a time: whole pages of them, and no frame with the number of NIL.
        let step = (FRAME_LEN / LINK_LEN) as u64;
        let capacity = (len_bytes / FRAME_LEN as u64 + 1).next_multiple_of(step);
        let capacity = capacity.min(u64::from(u32::MAX) / step * step) as u32;
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
                waiting: 0,
                additions: 0,
            }),
            returning: Mutex::new(Returning::new()),
            turn: FairMutex::new(()),
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

    pub(crate) fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock()
    }

    /// Takes `count` frames off the ready list, which has as many.
    fn take_off(&self, free: &mut Free, count: usize) -> Frames {
        let mut frames = Frames::none();
        for _ in 0..count {
            frames.push(free.ready);
            free.ready = self.next(free.ready);
        }
        free.ready_len -= count as u32;
        frames
    }

    fn put_on(&self, free: &mut Free, frame: FrameId) {
        self.set_next(frame, free.ready);
        free.ready = frame;
        free.ready_len += 1;
        free.additions += 1;
    }

    /// Frames from the ready list, or from the kernel, one way or the other for this caller: of what it gets ready
    /// itself, others get only what it does not need.
    fn obtain_now(&self, count: usize) -> Result<Frames, SourceError> {
        let mut obtained = Frames::none();
        let mut free = self.free.lock();
        loop {
            let some = (free.ready_len as usize).min(count - obtained.len());
            let mut taken = self.take_off(&mut free, some);
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
                        self.put_on(&mut free, frame);
                    }
                    return Err(error);
                }
            };
        }
    }

    /// Frames of a reserve, whose own thread refills it: a write of this thread may be what frees memory, so it must
    /// not ask the kernel for any. Waits for its turn, and then as long as frames are being added.
    fn obtain_reserved(&self, count: usize) -> Result<Frames, SourceError> {
        let (mut additions, mut since) = {
            let mut free = self.free.lock();
            free.waiting += 1;
            self.ready_changed.notify_all();
            (free.additions, Instant::now())
        };
        let turn = self.turn.lock();
        let mut free = self.free.lock();
        let obtained = loop {
            if free.are_ready(count) {
                break Ok(self.take_off(&mut free, count));
            }
            if free.additions != additions {
                (additions, since) = (free.additions, Instant::now());
            }
            let waited = since.elapsed();
            if waited >= RESERVE_WAIT || free.reserve_target == 0 {
                break Err(SourceError::ReserveEmpty);
            }
            self.ready_changed.wait_for(&mut free, RESERVE_WAIT - waited);
        };
        free.waiting -= 1;
        drop((free, turn));
        obtained
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

    /// Backs up to a batch of free frames with memory and makes them ready. Returns the free frames, locked since
    /// these were added.
    pub(crate) fn make_ready(&self) -> Result<MutexGuard<'_, Free>, SourceError> {
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
                self.put_on(&mut free, frame);
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

// SAFETY: frames are numbers below the capacity of this arena, which `arena` returns. They are on the ready list only
// once they have been populated, or were in use; a frame leaves the list under its lock and comes back to it by `give`.
unsafe impl PageSource for Arena {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        let mut free = self.free.lock();
        if !free.are_ready(count) || free.waiting > 0 {
            return Take::NotReady;
        }
        // Under the lock and after that look: a charge that is taken back at once would be in another writer's way.
        if let Err(limit) = self.charge(purpose, count) {
            return Take::Refused(limit);
        }
        let frames = self.take_off(&mut free, count);
        if free.reserve_target > 0 && free.ready_len * 2 < free.reserve_target {
            self.ready_changed.notify_all();
        }
        Take::Frames(frames)
    }

    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        let count = count as u64;
        if purpose == Purpose::Slots {
            self.slots_in_use.fetch_add(count, Relaxed);
            return Ok(());
        }
        let limit = self.limit.load(Relaxed);
        // Nothing is never too much, also where the limit was lowered below what is in use.
        let more = |in_use: u64| Some(in_use + count).filter(|n| *n <= limit || count == 0);
        match self.in_use.fetch_update(Relaxed, Relaxed, more) {
            Ok(before) => {
                self.in_use_max.fetch_max(before + count, Relaxed);
                Ok(())
            }
            Err(_) => Err(SourceError::Limit { limit_bytes: bytes(limit) }),
        }
    }

    fn refund(&self, purpose: Purpose, count: usize) {
        match purpose {
            Purpose::Objects => self.in_use.fetch_sub(count as u64, Relaxed),
            Purpose::Slots => self.slots_in_use.fetch_sub(count as u64, Relaxed),
        };
    }

    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        let has_reserve = self.free.lock().reserve_target > 0;
        if has_reserve { self.obtain_reserved(count) } else { self.obtain_now(count) }
    }

    fn give(&self, frame: FrameId, purpose: Purpose) {
        let mut free = self.free.lock();
        self.put_on(&mut free, frame);
        self.refund(purpose, 1);
        if free.waiting > 0 {
            self.ready_changed.notify_all();
        }
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
