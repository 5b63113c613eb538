//! Compressed data decompresses to itself, in both variants and with all decoders, and fits `compress_bound`.

use pagefold_codec::lzo::{LzoError, Variant, Workspace, compress, compress_bound, decompress};
use proptest::prelude::*;

const VARIANTS: [Variant; 2] = [Variant::Lzo, Variant::LzoRle];

fn packed(variant: Variant, work: &mut Workspace, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0xee; compress_bound(data.len())];
    let len = compress(variant, work, data, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Compresses `data` and checks everything that must hold of the result.
fn check(variant: Variant, work: &mut Workspace, data: &[u8]) {
    let stream = packed(variant, work, data);
    assert_eq!(
        stream,
        packed(variant, &mut Workspace::new(), data),
        "depends on earlier uses of the workspace"
    );
    for slack in [0, 1, 7, 100] {
        let mut out = vec![0x55; data.len() + slack];
        assert_eq!(decompress(&stream, &mut out), Ok(data.len()));
        assert!(out[..data.len()] == *data, "{variant:?}, {} bytes, {slack} to spare", data.len());
    }
    assert!(crate::support::lzo_reference::decode(&stream, data.len()).unwrap() == data);
    if variant == Variant::LzoRle {
        assert_eq!(stream[..2], [17, 1]);
    } else {
        let mut out = vec![0; data.len()];
        assert_eq!(lzokay::decompress::decompress(&stream, &mut out), Ok(data.len()), "lzokay");
        assert!(out == data, "lzokay");
    }
}

fn check_both(data: &[u8]) {
    let mut work = Workspace::new();
    for variant in VARIANTS {
        check(variant, &mut work, data);
    }
}

/// A xorshift generator, which needs no crate.
fn noise(seed: u64) -> impl Iterator<Item = u8> {
    let mut x = seed | 1;
    std::iter::repeat_with(move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    })
}

/// Data of the kinds of pieces that pages consist of: noise, runs, copies of earlier bytes, counters.
fn structured() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (any::<u64>(), 1..40usize).prop_map(|(seed, len)| (0, seed, len)),
        (any::<u64>(), 1..400usize).prop_map(|(seed, len)| (1, seed, len)),
        (any::<u64>(), 1..2500usize).prop_map(|(seed, len)| (2, seed, len)),
        (any::<u64>(), 3..80usize).prop_map(|(seed, len)| (3, seed, len)),
        (any::<u64>(), 1..60usize).prop_map(|(seed, len)| (4, seed, len)),
    ];
    proptest::collection::vec(piece, 0..80).prop_map(|pieces| {
        let mut data = Vec::new();
        for (kind, seed, len) in pieces {
            match kind {
                0 => data.extend(noise(seed).take(len)),
                1 => data.resize(data.len() + len, seed as u8),
                2 => data.resize(data.len() + len, 0),
                3 if !data.is_empty() => {
                    let from = seed as usize % data.len();
                    (0..len).for_each(|at| data.push(data[from + at]));
                }
                _ => data.extend((0..len as u64).flat_map(|n| (seed.wrapping_add(n) as u32).to_le_bytes())),
            }
        }
        data
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes_round_trip(data in proptest::collection::vec(any::<u8>(), 0..5000)) {
        check_both(&data);
    }

    #[test]
    fn data_of_three_symbols_round_trips(data in proptest::collection::vec(0..3u8, 0..5000)) {
        check_both(&data);
    }

    #[test]
    fn structured_data_round_trips(data in structured()) {
        check_both(&data);
    }

    #[test]
    fn inputs_that_share_a_workspace_round_trip(all in proptest::collection::vec(structured(), 1..40)) {
        let mut work = Workspace::new();
        for (index, data) in all.iter().enumerate() {
            check(VARIANTS[index % 2], &mut work, data);
        }
    }

    #[test]
    fn a_short_destination_is_refused(data in structured(), cut in 1..200usize) {
        let mut work = Workspace::new();
        for variant in VARIANTS {
            let stream = packed(variant, &mut work, &data);
            let mut exact = vec![0; stream.len()];
            prop_assert_eq!(compress(variant, &mut work, &data, &mut exact), Ok(stream.len()));
            prop_assert!(exact == stream);
            let mut short = vec![0; stream.len().saturating_sub(cut)];
            prop_assert_eq!(compress(variant, &mut work, &data, &mut short), Err(LzoError::OutputOverrun));
            if !data.is_empty() {
                let mut short = vec![0; data.len().saturating_sub(cut)];
                prop_assert_eq!(decompress(&stream, &mut short), Err(LzoError::OutputOverrun));
            }
        }
    }
}

#[test]
fn inputs_of_every_short_length_round_trip() {
    for len in 0..300 {
        check_both(&vec![0; len]);
        check_both(&vec![0xaa; len]);
        check_both(&noise(len as u64 + 9).take(len).collect::<Vec<_>>());
        check_both(&(0..len).map(|at| (at % 7) as u8).collect::<Vec<_>>());
        check_both(&(0..len).map(|at| if at < 5 { 1 } else { 0 }).collect::<Vec<_>>());
    }
}

/// Literal runs of every length around the changes of their encoding, first and between matches.
#[test]
fn literal_runs_of_every_encoding_round_trip() {
    for len in (0..300).chain(520..540) {
        let mut data: Vec<u8> = noise(3).take(len).collect();
        data.extend([7; 40]);
        data.extend(noise(5).take(len));
        data.extend([7; 50]);
        data.extend(noise(5).take(len));
        check_both(&data);
    }
}

/// Matches at distances around the changes of their encoding, of lengths around the changes of theirs.
#[test]
fn matches_of_every_encoding_round_trip() {
    for distance in [1, 2, 7, 8, 9, 2047, 2048, 2049, 16383, 16384, 16385, 32767, 32768, 32831, 49150, 49151]
    {
        for len in [4, 8, 9, 10, 33, 34, 260, 261, 262, 264, 265, 288, 289, 544, 3000] {
            let mut data: Vec<u8> = noise(distance as u64).take(distance).collect();
            for at in 0..len {
                data.push(data[at]);
            }
            data.extend(noise(77).take(20));
            check_both(&data);
        }
    }
}

/// In version 1, a far match with one extra length byte of 252 or more can look
/// like a zero run, when three literals follow it.
#[test]
fn far_matches_never_look_like_zero_runs() {
    for distance in [0x803f, 0x807f, 0x8fff, 0x803e] {
        for len in 255..=270 {
            let mut data: Vec<u8> = noise(5).take(distance).collect();
            for at in 0..len {
                data.push(data[at]);
            }
            // Three literals, all different from what stood after the copied bytes, and a match.
            (0..3).for_each(|at| data.push(!data[len + at]));
            data.extend_from_within(100..130);
            data.extend(noise(6).take(20));
            check_both(&data);
        }
    }
}

/// Zero runs of every length near the bounds, after every number of literals.
#[test]
fn zero_runs_of_every_encoding_round_trip() {
    for len in (1..50).chain(280..300).chain(2040..2100).chain(4096..4110) {
        for literals in 0..6 {
            let mut data: Vec<u8> = noise(11).take(100).chain([5; 30]).collect();
            data.extend(noise(13).take(literals).map(|byte| byte | 1));
            data.resize(data.len() + len, 0);
            data.extend([1, 2, 3]);
            check_both(&data);
        }
    }
}

#[test]
fn inputs_of_several_blocks_round_trip() {
    for len in [49150, 49151, 49152, 65535, 65536, 65537, 98302, 98303, 200_000, 1 << 20] {
        check_both(&noise(1).take(len).collect::<Vec<_>>());
        check_both(&vec![0; len]);
        check_both(&(0..len as u32).flat_map(|n| (n / 3).to_le_bytes()).take(len).collect::<Vec<_>>());
    }
}

/// The worst input for the bound: short matches whose literals need a separate length.
#[test]
fn the_bound_holds_where_matches_hardly_save_bytes() {
    for (literals, distance) in [(4, 2100), (4, 20_000), (18, 2100), (19, 20_000), (1, 20_000), (0, 20_000)] {
        let base: Vec<u8> = noise(21).take(distance).collect();
        let mut fresh = noise(99);
        let mut data = base.clone();
        while data.len() < 45_000 {
            data.extend(fresh.by_ref().take(literals));
            let from = data.len() - distance;
            (0..4).for_each(|at| data.push(data[from + at]));
        }
        check_both(&data);
    }
}

#[test]
fn long_zeros_take_one_instruction_per_2051() {
    let mut work = Workspace::new();
    // Prefix, one literal, two runs of the greatest length, end marker.
    let stream = packed(Variant::LzoRle, &mut work, &vec![0; 1 + 2 * 2051]);
    assert_eq!(stream, [17, 1, 18, 0, 0x1f, 0xfc, 0xff, 0xff, 0x1f, 0xfc, 0xff, 0xff, 17, 0, 0]);
}

#[test]
fn streams_of_lzokay_decode() {
    let mut work = noise(31);
    // Not the empty input: for that, lzokay writes a stream that only lzokay reads.
    for len in [1, 4, 100, 4096, 70_000] {
        let mut data: Vec<u8> = work.by_ref().take(len / 4).collect();
        while data.len() < len {
            let from = usize::from(work.next().unwrap()) % data.len().max(1);
            data.extend(data[from..].iter().take(23).copied().collect::<Vec<_>>());
            data.push(work.next().unwrap() % 3);
        }
        let stream = lzokay::compress::compress(&data).unwrap();
        let mut out = vec![0; data.len()];
        assert_eq!(decompress(&stream, &mut out), Ok(data.len()));
        assert!(out == data);
    }
}
