//! When a refusal is right: the documented limits of a store, as rules over what was seen of it.
//!
//! Documented is (docs/usage.md): stored pages take at most `--memory`, and a write beyond that fails; with a backing,
//! cold pages leave memory before that, so a write fails only where none can leave. Nothing else may refuse a write on
//! a machine that has memory. The rules here allow for what a store cannot know exactly, and for no more:
//!
//! - An object may straddle two frames, so a write may need two frames at once, and each write that is under way may
//!   have two frames that belong to no page yet. With `w` writers, memory is *at the limit* when less than `2 w`
//!   frames are left of it.
//! - A log (docs/formats/log.md) keeps two segments free for the cleaner, has two open, and cannot reuse those that a
//!   reader has pinned. A record is a header of 24 bytes, the payload, and padding. A segment that is more than 15/16
//!   live is not worth cleaning. So a log is *nearly full* when live records take 7/8 of 15/16 of the segments that
//!   are left; the eighth allows for the ends of writes, which are padded to 4096 bytes.
//! - Blocks are nearly full when fewer are free than writes can be in flight.
//! - A backing that fails, or whose budget is spent, takes no pages: then the limit of memory is the limit.
//! - Pages that requests hold cannot leave memory: a write has an object that belongs to no page yet, and so has the
//!   read of a page that is to come back from the backing, of which a write to a part of a page is one as well. With
//!   the old objects that these replace, a limit of eight frames for each request can be all theirs.
//! - Writers wait half a minute for a backing that takes nothing. A machine that is too busy, or a medium that is too
//!   slow, to write one page in that time is not modelled: no case delays a medium by more than a tenth of that.

/// Bytes of a frame of memory, and of a page.
pub const FRAME: u64 = 4096;
/// Frames that one object may need at once.
const OBJECT_FRAMES: u64 = 2;
/// Frames that one request may keep from leaving memory.
const HELD_FRAMES: u64 = 8;
/// Segments that the log keeps for the cleaner, and those that it has open.
const SEGMENTS_KEPT: u64 = 2 + 2;
/// Segments that read-ahead may hold, apart from those of readers at work.
const SEGMENTS_AHEAD: u64 = 4;
/// Bytes of a record beside its payload, the padding included.
const RECORD_OVERHEAD: u64 = 24 + 7;
/// A refusal is right only if less memory is free on the machine than this.
const MACHINE_MEMORY: u64 = 256 << 20;
/// Pages that can be in flight to a backing.
const IN_FLIGHT: u64 = 1024;

/// What was seen of a store around a refusal. Where it was seen several times, the values most in favour of a refusal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Bytes of frames in use for objects.
    pub in_use_bytes: u64,
    /// Their limit, if there is one.
    pub limit_bytes: Option<u64>,
    /// Memory that the machine can give.
    pub machine_bytes: u64,
    /// The backing, if there is one.
    pub backing: Option<SeenBacking>,
}

/// What was seen of a backing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SeenBacking {
    /// Bytes of its segments or blocks.
    pub capacity_bytes: u64,
    /// Bytes of a segment; `None` for blocks.
    pub segment_bytes: Option<u64>,
    /// Pages on it.
    pub pages: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
    /// Whether it takes no pages now: it fails, or a budget is spent.
    pub is_closed: bool,
    /// What it says of itself, for the reader of a fault.
    pub condition: String,
}

/// Whether a refusal was right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// For this reason.
    Right(&'static str),
    /// There was room.
    Wrong(Room, String),
}

/// Where there was room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// In memory: the limit was not reached.
    Memory,
    /// On the backing: pages could have left memory.
    Backing,
}

/// Whether a write may be refused with so many requests under way at once.
pub fn judge(seen: &Seen, requests: u64) -> Verdict {
    if seen.machine_bytes < MACHINE_MEMORY {
        return Verdict::Right("the machine has no memory");
    }
    let Some(limit) = seen.limit_bytes else {
        let free = seen.machine_bytes >> 20;
        return Verdict::Wrong(Room::Memory, format!("there is no limit, and {free} MiB of memory are free"));
    };
    let in_hand = OBJECT_FRAMES * FRAME * requests.max(1);
    if seen.in_use_bytes + in_hand <= limit / FRAME * FRAME {
        let used = seen.in_use_bytes;
        let message =
            format!("{used} of {limit} bytes of memory are in use, and {requests} writes need {in_hand}");
        return Verdict::Wrong(Room::Memory, message);
    }
    let Some(backing) = &seen.backing else {
        return Verdict::Right("memory is at its limit, and there is no backing");
    };
    if limit < HELD_FRAMES * FRAME * requests.max(1) + OBJECT_FRAMES * FRAME {
        return Verdict::Right("requests may hold all of so little memory");
    }
    if backing.is_closed {
        return Verdict::Right("memory is at its limit, and the backing takes nothing");
    }
    let room = room_bytes(backing, requests);
    let live = live_bytes(backing);
    match live >= room {
        true => Verdict::Right("memory is at its limit, and the backing is nearly full"),
        false => {
            let capacity = backing.capacity_bytes;
            let message = format!(
                "memory is at its limit of {limit} bytes, but live pages take {live} of {capacity} bytes of the \
                 backing, which may refuse from {room} on ({})",
                backing.condition
            );
            Verdict::Wrong(Room::Backing, message)
        }
    }
}

impl Seen {
    /// What favours a refusal most of two looks.
    pub fn merge(self, other: Seen) -> Seen {
        let limit_bytes = match (self.limit_bytes, other.limit_bytes) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let backing = match (self.backing, other.backing) {
            (Some(a), Some(b)) => Some(SeenBacking {
                pages: a.pages.max(b.pages),
                bytes: a.bytes.max(b.bytes),
                is_closed: a.is_closed || b.is_closed,
                ..b
            }),
            (a, b) => a.or(b),
        };
        Seen {
            in_use_bytes: self.in_use_bytes.max(other.in_use_bytes),
            limit_bytes,
            machine_bytes: self.machine_bytes.min(other.machine_bytes),
            backing,
        }
    }
}

/// Bytes of live records from which on a backing may be said to be full, with so many readers.
pub fn room_bytes(backing: &SeenBacking, readers: u64) -> u64 {
    let Some(segment) = backing.segment_bytes else {
        return backing.capacity_bytes.saturating_sub(IN_FLIGHT * FRAME);
    };
    let kept = SEGMENTS_KEPT + SEGMENTS_AHEAD + readers;
    let usable = backing.capacity_bytes.saturating_sub(kept * segment);
    usable / 16 * 15 / 8 * 7
}

/// Bytes that live pages take on a backing.
fn live_bytes(backing: &SeenBacking) -> u64 {
    match backing.segment_bytes {
        Some(_) => backing.bytes + backing.pages * RECORD_OVERHEAD,
        None => backing.pages * FRAME,
    }
}

/// The geometry of the log on a backing of so many bytes: bytes of all segments, and of one (docs/formats/log.md).
pub fn log_geometry(len_bytes: u64) -> (u64, u64) {
    let room = len_bytes.saturating_sub(1 << 20);
    let segment = if room >> 20 < 64 { 256 << 10 } else { 1 << 20 };
    (room / segment * segment, segment)
}

/// Bytes of pages that fit whatever is in them: all raw, each in its own frame and a bit.
pub fn surely_fits_bytes(limit_bytes: Option<u64>, backing: Option<&SeenBacking>, requests: u64) -> u64 {
    let Some(limit) = limit_bytes else { return u64::MAX };
    // A raw object takes 4104 bytes; each of the size classes may have a last frame in part empty.
    let in_memory = limit.saturating_sub((OBJECT_FRAMES * requests + CLASSES) * FRAME) / 4104 * FRAME;
    let on_backing = backing.map_or(0, |b| room_bytes(b, requests) / (FRAME + RECORD_OVERHEAD) * FRAME);
    // What is being moved is in both places.
    if backing.is_some() { on_backing + in_memory / 2 } else { in_memory }
}

/// Size classes of the pool.
const CLASSES: u64 = 320;

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(in_use: u64, limit: Option<u64>) -> Seen {
        Seen { in_use_bytes: in_use, limit_bytes: limit, machine_bytes: 8 << 30, backing: None }
    }

    fn is_right(seen: &Seen, requests: u64) -> bool {
        matches!(judge(seen, requests), Verdict::Right(_))
    }

    #[test]
    fn without_a_backing_only_the_limit_refuses() {
        assert!(!is_right(&seen(MIB, None), 1));
        assert!(!is_right(&seen(MIB, Some(2 * MIB)), 1));
        assert!(is_right(&seen(2 * MIB, Some(2 * MIB)), 1));
        assert!(is_right(&seen(2 * MIB - FRAME, Some(2 * MIB)), 1));
        assert!(!is_right(&seen(2 * MIB - 2 * FRAME, Some(2 * MIB)), 1));
        assert!(is_right(&seen(2 * MIB - 7 * FRAME, Some(2 * MIB)), 4));
        let machine_is_full = Seen { machine_bytes: MIB, ..seen(MIB, None) };
        assert!(is_right(&machine_is_full, 1));
    }

    #[test]
    fn a_limit_counts_whole_frames() {
        assert!(is_right(&seen(511 * FRAME, Some(512 * FRAME + 4095)), 1));
        assert!(!is_right(&seen(510 * FRAME, Some(512 * FRAME + 4095)), 1));
    }

    #[test]
    fn with_a_backing_only_a_full_or_closed_one_refuses() {
        let (capacity, segment) = log_geometry(736 * MIB);
        assert_eq!((capacity, segment), (735 * MIB, MIB));
        let backing = |live: u64| SeenBacking {
            capacity_bytes: capacity,
            segment_bytes: Some(segment),
            pages: live / 4128,
            bytes: live / 4128 * 4096,
            is_closed: false,
            condition: String::new(),
        };
        let at_limit = |backing| Seen { backing: Some(backing), ..seen(128 * MIB, Some(128 * MIB)) };
        assert!(!is_right(&at_limit(backing(380 * MIB)), 16));
        assert!(is_right(&at_limit(backing(640 * MIB)), 16));
        let failing = SeenBacking { is_closed: true, ..backing(MIB) };
        assert!(is_right(&at_limit(failing.clone()), 16));
        let below = Seen { in_use_bytes: 64 * MIB, ..at_limit(failing) };
        assert!(!is_right(&below, 16));
    }

    #[test]
    fn a_limit_of_a_few_frames_can_be_all_in_writers_hands() {
        let (capacity_bytes, segment) = log_geometry(16 * MIB);
        let segment_bytes = Some(segment);
        let backing = SeenBacking { capacity_bytes, segment_bytes, ..SeenBacking::default() };
        let few = |frames: u64| Seen {
            backing: Some(backing.clone()),
            ..seen(frames * FRAME, Some(frames * FRAME))
        };
        assert!(is_right(&few(9), 1) && !is_right(&few(10), 1));
        assert!(is_right(&few(65), 8) && !is_right(&few(66), 8));
    }

    #[test]
    fn small_backings_have_small_segments() {
        assert_eq!(log_geometry(64 * MIB), (63 * MIB, 256 << 10));
        assert_eq!(log_geometry(65 * MIB), (64 * MIB, MIB));
        assert_eq!(log_geometry(100), (0, 256 << 10));
        // Of six segments none is left when the kept ones are taken off.
        let (capacity_bytes, segment) = log_geometry(MIB + 6 * (256 << 10));
        let tiny = SeenBacking { capacity_bytes, segment_bytes: Some(segment), ..SeenBacking::default() };
        assert_eq!(room_bytes(&tiny, 1), 0);
    }

    #[test]
    fn blocks_are_full_when_those_in_flight_could_take_the_rest() {
        let blocks = |pages| SeenBacking { capacity_bytes: 16 * MIB, pages, ..SeenBacking::default() };
        let at_limit = |pages| Seen { backing: Some(blocks(pages)), ..seen(MIB, Some(MIB)) };
        assert!(!is_right(&at_limit(3071), 1) && is_right(&at_limit(3072), 1));
    }
}
