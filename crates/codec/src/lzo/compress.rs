//! Finding matches: greedy, one hash table of positions, sized for pages.
//!
//! The table holds 16-bit positions and is cleared for every block: at 8 KiB
//! that is one part in a hundred of the time of a page. Entries that say by
//! themselves whether they are stale would save the clearing, but then every
//! lookup has a branch that nothing predicts, and that costs far more.
//!
//! Inputs longer than [`BLOCK`] are searched in blocks, and matches stay inside
//! their block; the instructions run on, so a decoder sees one stream.

use super::LzoError;
use super::bytes::{common_prefix, common_suffix, leading_zeros, load_u32};
use super::emit::Emitter;
use super::format::*;

/// log2 of the hash table's entries: 8 KiB, a quarter of a small first-level cache.
const TABLE_BITS: u32 = 12;

/// Entries of the hash table.
const TABLE_LEN: usize = 1 << TABLE_BITS;

/// Bytes searched with one set of positions. No distance inside exceeds
/// [`FAR_MAX_DISTANCE`] - 1, which version 1 needs: the greatest means a zero run there.
const BLOCK: usize = FAR_MAX_DISTANCE;

/// After this many literals (as a power of two) the search begins to skip positions.
const SKIP_SHIFT: u32 = 5;

/// Shortest zero run written as one: below, a match at distance 1 takes no more bytes.
const ZERO_RUN_WORTH: usize = 34;

/// The hash table of one compression at a time.
pub struct Workspace {
    table: Box<[u16; TABLE_LEN]>,
}

impl Workspace {
    /// A fresh workspace, 8 KiB.
    pub fn new() -> Self {
        Workspace { table: Box::new([0; TABLE_LEN]) }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace").finish_non_exhaustive()
    }
}

/// Compresses `src` into `dst`; `RLE` chooses version 1 of the bitstream.
pub(super) fn compress<const RLE: bool>(
    work: &mut Workspace,
    src: &[u8],
    dst: &mut [u8],
) -> Result<usize, LzoError> {
    let mut out = Emitter::new(dst);
    if RLE {
        out.version(VERSION_RLE)?;
    }
    let mut anchor = 0;
    for start in (0..src.len()).step_by(BLOCK) {
        let end = src.len().min(start + BLOCK);
        work.table.fill(0);
        anchor = compress_block::<RLE>(&mut work.table, &src[..end], start, anchor, &mut out)?;
    }
    out.literals(src, anchor, src.len())?;
    out.end()
}

/// Writes the matches of the block that begins at `start` and ends with `src`,
/// and the literals before each. Literals from `anchor` on are still to be
/// written, before and after; returns the new one.
fn compress_block<const RLE: bool>(
    table: &mut [u16; TABLE_LEN],
    src: &[u8],
    start: usize,
    mut anchor: usize,
    out: &mut Emitter<'_>,
) -> Result<usize, LzoError> {
    let block = &src[start..];
    // What is before here in the block is written.
    let mut done = 0;
    // The first position stands in every empty entry, so it is never searched.
    let mut at = 1;
    while let Some(word) = block.get(at..).and_then(|tail| tail.first_chunk()) {
        let word = u64::from_le_bytes(*word);
        let entry = &mut table[hash(word)];
        let candidate = usize::from(*entry);
        *entry = at as u16;
        if load_u32(block, candidate) != word as u32 {
            at += 1 + ((at - done) >> SKIP_SHIFT);
            continue;
        }
        let len = 4 + common_prefix(block, candidate + 4, at + 4);
        // A long run of zeros is first found as the match with itself that it also is.
        if RLE && len >= ZERO_RUN_WORTH && word == 0 {
            let zeros = leading_zeros(&block[at..]);
            if zeros >= ZERO_RUN_WORTH {
                at = zero_runs(src, anchor, start + at, zeros, out)? - start;
                (done, anchor) = (at, start + at);
                continue;
            }
        }
        // Bytes before may match too: those between searched positions.
        let back = common_suffix(block, candidate, at).min(at - done);
        let (distance, from) = (at - candidate, at - back);
        let len = if RLE && distance > FAR_HIGH { unambiguous(distance, len + back) } else { len + back };
        out.sequence(src, anchor, start + from, distance, len)?;
        at = from + len;
        done = at;
        anchor = start + at;
    }
    Ok(anchor)
}

/// Writes `len` zeros at `at` and those directly before, and the literals before
/// them, at least one at the very start; returns where the zeros end.
/// What is left of a long run and too short to be one is left to the search.
#[inline(never)]
fn zero_runs(
    src: &[u8],
    anchor: usize,
    at: usize,
    len: usize,
    out: &mut Emitter<'_>,
) -> Result<usize, LzoError> {
    let end = at + len;
    let before = src[anchor.max(1)..at].iter().rev().take_while(|byte| **byte == 0).count();
    let mut at = at - before;
    out.literals(src, anchor, at)?;
    while end - at >= ZERO_RUN_WORTH {
        let run = ZERO_RUN_MAX.min(end - at);
        out.zero_run(run)?;
        at += run;
    }
    Ok(at)
}

/// A far match at more than this has the high bit of its distance set.
const FAR_HIGH: usize = 2 * FAR_BASE - 1;

/// The length to write for a match in version 1, at most `len`.
///
/// With the far match's high bit set, a decoder looks for the mark of a zero
/// run in the two bytes after the opcode. Where a length has one extra byte,
/// those are that byte and the low byte of the distance, and could look alike.
#[cold]
fn unambiguous(distance: usize, len: usize) -> usize {
    if distance & 0x803f == 0x803f && (261..=264).contains(&len) { 260 } else { len }
}

/// The table slot for the bytes of `word`, of which the first `HASHED` count.
///
/// Four, as many as a match needs. With five the search takes a sixth less time
/// on file pages, and folds them to 1 / 1.70 instead of 1 / 1.78.
#[inline(always)]
fn hash(word: u64) -> usize {
    const HASHED: u32 = 4;
    let bytes = word << (64 - 8 * HASHED);
    (bytes.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - TABLE_BITS)) as usize
}
