//! Finds matches with a greedy search over one hash table of positions, which is sized for pages.
//!
//! The table holds 16-bit positions and is cleared for every block. Clearing its 8 KiB takes a hundredth of the time of
//! a page. Entries with a generation number would not need clearing, but each lookup would have a branch that the CPU
//! cannot predict, which costs far more.
//!
//! Inputs longer than [`BLOCK`] are searched in blocks, and matches stay inside their block. All blocks are written as
//! one stream.

use super::emit::Emitter;
use super::error::LzoError;
use super::format::*;
use crate::load::{common_prefix, common_suffix, leading_zeros, load_u32};

/// log2 of the hash table's entries: 8 KiB, a quarter of a small first-level cache.
const TABLE_BITS: u32 = 12;

/// Entries of the hash table.
const TABLE_LEN: usize = 1 << TABLE_BITS;

/// Bytes searched with one set of positions. No distance inside a block exceeds [`FAR_MAX_DISTANCE`] - 1: in version 1
/// the distance [`FAR_MAX_DISTANCE`] would mean a zero run.
const BLOCK: usize = FAR_MAX_DISTANCE;

/// log2 of the number of literals after which the search begins to skip positions.
const SKIP_SHIFT: u32 = 5;

/// Shortest zero run that is written as such: for a shorter one, a match at distance 1 takes no more bytes.
const ZERO_RUN_WORTH: usize = 34;

/// The hash table of one compression at a time.
pub struct Workspace {
    table: Box<[u16; TABLE_LEN]>,
}

impl Workspace {
    /// Allocates a workspace, 8 KiB.
    pub fn new() -> Self {
        Workspace { table: Box::new([0; TABLE_LEN]) }
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::new()
    }
}

/// Compresses `src` into `dst` and returns the length; `RLE` selects version 1 of the bitstream.
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

/// Writes the matches of the block that begins at `start` and ends with `src`, and the literals before each.
///
/// `anchor` is the end of the last match before the block, and literals are not yet written from there on. Returns the
/// anchor after the block.
fn compress_block<const RLE: bool>(
    table: &mut [u16; TABLE_LEN],
    src: &[u8],
    start: usize,
    mut anchor: usize,
    out: &mut Emitter<'_>,
) -> Result<usize, LzoError> {
    let block = &src[start..];
    // The block is written up to here.
    let mut done = 0;
    // Empty entries hold position 0, so the search begins at 1.
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
        // The search finds a long run of zeros as a match that overlaps itself.
        if RLE && len >= ZERO_RUN_WORTH && word == 0 {
            let zeros = leading_zeros(&block[at..]);
            if zeros >= ZERO_RUN_WORTH {
                at = zero_runs(src, anchor, start + at, zeros, out)? - start;
                (done, anchor) = (at, start + at);
                continue;
            }
        }
        // The search skips positions, so bytes before this one may match too.
        let back = common_suffix(block, candidate, at).min(at - done);
        let (distance, from) = (at - candidate, at - back);
        let len = if RLE && distance > FAR_HIGH { unambiguous_len(distance, len + back) } else { len + back };
        out.sequence(src, anchor, start + from, distance, len)?;
        at = from + len;
        done = at;
        anchor = start + at;
    }
    Ok(anchor)
}

/// Writes the literals before a run of zeros, and the run: `len` zeros from `at` on and the zeros directly before `at`.
///
/// At the start of the stream at least one byte is written as a literal. Returns the end of the zeros that are written.
/// The search handles a remainder that is too short for a zero run.
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

/// A far match has the high bit of its distance set where the distance is greater than this.
const FAR_HIGH: usize = 2 * FAR_BASE - 1;

/// Shortens a match of version 1 that a decoder would read as a zero run; returns the length to write.
///
/// In a far match with the high bit set, a decoder looks for the mark of a zero run in the two bytes after the opcode.
/// Where the length has one extra byte, these two are the extra byte and the low byte of the distance, and may equal
/// the mark.
#[cold]
fn unambiguous_len(distance: usize, len: usize) -> usize {
    if distance & 0x803f == 0x803f && (261..=264).contains(&len) { 260 } else { len }
}

/// Returns the table index for the first `HASHED` bytes of `word`.
///
/// A match needs four bytes, so four are hashed. With five the search takes a sixth less time on file pages, but
/// the compression ratio falls from 1.78 to 1.70.
#[inline(always)]
fn hash(word: u64) -> usize {
    const HASHED: u32 = 4;
    let bytes = word << (64 - 8 * HASHED);
    (bytes.wrapping_mul(0x9e37_79b1_85eb_ca87) >> (64 - TABLE_BITS)) as usize
}
