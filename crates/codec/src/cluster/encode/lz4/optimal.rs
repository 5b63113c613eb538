//! A dense LZ4 encoder with any window: it finds the longest match of every position, and chooses the sequences that
//! take the fewest bytes.
//!
//! The source is encoded in segments. Each is as long as most of what the rest of the cluster is expected to hold, so
//! that few matches are searched in vain, or shorter.

use super::block::BlockWriter;
use super::matches::{Match, Matches};
use super::plan::{Plan, matches_max};
use crate::cluster::encode::fit::Fit;
use crate::lz4_block::LAST_MATCH_TO_END;

const SEGMENT_MIN: usize = 128;
const SEGMENT_MAX: usize = 4 << 10;
/// The end of a segment that is planned again with the next one, because the plan does not see what follows.
const OVERLAP: usize = 24;
/// The most positions that are planned at once.
const PLAN_MAX: usize = SEGMENT_MAX + OVERLAP + SEGMENT_MIN;
const MATCHES_MAX: usize = matches_max(PLAN_MAX);

/// The working state, for one window.
pub(super) struct Optimal {
    matches: Matches,
    /// The matches of the current segment. Of those that begin before it only the last is of use.
    found: Vec<Match>,
    plan: Plan,
    /// Whether the last result is the same for any longer source that begins with its source.
    is_final: bool,
}

impl Optimal {
    pub(super) const HEAP_BYTES: usize =
        Matches::HEAP_BYTES + Plan::heap_bytes(PLAN_MAX) + MATCHES_MAX * size_of::<Match>();

    /// Makes an encoder whose searches take up to `depth` steps.
    pub(super) fn new(window: usize, depth: usize) -> Self {
        Optimal {
            matches: Matches::new(window, depth),
            found: Vec::with_capacity(MATCHES_MAX),
            plan: Plan::new(PLAN_MAX),
            is_final: false,
        }
    }

    /// Whether the last [`Optimal::fit`] has the same result for any longer source that begins with its source.
    pub(super) fn is_final(&self) -> bool {
        self.is_final
    }

    /// Compresses as long a beginning of `src` as fits.
    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        self.matches.clear(src.len().min(2 * dst.len()));
        self.found.clear();
        self.is_final = src.len() >= 2 * dst.len();
        let mut out = BlockWriter::new(src, dst);
        let start_end = (src.len() + 1).saturating_sub(LAST_MATCH_TO_END);
        // `begin` is where the current segment begins; the positions before `searched` have been searched.
        let (mut begin, mut searched) = (0, 0);
        while begin < src.len() {
            let least = searched.max(begin) + SEGMENT_MIN;
            let end = src.len().min(least.max(begin + expected_len(&out, begin)));
            self.matches.find(src, end, &mut self.found);
            self.is_final &= end + LAST_MATCH_TO_END < src.len() && self.matches.is_final(src, &self.found);
            searched = end;
            self.plan.make(begin, end, start_end, &self.found);
            let write_end = if end < src.len() { end - OVERLAP } else { end };
            let Some(next) = self.write(begin, write_end, end, &mut out) else { break };
            let before = self.found.iter().take_while(|found| found.start as usize <= next).count();
            self.found.drain(..before.saturating_sub(1));
            begin = next;
        }
        out.finish()
    }

    /// Writes the sequences of a segment that begin before `write_end`. Returns where the next segment begins, or
    /// `None` if the block is full.
    fn write(&self, begin: usize, write_end: usize, end: usize, out: &mut BlockWriter<'_>) -> Option<usize> {
        let mut at = begin;
        for found in self.plan.used() {
            while at <= found.last_start as usize {
                let start = at.max(found.start as usize);
                if start >= write_end {
                    return literals_fit(out, at.max(write_end));
                }
                let len = self.plan.match_len(begin, end, found, start);
                if !out.sequence(start, found.offset as usize, len) {
                    return None;
                }
                at = start + len;
            }
        }
        literals_fit(out, at.max(write_end))
    }
}

/// Returns `at`, or `None` if the literals before it do not fit any more.
fn literals_fit(out: &BlockWriter<'_>, at: usize) -> Option<usize> {
    (at - out.anchor() <= out.room()).then_some(at)
}

/// Returns most of the length that the rest of the block is expected to hold, if a segment begins at `begin`.
fn expected_len(out: &BlockWriter<'_>, begin: usize) -> usize {
    // The literals before `begin` take room too.
    let pending = begin.saturating_sub(out.anchor());
    let room = out.room().saturating_sub(pending);
    let expected = match out.written() + pending {
        0 => room,
        used => room * begin / used * 7 / 8,
    };
    expected.min(SEGMENT_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::block::extra_bytes;
    use super::*;
    use crate::lz4_block::{LAST_LITERALS, MATCH_LEN_MIN};

    /// Returns the length of the shortest block, by trying every sequence at every position.
    fn shortest(src: &[u8]) -> usize {
        let cost = |literals: usize| 1 + extra_bytes(literals) + literals;
        let longest = |at: usize| {
            let len = |from: usize| {
                (0..src.len() - LAST_LITERALS - at).take_while(|i| src[from + i] == src[at + i]).count()
            };
            (0..at).map(len).max().unwrap_or(0)
        };
        // The length of the sequences whose last match ends at a position.
        let mut lens = vec![usize::MAX; src.len() + 1];
        lens[0] = 0;
        for at in 1..(src.len() + 1).saturating_sub(LAST_MATCH_TO_END) {
            let before =
                (0..=at).filter(|end| lens[*end] != usize::MAX).map(|end| lens[end] + cost(at - end)).min();
            let Some(before) = before else { continue };
            for len in MATCH_LEN_MIN..=longest(at) {
                let with_match = before + 2 + extra_bytes(len - MATCH_LEN_MIN);
                lens[at + len] = lens[at + len].min(with_match);
            }
        }
        let all = |end: usize| lens[end].saturating_add(cost(src.len() - end));
        (0..=src.len()).map(all).min().unwrap_or(0)
    }

    /// Makes a source of runs, text of few symbols, noise and copies.
    fn source(seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let mut src: Vec<u8> = Vec::new();
        for _ in 0..1 + random() % 14 {
            let (kind, len, from) = (random() % 4, 1 + random() % 50, random() % (src.len() + 1));
            for i in 0..len {
                src.push(match kind {
                    0 => from as u8,
                    1 => random() as u8 & 3,
                    2 => random() as u8,
                    _ => src.get(from + i).copied().unwrap_or(7),
                });
            }
        }
        src
    }

    #[test]
    fn blocks_are_as_short_as_possible() {
        let (mut written, mut least) = (0, 0);
        let mut encoder = Optimal::new(65535, usize::MAX);
        for seed in 0..400 {
            let src = source(seed);
            let mut dst = vec![0; 2 * src.len() + 64];
            let fit = encoder.fit(&src, &mut dst);
            assert_eq!(fit.consumed_bytes, src.len());
            let shortest = shortest(&src);
            assert!((shortest..=shortest + 3).contains(&fit.written_bytes), "{seed}: {shortest}, {fit:?}");
            (written, least) = (written + fit.written_bytes, least + shortest);
        }
        // The plan counts the literals of a sequence from its end, and does not go back if their number takes a further
        // byte.
        println!("{written} bytes, {least} possible");
        assert!(written <= least + least / 1000, "{written} bytes, {least} possible");
    }
}
