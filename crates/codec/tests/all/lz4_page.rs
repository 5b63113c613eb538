//! The LZ4 page compressor: its blocks obey the format's rules and decode in both decoders, it writes nothing past its
//! destination, and its compression ratio is about liblz4's.
//!
//! The codec uses liblz4 for a destination shorter than the page compressor needs; the tests get liblz4's output that
//! way.

#[allow(dead_code, reason = "other tests use the rest")]
use crate::support::cluster::lz4_slow::{Extent, decode};
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream};
use pagefold_page::PAGE_SIZE;
use proptest::prelude::*;

/// Length of a destination that is too short for the page compressor, so that liblz4 compresses.
const SHORT_DST_LEN: usize = PAGE_SIZE + PAGE_SIZE / 255 + 16;

fn stream() -> Box<dyn Stream> {
    Codec::new(&CodecSpec::named("lz4")).unwrap().stream().unwrap()
}

/// Compresses a page, checks that both decoders restore it, and returns the block.
fn compress_checked(stream: &mut dyn Stream, page: &[u8]) -> Vec<u8> {
    let mut block = vec![0xee; COMPRESS_BUF_LEN];
    let len = stream.compress(page, &mut block).unwrap();
    assert!(
        block[SHORT_DST_LEN + 64..].iter().all(|byte| *byte == 0xee),
        "writes past the compressor's destination"
    );
    block.truncate(len);
    let mut decompressed = vec![0xa5; PAGE_SIZE];
    assert_eq!(stream.decompress(&block, &mut decompressed), Ok(PAGE_SIZE), "liblz4 rejects the block");
    assert!(decompressed == page, "liblz4 decodes the block to other bytes");
    let slow = decode(&block, PAGE_SIZE, PAGE_SIZE, Extent::All);
    assert!(slow.as_deref() == Some(page), "the slow decoder rejects the block or decodes it to other bytes");
    block
}

/// Returns the length of liblz4's block.
fn liblz4_len(stream: &mut dyn Stream, page: &[u8]) -> usize {
    stream.compress(page, &mut [0; SHORT_DST_LEN]).unwrap()
}

/// Generates bytes with hardly any matches.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
}

fn noise_page(seed: u64) -> Vec<u8> {
    noise(seed).take(PAGE_SIZE).collect()
}

/// Makes a page like those of programs: words with many bytes in common.
fn word_page(seed: u64) -> Vec<u8> {
    let mut random = noise(seed);
    let mut next = || random.next().unwrap();
    let mut page = Vec::new();
    while page.len() < PAGE_SIZE {
        let word = match next() % 8 {
            0 => u64::from(next()),
            1..=3 => 0x7f3a_1c00_0000 + (u64::from(next()) << 8 | u64::from(next())) * 16,
            4 | 5 => 0x5581_0020_4000 + u64::from(next() % 32) * 64,
            6 => 0,
            _ => u64::from_le_bytes(std::array::from_fn(|_| b'a' + next() % 26)),
        };
        page.extend(word.to_le_bytes());
    }
    page
}

#[test]
fn pages_of_every_period_round_trip() {
    let mut stream = stream();
    for period in (1..200).chain([255, 256, 257, 511, 1000, 2047, 2048, 4000, 4083, 4084, 4085, 4091, 4095]) {
        let pattern: Vec<u8> = noise(period as u64).take(period).collect();
        let page: Vec<u8> = pattern.iter().cycle().take(PAGE_SIZE).copied().collect();
        let block = compress_checked(&mut *stream, &page);
        assert!(period > 200 || block.len() < period + 64, "period {period}: {} bytes", block.len());
    }
}

/// One match in noise, of every length around those where the length field grows, after every such run of literals.
#[test]
fn matches_and_literals_of_every_length_round_trip() {
    let mut stream = stream();
    let lens = (4..40).chain(268..280).chain(520..532).chain([1000, 2000, 4000]);
    for len in lens {
        for literals in (1..40).chain(268..280).chain([1000, 4000]) {
            let mut page: Vec<u8> = noise(len as u64 ^ 77).take(literals).collect();
            let from = literals.saturating_sub(300);
            (0..len).for_each(|i| page.push(page[from + i]));
            page.extend(noise(literals as u64).take(PAGE_SIZE.saturating_sub(page.len())));
            page.truncate(PAGE_SIZE);
            compress_checked(&mut *stream, &page);
        }
    }
}

/// A repeated piece begins and ends at each of the last positions.
#[test]
fn matches_at_the_end_obey_the_formats_end_rules() {
    let mut stream = stream();
    let mut shortest = usize::MAX;
    for start in PAGE_SIZE - 80..PAGE_SIZE {
        for len in 1..=PAGE_SIZE - start {
            for from in [0, 5, start - 10] {
                let mut page = noise_page(3);
                (0..len).for_each(|i| page[start + i] = page[from + i]);
                shortest = shortest.min(compress_checked(&mut *stream, &page).len());
            }
        }
    }
    assert!(shortest < PAGE_SIZE - 40, "matches at the end are not found: {shortest}");
}

#[test]
fn compressing_into_any_length_fits_or_is_an_error() {
    let mut stream = stream();
    for page in [vec![7; PAGE_SIZE], word_page(1), word_page(2), noise_page(1)] {
        let block = compress_checked(&mut *stream, &page);
        let needed = liblz4_len(&mut *stream, &page);
        for capacity in (0..=SHORT_DST_LEN + 64).chain([COMPRESS_BUF_LEN - 1]) {
            let mut dst = vec![0xee; capacity + 64];
            match stream.compress(&page, &mut dst[..capacity]) {
                Ok(len) => {
                    assert!(len <= capacity);
                    let mut decompressed = vec![0; PAGE_SIZE];
                    assert_eq!(stream.decompress(&dst[..len], &mut decompressed), Ok(PAGE_SIZE));
                    assert!(decompressed == page);
                }
                Err(e) => {
                    assert_eq!(e, CodecError::Compress { codec: "lz4", dst_len_bytes: capacity });
                    assert!(capacity < needed + 8, "{capacity} bytes are enough for {needed}");
                }
            }
            assert!(dst[capacity..].iter().all(|byte| *byte == 0xee), "writes past {capacity}");
        }
        assert!(block.len() <= SHORT_DST_LEN);
    }
}

#[test]
fn the_compression_ratio_is_about_that_of_liblz4() {
    let mut stream = stream();
    let pages: Vec<_> = (0..200).map(word_page).collect();
    let ours: usize = pages.iter().map(|page| compress_checked(&mut *stream, page).len()).sum();
    let liblz4: usize = pages.iter().map(|page| liblz4_len(&mut *stream, page)).sum();
    assert!(ours * 100 < liblz4 * 102, "{ours} bytes, liblz4 {liblz4}");
    assert_ne!(ours, liblz4, "liblz4 compressed both");
}

/// A piece of a page.
#[derive(Debug, Clone)]
enum Piece {
    Run(u8, usize),
    Alphabet(u64, u8, usize),
    /// Bytes from a distance back; distance and length.
    Copy(usize, usize),
    Noise(u64, usize),
}

fn piece() -> impl Strategy<Value = Piece> {
    let len = || prop_oneof![4 => 1usize..24, 2 => 12usize..24, 1 => 264usize..280, 1 => 1usize..600];
    prop_oneof![
        1 => (any::<u8>(), len()).prop_map(|(byte, len)| Piece::Run(byte, len)),
        2 => (any::<u64>(), 2u8..5, len()).prop_map(|(seed, size, len)| Piece::Alphabet(seed, size, len)),
        4 => (1usize..PAGE_SIZE, len()).prop_map(|(back, len)| Piece::Copy(back, len)),
        2 => (1usize..20, len()).prop_map(|(back, len)| Piece::Copy(back, len)),
        2 => (any::<u64>(), len()).prop_map(|(seed, len)| Piece::Noise(seed, len)),
    ]
}

fn build(pieces: &[Piece]) -> Vec<u8> {
    let mut page: Vec<u8> = Vec::new();
    for piece in pieces.iter().cycle() {
        match *piece {
            Piece::Run(byte, len) => page.extend(std::iter::repeat_n(byte, len)),
            Piece::Alphabet(seed, size, len) => page.extend(noise(seed).take(len).map(|b| b % size)),
            Piece::Copy(back, len) => {
                let back = back.min(page.len());
                (0..len).for_each(|_| page.push(if back == 0 { 1 } else { page[page.len() - back] }));
            }
            Piece::Noise(seed, len) => page.extend(noise(seed).take(len)),
        }
        if page.len() >= PAGE_SIZE {
            break;
        }
    }
    page.truncate(PAGE_SIZE);
    page
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn structured_pages_round_trip(pieces in prop::collection::vec(piece(), 1..120)) {
        compress_checked(&mut *stream(), &build(&pieces));
    }
}
