//! Where decoded bytes go: a ring for those that nobody wants, then the caller's buffer.
//!
//! The byte at position `p` of the output is at `p % ring.len()` in the ring while `p < skip`, and at
//! `p - skip` in the buffer from then on. A match that reaches back over the seam, or over the ring's end, is
//! copied in runs. The ring is a page longer than the window, so that whatever overwrites a byte of it
//! is at least a page more than a window ahead: a match never finds its source overwritten.

use std::ops::Range;

pub(super) struct Output<'a> {
    ring: &'a mut [u8],
    dst: &'a mut [u8],
    /// How many bytes go into the ring.
    skip: u64,
    /// How many bytes are produced.
    done: u64,
    /// Where the next byte goes, in the buffer that is being filled.
    at: usize,
}

/// The buffer that is being filled.
pub(super) struct Segment<'a> {
    /// All of it. Bytes before `at` are output, in order, without a gap; all others may be written.
    pub(super) bytes: &'a mut [u8],
    /// Where the next byte of output goes.
    pub(super) at: usize,
    /// Where this run of output ends, at most the buffer's length.
    pub(super) end: usize,
    /// Whether `bytes` is the ring and has been filled to its end: what is behind `at` is the lap before.
    pub(super) lapped: bool,
    /// If `bytes` is the caller's buffer, the ring; otherwise empty.
    pub(super) ring: &'a [u8],
    /// Where in `ring` its output ends; it wraps around there.
    pub(super) seam: usize,
    /// How many bytes of output are in `ring`.
    pub(super) ring_back: usize,
}

impl<'a> Output<'a> {
    pub(super) fn new(ring: &'a mut [u8], skip: u64, dst: &'a mut [u8]) -> Self {
        Output { ring, dst, skip, done: 0, at: 0 }
    }

    /// How many bytes there are to produce in all.
    pub(super) fn total(&self) -> u64 {
        self.skip.saturating_add(self.dst.len() as u64)
    }

    /// How many bytes are produced.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// How many bytes are still to be produced.
    pub(super) fn left(&self) -> u64 {
        self.total() - self.done
    }

    fn in_ring(&self) -> bool {
        self.done < self.skip
    }

    /// The buffer that is being filled, for a decoder that needs nothing else. What it produced is
    /// to be told to [`advance`](Self::advance).
    pub(super) fn segment(&mut self) -> Segment<'_> {
        let (at, end) = (self.at, self.run_end());
        match self.in_ring() {
            true => {
                let lapped = self.done > at as u64;
                Segment { bytes: self.ring, at, end, lapped, ring: &[], seam: 0, ring_back: 0 }
            }
            false => {
                let seam = self.seam();
                let ring_back =
                    usize::try_from(self.skip).map_or(self.ring.len(), |skip| skip.min(self.ring.len()));
                Segment { bytes: self.dst, at, end, lapped: false, ring: self.ring, seam, ring_back }
            }
        }
    }

    /// Where in the ring the byte at the position `skip` would go.
    fn seam(&self) -> usize {
        (self.skip % self.ring.len() as u64) as usize
    }

    /// Where the current run ends: the seam, the ring's end, or the buffer's end.
    fn run_end(&self) -> usize {
        match self.in_ring() {
            true => {
                let to_seam = usize::try_from(self.skip - self.done).unwrap_or(usize::MAX);
                self.at.saturating_add(to_seam).min(self.ring.len())
            }
            false => self.dst.len(),
        }
    }

    /// Counts `len` bytes as produced, which are within the current run.
    pub(super) fn advance(&mut self, len: usize) {
        let was_in_ring = self.in_ring();
        self.done += len as u64;
        self.at += len;
        if was_in_ring && (!self.in_ring() || self.at == self.ring.len()) {
            self.at = 0;
        }
    }

    /// Appends literals; there is room for them.
    pub(super) fn literals(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let segment = self.segment();
            let room = &mut segment.bytes[segment.at..segment.end];
            let len = bytes.len().min(room.len());
            let (now, later) = bytes.split_at(len);
            room[..len].copy_from_slice(now);
            self.advance(len);
            bytes = later;
        }
    }

    /// Appends `len` bytes of those from `distance` back on. There is room for them, and the distance is at
    /// least 1, within the window, and within what is produced.
    pub(super) fn matched(&mut self, distance: usize, mut len: usize) {
        while len > 0 {
            let source = self.behind(distance);
            let room = self.run_end() - self.at;
            let run = len.min(room);
            let at = self.at;
            let copied = match (source, self.in_ring()) {
                // From the same buffer, and right up to here: the run may overlap its source.
                (Behind::Ring(from), true) if from.end == at => repeat(self.ring, distance, at, run),
                (Behind::Dst(from), _) => repeat(self.dst, at - from.start, at, run),
                (Behind::Ring(from), true) => {
                    let run = run.min(from.len());
                    self.ring.copy_within(from.start..from.start + run, at);
                    run
                }
                (Behind::Ring(from), false) => {
                    let run = run.min(from.len());
                    self.dst[at..at + run].copy_from_slice(&self.ring[from.start..from.start + run]);
                    run
                }
            };
            self.advance(copied);
            len -= copied;
        }
    }

    /// The first run of the bytes from `distance` back up to here.
    fn behind(&self, distance: usize) -> Behind {
        if !self.in_ring() && distance <= self.at {
            return Behind::Dst(self.at - distance..self.at);
        }
        // How far back from the end of what is in the ring, and where that end is.
        let (back, end) = match self.in_ring() {
            true => (distance, self.at),
            false => (distance - self.at, self.seam()),
        };
        match back <= end {
            true => Behind::Ring(end - back..end),
            false => Behind::Ring(self.ring.len() - (back - end)..self.ring.len()),
        }
    }
}

enum Behind {
    Ring(Range<usize>),
    Dst(Range<usize>),
}

/// Writes `len` bytes at `at` that repeat those `distance` before, and returns `len`.
///
/// Once a whole period is written the bytes from its start on can be copied in ever longer runs.
pub(super) fn repeat(bytes: &mut [u8], distance: usize, at: usize, len: usize) -> usize {
    let from = at - distance;
    let mut written = 0;
    while written < len {
        let run = (distance + written).min(len - written);
        bytes.copy_within(from..from + run, at + written);
        written += run;
    }
    len
}
