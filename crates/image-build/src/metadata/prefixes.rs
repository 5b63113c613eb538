//! Long prefixes of attribute names: a table of beginnings that many names have, so that attributes store only the
//! rest.
//!
//! The table stands after the configuration records, in the room that the first block has left. So a prefix costs
//! nothing but its share of that room, and the choice is which ones save most. It depends on the attributes alone.

use pagefold_image::format::xattr::{
    ALIGN, INDEX_LONG_PREFIX, LONG_PREFIX_COUNT_MAX, LONG_PREFIX_HEADER_LEN, SHORT_PREFIX_INDEXES,
    short_prefix,
};
use std::collections::BTreeSet;

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
    /// Chooses prefixes whose table takes at most `room_bytes`. `stored` are the attributes that the image stores, ordered
    /// by name: the name, the length of the value, and the number of times.
    pub fn choose(stored: impl Iterator<Item = (Vec<u8>, usize, u32)>, room_bytes: usize) -> Self {
        let candidates = candidates(stored);
        let mut left: Vec<(Beginning<'_>, Counts)> = candidates
            .iter()
            .map(|(_, (base, infix), counts)| ((*base, infix.as_slice()), *counts))
            .collect();
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

/// A beginning with the bytes that it saves by itself, and the attributes that have it.
type Candidate = (i64, (u8, Vec<u8>), Counts);

/// Whole names, and what neighbours have in common: those that save most by themselves, in order.
fn candidates(stored: impl Iterator<Item = (Vec<u8>, usize, u32)>) -> BTreeSet<Candidate> {
    let mut open = OpenNames::default();
    for (name, value_len, times) in stored {
        // The names of access lists are nothing but a short prefix.
        if let Some((base, rest)) = split(&name).filter(|(_, rest)| !rest.is_empty()) {
            open.enter(base, rest);
            let len = (rest.len() + value_len) % ALIGN as usize;
            open.count(len, times);
        }
    }
    open.close_to(0);
    open.candidates
}

/// The name that was read last, and those of its beginnings that names before have too. The memory does not depend on
/// the number of names.
#[derive(Default)]
struct OpenNames {
    base: u8,
    name: Vec<u8>,
    /// Lengths of beginnings of the name, ascending, the name itself last, with the attributes so far that have this
    /// beginning and no longer one of these.
    beginnings: Vec<(usize, Counts)>,
    candidates: BTreeSet<Candidate>,
}

impl OpenNames {
    /// Goes on to a name, which is the same or a later one.
    fn enter(&mut self, base: u8, rest: &[u8]) {
        let common = match base == self.base {
            true => self.name.iter().zip(rest).take_while(|(one, other)| one == other).count(),
            false => 0,
        };
        self.close_to(common);
        (self.base, self.name) = (base, rest.to_vec());
        if self.beginnings.last().is_none_or(|(len, _)| *len < rest.len()) {
            self.beginnings.push((rest.len(), Counts::default()));
        }
    }

    /// Counts attributes with the name.
    fn count(&mut self, len: usize, times: u32) {
        if let Some((_, counts)) = self.beginnings.last_mut() {
            counts[len] += i64::from(times);
        }
    }

    /// Ends the beginnings of more than `common` bytes, which the next name does not have.
    fn close_to(&mut self, common: usize) {
        while let Some((len, counts)) = self.beginnings.pop_if(|(len, _)| *len > common) {
            self.add_candidate(len, counts);
            match self.beginnings.last_mut() {
                Some((outer, sum)) if *outer >= common => {
                    sum.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n)
                }
                _ => self.beginnings.push((common, counts)),
            }
        }
    }

    fn add_candidate(&mut self, len: usize, counts: Counts) {
        // Longer names are refused later.
        if !(1..=usize::from(u8::MAX)).contains(&len) {
            return;
        }
        let infix = &self.name[..len];
        let saved = saved_bytes((self.base, infix), &counts, &[]);
        if saved >= SAVED_BYTES_MIN {
            self.candidates.insert((saved, (self.base, infix.to_vec()), counts));
            if self.candidates.len() > CANDIDATES_MAX {
                self.candidates.pop_first();
            }
        }
    }
}

/// Splits a name into the number of its prefix and the rest. `None`: the format has no number for the prefix.
pub fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    SHORT_PREFIX_INDEXES.iter().find_map(|&index| {
        let rest = name.strip_prefix(short_prefix(index)?.as_bytes())?;
        // The names of access lists are prefixes without a rest.
        (rest.is_empty() == matches!(index, 2 | 3)).then_some((index, rest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Xattr;
    use proptest::prelude::*;

    fn xattr(name: &str, value_len: usize) -> Xattr {
        (name.as_bytes().into(), vec![0; value_len].into())
    }

    fn choose(xattrs: &[(Xattr, u32)], room_bytes: usize) -> LongPrefixes {
        LongPrefixes::choose(sorted(xattrs).into_iter(), room_bytes)
    }

    fn sorted(xattrs: &[(Xattr, u32)]) -> Vec<(Vec<u8>, usize, u32)> {
        let mut sorted: Vec<_> =
            xattrs.iter().map(|((name, value), times)| (name.to_vec(), value.len(), *times)).collect();
        sorted.sort();
        sorted
    }

    /// All beginnings of names, each compared with all names: slow, and easy to see through.
    fn candidates_twin(stored: &[(Vec<u8>, usize, u32)]) -> BTreeSet<Candidate> {
        let names: Vec<_> =
            stored.iter().filter_map(|(name, len, times)| Some((split(name)?, *len, *times))).collect();
        let mut all = BTreeSet::new();
        for ((base, name), ..) in &names {
            for infix in (1..=name.len().min(255)).map(|len| &name[..len]) {
                let having = names.iter().filter(|((b, n), ..)| b == base && n.starts_with(infix));
                // A beginning that only longer names with the same next byte have saves less than a longer one.
                let next: BTreeSet<_> = having.clone().map(|((_, n), ..)| n.get(infix.len())).collect();
                let mut counts = Counts::default();
                having.for_each(|((_, n), len, times)| counts[(n.len() + len) % 4] += i64::from(*times));
                let saved = saved_bytes((*base, infix), &counts, &[]);
                if (next.len() > 1 || next.contains(&None)) && saved >= SAVED_BYTES_MIN {
                    all.insert((saved, (*base, infix.to_vec()), counts));
                }
            }
        }
        while all.len() > CANDIDATES_MAX {
            all.pop_first();
        }
        all
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
        #[test]
        fn candidates_are_those_of_comparing_all_names(
            drawn in proptest::collection::vec(("(user|trusted)[.][ab]{1,12}", 0usize..9, 1u32..200), 0..40),
        ) {
            let all: Vec<_> = drawn.iter().map(|(n, v, times)| (xattr(n, *v), *times)).collect();
            let all = sorted(&all);
            prop_assert_eq!(candidates(all.iter().cloned()), candidates_twin(&all));
        }

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
