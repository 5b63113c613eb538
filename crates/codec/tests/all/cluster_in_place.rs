//! LZ4 in place: the same bytes as from buffer to buffer, down to the smallest margin that the rule allows.

use crate::support::cluster::lz4_slow::Extent;
use crate::support::cluster::{Random, compressible, lz4_blocks, lz4_fast, lz4_high};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{decode_lz4_in_place, in_place_margin};
use proptest::prelude::*;

/// Decodes in a buffer with this much behind the output, which is checked to be the only thing written.
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

/// Noise, which LZ4 makes longer, between bytes that compress: the write position gains on the read position.
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
    fn in_place_is_out_of_place(
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
    fn damaged_blocks_stay_inside(seed in any::<u64>(), len in prop_oneof![1..300usize, 1..20_000usize]) {
        let mut random = Random(seed | 1);
        let mut stream = lz4_fast(&mixed(seed, len));
        for _ in 0..1 + random.below(3) {
            let at = random.below(stream.len());
            stream[at] = random.next() as u8;
        }
        // Either way, what counts is checked by `in_place`.
        let _ = in_place(&stream, len, in_place_margin(stream.len()));
        let valid = crate::support::cluster::lz4_slow::decode(&stream, len, 65535, Extent::All);
        if let Some(valid) = valid.filter(|_| stream.len() <= len) {
            prop_assert!(in_place(&stream, len, in_place_margin(stream.len())) == Ok(valid));
        }
    }
}

#[test]
fn a_smaller_margin_is_refused() {
    let plain = compressible(5, 10_000);
    let stream = lz4_fast(&plain);
    let margin = in_place_margin(stream.len());
    assert_eq!(margin, stream.len() / 256 + 32);
    assert_eq!(in_place(&stream, 10_000, margin), Ok(plain));
    assert!(matches!(in_place(&stream, 10_000, margin - 1), Err(CodecError::Room { .. })));
    assert!(matches!(decode_lz4_in_place(&mut [0; 100], 101, 10), Err(CodecError::Room { .. })));
    assert!(matches!(decode_lz4_in_place(&mut [0; 100], 0, usize::MAX), Err(CodecError::Room { .. })));
    // Lengths that are not the block's.
    assert!(matches!(in_place(&stream, 9_999, margin), Err(CodecError::Corrupt { .. })));
    assert!(matches!(in_place(&stream, 10_001, margin), Err(CodecError::Corrupt { .. })));
}
