//! An LZ4 block compressor for one page; liblz4's is for any length.
//!
//! The match search is greedy, as liblz4's is: of all positions with the same hash it compares only the last. The
//! differences from liblz4 suit the memory pages of programs. There, a sequence encodes 15 bytes on average, three of
//! four matches begin 0 to 2 bytes after the match before, more than half of the matches are 6 to 8 bytes long, and
//! mispredicted branches are expensive:
//!
//! - The hash is of 6 bytes, not 4. That finds fewer but better matches, and the output is smaller nevertheless.
//! - The first probes after a match are unrolled, so that the branch predictor sees each as a branch by itself. They
//!   look the table up in pairs, so that the second load is under way when the branch on the first is mispredicted.
//! - A match without literals is the most frequent sequence. It has a separate code path, which copies no
//!   literals and does not extend the match backwards.
//! - The length of a match comes from comparing 16 bytes without a branch.
//! - The destination has room for the longest output, so few bounds are checked.
//! - The hash table has `u16` entries and is small. It is cleared for each page, which takes a fiftieth of the
//!   time. So no probe has to distinguish stale entries, and a page's output does not depend on the page before.
//!
//! The store decides whether a page is worth keeping compressed; this module always writes the complete output.
//! Format: `lz4_Block_format.md` of the LZ4 project.

use super::output::Output;
use crate::load::{load_u32_unchecked as load_u32, load_u64_unchecked as load_u64};
use crate::lz4_block::{LAST_LITERALS, LAST_MATCH_TO_END, MATCH_LEN_MIN};
use pagefold_page::{PAGE_SIZE, Page};
use std::hint::select_unpredictable;

pub(super) use super::output::DST_LEN;

/// No match ends after this position.
const MATCH_END_MAX: usize = PAGE_SIZE - LAST_LITERALS;
/// No match begins after this position, 12 bytes before the end.
const MATCH_START_MAX: usize = PAGE_SIZE - LAST_MATCH_TO_END;
/// Up to here a match can be compared without checking for the page's end: its first 4 bytes and 16 more are before
/// [`MATCH_END_MAX`].
const UNCHECKED_START_MAX: usize = MATCH_END_MAX - 16 - MATCH_LEN_MIN;
/// Up to here all of the unrolled probes are before [`UNCHECKED_START_MAX`].
const UNROLLED_START_MAX: usize = UNCHECKED_START_MAX - UNROLLED_PROBES;
/// The number of unrolled probes.
const UNROLLED_PROBES: usize = 8;
/// After `1 << SKIP_TRIGGER` probes without a match only every second position is probed; then every third, and so
/// on.
const SKIP_TRIGGER: usize = 6;

const HASH_BITS: u32 = 12;

/// Compresses `page` into the front of `dst` and returns the length. It never returns `None`, because `dst` is long
/// enough.
#[inline]
pub(super) fn compress(page: &Page, dst: &mut [u8; DST_LEN]) -> Option<usize> {
    let mut out = Output::new(page, dst);
    // An entry that was never written holds position 0, which is a candidate like any other.
    let mut table = Table([0; 1 << HASH_BITS]);
    let end = compress_front(page, &mut table, &mut out)?;
    compress_tail(page, &mut table, &mut out, end)?;
    out.finish()
}

/// The hash table: positions by the hash of the 6 bytes there, none of them after [`MATCH_START_MAX`].
///
/// Positions are inserted in ascending order, so a position that is found is before the one that is looked up. An
/// unrolled pair inserts its second position before its first is compared; but a match is longer than that, so the
/// next lookup is after both.
#[repr(align(64))]
struct Table([u16; 1 << HASH_BITS]);

impl Table {
    /// Inserts a position and returns the one that it replaces, which is at most [`MATCH_START_MAX`] too.
    ///
    /// # Safety
    /// `at` is at most [`MATCH_START_MAX`].
    #[inline(always)]
    unsafe fn replace(&mut self, word: u64, at: usize) -> usize {
        debug_assert!(at <= MATCH_START_MAX);
        // The lower 6 bytes, multiplied by an odd number; the upper bits of the product depend on all of
        // them.
        let hash = word.wrapping_mul(0x9fb2_1c65_1e98_df25 << 16) >> (u64::BITS - HASH_BITS);
        usize::from(std::mem::replace(&mut self.0[hash as usize], at as u16))
    }

    /// Looks for an earlier position with the same 4 bytes as at `at`, and inserts `at` into the table.
    ///
    /// # Safety
    /// `at` is at most [`MATCH_START_MAX`].
    #[inline(always)]
    unsafe fn probe(&mut self, page: &Page, at: usize) -> Option<usize> {
        // SAFETY: `at` is at most MATCH_START_MAX (the caller's duty), 12 bytes before the end.
        let word = unsafe { load_u64(page, at) };
        // SAFETY: the caller's duty.
        let from = unsafe { self.replace(word, at) };
        // SAFETY: entries are 0 or positions that were passed to `replace`, at most MATCH_START_MAX, which is 12 bytes
        // before the end.
        (unsafe { load_u32(page, from) } == word as u32).then_some(from)
    }
}

/// A match: its position, and the earlier position with the same bytes.
struct Match {
    at: usize,
    from: usize,
}

/// Compresses until no match can begin before [`UNCHECKED_START_MAX`]; returns the position to continue at.
#[inline(always)]
fn compress_front(page: &Page, table: &mut Table, out: &mut Output) -> Option<usize> {
    let (mut at, mut probes) = (1, 1 << SKIP_TRIGGER);
    loop {
        // Probe with growing steps until there is a match.
        let mut found = loop {
            if at > UNCHECKED_START_MAX {
                return Some(at);
            }
            // SAFETY: `at` is at most UNCHECKED_START_MAX, which is before MATCH_START_MAX.
            if let Some(from) = unsafe { table.probe(page, at) } {
                break Match { at, from };
            }
            at += probes >> SKIP_TRIGGER;
            probes += 1;
        };
        // Write it, and those that follow it closely.
        loop {
            // SAFETY: the match begins at UNCHECKED_START_MAX at most, whether the loop above found it or
            // `probe_unrolled`, which promises the same; entries of the table are before the position that is looked
            // up.
            let end = unsafe { match_end(page, &found) };
            out.sequence(extend_back(page, found.from, found.at, out.anchor()), found.at - found.from, end)?;
            if end <= UNROLLED_START_MAX {
                // SAFETY: `end - 2` is before UNROLLED_START_MAX, which is before MATCH_START_MAX, 12 bytes before the
                // end.
                unsafe { table.replace(load_u64(page, end - 2), end - 2) };
            }
            match probe_unrolled(page, table, out)? {
                UnrolledProbes::Found(next) => found = next,
                UnrolledProbes::End => {
                    (at, probes) = (out.anchor(), 1 << SKIP_TRIGGER);
                    break;
                }
                UnrolledProbes::None => {
                    (at, probes) = (out.anchor() + UNROLLED_PROBES, UNROLLED_PROBES + (1 << SKIP_TRIGGER));
                    break;
                }
            }
        }
    }
}

/// The result of the unrolled probes.
enum UnrolledProbes {
    /// A match after literals, which begins before [`UNCHECKED_START_MAX`].
    Found(Match),
    /// No match.
    None,
    /// The page's end is too near for the unrolled probes.
    End,
}

/// Writes matches without literals as long as there are any, then looks for one after literals.
#[inline(always)]
fn probe_unrolled(page: &Page, table: &mut Table, out: &mut Output) -> Option<UnrolledProbes> {
    loop {
        let at = out.anchor();
        if at > UNROLLED_START_MAX {
            return Some(UnrolledProbes::End);
        }
        // Both entries are read and written before either is compared.
        macro_rules! pair {
            ($first:literal) => {{
                // SAFETY: both are less than UNROLLED_PROBES after UNROLLED_START_MAX, so before UNCHECKED_START_MAX,
                // which is more than 8 bytes before the end.
                let words = unsafe { (load_u64(page, at + $first), load_u64(page, at + $first + 1)) };
                // SAFETY: both are before UNCHECKED_START_MAX (see above), which is before MATCH_START_MAX.
                let (from, next_from) = unsafe {
                    (table.replace(words.0, at + $first), table.replace(words.1, at + $first + 1))
                };
                // SAFETY: `replace` returns positions of MATCH_START_MAX at most, 12 bytes before the end.
                if unsafe { load_u32(page, from) } == words.0 as u32 {
                    if $first == 0 {
                        // SAFETY: `at` is at most UNROLLED_START_MAX, which is before UNCHECKED_START_MAX; entries of
                        // the table are before the position that is looked up.
                        let end = unsafe { match_end(page, &Match { at, from }) };
                        out.match_only(at - from, end)?;
                        continue;
                    }
                    return Some(UnrolledProbes::Found(Match { at: at + $first, from }));
                }
                // SAFETY: `replace` returns positions of MATCH_START_MAX at most, 12 bytes before the end.
                if unsafe { load_u32(page, next_from) } == words.1 as u32 {
                    return Some(UnrolledProbes::Found(Match { at: at + $first + 1, from: next_from }));
                }
            }};
        }
        pair!(0);
        pair!(2);
        pair!(4);
        pair!(6);
        return Some(UnrolledProbes::None);
    }
}

/// Returns the position where a match ends.
///
/// # Safety
/// `found.at` is at most [`UNCHECKED_START_MAX`], and `found.from` is before `found.at`.
#[inline(always)]
unsafe fn match_end(page: &Page, found: &Match) -> usize {
    let (at, from) = (found.at + MATCH_LEN_MIN, found.from + MATCH_LEN_MIN);
    debug_assert!(from < at && found.at <= UNCHECKED_START_MAX);
    // SAFETY: `at` is at least 16 bytes before MATCH_END_MAX, as the match begins MATCH_LEN_MIN before it and at
    // UNCHECKED_START_MAX at most; `from` is before `at` (both the caller's duty).
    let (low, high) = unsafe {
        (load_u64(page, at) ^ load_u64(page, from), load_u64(page, at + 8) ^ load_u64(page, from + 8))
    };
    if low | high == 0 {
        // SAFETY: `from` is before `at`, and stays so when both advance by 16.
        return unsafe { match_end_slow(page, at + 16, from + 16) };
    }
    let equal_bits = select_unpredictable(low == 0, 64 + high.trailing_zeros(), low.trailing_zeros());
    at + equal_bits as usize / 8
}

/// Returns the first position from `at` on that differs from its counterpart from `from` on, at most
/// [`MATCH_END_MAX`]. With the checked [`common_prefix`](crate::load::common_prefix) in its place, pages take 1 to 2 %
/// longer.
///
/// # Safety
/// `from` is before `at`.
#[inline(always)]
unsafe fn match_end_slow(page: &Page, mut at: usize, mut from: usize) -> usize {
    debug_assert!(from < at);
    while at + 8 <= MATCH_END_MAX {
        // SAFETY: 8 bytes at `at` are before MATCH_END_MAX (just checked), and `from` is before `at`: the caller's
        // duty, and both move together.
        let differ = unsafe { load_u64(page, at) ^ load_u64(page, from) };
        if differ != 0 {
            return at + differ.trailing_zeros() as usize / 8;
        }
        at += 8;
        from += 8;
    }
    while at < MATCH_END_MAX && page[at] == page[from] {
        at += 1;
        from += 1;
    }
    at
}

/// Moves the start of a match backwards over equal bytes, at most to the last match's end, and returns it.
#[inline(always)]
fn extend_back(page: &Page, from: usize, at: usize, anchor: usize) -> usize {
    // Most matches cannot be extended.
    if from == 0 || page[at - 1] != page[from - 1] {
        return at;
    }
    let most = from.min(at - anchor);
    let mut len = 0;
    while len < most && page[at - 1 - len] == page[from - 1 - len] {
        len += 1;
    }
    at - len
}

/// Compresses the rest of the page from `at` on: probes every position and checks for the page's end.
#[inline(always)]
fn compress_tail(page: &Page, table: &mut Table, out: &mut Output, mut at: usize) -> Option<()> {
    while at <= MATCH_START_MAX {
        // SAFETY: `at` is at most MATCH_START_MAX.
        let Some(from) = (unsafe { table.probe(page, at) }) else {
            at += 1;
            continue;
        };
        // SAFETY: entries of the table are before the position that is looked up.
        let end = unsafe { match_end_slow(page, at + MATCH_LEN_MIN, from + MATCH_LEN_MIN) };
        out.sequence_near_end(extend_back(page, from, at, out.anchor()), at - from, end)?;
        at = end;
    }
    Some(())
}
