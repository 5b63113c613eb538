//! Chooses the sequences of a segment that take the fewest bytes.
//!
//! The cost of the rest of the segment is calculated from its end to its beginning. It never grows towards the end. So
//! at each position there are two choices: a literal, or the match that ends last. A shorter match is cheaper only if
//! its length takes fewer bytes, so few lengths are tried.
//!
//! Between the beginning of a match and that of the next, the match leads to the same end from every position, so its
//! cost is the same as long as its length fits into the token. Literals are cheaper behind some position, and the match
//! is before it. So most matches take no loop over their positions: both parts are written with wide stores, whose rest
//! is overwritten by what precedes.

use super::block::{TOKEN_MATCH_LEN_MAX, extra_bytes};
use super::matches::Match;
use crate::lz4_block::MATCH_LEN_MIN;

/// The cost of a byte.
const BYTE: u32 = 1 << 14;
/// The cost of a sequence without its literals. Of ways that take as many bytes, the one with fewer sequences is cheaper:
/// it is decoded faster.
const SEQUENCE: u32 = 3 * BYTE + 1;
/// The literals of a sequence whose number is in the token.
const LITERALS_IN_TOKEN: u32 = 14;
/// The number of costs that are written at once.
const WIDE: usize = 16;

/// The costs of a segment.
pub(super) struct Plan {
    /// The cost of the rest of the segment from each position on, preceded by room for a wide store.
    costs: Box<[u32]>,
    /// The matches that are cheaper than a literal somewhere, the last first, and room for others.
    used: Box<[Match]>,
    used_count: usize,
}

impl Plan {
    pub(super) const fn heap_bytes(len_max: usize) -> usize {
        (WIDE + len_max + 1) * size_of::<u32>() + matches_max(len_max) * size_of::<Match>()
    }

    /// Makes a plan for segments of at most `len_max` bytes.
    pub(super) fn new(len_max: usize) -> Self {
        let costs = vec![0; WIDE + len_max + 1].into_boxed_slice();
        let used = vec![Match::default(); matches_max(len_max)].into_boxed_slice();
        Plan { costs, used, used_count: 0 }
    }

    /// Plans the segment from `begin` to `end`, in which matches begin before `start_end`: determines which of the matches
    /// are used, and where.
    pub(super) fn make(&mut self, begin: usize, end: usize, start_end: usize, matches: &[Match]) {
        let len = end - begin;
        self.costs[WIDE + len] = 0;
        let mut rest =
            Rest { costs: &mut self.costs, at: len, cost: 0, literals_left: LITERALS_IN_TOKEN + 1 };
        rest.literals(start_end.saturating_sub(begin).min(len));
        self.used_count = 0;
        for found in matches.iter().rev() {
            let start = (found.start as usize).saturating_sub(begin);
            let match_end = (found.end as usize).saturating_sub(begin).min(len);
            let last = match start < rest.at && match_end >= start + MATCH_LEN_MIN {
                true => rest.prepend(start, match_end),
                false => None,
            };
            // Each match is written, and the next one over it if it is not used: a branch would often be mispredicted.
            if let Some(used) = self.used.get_mut(self.used_count) {
                *used = Match { last_start: (begin + last.unwrap_or(0)) as u32, ..*found };
            }
            self.used_count += usize::from(last.is_some());
        }
        rest.literals(0);
    }

    /// Returns the matches that the plan uses, in order: from its beginning to `last_start` each is cheaper than a literal.
    pub(super) fn used(&self) -> impl Iterator<Item = &Match> {
        self.used[..self.used_count].iter().rev()
    }

    /// Returns the planned length of this match if a sequence begins with it at `at`, in the segment from `begin` to
    /// `end`. The segment's end cuts no match.
    pub(super) fn match_len(&self, begin: usize, end: usize, found: &Match, at: usize) -> usize {
        let len = found.end as usize - at;
        if len <= TOKEN_MATCH_LEN_MAX {
            return len;
        }
        let in_segment = len.min(end - at);
        let cost = |len: usize| match_cost(self.costs[WIDE + at - begin + len], len);
        let shorter = [TOKEN_MATCH_LEN_MAX, TOKEN_MATCH_LEN_MAX + 255];
        let cheapest =
            shorter.into_iter().filter(|shorter| *shorter < in_segment).min_by_key(|len| cost(*len));
        cheapest.filter(|shorter| cost(*shorter) < cost(in_segment)).unwrap_or(len)
    }
}

/// Returns the most matches of a segment: they begin at different positions, and one of them before the segment.
pub(super) const fn matches_max(len_max: usize) -> usize {
    len_max + 1
}

/// Returns the cost of a match and what follows.
fn match_cost(cost_after: u32, len: usize) -> u32 {
    cost_after + SEQUENCE + extra_bytes(len.saturating_sub(MATCH_LEN_MIN)) as u32 * BYTE
}

/// The part of a segment that is planned.
struct Rest<'a> {
    costs: &'a mut [u32],
    /// Where it begins.
    at: usize,
    cost: u32,
    /// With this many more literals before it, their length takes a further byte.
    literals_left: u32,
}

impl Rest<'_> {
    /// Prepends the positions from `start` on, which have a match up to `match_end` unless that is too near. Returns the
    /// last position at which the match is cheaper than a literal.
    #[inline(always)]
    fn prepend(&mut self, start: usize, match_end: usize) -> Option<usize> {
        let (at, cost) = (self.at, self.cost);
        if let Some(costs) = self.costs[at..].first_chunk_mut::<WIDE>() {
            for (index, cost_here) in costs.iter_mut().enumerate() {
                *cost_here = cost + (WIDE - index) as u32 * BYTE;
            }
        }
        let by_match = self.costs[WIDE + match_end] + SEQUENCE;
        let too_near = at.saturating_sub(match_end + 1 - MATCH_LEN_MIN);
        let literals = too_near.max((by_match.saturating_sub(cost) / BYTE) as usize);
        let is_short = match_end - start <= TOKEN_MATCH_LEN_MAX;
        if !is_short || literals > WIDE || literals as u32 >= self.literals_left {
            return self.prepend_any(start, match_end);
        }
        self.at = start;
        if literals >= at - start {
            self.cost = cost + (at - start) as u32 * BYTE;
            self.literals_left -= (at - start) as u32;
            return None;
        }
        let used = at - literals;
        self.costs[used..used + WIDE].fill(by_match);
        (self.cost, self.literals_left) = (by_match, LITERALS_IN_TOKEN + 1);
        Some(used - 1)
    }

    /// Does the same for any lengths of the match and of the literals.
    #[inline(never)]
    fn prepend_any(&mut self, start: usize, match_end: usize) -> Option<usize> {
        self.literals(start.max(match_end + 1 - MATCH_LEN_MIN).min(self.at));
        let cost_after = self.costs[WIDE + match_end];
        while self.at > start && match_cost(cost_after, match_end - (self.at - 1)) >= self.cost_of_literal() {
            self.literals(self.at - 1);
        }
        let last = self.at.checked_sub(1).filter(|last| *last >= start)?;
        let short = start.max(match_end.saturating_sub(TOKEN_MATCH_LEN_MAX)).min(self.at);
        if short < self.at {
            self.cost = cost_after + SEQUENCE;
            self.costs[WIDE + short..WIDE + self.at].fill(self.cost);
        }
        // The length takes one more byte, or the match ends where it would take none.
        let (mut at, by_match) = (short, cost_after + SEQUENCE + BYTE);
        let long = start.max(match_end.saturating_sub(TOKEN_MATCH_LEN_MAX + 255));
        while at > long {
            let later =
                self.costs[at + TOKEN_MATCH_LEN_MAX..].first_chunk::<WIDE>().copied().unwrap_or_default();
            let costs = later.map(|cost| by_match.min(cost + SEQUENCE));
            self.costs[at..at + WIDE].copy_from_slice(&costs);
            at = long.max(at.saturating_sub(WIDE));
        }
        for at in (start..long.min(short)).rev() {
            let len = match_end - at;
            let shorter = [TOKEN_MATCH_LEN_MAX, TOKEN_MATCH_LEN_MAX + 255];
            let costs = shorter.map(|len| match_cost(self.costs[WIDE + at + len], len));
            self.costs[WIDE + at] = costs.into_iter().fold(match_cost(cost_after, len), u32::min);
        }
        self.cost = self.costs[WIDE + start];
        (self.at, self.literals_left) = (start, LITERALS_IN_TOKEN + 1);
        Some(last)
    }

    /// Returns the cost if one more literal precedes.
    fn cost_of_literal(&self) -> u32 {
        self.cost + if self.literals_left == 1 { 2 * BYTE } else { BYTE }
    }

    /// Prepends literals from `start` on.
    fn literals(&mut self, start: usize) {
        while self.at > start {
            let count = (self.at - start).min(self.literals_left as usize - 1);
            let end = WIDE + self.at;
            for (cost, before) in self.costs[end - count..end].iter_mut().rev().zip(1..) {
                *cost = self.cost + before * BYTE;
            }
            self.at -= count;
            self.cost += count as u32 * BYTE;
            self.literals_left -= count as u32;
            if self.at > start {
                self.at -= 1;
                self.cost = self.cost_of_literal();
                self.costs[WIDE + self.at] = self.cost;
                self.literals_left = 255;
            }
        }
    }
}
