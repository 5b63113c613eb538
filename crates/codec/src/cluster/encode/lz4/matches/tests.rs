//! The search, compared with one that compares everything, and with one that has had no other source.

use super::*;
use proptest::prelude::*;

/// Returns for each position the greatest end of the matches that begin there or before, by comparing everything.
fn ends(src: &[u8], window: usize) -> Vec<usize> {
    let mut end = 0;
    let longest = |at: usize| {
        let earlier = at.saturating_sub(window)..at;
        let len = |from: usize| {
            (0..src.len() - LAST_LITERALS - at).take_while(|i| src[from + i] == src[at + i]).count()
        };
        earlier.map(len).max().filter(|len| *len >= MATCH_LEN_MIN)
    };
    let mut end_at = |at: usize| {
        end = longest(at).map_or(end, |len| end.max(at + len));
        end
    };
    (0..(src.len() + 1).saturating_sub(LAST_MATCH_TO_END)).map(&mut end_at).collect()
}

fn check(src: &[u8], window: usize, steps: &[usize]) {
    let mut matches = Matches::new(window, usize::MAX);
    // Results do not depend on earlier sources.
    for _ in 0..2 {
        matches.clear(src.len());
        let (mut found, mut to) = (Vec::new(), 0);
        for step in steps.iter().cycle() {
            to += step;
            matches.find(src, to, &mut found);
            assert!(found.iter().all(|found| (found.start as usize) < to));
            if to >= src.len() {
                break;
            }
        }
        for found in &found {
            let (start, end, offset) = (found.start as usize, found.end as usize, found.offset as usize);
            assert!((1..=window.min(start)).contains(&offset) && end >= start + MATCH_LEN_MIN, "{found:?}");
            assert_eq!(src[start..end], src[start - offset..end - offset], "{found:?}");
            assert!(end + LAST_LITERALS <= src.len());
        }
        assert!(found.windows(2).all(|pair| pair[0].start < pair[1].start && pair[0].end < pair[1].end));
        // A match that ends so late is not searched for a longer one.
        let last = src.len().saturating_sub(LAST_LITERALS + 3);
        for (at, end) in ends(src, window).into_iter().enumerate() {
            let before = found.iter().take_while(|found| found.start as usize <= at).last();
            let found_end = before.map_or(0, |found| found.end as usize);
            assert_eq!(found_end.min(last), end.min(last), "at {at}, window {window}");
        }
    }
}

proptest! {
    #[test]
    fn every_position_has_its_longest_match(
        pieces in prop::collection::vec((0usize..4, 1usize..40, any::<u32>()), 1..30),
        window in prop_oneof![Just(65535usize), 1usize..300],
        steps in prop::collection::vec(1usize..200, 1..5),
    ) {
        let mut src: Vec<u8> = Vec::new();
        for (kind, len, seed) in pieces {
            let mut value = u64::from(seed);
            for i in 0..len {
                value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                src.push(match kind {
                    0 => seed as u8,
                    1 => (value >> 62) as u8,
                    2 => (value >> 56) as u8,
                    _ => src.get((seed as usize % (src.len() + 1)).saturating_sub(1) + i).copied().unwrap_or(7),
                });
            }
        }
        check(&src, window, &steps);
    }
}

proptest! {
    #[test]
    fn earlier_sources_change_nothing(
        sources in prop::collection::vec((1usize..40_000, 1usize..9000, any::<u64>()), 2..12),
        window in prop_oneof![Just(65535usize), 1usize..5000],
    ) {
        let mut used = Matches::new(window, 8);
        for (len, expected_len, seed) in sources {
            let mut state = seed;
            let mut src = Vec::with_capacity(len);
            while src.len() < len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                match (state >> 60, (state >> 20) as usize % (src.len() + 1)) {
                    // Some matches are so long that most of their positions are not inserted.
                    (0, at) => src.extend_from_within(at..(at + 2000).min(src.len())),
                    (1..8, at) => src.extend_from_within(at..(at + 20).min(src.len())),
                    (byte, _) => src.extend([byte as u8, (state >> 40) as u8]),
                }
            }
            let found = |matches: &mut Matches| {
                let mut found = Vec::new();
                matches.clear(expected_len);
                (0..len + 1000).step_by(1000).for_each(|to| matches.find(&src, to, &mut found));
                found
            };
            assert_eq!(found(&mut used), found(&mut Matches::new(window, 8)));
        }
    }
}

#[test]
fn long_matches_and_windows_are_exceeded() {
    // The search skips most of a long match, and positions are counted modulo 2^16.
    let mut value = 1u32;
    let mut noise = |len: usize| -> Vec<u8> {
        (0..len)
            .map(|_| {
                value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (value >> 24) as u8
            })
            .collect()
    };
    let first = noise(30_000);
    let src = [&first[..], &noise(30_000), &first, &noise(40_000), &first[100..], &[0; 200_000]].concat();
    let mut matches = Matches::new(65535, 16);
    matches.clear(src.len());
    let mut found = Vec::new();
    for to in (0..=src.len()).step_by(1000).chain([src.len()]) {
        matches.find(&src, to, &mut found);
    }
    let ends: Vec<_> = found.iter().filter(|found| found.end - found.start > 1000).collect();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert_eq!((ends[0].start, ends[0].end, ends[0].offset), (60_000, 90_000, 60_000));
    assert_eq!((ends[1].end as usize, ends[1].offset), (src.len() - LAST_LITERALS, 1));
}
