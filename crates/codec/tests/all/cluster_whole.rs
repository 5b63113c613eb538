//! Decoding clusters from buffer to buffer: streams of every format decode to exactly the data that was encoded.

use crate::support::cluster::{compressible, samples, whole};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::{Decoder, Format, Want};

const LENS: [usize; 7] = [0, 1, 13, 4096, 5001, 70_000, 300_000];

#[test]
fn whole_streams_decode_to_their_data() {
    for len in LENS {
        for sample in samples(&compressible(len as u64, len)) {
            let mut decoder = Decoder::new(sample.format).unwrap();
            for _ in 0..2 {
                let got = whole(&mut decoder, &sample.stream, len, Want::All);
                assert!(got.as_ref() == Some(&sample.plain), "{}", sample.label);
            }
        }
    }
}

#[test]
fn wrong_lengths_of_stream_and_output_are_refused() {
    for len in LENS {
        for sample in samples(&compressible(len as u64, len)) {
            let mut decoder = Decoder::new(sample.format).unwrap();
            assert_eq!(whole(&mut decoder, &sample.stream, len + 1, Want::All), None, "{}", sample.label);
            assert_eq!(whole(&mut decoder, &sample.stream, len + 1, Want::Prefix), None, "{}", sample.label);
            let longer = [&sample.stream[..], &[0]].concat();
            assert_eq!(whole(&mut decoder, &longer, len, Want::All), None, "{}", sample.label);
            if len > 0 {
                assert_eq!(whole(&mut decoder, &sample.stream, len - 1, Want::All), None, "{}", sample.label);
                let shorter = &sample.stream[..sample.stream.len() - 1];
                assert_eq!(whole(&mut decoder, shorter, len, Want::All), None, "{}", sample.label);
            }
            assert!(whole(&mut decoder, &sample.stream, len, Want::All).is_some(), "{}", sample.label);
        }
    }
}

#[test]
fn a_prefix_is_the_beginning_of_the_data_whatever_bytes_follow_the_stream() {
    for len in LENS {
        for sample in samples(&compressible(len as u64, len)) {
            let mut decoder = Decoder::new(sample.format).unwrap();
            let tails: [&[u8]; 3] = [&[], &[0; 100], &[0xff; 100]];
            for (part, tail) in [0, 1, len / 3, len - len / 9, len].into_iter().zip(tails.iter().cycle()) {
                let part = part.min(len);
                let stream = [&sample.stream[..], tail].concat();
                let got = whole(&mut decoder, &stream, part, Want::Prefix);
                assert!(got.as_deref() == Some(&sample.plain[..part]), "{} {part}", sample.label);
            }
        }
    }
}

#[test]
fn windows_beyond_the_limits_are_refused() {
    let refused = |format| matches!(Decoder::new(format), Err(CodecError::Window { .. }));
    assert!(refused(Format::Lz4 { window_bytes: 0 }));
    assert!(refused(Format::Lz4 { window_bytes: 65536 }));
    assert!(refused(Format::MicroLzma { dict_bytes: 4095 }));
    assert!(refused(Format::MicroLzma { dict_bytes: (8 << 20) + 1 }));
    assert!(refused(Format::Zstd { max_window_bytes: 1023 }));
    assert!(refused(Format::Zstd { max_window_bytes: (1 << 20) + 1 }));
}

#[test]
fn zstd_frames_with_longer_windows_and_second_frames_are_refused() {
    let plain = compressible(3, 100_000);
    let stream = crate::support::cluster::zstd(&plain, 3, 15, false, false);
    for want in [Want::All, Want::Prefix] {
        let mut decoder = Decoder::new(Format::Zstd { max_window_bytes: 1 << 15 }).unwrap();
        assert!(whole(&mut decoder, &stream, plain.len(), want).is_some());
        let mut decoder = Decoder::new(Format::Zstd { max_window_bytes: 1 << 14 }).unwrap();
        assert_eq!(whole(&mut decoder, &stream, plain.len(), want), None);
    }
    // The input must be one frame, not two.
    let mut decoder = Decoder::new(Format::Zstd { max_window_bytes: 1 << 15 }).unwrap();
    let two = stream.repeat(2);
    assert_eq!(whole(&mut decoder, &two, 2 * plain.len(), Want::All), None);
}
