//! Which of the two searches of a level is worth its time for a source.
//!
//! Text is known by its bytes. Of other sources samples are compressed in both ways: they are so short that they take a
//! twentieth of the time of the cluster, and foretell the ratio of the two to 1 or 2 %. The choice depends on the source
//! alone. In 32 MB of shared libraries, 24 MB of the Rust toolchain and 16 MB of the programs of a Debian system, the choice
//! makes 0.999, 0.992 and 1.023 of the bytes of the search for short matches in 0.66, 0.63 and 0.60 of its CPU time.

use super::zstd_context::Context;
use super::zstd_level::{Kind, has_kinds, parameters};
use crate::error::CodecError;
use zstd_safe::zstd_sys::ZSTD_compressionParameters;

/// Bytes of a source by which it is text or not.
const TEXT_BYTES: usize = 4096;
/// Samples of a source, at equal distances, and the length of each, bytes.
const SAMPLES: usize = 4;
const SAMPLE_BYTES: usize = 4 << 10;
/// Sources that are not this many times as long as their samples have none.
const SAMPLED_MIN: usize = 4;
/// The search for longer matches is taken if it makes samples larger by this many thousandths at most.
const LARGER_MAX: usize = 30;
/// Room for a compressed sample: one that does not compress becomes a few bytes longer.
const ROOM_BYTES: usize = 2 * SAMPLE_BYTES;

/// Compresses samples.
pub(super) struct Sampler {
    context: Context,
    room: Box<[u8]>,
    level: i32,
}

impl Sampler {
    /// Makes the sampler of a level; `None` if the level has one search for all sources.
    pub(super) fn new(level: i32) -> Result<Option<Self>, CodecError> {
        if !has_kinds(level) {
            return Ok(None);
        }
        let context = Context::new(&Kind::ALL.map(|kind| sample_parameters(level, kind)))?;
        Ok(Some(Sampler { context, room: vec![0; ROOM_BYTES].into(), level }))
    }

    /// Returns an upper bound of its heap bytes.
    pub(super) fn heap_bytes(level: i32) -> usize {
        let contexts = Kind::ALL.map(|kind| Context::heap_bytes(sample_parameters(level, kind)));
        if has_kinds(level) { ROOM_BYTES + contexts.into_iter().max().unwrap_or_default() } else { 0 }
    }

    /// Returns the kind of a source.
    pub(super) fn kind(&mut self, src: &[u8]) -> Result<Kind, CodecError> {
        if is_text(src) {
            return Ok(Kind::LongMatches);
        }
        if src.len() < SAMPLED_MIN * SAMPLES * SAMPLE_BYTES {
            return Ok(Kind::ShortMatches);
        }
        let mut stored_bytes = [0; 2];
        for sample in (0..SAMPLES).map(|number| &src[src.len() / SAMPLES * number..][..SAMPLE_BYTES]) {
            for (kind, sum) in Kind::ALL.into_iter().zip(&mut stored_bytes) {
                self.context.begin_whole(self.level, sample_parameters(self.level, kind))?;
                *sum += self.context.compress(sample, &mut self.room)?.unwrap_or(SAMPLE_BYTES);
            }
        }
        let [short, long] = stored_bytes;
        let is_long = long * 1000 <= short * (1000 + LARGER_MAX);
        Ok(if is_long { Kind::LongMatches } else { Kind::ShortMatches })
    }
}

fn sample_parameters(level: i32, kind: Kind) -> ZSTD_compressionParameters {
    parameters(SAMPLE_BYTES as u32, level, SAMPLE_BYTES, kind)
}

/// Whether a source seems to be text: it begins with some thousand bytes of which none is 0.
pub(super) fn is_text(src: &[u8]) -> bool {
    !src[..src.len().min(TEXT_BYTES)].contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(src: &[u8]) -> Kind {
        Sampler::new(12).unwrap().unwrap().kind(src).unwrap()
    }

    /// A number that nothing foretells.
    fn mix(n: u64) -> u64 {
        let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb)
    }

    #[test]
    fn text_and_noise_have_no_short_matches() {
        let text: Vec<u8> = (0..40_000u32).flat_map(|n| format!("line {n}\n").into_bytes()).collect();
        assert_eq!(kind(&text), Kind::LongMatches);
        let noise: Vec<u8> = [0].into_iter().chain((1..30_000).flat_map(|n| mix(n).to_le_bytes())).collect();
        assert_eq!(kind(&noise), Kind::LongMatches, "nothing compresses it");
    }

    #[test]
    fn words_of_three_bytes_have_short_matches() {
        // Any of 400 words follows any other, so that few matches are longer than a word.
        let word = |n: u64| mix(1 + mix(n) % 400).to_le_bytes();
        let words = (1..60_000).flat_map(|n| word(n).into_iter().take(3));
        let words: Vec<u8> = [0].into_iter().chain(words).collect();
        assert_eq!(kind(&words), Kind::ShortMatches);
        assert_eq!(kind(&words[..40_000]), Kind::ShortMatches, "too short for samples");
    }

    #[test]
    fn levels_with_one_search_have_no_sampler() {
        for level in [1, 9, 14, 22] {
            assert!(Sampler::new(level).unwrap().is_none() && Sampler::heap_bytes(level) == 0);
        }
    }
}
