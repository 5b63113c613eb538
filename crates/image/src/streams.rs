//! Who reads in order, and how far ahead to go.
//!
//! Per file: where the last read ended, and up to where clusters have been queued for decoding. A read that begins near that
//! end continues the stream (a kernel's own read-ahead comes in parts, and not always in order); any other begins anew. The
//! distance doubles with each read that continues, from [`FIRST_BYTES`] on, as long as the stream holds.

use crate::Nid;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Read-ahead of a stream that has just shown itself, bytes.
const FIRST_BYTES: u64 = 128 << 10;
/// Read-ahead of any stream, at most, bytes.
const MAX_BYTES: u64 = 2 << 20;
/// How far from the last end a read may begin and still continue the stream, bytes.
const SLACK_BYTES: u64 = 256 << 10;
/// Files watched at a time; when there are more, all are forgotten, and have to show themselves again.
const MAX_FILES: usize = 1024;

/// The streams of an image.
pub(crate) struct Streams {
    max_bytes: u64,
    files: Mutex<HashMap<Nid, Stream>>,
}

#[derive(Clone, Copy)]
struct Stream {
    end: u64,
    queued_to: u64,
    distance_bytes: u64,
}

/// What a read means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// It continues a stream, or may begin one.
    pub(crate) more_follows: bool,
    /// What to decode ahead; empty if nothing.
    pub(crate) ahead: Range<u64>,
}

impl Streams {
    /// Read-ahead of no more than `max_bytes`.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Streams { max_bytes: max_bytes.min(MAX_BYTES), files: Mutex::default() }
    }

    /// Takes note of a read, and says what follows from it.
    pub(crate) fn see(&self, nid: Nid, read: Range<u64>, size: u64) -> Seen {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let known = files.get(&nid).copied();
        let continues = known.is_some_and(|s| read.start.abs_diff(s.end) <= SLACK_BYTES && read.end > s.end);
        let stream = match known {
            Some(stream) if continues => {
                let distance_bytes = (stream.distance_bytes * 2).clamp(FIRST_BYTES, MAX_BYTES);
                Stream { end: read.end, distance_bytes, ..stream }
            }
            _ => Stream { end: read.end, queued_to: read.end, distance_bytes: 0 },
        };
        let to = (read.end + stream.distance_bytes.min(self.max_bytes)).min(size);
        let ahead = stream.queued_to.max(read.end)..to;
        if files.len() >= MAX_FILES && known.is_none() {
            files.clear();
        }
        if read.end >= size {
            files.remove(&nid);
        } else {
            files.insert(nid, Stream { queued_to: stream.queued_to.max(to), ..stream });
        }
        Seen { more_follows: continues || read.start == 0, ahead: ahead.start..ahead.end.max(ahead.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn a_reader_in_order_is_read_ahead_and_further_each_time() {
        let streams = Streams::new(u64::MAX);
        let size = 100 << 20;
        assert_eq!(
            streams.see(Nid(1), 0..64 * KIB, size),
            Seen { more_follows: true, ahead: 64 * KIB..64 * KIB }
        );
        let second = streams.see(Nid(1), 64 * KIB..128 * KIB, size);
        assert_eq!(second, Seen { more_follows: true, ahead: 128 * KIB..256 * KIB });
        let third = streams.see(Nid(1), 128 * KIB..192 * KIB, size);
        assert_eq!(third.ahead, 256 * KIB..(192 + 256) * KIB);
    }

    #[test]
    fn nothing_is_queued_twice_or_past_the_end() {
        let streams = Streams::new(256 * KIB);
        let (size, mut queued_to) = (3 << 20, 64 * KIB);
        for n in 0..47 {
            let seen = streams.see(Nid(1), n * 64 * KIB..(n + 1) * 64 * KIB, size);
            if !seen.ahead.is_empty() {
                assert!(seen.ahead.start >= queued_to && seen.ahead.end <= size, "{n}: {seen:?}");
                assert!(seen.ahead.end <= (n + 1) * 64 * KIB + 256 * KIB);
                queued_to = seen.ahead.end;
            }
        }
        assert_eq!(queued_to, size);
    }

    #[test]
    fn a_random_reader_is_not_read_ahead() {
        let streams = Streams::new(u64::MAX);
        for n in 1..50_u64 {
            let start = n * 7919 % 90 * (1 << 20) + 4096;
            let seen = streams.see(Nid(1), start..start + 4096, 100 << 20);
            assert!(seen.ahead.is_empty() && !seen.more_follows, "{n}: {seen:?}");
        }
    }
}
