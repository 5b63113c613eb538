//! Long prefixes of attribute names: a table of beginnings that many names have, so that attributes store only the
//! rest.
//!
//! The table stands behind the configuration records, in the room that the first block has left. So a prefix costs
//! nothing but its share of that room, and the choice is which ones save most. It depends on the attributes alone.

use super::xattr::split;
use crate::build::tree::Xattr;
use crate::format::xattr::{ALIGN, INDEX_LONG_PREFIX, LONG_PREFIX_COUNT_MAX, LONG_PREFIX_HEADER_LEN};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A prefix saves at least so many bytes: less vanishes in the padding of inodes.
const SAVED_BYTES_MIN: i64 = 256;
/// Beginnings of names that are compared with each other; those that save most by themselves.
const CANDIDATES_MAX: usize = 256;

/// Attributes by their length modulo 4: a name that is shorter by a few bytes need not make its attribute shorter.
type Counts = [i64; ALIGN as usize];

/// A beginning of names: the number of the short prefix, and what follows that.
type Beginning<'n> = (u8, &'n [u8]);

/// The long prefixes of an image.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LongPrefixes(Vec<(u8, Box<[u8]>)>);

impl LongPrefixes {
    /// Chooses prefixes whose table takes at most `room_bytes`. `stored` are the attributes that the image stores, with
    /// the number of times.
    pub fn choose<'n>(stored: impl Iterator<Item = (&'n Xattr, u32)>, room_bytes: usize) -> Self {
        let names = Names::collect(stored);
        let mut left = names.candidates();
        let mut chosen: Vec<(Beginning<'_>, Counts)> = Vec::new();
        let mut room_bytes = room_bytes;
        while chosen.len() < usize::from(LONG_PREFIX_COUNT_MAX) {
            left.retain(|(candidate, _)| record_bytes(candidate.1) <= room_bytes);
            let saved = left.iter().map(|(candidate, counts)| saved_bytes(*candidate, counts, &chosen));
            // Of several that save the same, the last one in order.
            let Some((_, at)) = saved.zip(0..).max().filter(|(saved, _)| *saved >= SAVED_BYTES_MIN) else {
                break;
            };
            let best = left.remove(at);
            room_bytes -= record_bytes(best.0.1);
            chosen.push(best);
        }
        // Longer prefixes that were chosen later may have taken all names of a shorter one.
        for at in (0..chosen.len()).rev() {
            let (candidate, counts) = chosen.remove(at);
            if saved_bytes(candidate, &counts, &chosen) >= SAVED_BYTES_MIN {
                chosen.insert(at, (candidate, counts));
            }
        }
        let mut chosen: Vec<_> = chosen.into_iter().map(|((base, infix), _)| (base, infix.into())).collect();
        chosen.sort_unstable();
        LongPrefixes(chosen)
    }

    /// Number of prefixes.
    pub fn count(&self) -> u8 {
        // At most `LONG_PREFIX_COUNT_MAX`.
        self.0.len() as u8
    }

    /// Shortens a name of short prefix `base` and `rest`: returns the name index that is stored, and the rest of the
    /// name.
    pub fn shorten<'n>(&self, base: u8, rest: &'n [u8]) -> (u8, &'n [u8]) {
        let matching =
            self.0.iter().enumerate().filter(|(_, (b, infix))| *b == base && rest.starts_with(infix));
        match matching.max_by_key(|(_, (_, infix))| infix.len()) {
            Some((number, (_, infix))) => (INDEX_LONG_PREFIX | number as u8, &rest[infix.len()..]),
            None => (base, rest),
        }
    }

    /// The table; empty without prefixes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (base, infix) in &self.0 {
            out.extend((1 + infix.len() as u16).to_le_bytes());
            out.push(*base);
            out.extend(infix);
            out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
        }
        out
    }
}

/// Bytes that a prefix takes in the table.
fn record_bytes(infix: &[u8]) -> usize {
    (LONG_PREFIX_HEADER_LEN + 1 + infix.len()).next_multiple_of(ALIGN as usize)
}

/// Bytes that `candidate`, which this many attributes have, saves beside the `chosen` ones: an attribute uses the
/// longest prefix that it has.
fn saved_bytes(candidate: Beginning<'_>, counts: &Counts, chosen: &[(Beginning<'_>, Counts)]) -> i64 {
    let is_within = |inner: Beginning<'_>, outer: Beginning<'_>| {
        inner.0 == outer.0 && inner.1.len() > outer.1.len() && inner.1.starts_with(outer.1)
    };
    let before =
        chosen.iter().filter(|(other, _)| is_within(candidate, *other)).map(|(other, _)| other.1.len());
    let before = before.max().unwrap_or(0);
    let longer = || chosen.iter().filter(|(other, _)| is_within(*other, candidate));
    let mut own = *counts;
    for (other, taken) in longer() {
        if !longer().any(|(between, _)| is_within(*other, *between)) {
            own.iter_mut().zip(taken).for_each(|(own, taken)| *own -= taken);
        }
    }
    // Attributes take a multiple of 4, so only the remainder of their length counts.
    let stored = |len: usize, cut: usize| (len + 1024 - cut).next_multiple_of(ALIGN as usize) as i64;
    let saved = |len: usize| stored(len, before) - stored(len, candidate.1.len());
    own.iter().enumerate().map(|(len, count)| count * saved(len)).sum()
}

/// The names that attributes have, in order, with their numbers.
struct Names<'n> {
    names: Vec<Beginning<'n>>,
    /// For each name the attributes before it, and for all of them at the end.
    before: Vec<Counts>,
}

impl<'n> Names<'n> {
    fn collect(stored: impl Iterator<Item = (&'n Xattr, u32)>) -> Self {
        let mut counts: BTreeMap<Beginning<'n>, Counts> = BTreeMap::new();
        for ((name, value), times) in stored {
            // The names of access lists are nothing but a short prefix.
            if let Some((base, rest)) = split(name).filter(|(_, rest)| !rest.is_empty()) {
                let len = (rest.len() + value.len()) % ALIGN as usize;
                counts.entry((base, rest)).or_default()[len] += i64::from(times);
            }
        }
        let mut before = vec![Counts::default()];
        for counts in counts.values() {
            let last = before.last().copied().unwrap_or_default();
            before.push(std::array::from_fn(|len| last[len] + counts[len]));
        }
        Names { names: counts.into_keys().collect(), before }
    }

    /// Whole names, and what neighbours have in common; with the numbers of attributes.
    fn candidates(&self) -> Vec<(Beginning<'n>, Counts)> {
        let common = self.names.windows(2).filter(|pair| pair[0].0 == pair[1].0).map(|pair| {
            let len = pair[0].1.iter().zip(pair[1].1).take_while(|(a, b)| a == b).count();
            (pair[0].0, &pair[0].1[..len])
        });
        let all: BTreeSet<Beginning<'n>> = common.chain(self.names.iter().copied()).collect();
        let mut all: Vec<_> = all
            .into_iter()
            .filter(|(_, infix)| (1..=usize::from(u8::MAX)).contains(&infix.len()))
            .map(|candidate| (candidate, self.counts(self.range(candidate))))
            .map(|(candidate, counts)| (saved_bytes(candidate, &counts, &[]), candidate, counts))
            .filter(|(saved, _, _)| *saved >= SAVED_BYTES_MIN)
            .collect();
        all.sort_unstable();
        let rest = all.split_off(all.len().saturating_sub(CANDIDATES_MAX));
        rest.into_iter().map(|(_, candidate, counts)| (candidate, counts)).collect()
    }

    /// The names that begin so.
    fn range(&self, (base, infix): Beginning<'_>) -> Range<usize> {
        let start = self.names.partition_point(|name| *name < (base, infix));
        let is_in = |name: &Beginning<'_>| name.0 == base && name.1.starts_with(infix);
        start..start + self.names[start..].partition_point(is_in)
    }

    fn counts(&self, range: Range<usize>) -> Counts {
        std::array::from_fn(|len| self.before[range.end][len] - self.before[range.start][len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn xattr(name: &str, value_len: usize) -> Xattr {
        (name.as_bytes().into(), vec![0; value_len].into())
    }

    fn choose(xattrs: &[(Xattr, u32)], room_bytes: usize) -> LongPrefixes {
        LongPrefixes::choose(xattrs.iter().map(|(xattr, times)| (xattr, *times)), room_bytes)
    }

    fn names(prefixes: &LongPrefixes) -> Vec<(u8, String)> {
        prefixes.0.iter().map(|(base, infix)| (*base, String::from_utf8_lossy(infix).into())).collect()
    }

    #[test]
    fn names_with_much_in_common_get_a_prefix() {
        let origin = (xattr("trusted.overlay.origin", 8), 100);
        assert_eq!(names(&choose(std::slice::from_ref(&origin), 2000)), [(4, "overlay.origin".into())]);
        assert_eq!(names(&choose(std::slice::from_ref(&origin), 8)), []);
        // Names that occur once each share their beginning.
        let once: Vec<_> = (0..100).map(|i| (xattr(&format!("user.a.common.key-{i:03}"), 4), 1)).collect();
        assert_eq!(names(&choose(&once, 2000)), [(1, "a.common.key-0".into())]);
        // Too few to pay, and nothing in common.
        assert_eq!(names(&choose(&once[..10], 2000)), []);
        let short = [(xattr("user.ab", 2), 1000), (xattr("system.posix_acl_access", 44), 1000)];
        assert_eq!(names(&choose(&short, 2000)), []);
    }

    #[test]
    fn attributes_use_the_longest_prefix_that_they_have() {
        let all: Vec<_> = (0..300)
            .map(|i| (xattr(&format!("user.app.{}", if i < 200 { "settings.window" } else { "s" }), 4), 1))
            .chain((0..100).map(|i| (xattr(&format!("user.app.state.{i}"), 4), 1)))
            .collect();
        let prefixes = choose(&all, 2000);
        assert_eq!(
            names(&prefixes),
            [(1, "app.s".into()), (1, "app.settings.window".into()), (1, "app.state.".into())]
        );
        assert_eq!(prefixes.shorten(1, b"app.settings.window"), (0x81, b"".as_slice()));
        assert_eq!(prefixes.shorten(1, b"app.state.7"), (0x82, b"7".as_slice()));
        assert_eq!(prefixes.shorten(1, b"app.sx"), (0x80, b"x".as_slice()));
        assert_eq!(prefixes.shorten(6, b"app.sx"), (6, b"app.sx".as_slice()));
    }

    proptest! {
        /// The gain of the whole choice is that of its parts, and the table has room.
        #[test]
        fn the_choice_saves_what_it_promises(
            drawn in proptest::collection::vec(("[ab]{1,2}[.][ab]{1,20}", 0usize..9, 1u32..200), 1..40),
            room_bytes in 0usize..400,
        ) {
            let all: Vec<_> = drawn.iter().map(|(n, v, times)| (xattr(&format!("user.{n}"), *v), *times)).collect();
            let prefixes = choose(&all, room_bytes);
            prop_assert!(prefixes.encode().len() <= room_bytes);
            let bytes = |rest: usize, value: usize| (rest + value).div_ceil(4) * 4;
            let saved: usize = all.iter().map(|((name, value), times)| {
                let (_, rest) = prefixes.shorten(1, &name[5..]);
                *times as usize * (bytes(name.len() - 5, value.len()) - bytes(rest.len(), value.len()))
            }).sum();
            prop_assert!(saved >= prefixes.0.len() * SAVED_BYTES_MIN as usize);
        }
    }
}
