//! Decoding LZ4 in place has the same result as from buffer to buffer, down to the smallest margin that is allowed.

use crate::support::cluster::lz4_slow::Extent;
use crate::support::cluster::{Random, compressible, lz4_blocks, lz4_fast, lz4_high};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{decode_lz4_in_place, in_place_margin};
use proptest::prelude::*;

/// Decodes in a buffer with `margin` bytes after the output, and checks that nothing around the buffer is written.
fn in_place(stream: &[u8], out_len: usize, margin: usize) -> Result<Vec<u8>, CodecError> {
    const GUARD: usize = 64;
    let len = (out_len + margin).max(stream.len());
    let mut work = vec![0x44; GUARD + len + GUARD];
    work[GUARD + len - stream.len()..GUARD + len].copy_from_slice(stream);
    let result = decode_lz4_in_place(&mut work[GUARD..GUARD + len], stream.len(), out_len);
    assert_eq!(work[..GUARD], [0x44; GUARD]);
    assert_eq!(work[GUARD + len..], [0x44; GUARD]);
    result.map(|()| work[GUARD..GUARD + out_len].to_vec())
}

/// Makes data with noise, which LZ4 makes longer, between bytes that compress: the write position gains on the read
/// position.
fn mixed(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed | 1 << 42);
    let mut data = compressible(seed, len);
    for _ in 0..random.below(4) {
        let (from, to) = (random.below(len), random.below(len));
        data[from.min(to)..from.max(to)].iter_mut().for_each(|byte| *byte = random.next() as u8);
    }
    data
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn decoding_in_place_equals_decoding_to_another_buffer(
        seed in any::<u64>(),
        len in prop_oneof![1..100usize, 1..9000usize, 1..300_000usize],
        more in prop_oneof![Just(0usize), 0..40usize, 0..5000usize],
    ) {
        let plain = mixed(seed, len);
        for stream in [lz4_fast(&plain), lz4_high(&plain, 9), lz4_blocks::encode(&plain, 4096)] {
            let margin = in_place_margin(stream.len()) + more;
            prop_assert!(in_place(&stream, len, margin).as_ref() == Ok(&plain), "{margin}");
        }
    }

    #[test]
    fn damaged_blocks_never_write_outside_the_buffer(
        seed in any::<u64>(),
        len in prop_oneof![1..300usize, 1..20_000usize],
    ) {
        let mut random = Random(seed | 1);
        let mut stream = lz4_fast(&mixed(seed, len));
        for _ in 0..1 + random.below(3) {
            let at = random.below(stream.len());
            stream[at] = random.next() as u8;
        }
        // Success or failure: `in_place` checks that nothing else is written.
        let _ = in_place(&stream, len, in_place_margin(stream.len()));
        let valid = crate::support::cluster::lz4_slow::decode(&stream, len, 65535, Extent::All);
        if let Some(valid) = valid.filter(|_| stream.len() <= len) {
            prop_assert!(in_place(&stream, len, in_place_margin(stream.len())) == Ok(valid));
        }
    }
}

/// Returns a block of two sequences and what it decodes to: literals and a match, then literals that reach the end.
fn match_before_literals(matched: usize, tail: usize) -> (Vec<u8>, Vec<u8>) {
    fn push_length(block: &mut Vec<u8>, beyond_nibble: usize) {
        block.extend(std::iter::repeat_n(255, beyond_nibble / 255));
        block.push((beyond_nibble % 255) as u8);
    }
    const FIRST: usize = 40;
    let mut random = Random(matched as u64 | 1 << 41);
    let literals: Vec<u8> = (0..FIRST + tail).map(|_| random.next() as u8).collect();
    let mut block = vec![0xff];
    push_length(&mut block, FIRST - 15);
    block.extend(&literals[..FIRST]);
    block.extend([FIRST as u8, 0]);
    push_length(&mut block, matched - 19);
    block.push(0xf0);
    push_length(&mut block, tail - 15);
    block.extend(&literals[FIRST..]);
    let repeated = literals[..FIRST].iter().cycle().take(matched);
    let plain = literals[..FIRST].iter().chain(repeated).chain(&literals[FIRST..]).copied().collect();
    (block, plain)
}

/// After the match, nothing but the length bytes of the literals separates the write position from the read position.
#[test]
fn wide_copies_of_a_match_never_reach_the_literals_after_it() {
    for tail in [15, 145, 269, 270, 4080, 65_300, 1 << 20] {
        for matched in 19..120 {
            let (block, plain) = match_before_literals(matched, tail);
            let margin = in_place_margin(block.len());
            assert!(in_place(&block, plain.len(), margin) == Ok(plain), "match of {matched}, then {tail}");
        }
    }
}

#[test]
fn too_small_a_margin_and_wrong_lengths_are_refused() {
    let plain = compressible(5, 10_000);
    let stream = lz4_fast(&plain);
    let margin = in_place_margin(stream.len());
    assert_eq!(margin, stream.len() / 255 + 64);
    assert_eq!(in_place(&stream, 10_000, margin), Ok(plain));
    assert!(matches!(in_place(&stream, 10_000, margin - 1), Err(CodecError::Room { .. })));
    assert!(matches!(decode_lz4_in_place(&mut [0; 100], 101, 10), Err(CodecError::Room { .. })));
    assert!(matches!(decode_lz4_in_place(&mut [0; 100], 0, usize::MAX), Err(CodecError::Room { .. })));
    // Lengths of output that are not the block's.
    assert!(matches!(in_place(&stream, 9_999, margin), Err(CodecError::Corrupt { .. })));
    assert!(matches!(in_place(&stream, 10_001, margin), Err(CodecError::Corrupt { .. })));
}
