//! Ends of extents at given positions: where another file refers to what follows.
//!
//! An index has one entry for each logical block, so two extents cannot begin in the same block of the file, and the length
//! of a cluster of several blocks needs a second entry. Data that does not compress is stored in plain extents of exactly
//! a block, which cannot end everywhere; then the last two of them and the rest are one cluster. Where that is impossible,
//! the position is passed over, and a file that refers to it stores the bytes again.

use super::cutter::Cutter;
use super::stored::BLOCK;
use crate::Result;
use pagefold_codec::cluster::encode::{Encoder, Fit};

impl Cutter<'_> {
    /// Stores extents up to byte `end` of the segment, so that the last one ends there. If that is impossible, the last
    /// one ends before, by less than three blocks.
    pub(super) fn go_to_cut(&mut self, end: usize, encoder: &mut Encoder) -> Result<()> {
        while self.at < end {
            self.check_stop()?;
            if !self.step_towards(end, encoder)? {
                break;
            }
        }
        Ok(())
    }

    /// Stores the next extent, which does not end after `end`. Returns false if then none could end there.
    fn step_towards(&mut self, end: usize, encoder: &mut Encoder) -> Result<bool> {
        let left = end - self.at;
        if left < BLOCK {
            return Ok(false);
        }
        let fit = encoder.fit(&self.src[self.at..end], &mut self.cluster)?;
        if !is_gain(fit) {
            return self.step_plain(end, fit.consumed_bytes, encoder);
        }
        let after = left - fit.consumed_bytes;
        let is_storable = after == 0 || after == BLOCK || after >= 2 * BLOCK;
        if is_storable {
            self.push_fit(fit);
            return Ok(true);
        }
        // One block or two after it can be stored in any case.
        let shorter = left.saturating_sub(after.next_multiple_of(BLOCK));
        let fit = encoder.fit(&self.src[self.at..self.at + shorter], &mut self.cluster)?;
        if is_gain(fit) {
            self.push_fit(fit);
            return Ok(true);
        }
        self.step_plain(end, BLOCK, encoder)
    }

    /// Stores up to `len_bytes` that do not compress, but at least a block.
    fn step_plain(&mut self, end: usize, len_bytes: usize, encoder: &mut Encoder) -> Result<bool> {
        let left = end - self.at;
        let most = match left % BLOCK {
            0 => left / BLOCK,
            _ if left > 3 * BLOCK => left / BLOCK - 2,
            _ => return self.step_last(end, encoder),
        };
        for _ in 0..(len_bytes / BLOCK).clamp(1, most) {
            self.push_plain_block(BLOCK);
        }
        Ok(true)
    }

    /// Stores one block or two that do not compress, and a part of another.
    fn step_last(&mut self, end: usize, encoder: &mut Encoder) -> Result<bool> {
        let left = end - self.at;
        // The rest needs a block of the file in which it begins.
        let has_block = (self.position() + left as u64) % BLOCK as u64 <= self.position() % BLOCK as u64;
        if has_block {
            while self.at < end {
                self.push_plain_block((end - self.at).min(BLOCK));
            }
            return Ok(true);
        }
        // Linux decodes clusters that have no more blocks than the pages which they decode to. The entry of one that takes
        // more bytes than it decodes to says that it is a prefix.
        let blocks = left.div_ceil(BLOCK);
        if blocks < 3 || self.cluster.len() < blocks * BLOCK {
            return Ok(false);
        }
        let fit = encoder.fit(&self.src[self.at..end], &mut self.cluster[..blocks * BLOCK])?;
        let is_whole = fit.consumed_bytes == left;
        if is_whole {
            self.push_fit(fit);
        }
        Ok(is_whole)
    }

    fn push_fit(&mut self, fit: Fit) {
        self.push_cluster(fit.written_bytes.div_ceil(BLOCK), fit.consumed_bytes, fit.written_bytes);
    }
}

/// Whether a cluster takes fewer blocks than its contents.
fn is_gain(fit: Fit) -> bool {
    fit.consumed_bytes > fit.written_bytes.div_ceil(BLOCK) * BLOCK
}

#[cfg(test)]
mod tests {
    use crate::compress::buffers::Buffer;
    use crate::compress::cutter::CutRules;
    use crate::compress::stored::{Extent, Segment, Stored};
    use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
    use proptest::prelude::*;

    const BLOCK: u64 = 4096;

    /// Contents of pieces that compress, or do not.
    fn contents(pieces: &[(bool, usize)]) -> Vec<u8> {
        let mut state = 1u64;
        let mut noise = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let mut src = Vec::new();
        for (compresses, len) in pieces {
            src.extend(
                (0..*len).map(|_| if *compresses { b"abcdefgh"[usize::from(noise() % 8)] } else { noise() }),
            );
        }
        src
    }

    /// Checks that an index can express the extents, and that they have all bytes but those that are left.
    fn check(segment: &Segment, start: u64, src: &[u8]) -> Result<(), TestCaseError> {
        let end = start + (src.len() - segment.left.len()) as u64;
        let ends = segment.extents.iter().skip(1).map(|next| next.start).chain([end]);
        let mut blocks = 0;
        for (Extent { start, stored, is_short }, end) in segment.extents.iter().zip(ends) {
            let entries = end / BLOCK - start / BLOCK;
            match stored {
                Stored::Plain => {
                    prop_assert!(entries >= 1 && end - start <= BLOCK);
                    let stored = &segment.blocks[(blocks * BLOCK) as usize..];
                    let first = (start - segment.extents[0].start) as usize;
                    prop_assert!(stored.starts_with(&src[first..first + (end - start) as usize]));
                    blocks += 1;
                }
                Stored::Compressed { blocks: more } => {
                    prop_assert!(entries > u64::from(*more > 1), "{} to {}", start, end);
                    // Linux takes the pages of the output for the input.
                    prop_assert!(u64::from(*more) <= end.div_ceil(BLOCK) - start / BLOCK);
                    prop_assert_eq!(*is_short, end - start < u64::from(*more) * BLOCK);
                    blocks += u64::from(*more);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(blocks * BLOCK, segment.blocks.len() as u64);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
        #[test]
        fn extents_end_at_cuts_where_that_is_possible(
            pieces in proptest::collection::vec((any::<bool>(), 1usize..60_000), 1..6),
            distances in proptest::collection::vec(8192u64..80_000, 0..5),
            first_block in 0u64..3,
            cluster_blocks in prop_oneof![Just(1usize), Just(2), Just(4), Just(16)],
            zstd in any::<bool>(),
        ) {
            let (src, start) = (contents(&pieces), first_block * BLOCK);
            let position = |at: &mut u64, distance: &u64| {
                *at += distance;
                Some(*at)
            };
            let end = start + src.len() as u64;
            let cuts: Box<[u64]> = distances.iter().scan(start, position).filter(|cut| *cut < end).collect();
            let cluster_bytes = cluster_blocks * BLOCK as usize;
            let cut = CutRules { start, cluster_bytes, cuts: cuts.clone(), ..CutRules::default() };
            let mut encoder = Encoder::new(&match zstd {
                true => EncoderConfig::Zstd { max_window_bytes: 1 << 17, level: 1 },
                false => EncoderConfig::Lz4 { window_bytes: 65_535 },
            }).unwrap();
            let segment = cut.compress(&src, Buffer::default(), &mut encoder, &std::sync::atomic::AtomicBool::new(false)).unwrap();
            check(&segment, start, &src)?;
            if end.is_multiple_of(BLOCK) {
                prop_assert_eq!(segment.left.len(), 0);
            }
            prop_assert!(segment.left.len() < 3 * BLOCK as usize);
            // Contents that compress can be cut anywhere, if there is room for an extent after the cut.
            let all_compress = pieces.iter().all(|(compresses, _)| *compresses);
            if all_compress && cluster_blocks >= 3 && src.len() >= 8192 {
                let begins = |cut: &u64| segment.extents.iter().any(|extent| extent.start == *cut);
                prop_assert!(cuts.iter().filter(|cut| **cut + 2 * BLOCK <= end).all(begins), "{:?} of {:?}", cuts, segment.extents);
            }
        }
    }
}
