//! The codec `numbers`: which pages it packs, and that the others are LZ4 blocks, byte for byte.

use crate::support::numbers_slow::{self, noise};
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream};
use pagefold_page::PAGE_SIZE;
use proptest::prelude::*;

fn stream(name: &str) -> Box<dyn Stream> {
    Codec::new(&CodecSpec::named(name)).unwrap().stream().unwrap()
}

fn compress(name: &str, src: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; COMPRESS_BUF_LEN.max(2 * src.len())];
    let len = stream(name).compress(src, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

fn is_packed(bytes: &[u8]) -> bool {
    (1..=8).contains(&bytes[0])
}

/// Compresses a page, checks that it comes back, by the slow twin too, and that an LZ4 block is that of `lz4`.
fn compress_checked(page: &[u8]) -> Vec<u8> {
    let bytes = compress("numbers", page);
    let mut again = [0xa5; PAGE_SIZE];
    assert_eq!(stream("numbers").decompress(&bytes, &mut again), Ok(PAGE_SIZE));
    assert!(again == page);
    if is_packed(&bytes) {
        assert!(numbers_slow::decode(&bytes).as_deref() == Some(page), "the slow twin reads another page");
    } else {
        assert!(bytes == compress("lz4", page), "not the block of lz4");
    }
    bytes
}

fn page_of<const N: usize>(number: impl FnMut(u64) -> [u8; N]) -> Vec<u8> {
    (0..(PAGE_SIZE / N) as u64).flat_map(number).collect()
}

/// Pages of arrays are packed, to about the bits that their numbers have.
#[test]
fn pages_of_numbers_are_packed() {
    let mut random = noise(1);
    let (mut time, mut sorted) = (1_700_000_000_000_000_000_u64, 0_u64);
    let cases: Vec<(&str, u8, usize, Vec<u8>)> = vec![
        ("noise of 8 bits", 4, 524, page_of(|_| (1 << 40 | random() >> 56).to_le_bytes())),
        ("20 bits", 4, 1292, page_of(|_| (random() >> 44).to_le_bytes())),
        ("both signs", 4, 715, page_of(|_| (random() % 2000).wrapping_sub(1000).to_le_bytes())),
        ("int32", 3, 1287, page_of(|_| ((random() % 1000) as u32).to_le_bytes())),
        ("int16", 2, 3077, page_of(|_| ((random() >> 52) as u16).to_le_bytes())),
        ("int8", 1, 2052, page_of(|_| ((random() >> 60) as u8).to_le_bytes())),
        ("whole floats", 4, 1099, page_of(|_| ((random() % 64) as f64).to_le_bytes())),
        ("floats", 4, 3659, page_of(|_| ((random() >> 11) as f64 / (1_u64 << 53) as f64).to_le_bytes())),
        (
            "times",
            8,
            2200,
            page_of(|_| {
                time += 900_000_000 + random() % 100_000_000;
                time.to_le_bytes()
            }),
        ),
        (
            "sorted",
            8,
            800,
            page_of(|_| {
                sorted += random() % 200;
                sorted.to_le_bytes()
            }),
        ),
    ];
    for (name, kind, len_max, page) in cases {
        let bytes = compress_checked(&page);
        assert!(
            bytes[0] == kind && bytes.len() <= len_max,
            "{name}: kind {}, {} bytes",
            bytes[0],
            bytes.len()
        );
        assert!(bytes.len() < compress("lz4", &page).len(), "{name}");
    }
}

/// Pages that LZ4 makes smaller are LZ4 blocks, although their numbers are small.
#[test]
fn pages_that_repeat_or_are_sparse_are_lz4_blocks() {
    let mut random = noise(2);
    let pages: Vec<(&str, Vec<u8>)> = vec![
        ("sparse", page_of(|at| if at % 20 == 0 { random() >> 40 } else { 0 }.to_le_bytes())),
        ("half", page_of(|at| if at < 256 { 0 } else { random() >> 24 }.to_le_bytes())),
        ("records", page_of(|at| [7_u64, 1 << 20, 1 << 30][(at % 3) as usize].to_le_bytes())),
        ("long records", page_of(|at| (at % 20).wrapping_mul(0x9e37_79b9_7f4a).to_le_bytes())),
        ("text", b"the quick brown page folds over the lazy slot; ".repeat(100)[..PAGE_SIZE].to_vec()),
        ("noise", page_of(|_| random().to_le_bytes())),
    ];
    for (name, page) in pages {
        assert!(!is_packed(&compress_checked(&page)), "{name}");
    }
}

#[test]
fn sources_that_are_not_pages_are_lz4_blocks() {
    let source: Vec<u8> = (0..65_536_u64).flat_map(|at| (at % 251).to_le_bytes()).take(65_536).collect();
    for len in [0, 1, 7, 13, 100, 4095, 4097, 8192, 65_535, 65_536] {
        let bytes = compress("numbers", &source[..len]);
        assert!(bytes == compress("lz4", &source[..len]), "{len}");
        let mut again = vec![0; len];
        assert_eq!(stream("numbers").decompress(&bytes, &mut again), Ok(len));
        assert!(again == source[..len], "{len}");
    }
}

#[test]
fn hostile_packed_pages_are_corrupt() {
    let page = page_of(|at| (at * at).to_le_bytes());
    let bytes = compress_checked(&page);
    assert!(is_packed(&bytes));
    let corrupt = |bytes: &[u8], dst_len: usize| {
        let result = stream("numbers").decompress(bytes, &mut vec![0; dst_len]);
        result == Err(CodecError::Corrupt { codec: "numbers", src_len_bytes: bytes.len() })
    };
    assert!((0..bytes.len()).all(|len| corrupt(&bytes[..len], PAGE_SIZE)));
    assert!(corrupt(&[&bytes[..], &[1]].concat(), PAGE_SIZE));
    assert!(corrupt(&bytes, PAGE_SIZE - 1) && !corrupt(&bytes, PAGE_SIZE + 1));
    for kind in (0..16).filter(|kind| *kind != bytes[0]) {
        assert!(corrupt(&[&[kind], &bytes[1..]].concat(), PAGE_SIZE), "kind {kind}");
    }
    for width in (0..=255).filter(|width| *width != bytes[2]) {
        assert!(corrupt(&[&bytes[..2], &[width], &bytes[3..]].concat(), PAGE_SIZE), "width {width}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn pages_of_any_numbers_round_trip(
        seed: u64, bits in 0_u32..64, step in 0_u64..2000, lane_log in 0..4_u32, zeros in 0_u64..4, period in 1_u64..600,
    ) {
        let mut random = noise(seed);
        let mut past: Vec<u64> = Vec::new();
        let numbers = (0..4096_u64).map(|at| {
            let number = match past.len().checked_sub(period as usize) {
                Some(before) if period < 300 => past[before],
                _ if zeros > 0 && random() % 4 < zeros => 0,
                _ => (random() >> bits).wrapping_add(at * step),
            };
            past.push(number);
            number
        });
        let page: Vec<u8> =
            numbers.flat_map(|number| number.to_le_bytes()[..1_usize << lane_log].to_vec()).take(PAGE_SIZE).collect();
        compress_checked(&page);
    }

    #[test]
    fn packed_pages_of_any_bytes_decode_as_the_slow_twin_does(
        kind in 1_u8..9, shift in 0_u8..70, width in 0_u8..70, seed: u64, more in prop_oneof![9 => Just(0_usize), 1 => 1..9_usize],
    ) {
        let lane_len = 1 << ((kind - 1) % 4);
        let len = 3 + lane_len + if kind > 4 { 64 } else { 0 } + 512 / lane_len * usize::from(width) + more;
        let mut random = noise(seed);
        let mut bytes = vec![kind, shift, width];
        bytes.resize_with(len, || random() as u8);
        let mut page = vec![0; PAGE_SIZE];
        let is_page = stream("numbers").decompress(&bytes, &mut page).is_ok();
        prop_assert_eq!(is_page.then_some(page), numbers_slow::decode(&bytes));
    }
}
