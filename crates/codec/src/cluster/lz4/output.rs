//! The output of the LZ4 decoder: a ring for the bytes to discard, then the caller's buffer.
//!
//! The byte at position `p` of the output is at `p % ring.len()` in the ring while `p < skip`, and at `p - skip` in the
//! buffer from then on. A match whose source passes from the ring to the buffer, or wraps around the ring's end, is
//! copied in several runs. The ring is a page longer than the window, so a byte of it is overwritten only by one that
//! is at least a page more than a window ahead: the source of a match is never overwritten.

use std::ops::Range;

/// The ring, the caller's buffer, and the position of the next byte.
pub(super) struct Output<'a> {
    ring: &'a mut [u8],
    dst: &'a mut [u8],
    /// Bytes of output that go into the ring.
    skip: u64,
    /// Bytes of output that are written.
    done: u64,
    /// Position of the next byte in the ring or the caller's buffer, whichever is being filled.
    at: usize,
}

/// The ring or the caller's buffer, whichever is being filled, for a decoder that writes to it directly.
pub(super) struct Segment<'a> {
    /// The whole buffer. Bytes before `at` are consecutive output; all others may be overwritten.
    pub(super) bytes: &'a mut [u8],
    /// Position of the next byte of output.
    pub(super) at: usize,
    /// End of this run of output, at most the buffer's length.
    pub(super) end: usize,
    /// Whether `bytes` is the ring and has been filled to its end: the bytes from `at` on are then older output.
    pub(super) wrapped: bool,
    /// If `bytes` is the caller's buffer, the ring; otherwise empty.
    pub(super) ring: &'a [u8],
    /// Position in `ring` after its newest byte; the bytes from there on are its oldest.
    pub(super) ring_head: usize,
    /// Bytes of output that are in `ring`.
    pub(super) ring_filled: usize,
}

impl<'a> Output<'a> {
    pub(super) fn new(ring: &'a mut [u8], skip: u64, dst: &'a mut [u8]) -> Self {
        Output { ring, dst, skip, done: 0, at: 0 }
    }

    /// Returns the total number of bytes to write.
    pub(super) fn total(&self) -> u64 {
        self.skip.saturating_add(self.dst.len() as u64)
    }

    /// Returns the number of bytes that are written.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns the number of bytes that are still to be written.
    pub(super) fn left(&self) -> u64 {
        self.total() - self.done
    }

    fn in_ring(&self) -> bool {
        self.done < self.skip
    }

    /// Returns the buffer that is being filled. The caller reports the bytes that it wrote by
    /// [`advance`](Self::advance).
    pub(super) fn segment(&mut self) -> Segment<'_> {
        let (at, end) = (self.at, self.run_end());
        match self.in_ring() {
            true => {
                let wrapped = self.done > at as u64;
                Segment { bytes: self.ring, at, end, wrapped, ring: &[], ring_head: 0, ring_filled: 0 }
            }
            false => {
                let ring_head = self.ring_head();
                let ring_filled =
                    usize::try_from(self.skip).map_or(self.ring.len(), |skip| skip.min(self.ring.len()));
                Segment { bytes: self.dst, at, end, wrapped: false, ring: self.ring, ring_head, ring_filled }
            }
        }
    }

    /// Returns the position in the ring that the byte at position `skip` would have.
    fn ring_head(&self) -> usize {
        (self.skip % self.ring.len() as u64) as usize
    }

    /// Returns the end of the current run: the last byte for the ring, the ring's end, or the buffer's end.
    fn run_end(&self) -> usize {
        match self.in_ring() {
            true => {
                let skip_left = usize::try_from(self.skip - self.done).unwrap_or(usize::MAX);
                self.at.saturating_add(skip_left).min(self.ring.len())
            }
            false => self.dst.len(),
        }
    }

    /// Counts `len` bytes, which are within the current run, as written.
    pub(super) fn advance(&mut self, len: usize) {
        let was_in_ring = self.in_ring();
        self.done += len as u64;
        self.at += len;
        if was_in_ring && (!self.in_ring() || self.at == self.ring.len()) {
            self.at = 0;
        }
    }

    /// Appends literals. The caller has checked that there is room for them.
    pub(super) fn copy_literals(&mut self, mut bytes: &[u8]) {
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

    /// Appends `len` zeroes. The caller has checked that there is room for them.
    pub(super) fn put_zeroes(&mut self, mut len: usize) {
        while len > 0 {
            let segment = self.segment();
            let run = len.min(segment.end - segment.at);
            segment.bytes[segment.at..segment.at + run].fill(0);
            self.advance(run);
            len -= run;
        }
    }

    /// Appends a match of `len` bytes from `distance` back on.
    ///
    /// The caller has checked that there is room for it, and that the distance is at least 1, within the window, and
    /// within the output so far.
    pub(super) fn copy_match(&mut self, distance: usize, mut len: usize) {
        while len > 0 {
            let source = self.match_source(distance);
            let room = self.run_end() - self.at;
            let run = len.min(room);
            let at = self.at;
            let copied = match (source, self.in_ring()) {
                // The source ends where the run begins, in the same buffer: it may overlap the run.
                (MatchSource::Ring(from), true) if from.end == at => repeat(self.ring, distance, at, run),
                (MatchSource::Dst(from), _) => repeat(self.dst, at - from.start, at, run),
                (MatchSource::Ring(from), true) => {
                    let run = run.min(from.len());
                    self.ring.copy_within(from.start..from.start + run, at);
                    run
                }
                (MatchSource::Ring(from), false) => {
                    let run = run.min(from.len());
                    self.dst[at..at + run].copy_from_slice(&self.ring[from.start..from.start + run]);
                    run
                }
            };
            self.advance(copied);
            len -= copied;
        }
    }

    /// Returns the first contiguous run of the bytes from `distance` back up to the next byte's position.
    fn match_source(&self, distance: usize) -> MatchSource {
        if !self.in_ring() && distance <= self.at {
            return MatchSource::Dst(self.at - distance..self.at);
        }
        // The distance from the ring's newest byte, and the position after that byte.
        let (back, end) = match self.in_ring() {
            true => (distance, self.at),
            false => (distance - self.at, self.ring_head()),
        };
        match back <= end {
            true => MatchSource::Ring(end - back..end),
            false => MatchSource::Ring(self.ring.len() - (back - end)..self.ring.len()),
        }
    }
}

/// A run of output in the ring or in the caller's buffer.
enum MatchSource {
    Ring(Range<usize>),
    Dst(Range<usize>),
}

/// Writes `len` bytes at `at` that repeat those `distance` before, and returns `len`.
///
/// Each copy includes the bytes of those before it, so the copied runs double in length.
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
