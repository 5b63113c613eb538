//! Decoding a range has the same result as decoding the whole stream, for any skipped length and any pieces of input;
//! and a decode that fails does not affect the next.

use crate::support::cluster::lz4_slow::Extent;
use crate::support::cluster::{
    Injected, PieceInput, Random, compressible, lz4_blocks, range, samples, whole,
};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{Decoder, Format, RangeError, Want, ring_bytes};
use proptest::prelude::*;

/// Piece lengths: tiny, mixed, and longer than the stream.
fn piece_lens() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![1]),
        Just(vec![1 << 20]),
        Just(vec![4096]),
        prop::collection::vec(1..40usize, 1..20),
        prop::collection::vec(1..5000usize, 1..10),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_range_equals_that_range_of_the_data(
        seed in any::<u64>(),
        len in prop_oneof![1..300usize, 1..9000usize, 1..200_000usize],
        cuts in (0.0..=1.0f64, 0.0..=1.0f64),
        lens in piece_lens(),
    ) {
        for sample in samples(&compressible(seed, len)) {
            let mut decoder = Decoder::new(sample.format).unwrap();
            let skip = (len as f64 * cuts.0) as usize;
            let part = ((len - skip) as f64 * cuts.1) as usize;
            let mut input = PieceInput::new(&sample.stream, &lens);
            let got = range(&mut decoder, &mut input, skip, part, Want::Prefix);
            let (good, label) = (&sample.plain[skip..skip + part], &sample.label);
            prop_assert!(got.as_deref() == Ok(good), "{label} {skip} {part}");
            let mut input = PieceInput::new(&sample.stream, &lens);
            let got = range(&mut decoder, &mut input, skip, len - skip, Want::All);
            prop_assert!(got.as_deref() == Ok(&sample.plain[skip..]), "{} {skip} all", sample.label);
            prop_assert!(input.rest.is_empty());
        }
    }

    #[test]
    fn random_lz4_sequences_decode_as_in_the_slow_decoder(
        seed in any::<u64>(),
        len in prop_oneof![1..300usize, 1..20_000usize, 100_000..200_000usize],
        window in prop_oneof![1..20usize, 1..5000usize, Just(4096usize), Just(16384), Just(65535)],
        cut in 0.0..=1.0f64,
        lens in piece_lens(),
    ) {
        let stream = lz4_blocks::random_block(seed, len, window);
        // liblz4 returns the length of the output.
        let mut room = vec![0; len + 10_000];
        let len = lz4_len(&stream, &mut room);
        let plain = crate::support::cluster::lz4_slow::decode(&stream, len, window, Extent::All).unwrap();
        prop_assert!(plain == room[..len]);
        let mut decoder = Decoder::new(Format::Lz4 { window_bytes: window as u32 }).unwrap();
        let skip = (len as f64 * cut) as usize;
        let got = range(&mut decoder, &mut PieceInput::new(&stream, &lens), skip, len - skip, Want::All);
        prop_assert!(got.as_deref() == Ok(&plain[skip..]));
        let part = (len - skip) / 2;
        let got = range(&mut decoder, &mut PieceInput::new(&stream, &lens), skip, part, Want::Prefix);
        prop_assert!(got.as_deref() == Ok(&plain[skip..skip + part]));
    }

    #[test]
    fn damaged_lz4_blocks_are_rejected_exactly_where_the_slow_decoder_rejects_them(
        seed in any::<u64>(),
        len in prop_oneof![1..300usize, 1..9000usize],
        window in prop_oneof![1..20usize, 1..5000usize, Just(65535usize)],
        (skip, lens) in (0.0..=1.0f64, piece_lens()),
    ) {
        let mut random = Random(seed | 1);
        let mut stream = lz4_blocks::random_block(seed, len, window);
        for _ in 0..1 + random.below(3) {
            let at = random.below(stream.len());
            match random.below(3) {
                0 => stream[at] = random.next() as u8,
                1 => stream[at] ^= 1 << random.below(8),
                _ => stream.truncate(at + 1),
            }
        }
        let len = 1 + random.below(2 * len);
        let skip = (len as f64 * skip) as usize;
        let mut decoder = Decoder::new(Format::Lz4 { window_bytes: window as u32 }).unwrap();
        for (want, extent) in [(Want::All, Extent::All), (Want::Prefix, Extent::Prefix)] {
            let mut input = PieceInput::new(&stream, &lens);
            let got = range(&mut decoder, &mut input, skip, len - skip, want);
            let slow = crate::support::cluster::lz4_slow::decode(&stream, len, window, extent).map(|plain| plain[skip..].to_vec());
            prop_assert!(got.ok() == slow, "{want:?}");
        }
    }

    #[test]
    fn damaged_streams_fail_or_decode_inside_their_buffers(
        seed in any::<u64>(),
        len in prop_oneof![1..300usize, 1..20_000usize],
        skip in 0.0..=1.0f64,
        lens in piece_lens(),
    ) {
        let skip = (len as f64 * skip) as usize;
        for sample in samples(&compressible(seed, len)) {
            let mut random = Random(seed | 1);
            let mut stream = sample.stream.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(stream.len());
                stream[at] = random.next() as u8;
            }
            if random.below(3) == 0 {
                stream.truncate(random.below(stream.len()));
            }
            let mut decoder = Decoder::new(sample.format).unwrap();
            for want in [Want::All, Want::Prefix] {
                let mut input = PieceInput::new(&stream, &lens);
                let parts = range(&mut decoder, &mut input, skip, len - skip, want);
                let contiguous = whole(&mut decoder, &stream, len, want);
                if let (Ok(parts), Some(contiguous)) = (&parts, &contiguous) {
                    prop_assert!(*parts == contiguous[skip..], "{} {want:?}", sample.label);
                }
                // The failed decode does not affect the next.
                let mut input = PieceInput::new(&sample.stream, &lens);
                let good = range(&mut decoder, &mut input, skip, len - skip, Want::All);
                prop_assert!(good.as_deref() == Ok(&sample.plain[skip..]), "{}", sample.label);
            }
        }
    }
}

/// Returns the length of a block's output according to liblz4.
fn lz4_len(stream: &[u8], room: &mut [u8]) -> usize {
    let (stream_len, room_len) = (stream.len() as i32, room.len() as i32);
    let (from, to) = (stream.as_ptr().cast(), room.as_mut_ptr().cast());
    unsafe { lz4_sys::LZ4_decompress_safe(from, to, stream_len, room_len) }.try_into().unwrap()
}

#[test]
fn a_failing_input_leaves_the_decoder_usable() {
    for sample in samples(&compressible(11, 30_000)) {
        let lens = [sample.stream.len() / 40 + 1];
        let mut decoder = Decoder::new(sample.format).unwrap();
        for fail_at in 0.. {
            let mut input = PieceInput::new(&sample.stream, &lens);
            input.fail_at = fail_at;
            match range(&mut decoder, &mut input, 9000, 21_000, Want::All) {
                Ok(got) => {
                    assert!(got == sample.plain[9000..], "{}", sample.label);
                    assert!(fail_at > sample.stream.len() / lens[0], "{}", sample.label);
                    break;
                }
                Err(error) => assert_eq!(error, RangeError::Input(Injected(fail_at)), "{}", sample.label),
            }
            let mut input = PieceInput::new(&sample.stream, &lens);
            let got = range(&mut decoder, &mut input, 9000, 21_000, Want::All);
            assert!(got.as_deref() == Ok(&sample.plain[9000..]), "{} {fail_at}", sample.label);
            let got = whole(&mut decoder, &sample.stream, 30_000, Want::All);
            assert!(got.as_ref() == Some(&sample.plain), "{} {fail_at}", sample.label);
        }
    }
}

#[test]
fn a_prefix_reads_no_more_input_than_it_needs() {
    for sample in samples(&compressible(12, 200_000)) {
        let lens = [64];
        let mut decoder = Decoder::new(sample.format).unwrap();
        let mut input = PieceInput::new(&sample.stream, &lens);
        range(&mut decoder, &mut input, 0, 100, Want::Prefix).unwrap();
        // A decoder needs whole blocks of zstd, and the tables of deflate, for any prefix.
        assert!(
            input.delivered * 64 < sample.stream.len() * 9 / 10 + 200,
            "{}: {}",
            sample.label,
            input.delivered
        );
        let mut input = PieceInput::new(&sample.stream, &lens);
        range(&mut decoder, &mut input, 0, 0, Want::Prefix).unwrap();
        assert_eq!(input.delivered, 0);
    }
}

#[test]
fn truncated_and_extended_streams_and_wrong_lengths_are_refused() {
    for len in [1, 13, 5000, 100_000] {
        for sample in samples(&compressible(len as u64, len)) {
            let mut decoder = Decoder::new(sample.format).unwrap();
            let mut corrupt = |stream: &[u8], skip: usize, part: usize, want| {
                let got = range(&mut decoder, &mut PieceInput::new(stream, &[999]), skip, part, want);
                assert!(
                    matches!(got, Err(RangeError::Codec(CodecError::Corrupt { .. }))),
                    "{}",
                    sample.label
                );
            };
            let shorter = &sample.stream[..sample.stream.len() - 1];
            let longer = [&sample.stream[..], &[0]].concat();
            for skip in [0, len / 2, len] {
                corrupt(&sample.stream, skip, len - skip + 1, Want::All);
                corrupt(&sample.stream, skip, len - skip + 1, Want::Prefix);
                corrupt(shorter, skip, len - skip, Want::All);
                corrupt(&longer, skip, len - skip, Want::All);
                if skip < len {
                    corrupt(&sample.stream, skip, len - skip - 1, Want::All);
                }
            }
            corrupt(&sample.stream, len + 1, 0, Want::Prefix);
            corrupt(&[], 0, 1, Want::Prefix);
            corrupt(&[], 0, len, Want::All);
        }
    }
}

#[test]
fn buffers_that_are_too_short_are_refused() {
    for sample in samples(&compressible(13, 100)) {
        let mut decoder = Decoder::new(sample.format).unwrap();
        let mut input = PieceInput::new(&sample.stream, &[100]);
        let (mut ring, mut dst) = (vec![0; ring_bytes(sample.format)], [0; 100]);
        let refused = decoder.decode_range(&mut input, &mut [], &mut ring, 0, &mut dst, Want::All);
        assert!(matches!(refused, Err(RangeError::Codec(CodecError::Room { min_bytes: 1, .. }))));
        ring.pop();
        let refused = decoder.decode_range(&mut input, &mut [0], &mut ring, 0, &mut dst, Want::All);
        assert!(matches!(refused, Err(RangeError::Codec(CodecError::Room { .. }))));
    }
    assert_eq!(ring_bytes(Format::Lz4 { window_bytes: 65535 }), 17 * 4096);
    assert_eq!(ring_bytes(Format::Lz4 { window_bytes: 16383 }), 5 * 4096);
}

#[test]
fn offsets_and_block_ends_are_accepted_exactly_as_by_the_slow_decoder() {
    let noise: Vec<u8> = (0..200u8).collect();
    let mut decoder = Decoder::new(Format::Lz4 { window_bytes: 5000 }).unwrap();
    let mut accepts = |stream: &[u8], len: usize| {
        for (want, extent) in [(Want::All, Extent::All), (Want::Prefix, Extent::Prefix)] {
            let slow = crate::support::cluster::lz4_slow::decode(stream, len, 5000, extent);
            for skip in [0, len / 2, len] {
                let got = range(&mut decoder, &mut PieceInput::new(stream, &[200]), skip, len - skip, want);
                assert!(got.ok() == slow.as_ref().map(|plain| plain[skip..].to_vec()), "{skip} of {len}");
            }
        }
        crate::support::cluster::lz4_slow::decode(stream, len, 5000, Extent::All).is_some()
    };
    let (mut good, mut bad) = (0, 0);
    for first in [0, 1, 7, 8, 14, 15, 16, 17, 40] {
        for offset in [0, 1, 7, 8, 15, 16, 17, 39, 40, 41, 4999, 5000, 5001, 65535] {
            for matched in [4, 5, 8, 18, 19, 20, 40] {
                for last in [0, 1, 4, 5, 6, 7, 8, 9, 15, 16, 40, 100] {
                    let mut stream = Vec::new();
                    lz4_blocks::sequence(&mut stream, &noise[..first], Some((offset, matched)));
                    lz4_blocks::sequence(&mut stream, &noise[..last], None);
                    let accepted = accepts(&stream, first + matched + last);
                    if accepted { good += 1 } else { bad += 1 }
                }
            }
        }
    }
    assert!(good > 500 && bad > 500, "{good} {bad}");
}

#[test]
fn offsets_beyond_the_output_are_refused_at_any_distance() {
    // Far into the output, with the ring filled or not, and matches that reach back over nearly all of it.
    let noise = compressible(31, 20_000);
    let mut decoder = Decoder::new(Format::Lz4 { window_bytes: 5000 }).unwrap();
    for first in [100, 4000, 4999, 5000, 5001, 8191, 8192, 12_287, 12_288, 12_289, 20_000] {
        for offset in [first - 1, first, first + 1, 4999, 5000, 5001, 8192, 12_288] {
            for last in [5, 60, 5000] {
                let mut stream = Vec::new();
                lz4_blocks::sequence(&mut stream, &noise[..first], Some((offset, 30)));
                lz4_blocks::sequence(&mut stream, &noise[..last], None);
                let len = first + 30 + last;
                let slow = crate::support::cluster::lz4_slow::decode(&stream, len, 5000, Extent::All);
                assert_eq!(slow.is_some(), offset <= first.min(5000));
                for skip in [0, first - 50, first, first + 10, first + 30, len - 1, len] {
                    let mut input = PieceInput::new(&stream, &[64 << 10]);
                    let got = range(&mut decoder, &mut input, skip, len - skip, Want::All);
                    let slow = slow.as_ref().map(|plain| plain[skip..].to_vec());
                    assert!(got.ok() == slow, "{first} {offset} {last} {skip}");
                }
            }
        }
    }
}

/// liblz4 accepts a match at offset 0 and, at the end of a prefix, leaves there what it last wrote.
#[test]
fn a_prefix_that_ends_in_a_match_at_offset_0_shows_only_zeroes_and_the_stream() {
    let literals = [0x11; 12];
    let stream = [&[0xc4][..], &literals, &[0, 0], &[0x77; 40]].concat();
    for len in 13..20 {
        let (slow, same) =
            crate::support::cluster::lz4_slow::decode_and_mark(&stream, len, 65535, Extent::Prefix).unwrap();
        assert!(same == 12 && slow[same..].iter().all(|byte| *byte == 0));
        let mut decoder = Decoder::new(Format::Lz4 { window_bytes: 65535 }).unwrap();
        let mut plain = vec![0xaa; len];
        decoder.decode(&stream, &mut plain, Want::Prefix).unwrap();
        assert_eq!(plain[..same], slow[..same]);
        assert!(plain[same..].iter().all(|byte| [0, 0x77].contains(byte)), "{plain:x?}");
        let got = range(&mut decoder, &mut PieceInput::new(&stream, &[7]), 0, len, Want::Prefix);
        assert_eq!(got.unwrap(), slow);
    }
}
