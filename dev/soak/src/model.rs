//! Decides whether a refused write was justified: the documented limits of a store, as rules over its observed state.
//!
//! The documented promise (docs/disk.md): stored pages take at most `--memory`, and a write beyond that fails; with
//! a backing, cold pages are written back before that, so a write fails only if no page can be written back. Nothing
//! else may refuse a write on a machine that has memory. The rules here allow for what a store cannot know exactly,
//! and for no more:
//!
//! - An object may straddle two frames, so a write may need two frames at once, and each write that is under way may
//!   have taken two frames that belong to no page yet. With `w` writers, memory is *at the limit* when less than `2 w`
//!   frames are left of it.
//! - A log (docs/formats/log.md) keeps two segments free for the cleaner, has two open, and cannot reuse segments
//!   that a reader has pinned. A record is a header of 24 bytes, the payload, and padding. A segment that is more
//!   than 15/16 live is not worth cleaning. So a log is *nearly full* when live records take 7/8 of 15/16 of the
//!   remaining segments; the eighth allows for the ends of writes, which are padded to 4096 bytes.
//! - Blocks are nearly full when fewer are free than writes can be in flight.
//! - A backing that fails, or whose budget is spent, takes no pages: then only the memory limit counts.
//! - Objects that requests hold cannot be written back: a write has an object that belongs to no page yet, and so has a
//!   read that promotes a page from the backing; a write to a part of a page does both. Together with the old objects
//!   that they replace, requests can occupy a whole limit of eight frames for each of them. A worker of recompression
//!   has such an object too.
//! - Objects of recompression and of pages that become shorter count as memory in use, and may exceed the limit by 64 KiB. So memory can be at its
//!   limit because of them, for as long as a worker has an object that it has not exchanged yet.
//! - Writers wait half a minute for a backing that makes no progress. The model leaves out machines that are too
//!   busy, and media that are too slow, to write one page in that time: no case delays a medium by more than a tenth
//!   of it.

/// Bytes of a frame of memory, and of a page.
pub const FRAME: u64 = 4096;
/// Frames after which a chain of raw objects of 4104 bytes ends at a frame's end.
pub const RAW_PERIOD: u64 = 513;
/// Frames that one object may need at once.
const OBJECT_FRAMES: u64 = 2;
/// Frames that one request may hold, so that they cannot be written back.
const HELD_FRAMES: u64 = 8;
/// Segments that the log reserves for the cleaner, and open segments.
const SEGMENTS_RESERVED: u64 = 2 + 2;
/// Segments that read-ahead may pin, in addition to those of readers.
const SEGMENTS_AHEAD: u64 = 4;
/// Bytes of a record's header and padding.
const RECORD_OVERHEAD: u64 = 24 + 7;
/// Available memory of the machine below which any refusal is justified.
const MACHINE_MEMORY: u64 = 256 << 20;
/// Pages that can be in flight to a backing.
const IN_FLIGHT: u64 = 1024;

/// The observed state of a store around a refusal. Of several observations, the values that favour the refusal most.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoreState {
    /// Bytes of frames in use for objects.
    pub in_use_bytes: u64,
    /// The limit of these bytes, if there is one.
    pub limit_bytes: Option<u64>,
    /// Available memory of the machine, bytes.
    pub machine_bytes: u64,
    /// The backing, if there is one.
    pub backing: Option<BackingState>,
    /// Workers of recompression that may be at work.
    pub workers: u64,
}

/// The observed state of a backing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BackingState {
    /// Bytes of all segments or blocks.
    pub capacity_bytes: u64,
    /// Bytes of a segment; `None` for blocks.
    pub segment_bytes: Option<u64>,
    /// Pages on it.
    pub pages: u64,
    /// Payload bytes of these pages, without headers.
    pub bytes: u64,
    /// Whether the backing takes no pages now: it fails, or a budget is spent.
    pub is_closed: bool,
    /// The condition that the store reports, for the reader of a fault.
    pub condition: String,
}

/// Whether a refusal was justified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// The refusal was justified, for this reason.
    Justified(&'static str),
    /// There was space: where, and a message with the numbers.
    Unjustified(Room, String),
}

/// Where there was space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// In memory: the limit was not reached.
    Memory,
    /// On the backing: pages could have been written back.
    Backing,
}

/// Decides whether a write may be refused while so many requests are under way.
pub fn judge(state: &StoreState, requests: u64) -> Judgement {
    if state.machine_bytes < MACHINE_MEMORY {
        return Judgement::Justified("the machine has no memory");
    }
    let Some(limit) = state.limit_bytes else {
        let free = state.machine_bytes >> 20;
        return Judgement::Unjustified(
            Room::Memory,
            format!("there is no limit, and {free} MiB of memory are free"),
        );
    };
    let needed = OBJECT_FRAMES * FRAME * requests.max(1);
    if state.in_use_bytes + needed <= limit / FRAME * FRAME {
        let used = state.in_use_bytes;
        let message =
            format!("{used} of {limit} bytes of memory are in use, and {requests} writes need {needed}");
        return Judgement::Unjustified(Room::Memory, message);
    }
    let Some(backing) = &state.backing else {
        return Judgement::Justified("memory is at its limit, and there is no backing");
    };
    let held = HELD_FRAMES * requests.max(1) + OBJECT_FRAMES * state.workers;
    if limit < (held + OBJECT_FRAMES) * FRAME {
        return Judgement::Justified("requests may hold all of the memory that the limit allows");
    }
    if backing.is_closed {
        return Judgement::Justified("memory is at its limit, and the backing takes nothing");
    }
    let room = room_bytes(backing, requests);
    let live = live_bytes(backing);
    match live >= room {
        true => Judgement::Justified("memory is at its limit, and the backing is nearly full"),
        false => {
            let capacity = backing.capacity_bytes;
            let message = format!(
                "memory is at its limit of {limit} bytes, but live pages take {live} of {capacity} bytes of the \
                 backing, which may refuse from {room} on ({})",
                backing.condition
            );
            Judgement::Unjustified(Room::Backing, message)
        }
    }
}

impl StoreState {
    /// Merges two observations into the values that favour a refusal most.
    pub fn merge(self, other: StoreState) -> StoreState {
        let limit_bytes = match (self.limit_bytes, other.limit_bytes) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let backing = match (self.backing, other.backing) {
            (Some(a), Some(b)) => Some(BackingState {
                pages: a.pages.max(b.pages),
                bytes: a.bytes.max(b.bytes),
                is_closed: a.is_closed || b.is_closed,
                ..b
            }),
            (a, b) => a.or(b),
        };
        StoreState {
            in_use_bytes: self.in_use_bytes.max(other.in_use_bytes),
            limit_bytes,
            machine_bytes: self.machine_bytes.min(other.machine_bytes),
            workers: self.workers.max(other.workers),
            backing,
        }
    }
}

/// Bytes of live records from which on a backing may report that it is full, with so many readers.
pub fn room_bytes(backing: &BackingState, readers: u64) -> u64 {
    let Some(segment) = backing.segment_bytes else {
        return backing.capacity_bytes.saturating_sub(IN_FLIGHT * FRAME);
    };
    let reserved = SEGMENTS_RESERVED + SEGMENTS_AHEAD + readers;
    let usable = backing.capacity_bytes.saturating_sub(reserved * segment);
    usable / 16 * 15 / 8 * 7
}

/// Bytes that live pages take on a backing.
fn live_bytes(backing: &BackingState) -> u64 {
    match backing.segment_bytes {
        Some(_) => backing.bytes + backing.pages * RECORD_OVERHEAD,
        None => backing.pages * FRAME,
    }
}

/// The geometry of a log on a backing of so many bytes: bytes of all segments, and of one segment
/// (docs/formats/log.md).
pub fn log_geometry(len_bytes: u64) -> (u64, u64) {
    let room = len_bytes.saturating_sub(1 << 20);
    let segment = if room >> 20 < 64 { 256 << 10 } else { 1 << 20 };
    (room / segment * segment, segment)
}

/// Bytes of pages that fit even if none of them compresses, so that each takes a frame and a bit.
pub fn surely_fits_bytes(limit_bytes: Option<u64>, backing: Option<&BackingState>, requests: u64) -> u64 {
    let Some(limit) = limit_bytes else { return u64::MAX };
    // A raw object takes 4104 bytes; the last frame of each size class may be partly empty.
    let in_memory = limit.saturating_sub((OBJECT_FRAMES * requests + CLASSES) * FRAME) / 4104 * FRAME;
    let on_backing = backing.map_or(0, |b| room_bytes(b, requests) / (FRAME + RECORD_OVERHEAD) * FRAME);
    // A page that is being written back is in both places.
    if backing.is_some() { on_backing + in_memory / 2 } else { in_memory }
}

/// Size classes of the pool.
const CLASSES: u64 = 320;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn state(in_use: u64, limit: Option<u64>) -> StoreState {
        StoreState {
            in_use_bytes: in_use,
            limit_bytes: limit,
            machine_bytes: 8 << 30,
            backing: None,
            workers: 0,
        }
    }

    fn is_justified(state: &StoreState, requests: u64) -> bool {
        matches!(judge(state, requests), Judgement::Justified(_))
    }

    #[test]
    fn without_a_backing_only_the_limit_justifies_a_refusal() {
        assert!(!is_justified(&state(MIB, None), 1));
        assert!(!is_justified(&state(MIB, Some(2 * MIB)), 1));
        assert!(is_justified(&state(2 * MIB, Some(2 * MIB)), 1));
        assert!(is_justified(&state(2 * MIB - FRAME, Some(2 * MIB)), 1));
        assert!(!is_justified(&state(2 * MIB - 2 * FRAME, Some(2 * MIB)), 1));
        assert!(is_justified(&state(2 * MIB - 7 * FRAME, Some(2 * MIB)), 4));
        let machine_is_full = StoreState { machine_bytes: MIB, ..state(MIB, None) };
        assert!(is_justified(&machine_is_full, 1));
    }

    #[test]
    fn a_limit_counts_whole_frames() {
        assert!(is_justified(&state(511 * FRAME, Some(512 * FRAME + 4095)), 1));
        assert!(!is_justified(&state(510 * FRAME, Some(512 * FRAME + 4095)), 1));
    }

    #[test]
    fn with_a_backing_only_a_full_or_closed_one_justifies_a_refusal() {
        let (capacity, segment) = log_geometry(736 * MIB);
        assert_eq!((capacity, segment), (735 * MIB, MIB));
        let backing = |live: u64| BackingState {
            capacity_bytes: capacity,
            segment_bytes: Some(segment),
            pages: live / 4128,
            bytes: live / 4128 * 4096,
            is_closed: false,
            condition: String::new(),
        };
        let at_limit = |backing| StoreState { backing: Some(backing), ..state(128 * MIB, Some(128 * MIB)) };
        assert!(!is_justified(&at_limit(backing(380 * MIB)), 16));
        assert!(is_justified(&at_limit(backing(640 * MIB)), 16));
        let failing = BackingState { is_closed: true, ..backing(MIB) };
        assert!(is_justified(&at_limit(failing.clone()), 16));
        let below = StoreState { in_use_bytes: 64 * MIB, ..at_limit(failing) };
        assert!(!is_justified(&below, 16));
    }

    #[test]
    fn requests_can_hold_a_limit_of_a_few_frames() {
        let (capacity_bytes, segment) = log_geometry(16 * MIB);
        let segment_bytes = Some(segment);
        let backing = BackingState { capacity_bytes, segment_bytes, ..BackingState::default() };
        let few = |frames: u64| StoreState {
            backing: Some(backing.clone()),
            ..state(frames * FRAME, Some(frames * FRAME))
        };
        assert!(is_justified(&few(9), 1) && !is_justified(&few(10), 1));
        assert!(is_justified(&few(65), 8) && !is_justified(&few(66), 8));
        let with_workers = |frames| StoreState { workers: 4, ..few(frames) };
        assert!(is_justified(&with_workers(17), 1) && !is_justified(&with_workers(18), 1));
    }

    #[test]
    fn small_backings_have_small_segments() {
        assert_eq!(log_geometry(64 * MIB), (63 * MIB, 256 << 10));
        assert_eq!(log_geometry(65 * MIB), (64 * MIB, MIB));
        assert_eq!(log_geometry(100), (0, 256 << 10));
        // Six segments are fewer than the reserved ones.
        let (capacity_bytes, segment) = log_geometry(MIB + 6 * (256 << 10));
        let tiny = BackingState { capacity_bytes, segment_bytes: Some(segment), ..BackingState::default() };
        assert_eq!(room_bytes(&tiny, 1), 0);
    }

    #[test]
    fn blocks_are_full_when_writes_in_flight_could_take_the_rest() {
        let blocks = |pages| BackingState { capacity_bytes: 16 * MIB, pages, ..BackingState::default() };
        let at_limit = |pages| StoreState { backing: Some(blocks(pages)), ..state(MIB, Some(MIB)) };
        assert!(!is_justified(&at_limit(3071), 1) && is_justified(&at_limit(3072), 1));
    }
}
