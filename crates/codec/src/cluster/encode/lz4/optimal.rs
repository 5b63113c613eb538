//! A dense LZ4 encoder with any window: it finds the longest match of every position, and chooses the sequences that
//! take the fewest bytes.
//!
//! The source is encoded in segments. Within one, the cost of the rest of the segment is calculated from its end to its
//! beginning: at each position a literal, the longest match, or its beginning. A shorter match is cheaper only if its
//! length takes fewer bytes, so few lengths are tried. The first segment is as long as the cluster; a later one is most
//! of what the rest of the cluster is expected to hold, so that few matches are searched in vain.

use super::block::{BlockWriter, TOKEN_MATCH_LEN_MAX, extra_bytes};
use super::matches::{Match, Matches};
use crate::cluster::encode::Fit;

const SEGMENT_MIN: usize = 256;
const SEGMENT_MAX: usize = 32 << 10;
/// The end of a segment that is planned again with the next one, because the plan does not see what follows.
const OVERLAP: usize = 128;
/// The most positions that are planned at once.
const PLAN_MAX: usize = SEGMENT_MAX + OVERLAP + SEGMENT_MIN;

/// The cheapest encoding of a segment from some position on.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    /// Bytes for the rest of the segment.
    cost: u32,
    /// Literals that the encoding begins with.
    literals: u32,
    /// Length of the match here; 0 for a literal.
    match_len: u32,
}

/// The working state, for one window.
pub(super) struct Optimal {
    matches: Matches,
    found: Box<[Match]>,
    plans: Box<[Plan]>,
}

impl Optimal {
    /// Returns the heap bytes for this window.
    pub(super) fn heap_bytes(window: usize) -> usize {
        Matches::heap_bytes(window) + (PLAN_MAX + 1) * (size_of::<Match>() + size_of::<Plan>())
    }

    /// Makes an encoder whose searches take up to `depth` steps.
    pub(super) fn new(window: usize, depth: usize) -> Self {
        Optimal {
            matches: Matches::new(window, depth),
            found: vec![Match::default(); PLAN_MAX + 1].into_boxed_slice(),
            plans: vec![Plan::default(); PLAN_MAX + 1].into_boxed_slice(),
        }
    }

    /// Compresses as long a beginning of `src` as fits.
    pub(super) fn fit(&mut self, src: &[u8], dst: &mut [u8]) -> Fit {
        self.matches.clear(2 * dst.len());
        let mut out = BlockWriter::new(src, dst);
        // `begin` is where the current segment begins; the positions before `inserted` are in the trees.
        let (mut begin, mut inserted) = (0, 0);
        while begin < src.len() {
            let least = inserted.max(begin) + SEGMENT_MIN;
            let end = src.len().min(least.max(begin + expected_len(&out, begin)));
            for at in inserted..end {
                let found = self.matches.find(src, at);
                if let Some(index) = at.checked_sub(begin) {
                    self.found[index] = found;
                }
            }
            inserted = end;
            self.plan(end - begin);
            let write_end = if end < src.len() { end - OVERLAP } else { end };
            let Some(next) = self.write(begin, write_end, end, &mut out) else { break };
            // The matches that were found and not used.
            self.found.copy_within(next.min(end) - begin..end - begin, 0);
            begin = next;
        }
        out.finish()
    }

    /// Plans a segment of this length, whose matches have been found.
    fn plan(&mut self, len: usize) {
        self.plans[len] = Plan::default();
        for at in (0..len).rev() {
            let after = self.plans[at + 1];
            let literals = after.literals + 1;
            let more = extra_bytes(literals as usize) - extra_bytes(after.literals as usize);
            let mut best = Plan { cost: after.cost + 1 + more as u32, literals, match_len: 0 };
            let found = self.found[at];
            let longest = (found.len as usize).min(len - at);
            if longest >= super::block::MATCH_LEN_MIN {
                // The longest, and the longest whose length takes no more bytes, or one more.
                for match_len in [longest, TOKEN_MATCH_LEN_MAX, TOKEN_MATCH_LEN_MAX + 255] {
                    if match_len > longest {
                        continue;
                    }
                    let extra = extra_bytes(match_len - super::block::MATCH_LEN_MIN);
                    let cost = self.plans[at + match_len].cost + 3 + extra as u32;
                    if cost < best.cost {
                        best = Plan { cost, literals: 0, match_len: match_len as u32 };
                    }
                }
            }
            self.plans[at] = best;
        }
    }

    /// Writes the sequences of a segment that begin before `write_end`. Returns where the next segment begins, or
    /// `None` if the block is full.
    fn write(&self, begin: usize, write_end: usize, end: usize, out: &mut BlockWriter<'_>) -> Option<usize> {
        let mut at = begin;
        while at < write_end {
            let found = self.found[at - begin];
            let mut len = self.plans[at - begin].match_len as usize;
            if len == 0 {
                at += 1;
                continue;
            }
            // The segment's end cuts no match.
            if at + len == end {
                len = found.len as usize;
            }
            if !out.sequence(at, found.offset as usize, len) {
                return None;
            }
            at += len;
        }
        // Literals that do not fit any more.
        (at - out.anchor() <= out.room()).then_some(at)
    }
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
