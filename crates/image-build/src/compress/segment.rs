//! Segments of a file, and how each is compressed: all at once, or while it is read.
//!
//! Segments are compressed independently of each other, by any thread: where a segment begins depends on the file alone, so
//! the image does not depend on the number of threads. `cutter` compresses a segment, or a part of it.

use super::buffers::Buffer;
use super::cutter::{CutRules, Cutter};
use super::input::SegmentInput;
use super::stored::{BLOCK, Segment};
use crate::Result;
use pagefold_codec::cluster::encode::Encoder;
use std::sync::atomic::AtomicBool;

/// Most bytes of a file that are compressed by one thread at once. An extent does not cross a segment's end, and may be
/// shorter there: half a block is lost in every segment.
pub const SEGMENT_BYTES_MAX: usize = 16 << 20;
/// Segments are not shorter than this because they are among the last, bytes.
const SHORT_SEGMENT_BYTES: u64 = 4 << 20;
/// A segment is at most this part of everything that is left: several threads are to end at about the same time.
const SEGMENTS_LEFT_MIN: u64 = 4;
/// Segments begin at multiples of this, bytes.
const SEGMENT_ALIGN_BYTES: u64 = 64 << 10;

impl CutRules {
    /// Compresses the segment `src`, which is not empty. The result has the memory of `room`, which is empty.
    /// Fails soon after `is_stopped` is set.
    pub fn compress(
        &self,
        src: &[u8],
        room: Buffer,
        encoder: &mut Encoder,
        is_stopped: &AtomicBool,
    ) -> Result<Segment> {
        let segment = Segment { blocks: room, ..Segment::default() };
        let mut cutter = Cutter {
            cut: self,
            start: self.start,
            src,
            at: 0,
            segment,
            cluster: vec![0; self.cluster_bytes],
            is_stopped,
        };
        let first_cut = self.cuts.partition_point(|cut| *cut <= self.start);
        for cut in &self.cuts[first_cut..] {
            cutter.go_to_cut((cut - self.start) as usize, encoder)?;
        }
        if !self.has_open_end(src.len()) {
            cutter.go_to_cut(src.len(), encoder)?;
            cutter.segment.left = src[cutter.at..].to_vec();
            return Ok(cutter.segment);
        }
        cutter.go_to_end(encoder)?;
        Ok(match self.is_better_plain(src.len(), &cutter.segment) {
            true => plain(src, cutter.segment.blocks),
            false => cutter.segment,
        })
    }

    /// Does the same with a segment that may be read meanwhile, if the encoder needs to know little of what follows an extent.
    ///
    /// An extent is the same whatever the window has after it, or it is compressed again with a longer window. So the
    /// result is that of [`CutRules::compress`].
    pub fn compress_input(
        &self,
        src: &mut SegmentInput<'_>,
        room: Buffer,
        encoder: &mut Encoder,
        is_stopped: &AtomicBool,
    ) -> Result<Segment> {
        if !encoder.fits_parts() || !self.cuts.is_empty() || !self.has_open_end(src.len()) {
            return self.compress(src.all()?, room, encoder, is_stopped);
        }
        let mut segment = Segment { blocks: room, ..Segment::default() };
        let (mut cluster, mut from, len) = (vec![0; self.cluster_bytes], 0, src.len());
        while from < len {
            let (start, window) = (self.start + from as u64, src.read_on(from)?);
            let after = len - from - window.len();
            let mut cutter = Cutter { cut: self, start, src: window, at: 0, segment, cluster, is_stopped };
            match after {
                0 => cutter.go_to_end(encoder)?,
                _ => cutter.go_on(after, encoder)?,
            }
            from += cutter.at;
            Cutter { segment, cluster, .. } = cutter;
        }
        Ok(match self.is_better_plain(len, &segment) {
            true => plain(src.all()?, segment.blocks),
            false => segment,
        })
    }

    /// Whether the last extent may end where a segment of this length does.
    fn has_open_end(&self, len: usize) -> bool {
        self.is_last || (self.start + len as u64).is_multiple_of(BLOCK as u64)
    }

    /// Whether the segment is a whole file, and should be stored plain.
    fn is_better_plain(&self, len: usize, segment: &Segment) -> bool {
        self.may_be_plain && self.start == 0 && self.is_last && segment.is_no_gain(len)
    }
}

/// Returns the length of the next segment of a file that has `file_left` bytes, where all files of the image have
/// `all_left`, both not zero.
///
/// The segments of a file are as few as possible, and equal. Those of the last files are short, so that no thread is
/// left with a long one at the end. Lengths depend on the contents alone, so the image does not depend on the number of
/// threads.
pub fn next_segment_bytes(file_left: u64, all_left: u64) -> usize {
    let most = (all_left / SEGMENTS_LEFT_MIN).clamp(SHORT_SEGMENT_BYTES, SEGMENT_BYTES_MAX as u64);
    let segment = file_left.div_ceil(file_left.div_ceil(most)).next_multiple_of(SEGMENT_ALIGN_BYTES);
    segment.min(file_left) as usize
}

/// Stores a segment plain, in the memory of `room`: `src` is all of a file, or a part that ends with the file or at a block's
/// end.
pub fn plain(src: &[u8], mut room: Buffer) -> Segment {
    let full = src.len() / BLOCK * BLOCK;
    room.truncate(0);
    room.append(&src[..full]);
    Segment { blocks: room, tail: src[full..].to_vec(), ..Segment::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::RangeReader;
    use pagefold_codec::cluster::encode::EncoderConfig;
    use proptest::prelude::*;

    /// The segments of a file, after which other files have `later` bytes.
    fn segments(mut file_left: u64, later: u64) -> Vec<u64> {
        let mut segments = Vec::new();
        while file_left > 0 {
            let segment = next_segment_bytes(file_left, file_left + later) as u64;
            assert!(0 < segment && segment <= file_left && segment <= SEGMENT_BYTES_MAX as u64);
            file_left -= segment;
            assert!(file_left == 0 || segment.is_multiple_of(SEGMENT_ALIGN_BYTES));
            segments.push(segment);
        }
        segments
    }

    #[test]
    fn segments_are_equal_and_as_few_as_possible() {
        let max = SEGMENT_BYTES_MAX as u64;
        for len in [1, 4095, max - 1, max, max + 1, 2 * max, 2 * max + 1, 5 * max / 2, 100 * max - 7] {
            let segments = segments(len, 1 << 40);
            assert_eq!(segments.len() as u64, len.div_ceil(max), "{len}");
            let longest = segments.iter().max().unwrap();
            assert!(
                segments[..segments.len() - 1].iter().all(|s| longest - s <= SEGMENT_ALIGN_BYTES),
                "{len}"
            );
        }
    }

    /// Bytes in memory.
    struct InMemory<'a>(&'a [u8]);

    impl RangeReader for InMemory<'_> {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
            buf.copy_from_slice(&self.0[at as usize..][..buf.len()]);
            Ok(())
        }
    }

    /// Contents that compress well, badly, not at all, and so well that one cluster has much of them.
    fn contents(pieces: &[(u8, usize)]) -> Vec<u8> {
        let mut state = 1u64;
        let mut noise = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let piece = |(kind, len): &(u8, usize)| -> Vec<u8> {
            let symbols = [1, 3, 40, 255][usize::from(*kind)];
            (0..*len).map(|_| noise() % symbols).collect()
        };
        pieces.iter().flat_map(piece).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        #[test]
        fn a_segment_that_is_read_meanwhile_is_the_same(
            pieces in proptest::collection::vec((0u8..4, 1usize..700_000), 1..6),
            cluster_blocks in prop_oneof![Just(1usize), Just(4), Just(16), Just(64)],
            (first_block, is_last, tail_packing, may_be_plain) in (0u64..2, any::<bool>(), any::<bool>(), any::<bool>()),
            fragment_bytes_max in prop_oneof![Just(0usize), Just(60_000), Just(600_000)],
            config in prop_oneof![
                4 => (1i32..10).prop_map(|level| EncoderConfig::Lz4Hc { window_bytes: 65_535, level }),
                1 => Just(EncoderConfig::Lz4 { window_bytes: 65_535 }),
            ],
            cuts in proptest::collection::vec(8192u64..80_000, 0..2),
        ) {
            let (mut src, start) = (contents(&pieces), first_block * BLOCK as u64);
            if !is_last {
                src.truncate((src.len() / BLOCK).max(1) * BLOCK);
            }
            let cuts = cuts.into_iter().filter(|cut| *cut < start + src.len() as u64).collect();
            let cluster_bytes = cluster_blocks * BLOCK;
            let cut = CutRules { start, is_last, cluster_bytes, tail_packing, may_be_plain, fragment_bytes_max, in_blocks: 0, cuts };
            let mut encoder = Encoder::new(&config).unwrap();
            let is_stopped = AtomicBool::new(false);
            let at_once = cut.compress(&src, Buffer::default(), &mut encoder, &is_stopped).unwrap();
            let (range, mut memory) = (InMemory(&src), Buffer::default());
            let mut unread = SegmentInput::unread(src.len(), &range, &mut memory);
            // Memory that has served before.
            let mut used = Buffer::from(vec![2; 99_999]);
            used.truncate(0);
            let meanwhile = cut.compress_input(&mut unread, used, &mut encoder, &is_stopped).unwrap();
            prop_assert!(at_once == meanwhile, "{:?} {:?}", at_once.extents.len(), meanwhile.extents.len());
        }
    }

    #[test]
    fn a_stopped_segment_is_not_finished() {
        let config = EncoderConfig::Lz4Hc { window_bytes: 65535, level: 9 };
        let mut encoder = Encoder::new(&config).unwrap();
        let src = vec![7; 1 << 20];
        for cuts in [vec![], vec![300_000]] {
            for is_last in [false, true] {
                let cut = CutRules {
                    is_last,
                    cluster_bytes: 4096,
                    cuts: cuts.clone().into(),
                    ..CutRules::default()
                };
                let compressed = cut.compress(&src, Buffer::default(), &mut encoder, &AtomicBool::new(true));
                assert!(matches!(compressed, Err(crate::BuildError::Interrupted)), "{cuts:?}");
                assert!(
                    cut.compress(&src, Buffer::default(), &mut encoder, &AtomicBool::new(false)).is_ok(),
                    "{cuts:?}"
                );
            }
        }
    }

    #[test]
    fn the_last_segments_are_short() {
        let segments = segments(200 << 20, 0);
        assert!(*segments.iter().max().unwrap() > 15 << 20, "{segments:?}");
        let last = &segments[segments.len() - SEGMENTS_LEFT_MIN as usize..];
        assert!(last.iter().all(|segment| *segment <= SHORT_SEGMENT_BYTES));
        assert!(segments.len() < 40, "{segments:?}");
    }
}
