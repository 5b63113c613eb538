//! Finds the longest earlier match of every position, within a window.
//!
//! All distances take two bytes, so of a position only the match that ends last is of interest. Let a match begin at
//! `start` and end at `end`. The positions after `start` have a part of it, unless a match that ends later begins at
//! one of them. Such a match contains the last 3 bytes before `end` and the byte there, or it begins at `end - 2` or
//! later. So the earlier positions of these 4 bytes lead to it, and one search replaces one at each position:
//!
//! - At a position that no match covers, the latest earlier position with the same 4 bytes is enough.
//! - After each match that is found, the earlier positions of the 4 bytes at its end are searched for a match that
//!   begins as early as possible, but not before this one. If it begins at the same position, it replaces this one.
//!
//! Both end at once if the 4 bytes occurred nowhere, as half of the positions' in machine code. A chain links the
//! positions whose 4 bytes have the same hash, by 16-bit distances, so the tables of a short source stay in the
//! processor's first caches.
//!
//! The tables of several short sources are cleared once: the positions of each are counted on from those of the one
//! before. A head that an earlier source left leads to before this one, as an empty one does. So what is found depends
//! on the source alone.

use crate::load::{common_prefix, load_u32_unchecked as load_u32, load_u64_unchecked as load_u64};
use crate::lz4_block::{LAST_LITERALS, LAST_MATCH_TO_END, MATCH_LEN_MIN};

/// The number of slots of both tables: one for each 16-bit number, so no index needs a check.
const SLOTS: usize = 1 << 16;
/// There are this many times as many hashes as positions, as a power of two: few positions with other bytes are in a
/// chain.
const SPARSE_BITS: u32 = 3;
const HASH_BITS_MIN: u32 = 10;
const HASH_BITS_MAX: u32 = 16;
/// A shift of hashes that is not known when this is compiled.
const ANY_SHIFT: u32 = 0;
/// In a match of more than twice this length, only the last positions are inserted: its beginning is in the chains
/// already.
const LONG_LEN: usize = 512;

type Table = Box<[u16; SLOTS]>;

/// The positions of a word of [`Matches::linked`].
const WORD: usize = u64::BITS as usize;
const WORDS: usize = SLOTS / WORD;

/// A match that ends later than all that begin before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) offset: u32,
    /// The last position at which the plan begins this match, if it uses it.
    pub(super) last_start: u32,
}

impl Match {
    fn new(start: usize, end: usize, offset: usize) -> Self {
        Match { start: start as u32, end: end as u32, offset: offset as u32, last_start: 0 }
    }
}

/// The positions of one source, and how far it has been searched.
pub(super) struct Matches {
    window: usize,
    /// Most steps of a search along a chain.
    depth: usize,
    hash_bits: u32,
    /// The last position of each hash, plus `base` and 1, modulo 2^16. It is `base` or less if this source has none.
    heads: Table,
    /// The number of positions of earlier sources whose heads are not cleared.
    base: usize,
    /// The distance from each position of the window to the one before it in its chain, modulo 2^16; 0 is none. A
    /// distance beyond the window leads to a position that is compared in vain, or is rejected. The slots of inserted
    /// positions only are read, so they need no clearing.
    distances: Table,
    /// A bit for each position of the window, which is set if its chain has an earlier position within the window: a
    /// branch for each position would be mispredicted at every other one. The bits of positions that are not inserted
    /// are arbitrary.
    linked: Box<[u64; WORDS]>,
    /// The positions before this one are in the tables.
    inserted: usize,
    /// The positions before this one have been searched.
    searched: usize,
    /// A match that begins where nothing was searched yet.
    pending: Option<Match>,
}

impl Matches {
    pub(super) const HEAP_BYTES: usize = 2 * SLOTS * size_of::<u16>() + WORDS * size_of::<u64>();

    pub(super) fn new(window: usize, depth: usize) -> Self {
        Matches {
            window,
            depth,
            hash_bits: HASH_BITS_MAX,
            heads: table(),
            base: 0,
            distances: table(),
            linked: Box::new([0; WORDS]),
            inserted: 0,
            searched: 0,
            pending: None,
        }
    }

    /// Forgets all positions. About `expected_len` will be searched.
    pub(super) fn clear(&mut self, expected_len: usize) {
        let bits = expected_len.next_power_of_two().ilog2() + SPARSE_BITS;
        let hash_bits = bits.clamp(HASH_BITS_MIN, HASH_BITS_MAX);
        self.base += self.inserted;
        if hash_bits != self.hash_bits || self.base + expected_len >= SLOTS {
            (self.hash_bits, self.base) = (hash_bits, 0);
            self.heads[..1 << hash_bits].fill(0);
        }
        (self.inserted, self.searched, self.pending) = (0, 0, None);
    }

    /// Appends the matches that begin before `to` and after those that were found before, in ascending order of their
    /// beginnings and ends. The positions up to `to` are inserted first; those whose slots they take are not found.
    pub(super) fn find(&mut self, src: &[u8], to: usize, found: &mut Vec<Match>) {
        let to = to.min((src.len() + 1).saturating_sub(LAST_MATCH_TO_END));
        self.insert(src, to);
        while let Some(first) = self.first(src, to) {
            self.follow(src, to, first, found);
        }
    }

    /// Whether what was found is the same for any longer source that begins with this one. `found` has the last match.
    pub(super) fn is_final(&self, src: &[u8], found: &[Match]) -> bool {
        let last = self.pending.as_ref().or(found.last());
        // A match that is as long as the source allows may be longer, and then another may be the longest.
        let searched = last.map_or(0, |last| last.end as usize).max(self.searched);
        searched + LAST_MATCH_TO_END < src.len()
    }

    /// Returns the match that begins first, if it begins before `to`.
    #[inline(always)]
    fn first(&mut self, src: &[u8], to: usize) -> Option<Match> {
        if let Some(pending) = self.pending {
            self.pending.take_if(|pending| (pending.start as usize) < to)?;
            return Some(pending);
        }
        let mut begin = self.searched;
        while begin < to {
            let mut linked = self.linked[begin / WORD % WORDS] << (begin % WORD);
            let mut next = begin;
            while linked != 0 {
                let skipped = linked.leading_zeros();
                let at = next + skipped as usize;
                if at >= to {
                    break;
                }
                (linked, next) = (linked << skipped << 1, at + 1);
                let distance = usize::from(self.distances[at as u16 as usize]);
                let limit = self.window.min(at);
                if distance.wrapping_sub(1) < limit {
                    // SAFETY: the distance is at least 1 and at most `limit`, and `at` is 12 bytes before the end.
                    let latest = unsafe { self.latest(src, at, distance, limit) };
                    if latest.is_some() {
                        return latest;
                    }
                }
            }
            begin = (begin | (WORD - 1)) + 1;
        }
        self.searched = self.searched.max(to);
        None
    }

    /// Returns the latest match at `at`. Its offset is at least `distance`.
    ///
    /// # Safety
    /// `distance` is at least 1 and at most `limit`, which is at most `at`; and `at` is 12 bytes before the end of
    /// `src`.
    #[inline(always)]
    unsafe fn latest(&self, src: &[u8], at: usize, mut distance: usize, limit: usize) -> Option<Match> {
        // SAFETY: `at` is 12 bytes before the end.
        let word = unsafe { load_u64(src, at) };
        for _ in 0..self.depth {
            let from = at - distance;
            // SAFETY: `from` is before `at`: the distance is at most `limit`, and that at most `at`.
            let differ = unsafe { load_u64(src, from) } ^ word;
            if differ as u32 == 0 {
                let len = match differ {
                    0 => common_after(src, from, at),
                    _ => differ.trailing_zeros() as usize / 8,
                };
                return Some(Match::new(at, at + len, distance));
            }
            let step = usize::from(self.distances[from as u16 as usize]);
            distance += step;
            if step == 0 || distance > limit {
                return None;
            }
        }
        None
    }

    /// Appends a match, and those that overlap it or each other and end later, if they begin before `to`.
    #[inline(always)]
    fn follow(&mut self, src: &[u8], to: usize, first: Match, found: &mut Vec<Match>) {
        let mut last = first;
        while let Some(next) = self.later(src, &last) {
            if next.start != last.start {
                found.push(last);
                if next.start as usize >= to {
                    self.pending = Some(next);
                    return;
                }
            }
            last = next;
        }
        found.push(last);
        // No match that ends later covers the 4 bytes at the end.
        self.searched = last.end as usize + 2 - MATCH_LEN_MIN;
    }

    /// Returns the match that contains the last 3 bytes of this one and the byte after them, and begins first, though
    /// not before it.
    #[inline(always)]
    fn later(&mut self, src: &[u8], last: &Match) -> Option<Match> {
        let (start, at) = (last.start as usize, last.end as usize + 1 - MATCH_LEN_MIN);
        if at + LAST_MATCH_TO_END > src.len() {
            return None;
        }
        if at >= self.inserted {
            self.insert_end(src, start, at);
        }
        let distances = &*self.distances;
        let distance = usize::from(distances[at as u16 as usize]);
        let limit = self.window.min(at);
        if distance.wrapping_sub(1) >= limit {
            return None;
        }
        // SAFETY: `at` is at least 12 bytes before the end.
        let bytes = unsafe { load_u32(src, at) };
        let back_max = at - start;
        // The number of equal bytes before `at` that is an improvement, and the offset of the best match.
        let (mut least, mut offset) = (0, 0);
        // The first 4 bytes of what a better match has in common with `at`: most steps differ in them.
        let mut probe = bytes;
        // How far before `at` the position is whose chain is searched; where in it the search is, and where it ends.
        let (mut chain, mut link, mut link_min) = (0, at - distance, at - limit);
        for _ in 0..self.depth {
            let from = link + chain;
            let step = usize::from(distances[link as u16 as usize]);
            // SAFETY: `link` is before `at - chain`, the position whose chain it is in: so `from` is before `at`, and
            // that is at least 12 bytes before the end. The other load is at `from` or before.
            let is_better =
                unsafe { load_u32(src, from.saturating_sub(least)) == probe && load_u32(src, from) == bytes };
            if is_better {
                // SAFETY: see above.
                let back = unsafe { common_before(src, from, at, back_max) };
                if back >= least {
                    (least, offset) = (back + 1, at - from);
                    if back == back_max {
                        break;
                    }
                    // A match that begins earlier contains these 4 bytes too, which may be rarer.
                    let before = at - least;
                    // SAFETY: `before` is before `at`.
                    probe = unsafe { load_u32(src, before) };
                    let (earlier, limit) =
                        (usize::from(distances[before as u16 as usize]), self.window.min(before));
                    if earlier.wrapping_sub(1) >= limit {
                        break;
                    }
                    if earlier > offset + step {
                        (chain, link, link_min) = (least, before - earlier, before - limit);
                        continue;
                    }
                }
            }
            // A step of 0 ends the chain.
            if step.wrapping_sub(1) >= link - link_min {
                break;
            }
            link -= step;
        }
        let back = usize::checked_sub(least, 1)?;
        let len = common_after(src, at - offset, at);
        Some(Match::new(at - back, at + len, offset))
    }

    /// Inserts the positions before `to`, which is 4 bytes before the end at most.
    fn insert(&mut self, src: &[u8], to: usize) {
        debug_assert!(to <= src.len().saturating_sub(3));
        if self.base > 0 && self.base + to >= SLOTS {
            self.forget_earlier();
        }
        let mut begin = self.inserted;
        while begin < to {
            let end = to.min((begin | (WORD - 1)) + 1);
            // The usual table gets a loop whose shift is known.
            match self.hash_bits {
                HASH_BITS_MAX => self.insert_in_word::<{ u32::BITS - HASH_BITS_MAX }>(src, begin, end),
                _ => self.insert_in_word::<ANY_SHIFT>(src, begin, end),
            }
            begin = end;
        }
        self.inserted = self.inserted.max(to);
    }

    /// Inserts the positions from `begin` to `end`, which are of one word of `linked`. Their hashes are shifted by `SHIFT`.
    #[inline(always)]
    fn insert_in_word<const SHIFT: u32>(&mut self, src: &[u8], begin: usize, end: usize) {
        let shift = if SHIFT == ANY_SHIFT { u32::BITS - self.hash_bits } else { SHIFT };
        let (slot, word) = (begin as u16 as usize, begin / WORD % WORDS);
        let distances = &mut self.distances[slot..slot + (end - begin)];
        let mut next = (self.base + begin) as u16;
        for (distance, at) in distances.iter_mut().zip(begin..) {
            next = next.wrapping_add(1);
            // SAFETY: `at` is before `end`, at least 4 bytes before the end.
            let hash = unsafe { load_u32(src, at) }.wrapping_mul(0x9e37_79b1) >> shift;
            // A slot that this source has not written leads to before it.
            *distance = next.wrapping_sub(std::mem::replace(&mut self.heads[hash as u16 as usize], next));
        }
        // From the 2^16th position of a source on, no distance leads to before it.
        let mut is_linked = [1; WORD];
        if let Ok(first) = u16::try_from(begin - begin % WORD) {
            for (index, distance) in (begin % WORD..).zip(distances) {
                is_linked[index] = u8::from(*distance <= first + index as u16);
            }
        }
        // The bits of positions from `end` on are not read before these are inserted.
        let inserted = u64::MAX >> (begin % WORD);
        self.linked[word] = self.linked[word] & !inserted | bits_of(&is_linked) & inserted;
    }

    /// Clears the heads that earlier sources left, before positions are equal to theirs modulo 2^16.
    #[cold]
    fn forget_earlier(&mut self) {
        // `base` is not 0 only as long as no head has exceeded 2^16.
        let base = std::mem::take(&mut self.base).min(usize::from(u16::MAX)) as u16;
        for head in &mut self.heads[..1 << self.hash_bits] {
            *head = head.saturating_sub(base);
        }
    }

    /// Inserts the positions up to `at`, which a match covers that begins at `start`; of a long match only the last.
    #[cold]
    fn insert_end(&mut self, src: &[u8], start: usize, at: usize) {
        if at - start > 2 * LONG_LEN {
            let to = at - LONG_LEN;
            for skipped in self.inserted.max(to.saturating_sub(SLOTS))..to {
                self.distances[skipped as u16 as usize] = 0;
            }
            self.inserted = self.inserted.max(to);
        }
        self.insert(src, at + 1);
    }
}

/// Returns the number of equal bytes from `from` and from `at` on, which is after `from`, up to the last literals. 4 of them
/// are known to be equal.
#[inline(always)]
fn common_after(src: &[u8], from: usize, at: usize) -> usize {
    MATCH_LEN_MIN + common_prefix(&src[..src.len() - LAST_LITERALS], from + MATCH_LEN_MIN, at + MATCH_LEN_MIN)
}

/// Returns the number of equal bytes before `from` and before `at`, at most `len_max`.
///
/// # Safety
/// `from` is before `at`, and `at` is at most the length of `src`.
#[inline(always)]
unsafe fn common_before(src: &[u8], from: usize, at: usize, len_max: usize) -> usize {
    if from >= 8 {
        // SAFETY: the 8 bytes before `from` are there, and so are those before `at`, which is greater.
        let differ = unsafe { load_u64(src, from - 8) ^ load_u64(src, at - 8) };
        if differ != 0 {
            return len_max.min(differ.leading_zeros() as usize / 8);
        }
        if len_max <= 8 {
            return len_max;
        }
    }
    common_far_before(src, from, at, len_max)
}

#[inline(never)]
fn common_far_before(src: &[u8], from: usize, at: usize, len_max: usize) -> usize {
    let len_max = len_max.min(from);
    let mut len = 0;
    while len + 8 <= len_max {
        let words = [from, at].map(|end| src[end - len - 8..].first_chunk().copied().map(u64::from_le_bytes));
        let [Some(earlier), Some(later)] = words else { break };
        if earlier != later {
            return len + (earlier ^ later).leading_zeros() as usize / 8;
        }
        len += 8;
    }
    while len < len_max && src[from - len - 1] == src[at - len - 1] {
        len += 1;
    }
    len
}

/// Returns a word whose bits are these bytes, which are 0 or 1. The first is the highest.
fn bits_of(bytes: &[u8; WORD]) -> u64 {
    let (eights, _) = bytes.as_chunks::<8>();
    // The factor adds byte `i` at bit `63 - i`, and at bits below the highest eight; no two of them at the same bit.
    let bits = |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(0x8040_2010_0804_0201) >> 56;
    eights.iter().fold(0, |word, eight| word << 8 | bits(eight))
}

fn table() -> Table {
    let slots = vec![0; SLOTS].into_boxed_slice();
    // The length is right, so the conversion never allocates a second table.
    slots.try_into().unwrap_or_else(|_| Box::new([0; SLOTS]))
}

#[cfg(test)]
mod tests;
