//! Detection of sequential reads, and the distance of read-ahead.
//!
//! For each file, the table has the end of the last read and the end of the range that has been queued for decoding. A
//! read that begins near the end of the last one continues the stream (the kernel's read-ahead comes in parts, and not
//! always in order); any other read begins a new stream. The distance starts at [`FIRST_BYTES`] and doubles with each
//! read that continues the stream. One mutex guards the table, held for one lookup per read.

use crate::Nid;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Distance of read-ahead at the first read that continues a stream, bytes.
const FIRST_BYTES: u64 = 128 << 10;
/// Largest distance of read-ahead, bytes.
const MAX_BYTES: u64 = 2 << 20;
/// How far from the end of the last read another may begin and still continue the stream, bytes.
const SLACK_BYTES: u64 = 256 << 10;
/// Files in the table at most. When it is full, it is emptied, and streams are detected anew.
const MAX_FILES: usize = 1024;

/// The sequential streams of an image.
pub(crate) struct Streams {
    max_bytes: u64,
    files: Mutex<HashMap<Nid, SequentialRead>>,
}

#[derive(Clone, Copy)]
struct SequentialRead {
    end: u64,
    queued_to: u64,
    distance_bytes: u64,
}

/// The result of classifying a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AccessHint {
    /// Whether the read continues a stream or may begin one.
    pub(crate) more_follows: bool,
    /// The range to decode ahead; may be empty.
    pub(crate) ahead: Range<u64>,
}

impl Streams {
    /// Creates an empty table, with a largest distance of `max_bytes`.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Streams { max_bytes: max_bytes.min(MAX_BYTES), files: Mutex::default() }
    }

    /// Records a read of a file of `size` bytes, and returns whether it is sequential and the range to decode ahead.
    pub(crate) fn record_read(&self, nid: Nid, read: Range<u64>, size: u64) -> AccessHint {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.get(&nid).copied();
        let continues = known.is_some_and(|s| read.start.abs_diff(s.end) <= SLACK_BYTES && read.end > s.end);
        let stream = match known {
            Some(stream) if continues => {
                let distance_bytes = (stream.distance_bytes * 2).clamp(FIRST_BYTES, MAX_BYTES);
                SequentialRead { end: read.end, distance_bytes, ..stream }
            }
            _ => SequentialRead { end: read.end, queued_to: read.end, distance_bytes: 0 },
        };
        let to = (read.end + stream.distance_bytes.min(self.max_bytes)).min(size);
        let ahead = stream.queued_to.max(read.end)..to;
        if files.len() >= MAX_FILES && known.is_none() {
            files.clear();
        }
        if read.end >= size {
            files.remove(&nid);
        } else {
            files.insert(nid, SequentialRead { queued_to: stream.queued_to.max(to), ..stream });
        }
        AccessHint {
            more_follows: continues || read.start == 0,
            ahead: ahead.start..ahead.end.max(ahead.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn the_distance_doubles_with_each_sequential_read() {
        let streams = Streams::new(u64::MAX);
        let size = 100 << 20;
        assert_eq!(
            streams.record_read(Nid(1), 0..64 * KIB, size),
            AccessHint { more_follows: true, ahead: 64 * KIB..64 * KIB }
        );
        let second = streams.record_read(Nid(1), 64 * KIB..128 * KIB, size);
        assert_eq!(second, AccessHint { more_follows: true, ahead: 128 * KIB..256 * KIB });
        let third = streams.record_read(Nid(1), 128 * KIB..192 * KIB, size);
        assert_eq!(third.ahead, 256 * KIB..(192 + 256) * KIB);
    }

    #[test]
    fn no_range_is_queued_twice_or_past_the_end_of_the_file() {
        let streams = Streams::new(256 * KIB);
        let (size, mut queued_to) = (3 << 20, 64 * KIB);
        for n in 0..47 {
            let hint = streams.record_read(Nid(1), n * 64 * KIB..(n + 1) * 64 * KIB, size);
            if !hint.ahead.is_empty() {
                assert!(hint.ahead.start >= queued_to && hint.ahead.end <= size, "{n}: {hint:?}");
                assert!(hint.ahead.end <= (n + 1) * 64 * KIB + 256 * KIB);
                queued_to = hint.ahead.end;
            }
        }
        assert_eq!(queued_to, size);
    }

    #[test]
    fn random_reads_cause_no_read_ahead() {
        let streams = Streams::new(u64::MAX);
        for n in 1..50_u64 {
            let start = n * 7919 % 90 * (1 << 20) + 4096;
            let hint = streams.record_read(Nid(1), start..start + 4096, 100 << 20);
            assert!(hint.ahead.is_empty() && !hint.more_follows, "{n}: {hint:?}");
        }
    }
}
