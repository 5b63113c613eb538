//! Finding out from a sample what compressing a file gains.
//!
//! Photos, films and archives are compressed already. A strong compressor needs much time to make them a little smaller,
//! or not at all, and readers need time to decode them. Measured values and other numbers have few repetitions: their bytes
//! get shorter codes, which every level finds, and a long search for matches finds nothing more. A sample of 32 KiB shows
//! both. It depends on the contents alone, holes being zeroes, and never on time, so that the image does not depend on the
//! machine.
//!
//! A file whose repetitions are far apart, such as an archive with the same photo twice, is taken for one that does not
//! compress.

use super::filled::Filled;
use crate::compress::buffers::Buffer;
use crate::compression::Compression;
use crate::content::Content;
use crate::{BuildError, Result};
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use pagefold_image::format::config::{Algorithm, LZ4_WINDOW_BYTES_DEFAULT};

/// Pieces of a sample: the first and the last of the file, and others at equal distances.
const PIECES: u64 = 8;
/// Bytes of a piece.
const PIECE_BYTES: u64 = 4096;
/// Shorter files are not sampled, bytes.
pub const SAMPLED_BYTES_MIN: u64 = PIECES * PIECE_BYTES;
/// A file compresses if the sample becomes smaller than this part of it, percent.
const PERCENT_MAX: usize = 95;
/// A long search is worth it if it makes the compressed sample smaller than this part of it, per mille.
const SEARCHED_PER_MILLE_MAX: usize = 995;

/// Contents that become smaller than this, percent, have repetitions, and the whole file may have more than the sample.
const CODES_PERCENT_MIN: usize = 50;

/// How files of formats that are compressed begin: offset, and bytes there. Their first and last pieces are headers and
/// directories, which compress, and do not count.
const COMPRESSED_FORMATS: [(usize, &[u8]); 16] = [
    (0, b"\x1f\x8b\x08"),
    (0, b"PK\x03\x04"),
    (0, b"\x89PNG\r\n"),
    (0, b"\xff\xd8\xff"),
    (0, b"\xfd7zXZ\0"),
    (0, b"\x28\xb5\x2f\xfd"),
    (0, b"BZh"),
    (0, b"7z\xbc\xaf\x27\x1c"),
    (0, b"\x04\x22\x4d\x18"),
    (8, b"WEBP"),
    (4, b"ftyp"),
    (0, b"\x1a\x45\xdf\xa3"),
    (0, b"OggS"),
    (0, b"fLaC"),
    (0, b"ID3"),
    (0, b"hsqs"),
];

/// The gain of compressing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gain {
    /// Less than 5 %.
    Nothing,
    /// Entropy coding helps, longer matches do not: the lowest level suffices. Less than half.
    EntropyOnly,
    /// More with a long search for matches.
    Matches,
}

impl Gain {
    /// All of them.
    pub const ALL: [Gain; 3] = [Gain::Nothing, Gain::EntropyOnly, Gain::Matches];
}

/// The encoders of samples: a fast and a strong one, for LZ4 and for all other algorithms, which can encode what LZ4 cannot.
pub struct Sampler {
    lz4: [Encoder; 2],
    zstd: [Encoder; 2],
    dst: Vec<u8>,
}

/// The configurations of the encoders: fast and strong, of LZ4 and of Zstandard.
fn configs() -> [[EncoderConfig; 2]; 2] {
    let window_bytes = LZ4_WINDOW_BYTES_DEFAULT;
    let lz4 = [EncoderConfig::Lz4 { window_bytes }, EncoderConfig::Lz4Hc { window_bytes, level: 9 }];
    [lz4, [1, 9].map(|level| EncoderConfig::Zstd { max_window_bytes: 64 << 10, level })]
}

/// An upper bound of the memory of a sampler, bytes.
pub fn sampler_bytes() -> usize {
    let encoders: usize = configs().iter().flatten().map(Encoder::heap_bytes).sum();
    encoders + 2 * SAMPLED_BYTES_MIN as usize
}

impl Sampler {
    /// Makes the encoders.
    pub fn new() -> Result<Self> {
        let [lz4, zstd] = configs();
        let make = |[fast, strong]: [EncoderConfig; 2]| {
            Ok::<_, BuildError>([Encoder::new(&fast)?, Encoder::new(&strong)?])
        };
        Ok(Sampler { lz4: make(lz4)?, zstd: make(zstd)?, dst: vec![0; SAMPLED_BYTES_MIN as usize] })
    }

    /// Finds out what compressing a file gains, which has [`SAMPLED_BYTES_MIN`] bytes or more. [`Gain::EntropyOnly`] is never
    /// the answer for a compression that does not search long.
    pub fn gain(&mut self, content: &dyn Content, compression: Compression) -> Result<Gain> {
        let sample = sample(content)?;
        let is_of = |(at, magic): &(usize, &[u8])| sample[*at..].starts_with(magic);
        let counted = match COMPRESSED_FORMATS.iter().any(is_of) {
            true => &sample[PIECE_BYTES as usize..sample.len() - PIECE_BYTES as usize],
            false => &sample[..],
        };
        let [fast, strong] = match compression.method.algorithm() {
            Algorithm::Lz4 => &mut self.lz4,
            _ => &mut self.zstd,
        };
        let room = &mut self.dst[..counted.len() * PERCENT_MAX / 100];
        let fast_bytes = fast.whole(counted, room)?;
        if compression == compression.light() {
            return Ok(fast_bytes.map_or(Gain::Nothing, |_| Gain::Matches));
        }
        Ok(match (fast_bytes, strong.whole(counted, room)?) {
            (None, None) => Gain::Nothing,
            (Some(fast), strong)
                if fast * 100 >= counted.len() * CODES_PERCENT_MIN
                    && strong.is_none_or(|strong| strong * 1000 >= fast * SEARCHED_PER_MILLE_MAX) =>
            {
                Gain::EntropyOnly
            }
            _ => Gain::Matches,
        })
    }
}

/// Reads the pieces of a file.
fn sample(content: &dyn Content) -> Result<Vec<u8>> {
    let reader = content.open()?;
    let data = reader.data_ranges()?;
    let mut filled = Filled::new(reader.as_ref(), data.as_deref(), false);
    let last = content.len_bytes().saturating_sub(PIECE_BYTES);
    let (mut sample, mut piece) = (Vec::with_capacity(SAMPLED_BYTES_MIN as usize), Buffer::default());
    for number in 0..PIECES {
        // Lengths are below 2^63, and the product may not be.
        let start = (u128::from(last) * u128::from(number) / u128::from(PIECES - 1)) as u64;
        filled.seek(start);
        piece = filled.read(PIECE_BYTES as usize, piece)?;
        sample.extend_from_slice(&piece);
    }
    reader.finish()?;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Method;
    use crate::content::Bytes;

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

    fn gains(bytes: &[u8]) -> [Gain; 4] {
        let mut sampler = Sampler::new().unwrap();
        [Method::Lz4Hc, Method::Zstd, Method::Lzma, Method::Deflate]
            .map(|method| sampler.gain(&Bytes(bytes.into()), Compression::of(method)).unwrap())
    }

    #[test]
    fn noise_does_not_compress_and_digits_do_with_codes_of_bits_only() {
        use Gain::{EntropyOnly, Matches, Nothing};
        assert_eq!(gains(&noise(100_000)), [Nothing; 4]);
        let digits: Vec<u8> = noise(100_000).into_iter().map(|byte| byte >> 2).collect();
        assert_eq!(gains(&digits), [Nothing, EntropyOnly, EntropyOnly, EntropyOnly]);
        // An eighth of the file is enough.
        let mut mixed = noise(800_000);
        mixed[700_000..].fill(0);
        assert_eq!(gains(&mixed), [EntropyOnly; 4]);
        let fast = Compression::parse("zstd:1").unwrap().unwrap();
        assert_eq!(Sampler::new().unwrap().gain(&Bytes(mixed.into()), fast).unwrap(), Matches);
        // The file may have repetitions that the sample does not show.
        assert_eq!(gains(&b"a line of text\n".repeat(10_000)), [Matches; 4]);
        // Words in any order: a match is long only if it is searched for.
        let words: Vec<Vec<u8>> = noise(4000).chunks(7).map(|word| word.to_vec()).collect();
        let text: Vec<u8> = noise(20_000)
            .chunks(2)
            .flat_map(|pair| words[(usize::from(pair[0]) << 8 | usize::from(pair[1])) % words.len()].clone())
            .collect();
        assert_eq!(gains(&text)[1..], [Matches; 3]);
    }

    #[test]
    fn headers_and_directories_of_compressed_formats_do_not_count() {
        // An archive with a directory of 4 KiB or more at each end, which has a tenth of it.
        let mut archive = noise(200_000);
        archive[190_000..].fill(b'd');
        archive[..10_000].fill(b'h');
        assert!(gains(&archive).iter().all(|gain| *gain != Gain::Nothing));
        for (at, magic) in COMPRESSED_FORMATS {
            archive[..16].fill(b'h');
            archive[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(gains(&archive), [Gain::Nothing; 4], "{magic:?}");
        }
        // The contents decide nevertheless: an archive may store what it has as it is.
        archive[10_000..190_000].fill(b'c');
        assert!(gains(&archive).iter().all(|gain| *gain != Gain::Nothing));
    }
}
