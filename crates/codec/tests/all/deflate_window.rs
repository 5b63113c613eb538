//! Deflate with window bits: which are valid, and that streams keep to their window and format.

use crate::support::deflate_reference::inflate;
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream};
use pagefold_page::PAGE_SIZE;
use zlib_rs::{Inflate, InflateFlush, Status};

/// All that zram's deflate takes.
fn valid_window_bits() -> impl Iterator<Item = i32> {
    (-15..=-9).chain(9..=15)
}

fn spec(level: Option<i32>, window_bits: i32) -> CodecSpec {
    CodecSpec { level, window_bits: Some(window_bits), ..CodecSpec::named("deflate") }
}

fn stream(level: Option<i32>, window_bits: i32) -> Box<dyn Stream> {
    Codec::new(&spec(level, window_bits)).unwrap().stream().unwrap()
}

fn compress(stream: &mut dyn Stream, src: &[u8]) -> Vec<u8> {
    let mut compressed = vec![0; (src.len() * 2).max(COMPRESS_BUF_LEN)];
    let len = stream.compress(src, &mut compressed).unwrap();
    compressed.truncate(len);
    compressed
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| random()).collect()
}

/// Bytes that repeat at this distance and at no shorter one.
fn repeating(distance: usize, len: usize) -> Vec<u8> {
    noise(distance).into_iter().cycle().take(len).collect()
}

/// Sources that have matches at many distances, or none.
fn sources() -> Vec<Vec<u8>> {
    let mut sources: Vec<Vec<u8>> =
        [100, 240, 300, 700, 1500, 3000].map(|distance| repeating(distance, PAGE_SIZE)).into();
    let words = (0..PAGE_SIZE / 8).flat_map(|i| (0x7f00_0000_1000u64 + i as u64 % 61 * 48).to_le_bytes());
    let letters = noise(PAGE_SIZE).iter().map(|byte| b"etaoin shrdlu.,"[usize::from(byte % 15)]).collect();
    // Longer than every window, so that windows slide.
    let long: Vec<u8> =
        [400, 900, 1800, 3500, 7000, 14_000].iter().flat_map(|d| repeating(*d, d * 2)).collect();
    sources.extend([vec![0; PAGE_SIZE], words.collect(), letters, noise(PAGE_SIZE), long]);
    sources
}

#[test]
fn the_kernels_window_bits_are_valid_and_no_others() {
    for window_bits in (-100..=100).chain([i32::MIN, i32::MAX, 256 + 11, -256 - 11]) {
        let result = Codec::new(&spec(None, window_bits)).map(|_| ());
        let expected = match valid_window_bits().any(|valid| valid == window_bits) {
            true => Ok(()),
            false => Err(CodecError::WindowBits { codec: "deflate", window_bits, min: 9, max: 15 }),
        };
        assert_eq!(result, expected, "{window_bits}");
    }
    let error = CodecError::WindowBits { codec: "deflate", window_bits: 8, min: 9, max: 15 };
    let text = "codec deflate has no window bits 8; they are 9 to 15, or -15 to -9 for raw streams";
    assert_eq!(error.to_string(), text);
}

#[test]
fn with_window_bits_the_levels_are_zlibs() {
    for level in -1..=9 {
        assert!(Codec::new(&spec(Some(level), -11)).is_ok(), "{level}");
    }
    for level in [i32::MIN, -2, 10, 12, 13, i32::MAX] {
        let error = Codec::new(&spec(Some(level), -11)).err();
        let max = if (-1..=12).contains(&level) { 9 } else { 12 };
        assert_eq!(error, Some(CodecError::Level { codec: "deflate", level, min: -1, max }));
    }
}

#[test]
fn other_decoders_read_the_streams_and_no_match_exceeds_the_window() {
    for window_bits in valid_window_bits() {
        let (log2, is_zlib) = (window_bits.unsigned_abs() as u8, window_bits > 0);
        // A level of each algorithm that zlib-rs has: stored, quick, fast, medium, slow.
        for level in [0, 1, 2, -1, 9] {
            let mut stream = stream(Some(level), window_bits);
            for (n, src) in sources().iter().enumerate() {
                let label = format!("source {n}, window bits {window_bits}, level {level}");
                let compressed = compress(&mut *stream, src);
                let raw = if is_zlib { &compressed[2..compressed.len() - 4] } else { &compressed[..] };
                let slow = inflate(raw);
                assert!(slow.bytes == *src, "{label}");
                assert_eq!(slow.consumed, raw.len(), "{label}");
                assert!(slow.distance_max <= 1 << log2, "{label}: a match of {}", slow.distance_max);

                let mut decoder = Inflate::new(is_zlib, log2);
                let mut out = vec![0; src.len()];
                let status = decoder.decompress(&compressed, &mut out, InflateFlush::Finish);
                assert!(status == Ok(Status::StreamEnd) && out == *src, "{label}: {status:?}");
                assert_eq!(decoder.total_in() as usize, compressed.len(), "{label}");

                let mut out = vec![0; src.len()];
                assert_eq!(stream.decompress(&compressed, &mut out), Ok(src.len()), "{label}");
                assert!(out == *src, "{label}");
            }
        }
    }
}

#[test]
fn a_longer_window_finds_what_a_shorter_one_misses() {
    for (distance, shortest_log2) in [(200, 9), (700, 10), (1700, 11), (3000, 12)] {
        let src = repeating(distance, PAGE_SIZE);
        for window_bits in valid_window_bits() {
            let len = compress(&mut *stream(None, window_bits), &src).len();
            let is_found = window_bits.unsigned_abs() >= shortest_log2;
            // Few distinct bytes shorten literals a little.
            let is_short = match is_found {
                true => len < PAGE_SIZE * 90 / 100,
                false => len < PAGE_SIZE * 97 / 100,
            };
            assert_eq!(is_short, is_found, "{distance}, {window_bits}: {len} bytes");
        }
    }
}

#[test]
fn positive_window_bits_make_zlib_streams_with_the_window_and_a_verified_checksum() {
    let src = &sources()[7];
    for log2 in 9..=15 {
        let mut stream = stream(None, log2);
        let compressed = compress(&mut *stream, src);
        let header = u16::from_be_bytes([compressed[0], compressed[1]]);
        assert_eq!((compressed[0], header % 31), (((log2 - 8) << 4 | 8) as u8, 0));
        let mut raw = vec![0; PAGE_SIZE];
        let raw_len = self::stream(None, -log2).compress(src, &mut vec![0; COMPRESS_BUF_LEN]).unwrap();
        assert_eq!(compressed.len(), raw_len + 6);
        for at in compressed.len() - 4..compressed.len() {
            let mut bad = compressed.clone();
            bad[at] ^= 1;
            let error = CodecError::Corrupt { codec: "deflate", src_len_bytes: bad.len() };
            assert_eq!(stream.decompress(&bad, &mut raw), Err(error));
        }
    }
}

#[test]
fn a_stream_is_usable_after_a_destination_that_is_too_short() {
    for window_bits in valid_window_bits() {
        let mut stream = stream(None, window_bits);
        for src in sources().iter().filter(|src| src.len() == PAGE_SIZE) {
            let whole = compress(&mut *stream, src);
            for len in [0, 1, whole.len() / 2, whole.len() - 1] {
                let error = CodecError::Compress { codec: "deflate", dst_len_bytes: len };
                assert_eq!(stream.compress(src, &mut vec![0; len]), Err(error), "{window_bits}");
                assert_eq!(compress(&mut *stream, src), whole, "{window_bits}");
            }
        }
    }
}
