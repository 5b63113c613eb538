//! Cuts contents into chunks by what they contain, so that equal parts have equal chunks wherever they lie.
//!
//! A chunk may end where a hash of the 64 bytes before has zeroes in certain bits (the gear hash of FastCDC, Xia et al.,
//! USENIX ATC 2016). Behind the average length fewer bits are looked at: lengths then vary less. A chunk has a shortest
//! and a longest length, whatever the contents are.

/// Bytes that the hash depends on.
const WINDOW_BYTES: usize = 64;

/// A number for each byte value, from the generator splitmix64.
const GEAR: [u64; 256] = gear();

const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let mut state = 0u64;
    let mut i = 0;
    while i < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = z ^ (z >> 31);
        i += 1;
    }
    table
}

/// The lengths of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSizes {
    /// The average, bytes: a power of two of at least 256. The shortest has a quarter, the longest four times as many.
    average_bytes: usize,
}

impl ChunkSizes {
    /// Makes sizes; the average is rounded up to a power of two.
    pub fn new(average_bytes: usize) -> Self {
        ChunkSizes { average_bytes: average_bytes.max(256).next_power_of_two() }
    }

    fn min_bytes(self) -> usize {
        self.average_bytes / 4
    }

    /// The longest chunk, bytes.
    pub fn max_bytes(self) -> usize {
        self.average_bytes * 4
    }

    /// The bits of the hash that are zero at the end of a chunk of this length. The upper bits depend on all of the
    /// window.
    fn mask(self, len: usize) -> u64 {
        let bits = self.average_bytes.trailing_zeros();
        let bits = if len < self.average_bytes { bits + 1 } else { bits - 2 };
        !(u64::MAX >> bits)
    }

    /// Returns the length of the first chunk of `src`, which is all of it if that is short, and 0 only if it is empty.
    pub fn first_chunk(self, src: &[u8]) -> usize {
        let src = &src[..src.len().min(self.max_bytes())];
        let min = self.min_bytes();
        if src.len() <= min {
            return src.len();
        }
        let mut hash = 0u64;
        for byte in &src[min - WINDOW_BYTES..min] {
            hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
        }
        let average = self.average_bytes.min(src.len());
        for (start, end) in [(min, average), (average, src.len())] {
            let mask = self.mask(start);
            let mut pairs = src[start..end].chunks_exact(2);
            // The hash of the next pair waits for one addition, and not for those of both bytes.
            for (number, pair) in pairs.by_ref().enumerate() {
                let (first, second) = (GEAR[usize::from(pair[0])], GEAR[usize::from(pair[1])]);
                if hash & mask == 0 {
                    return start + 2 * number;
                }
                if (hash << 1).wrapping_add(first) & mask == 0 {
                    return start + 2 * number + 1;
                }
                hash = (hash << 2).wrapping_add((first << 1).wrapping_add(second));
            }
            for byte in pairs.remainder() {
                if hash & mask == 0 {
                    return end - 1;
                }
                hash = (hash << 1).wrapping_add(GEAR[usize::from(*byte)]);
            }
        }
        src.len()
    }

    /// Cuts `src` into chunks.
    pub fn chunks(self, src: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut rest = src;
        std::iter::from_fn(move || {
            let (chunk, after) = rest.split_at(self.first_chunk(rest));
            rest = after;
            (!chunk.is_empty()).then_some(chunk)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The hash of the window before byte `at`, byte by byte.
    fn hash_before(src: &[u8], at: usize) -> u64 {
        let window = &src[at - WINDOW_BYTES..at];
        let parts = window.iter().rev().enumerate().map(|(age, byte)| GEAR[usize::from(*byte)] << age);
        parts.fold(0, u64::wrapping_add)
    }

    /// The obvious twin: looks at each length by itself.
    fn first_chunk_slowly(sizes: ChunkSizes, src: &[u8]) -> usize {
        let longest = src.len().min(sizes.max_bytes());
        let ends = |len: &usize| hash_before(src, *len) & sizes.mask(*len) == 0;
        (sizes.min_bytes()..longest).find(ends).unwrap_or(longest)
    }

    /// Contents of a kind that chunkers find hard: all bytes equal, a short period, noise, few byte values.
    fn contents() -> impl Strategy<Value = Vec<u8>> {
        let noise = proptest::collection::vec(any::<u8>(), 0..6000);
        let periods = (proptest::collection::vec(any::<u8>(), 1..100), 0usize..6000)
            .prop_map(|(period, len)| period.into_iter().cycle().take(len).collect());
        let few = proptest::collection::vec(0u8..2, 0..6000);
        prop_oneof![noise, periods, few]
    }

    proptest! {
        #[test]
        fn chunks_end_where_the_slow_twin_finds_an_end(src in contents(), average in 256usize..2048) {
            let sizes = ChunkSizes::new(average);
            let chunks: Vec<_> = sizes.chunks(&src).collect();
            prop_assert_eq!(chunks.concat(), src.clone());
            let mut rest = src.as_slice();
            for (number, chunk) in chunks.iter().enumerate() {
                prop_assert_eq!(chunk.len(), first_chunk_slowly(sizes, rest));
                prop_assert!(chunk.len() <= sizes.max_bytes());
                prop_assert!(chunk.len() >= sizes.min_bytes() || number + 1 == chunks.len());
                rest = &rest[chunk.len()..];
            }
        }
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let step = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Some((*state >> 56) as u8)
        };
        let src: Vec<u8> = std::iter::repeat_n((), 1 << 20).scan(1u64, |state, ()| step(state)).collect();
        let mut edited = src.clone();
        edited.splice(500_000..500_000, *b"inserted");
        edited.splice(0..0, *b"front");
        let sizes = ChunkSizes::new(4096);
        let chunks: std::collections::HashSet<_> = sizes.chunks(&src).collect();
        let (count, new) = (sizes.chunks(&edited).count(), sizes.chunks(&edited));
        let changed = new.filter(|chunk| !chunks.contains(chunk)).count();
        assert!((180..400).contains(&count), "{count}");
        assert!((1..=6).contains(&changed), "{changed}");
    }
}
