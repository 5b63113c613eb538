//! An LZ4 block compressor for one page, in place of liblz4's for any length.
//!
//! Greedy, as liblz4's is: of the places with the same hash only the last is looked at. What differs comes
//! from pages of programs, where a sequence stands for 15 bytes on average, three of four matches begin 0 to
//! 2 bytes behind the one before, and more than half are 6 to 8 bytes long; mispredicted branches are dear:
//!
//! - The hash is of 6 bytes, not 4: fewer and better matches, and smaller output in spite of it.
//! - The first probes behind a match are written out one by one, which lets branch prediction tell them
//!   apart, and looked up in pairs, so that the second is under way when the first was guessed wrong.
//! - A match without literals, the commonest, has a way of its own, without copying or looking back.
//! - Lengths come from 16 bytes compared without a branch.
//! - The destination has room for whatever comes out, so that little is checked on the way.
//! - The table is `u16` and small. Clearing it takes a fiftieth of the time, so that no probe has to tell old
//!   entries from new ones, and one page leaves nothing to the next.
//!
//! Whether a page is worth keeping folded is not decided here: the output is always complete.
//! Format: `lz4_Block_format.md` of the LZ4 project.

use super::load::{load_u32, load_u64};
use super::output::Output;
use pagefold_page::{PAGE_SIZE, Page};
use std::hint::select_unpredictable;

pub(super) use super::output::DST_LEN;

/// Shortest match of the format.
const MATCH_LEN_MIN: usize = 4;
/// No match ends behind this: the last 5 bytes are literals.
const MATCH_END_MAX: usize = PAGE_SIZE - 5;
/// No match begins behind this: it begins at least 12 bytes before the end.
const MATCH_START_MAX: usize = PAGE_SIZE - 12;
/// Up to here a match can be found without care for the end: 4 bytes and 16 more are comparable.
const FREE_START_MAX: usize = MATCH_END_MAX - 16 - MATCH_LEN_MIN;
/// Up to here there is room for all of the written out probes.
const QUICK_START_MAX: usize = FREE_START_MAX - QUICK_PROBES;
/// Probes that are written out.
const QUICK_PROBES: usize = 8;
/// After `1 << SKIP_TRIGGER` probes without a match only every second position is probed, and so on.
const SKIP_TRIGGER: usize = 6;

const HASH_BITS: u32 = 12;

/// Compresses `page` into the front of `dst`; returns the length. `None` is never reached: `dst` is long
/// enough.
#[inline]
pub(super) fn compress(page: &Page, dst: &mut [u8; DST_LEN]) -> Option<usize> {
    let mut out = Output::new(page, dst);
    // Entries that were never written are of position 0, which is a candidate like any other.
    let mut table = Table([0; 1 << HASH_BITS]);
    let end = compress_front(page, &mut table, &mut out)?;
    compress_tail(page, &mut table, &mut out, end)?;
    out.finish()
}

/// Positions by the hash of the 6 bytes there. None is behind [`MATCH_START_MAX`]. They are put in going forward, so those
/// that are found are before the one that is looked up. A written out pair puts its second position in before the first is
/// found to match, but a match is longer than that, so the next look-up is behind both.
#[repr(align(64))]
struct Table([u16; 1 << HASH_BITS]);

impl Table {
    /// Puts a position in and returns the one that it replaces, which is at most [`MATCH_START_MAX`] too.
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

    /// Looks for 4 equal bytes at a place before `at`, which takes that place's entry.
    ///
    /// # Safety
    /// `at` is at most [`MATCH_START_MAX`].
    #[inline(always)]
    unsafe fn probe(&mut self, page: &Page, at: usize) -> Option<usize> {
        // SAFETY: `at` is at most MATCH_START_MAX (the caller's duty), 12 bytes before the end.
        let word = unsafe { load_u64(page, at) };
        // SAFETY: the caller's duty.
        let from = unsafe { self.replace(word, at) };
        // SAFETY: entries are 0 or positions that were given to `replace`, at most MATCH_START_MAX, which is 12 bytes
        // before the end.
        (unsafe { load_u32(page, from) } == word as u32).then_some(from)
    }
}

/// A match and where it was found.
struct Found {
    at: usize,
    from: usize,
}

/// Compresses until no match can begin before [`FREE_START_MAX`]; returns the position to go on at.
#[inline(always)]
fn compress_front(page: &Page, table: &mut Table, out: &mut Output) -> Option<usize> {
    let (mut at, mut probes) = (1, 1 << SKIP_TRIGGER);
    loop {
        // Probes with growing steps.
        let mut found = loop {
            if at > FREE_START_MAX {
                return Some(at);
            }
            // SAFETY: `at` is at most FREE_START_MAX, which is before MATCH_START_MAX.
            if let Some(from) = unsafe { table.probe(page, at) } {
                break Found { at, from };
            }
            at += probes >> SKIP_TRIGGER;
            probes += 1;
        };
        // Sequences close to each other.
        loop {
            // SAFETY: found by the loop above at FREE_START_MAX at most, or by `quick`, which promises the same; entries of the
            // table are before the position that is looked up.
            let end = unsafe { match_end(page, &found) };
            out.sequence(widen(page, found.from, found.at, out.anchor()), found.at - found.from, end)?;
            if end <= QUICK_START_MAX {
                // SAFETY: `end - 2` is before QUICK_START_MAX, which is before MATCH_START_MAX, 12 bytes before the end.
                unsafe { table.replace(load_u64(page, end - 2), end - 2) };
            }
            match quick(page, table, out)? {
                Quick::Found(next) => found = next,
                Quick::End => {
                    (at, probes) = (out.anchor(), 1 << SKIP_TRIGGER);
                    break;
                }
                Quick::None => {
                    (at, probes) = (out.anchor() + QUICK_PROBES, QUICK_PROBES + (1 << SKIP_TRIGGER));
                    break;
                }
            }
        }
    }
}

/// What the written out probes came to.
enum Quick {
    /// A match behind literals, which begins before [`FREE_START_MAX`].
    Found(Found),
    /// No match.
    None,
    /// Too near to the end for them.
    End,
}

/// Writes matches without literals as long as there are any, then looks for one behind literals.
#[inline(always)]
fn quick(page: &Page, table: &mut Table, out: &mut Output) -> Option<Quick> {
    loop {
        let at = out.anchor();
        if at > QUICK_START_MAX {
            return Some(Quick::End);
        }
        // Both entries are read and written before either is looked at.
        macro_rules! pair {
            ($first:literal) => {{
                // SAFETY: both are less than QUICK_PROBES behind QUICK_START_MAX, so before FREE_START_MAX, which is more than
                // 8 bytes before the end.
                let words = unsafe { (load_u64(page, at + $first), load_u64(page, at + $first + 1)) };
                // SAFETY: both are before FREE_START_MAX (see above), which is before MATCH_START_MAX.
                let (from, next_from) = unsafe {
                    (table.replace(words.0, at + $first), table.replace(words.1, at + $first + 1))
                };
                // SAFETY: `replace` returns positions of MATCH_START_MAX at most, 12 bytes before the end.
                if unsafe { load_u32(page, from) } == words.0 as u32 {
                    if $first == 0 {
                        // SAFETY: `at` is at most QUICK_START_MAX, which is before FREE_START_MAX; entries of the table are
                        // before the position that is looked up.
                        let end = unsafe { match_end(page, &Found { at, from }) };
                        out.match_only(at - from, end)?;
                        continue;
                    }
                    return Some(Quick::Found(Found { at: at + $first, from }));
                }
                // SAFETY: `replace` returns positions of MATCH_START_MAX at most, 12 bytes before the end.
                if unsafe { load_u32(page, next_from) } == words.1 as u32 {
                    return Some(Quick::Found(Found { at: at + $first + 1, from: next_from }));
                }
            }};
        }
        pair!(0);
        pair!(2);
        pair!(4);
        pair!(6);
        return Some(Quick::None);
    }
}

/// Where a match ends.
///
/// # Safety
/// It begins at [`FREE_START_MAX`] or before, and was found at a place before that.
#[inline(always)]
unsafe fn match_end(page: &Page, found: &Found) -> usize {
    let (at, from) = (found.at + MATCH_LEN_MIN, found.from + MATCH_LEN_MIN);
    debug_assert!(from < at && found.at <= FREE_START_MAX);
    // SAFETY: `at` is at least 16 bytes before MATCH_END_MAX, as the match begins MATCH_LEN_MIN before it and at
    // FREE_START_MAX at most; `from` is before `at` (both the caller's duty).
    let (low, high) = unsafe {
        (load_u64(page, at) ^ load_u64(page, from), load_u64(page, at + 8) ^ load_u64(page, from + 8))
    };
    if low | high == 0 {
        // SAFETY: `from` is before `at`, so it is as far behind both.
        return unsafe { match_end_slow(page, at + 16, from + 16) };
    }
    let equal_bits = select_unpredictable(low == 0, 64 + high.trailing_zeros(), low.trailing_zeros());
    at + equal_bits as usize / 8
}

/// The first position behind `at` that differs from its counterpart behind `from`, or [`MATCH_END_MAX`].
///
/// # Safety
/// `from` is before `at`.
#[inline(always)]
unsafe fn match_end_slow(page: &Page, mut at: usize, mut from: usize) -> usize {
    debug_assert!(from < at);
    while at + 8 <= MATCH_END_MAX {
        // SAFETY: 8 bytes at `at` are before MATCH_END_MAX (just checked), and `from` is before `at`: the caller's duty, and
        // both move together.
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

/// Moves the start of a match back over equal bytes, as far as the last match's end.
#[inline(always)]
fn widen(page: &Page, from: usize, at: usize, anchor: usize) -> usize {
    // Mostly there is nothing to be had.
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

/// The last matches, byte by byte.
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
        out.sequence_near_end(widen(page, from, at, out.anchor()), at - from, end)?;
        at = end;
    }
    Some(())
}
