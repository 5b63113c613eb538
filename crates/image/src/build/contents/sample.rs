//! Finding out from a sample whether a file compresses.
//!
//! Photos, films and archives are compressed already. A strong compressor needs much time to make them a little smaller,
//! or not at all, and readers need time to decode them. A sample of 32 KiB shows it. It depends on the contents alone, holes
//! being zeroes, and never on time, so that the image does not depend on the machine.
//!
//! A file whose repetitions are far apart, such as an archive with the same photo twice, is taken for one that does not
//! compress.

use super::Filled;
use crate::build::BuildError;
use crate::build::content::Content;
use crate::build::options::Compression;
use crate::format::config::Algorithm;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};

/// Pieces of a sample: the first and the last of the file, and others at equal distances.
const PIECES: u64 = 8;
/// Bytes of a piece.
const PIECE_BYTES: u64 = 4096;
/// Shorter files are not sampled, bytes.
pub const SAMPLED_BYTES_MIN: u64 = PIECES * PIECE_BYTES;
/// A file compresses if the sample becomes smaller than this part of it, percent.
const PERCENT_MAX: usize = 95;

/// The encoders of samples.
pub struct Sampler {
    lz4: Encoder,
    zstd: Encoder,
    dst: Vec<u8>,
}

impl Sampler {
    /// Makes the encoders.
    pub fn new() -> Result<Self, BuildError> {
        Ok(Sampler {
            lz4: Encoder::new(&EncoderConfig::Lz4 { window_bytes: 65535 })?,
            zstd: Encoder::new(&EncoderConfig::Zstd { max_window_bytes: 64 << 10, level: 1 })?,
            dst: vec![0; SAMPLED_BYTES_MIN as usize * PERCENT_MAX / 100],
        })
    }

    /// Whether the sample of a file, which has [`SAMPLED_BYTES_MIN`] bytes or more, compresses. It is compressed with LZ4
    /// if the file is to be, and with Zstandard for all other algorithms, which can encode what LZ4 cannot.
    pub fn is_compressible(
        &mut self,
        content: &dyn Content,
        compression: Compression,
    ) -> Result<bool, BuildError> {
        let sample = sample(content)?;
        let encoder = match compression.method.algorithm() {
            Algorithm::Lz4 => &mut self.lz4,
            _ => &mut self.zstd,
        };
        Ok(encoder.whole(&sample, &mut self.dst)?.is_some())
    }
}

/// Reads the pieces of a file.
fn sample(content: &dyn Content) -> Result<Vec<u8>, BuildError> {
    let mut reader = content.open()?;
    let data = reader.data_ranges()?;
    let mut filled = Filled::new(reader.as_mut(), data.as_deref(), false);
    let last = content.len_bytes().saturating_sub(PIECE_BYTES);
    let (mut sample, mut piece) = (Vec::with_capacity(SAMPLED_BYTES_MIN as usize), Vec::new());
    let mut at = 0;
    for number in 0..PIECES {
        // Lengths are below 2^63, and the product may not be.
        let start = (u128::from(last) * u128::from(number) / u128::from(PIECES - 1)) as u64;
        filled.skip(start - at)?;
        piece = filled.read(PIECE_BYTES as usize, piece)?;
        sample.extend_from_slice(&piece);
        at = start + PIECE_BYTES;
    }
    reader.finish()?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::content::Bytes;
    use crate::build::options::Method;

    /// Bytes that do not compress (SplitMix64).
    fn noise(len: usize) -> Vec<u8> {
        let mixed = |i: u64| {
            let z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 56
        };
        (1..=len as u64).map(|i| mixed(i) as u8).collect()
    }

    #[test]
    fn a_sample_has_the_first_and_the_last_bytes() {
        for len in [SAMPLED_BYTES_MIN as usize, 40_001, 1 << 20] {
            let bytes = noise(len);
            let found = sample(&Bytes(bytes.clone().into())).unwrap();
            let piece = PIECE_BYTES as usize;
            assert_eq!(found.len(), SAMPLED_BYTES_MIN as usize);
            assert!(found[..piece] == bytes[..piece] && found[7 * piece..] == bytes[len - piece..]);
            let third = (len - piece) * 2 / 7;
            assert!(found[2 * piece..3 * piece] == bytes[third..third + piece]);
        }
    }

    #[test]
    fn noise_does_not_compress_and_digits_do_with_codes_of_bits_only() {
        let mut sampler = Sampler::new().unwrap();
        let mut outcome = |bytes: Vec<u8>| {
            [Method::Lz4Hc, Method::Zstd, Method::Lzma, Method::Deflate].map(|method| {
                let content = Bytes(bytes.clone().into());
                sampler.is_compressible(&content, Compression::of(method)).unwrap()
            })
        };
        assert_eq!(outcome(noise(100_000)), [false; 4]);
        assert_eq!(outcome(b"a line of text\n".repeat(10_000)), [true; 4]);
        let digits = noise(100_000).into_iter().map(|byte| byte >> 2);
        assert_eq!(outcome(digits.collect()), [false, true, true, true]);
        // An eighth of the file is enough.
        let mut mixed = noise(800_000);
        mixed[700_000..].fill(0);
        assert_eq!(outcome(mixed), [true; 4]);
    }
}
