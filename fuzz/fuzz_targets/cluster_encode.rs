//! Invariant: every cluster encoder fills a cluster of any length with a stream that decodes, whole and in a range, to
//! the beginning of the source that it reports; it writes only to the cluster; and a fresh encoder writes the same
//! stream.
//!
//! The first five bytes choose the configuration, the cluster's length, and how often the source is repeated.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use pagefold_codec::cluster::{Decoder, Want, ring_bytes};
use pagefold_fuzz::codec::{Pieces, guarded};

fn config(choice: u8) -> EncoderConfig {
    let level = i32::from(choice >> 3 & 15);
    let shift = u32::from(choice >> 4);
    match choice & 7 {
        0 => EncoderConfig::Lz4 { window_bytes: 65535 },
        1 => EncoderConfig::Lz4 { window_bytes: 65535 >> shift },
        2 => EncoderConfig::Lz4Hc { window_bytes: 65535, level: level.clamp(1, 12) },
        3 => EncoderConfig::Lz4Hc { window_bytes: 32767 >> (shift % 15), level: level.clamp(1, 12) },
        4 => {
            EncoderConfig::MicroLzma { dict_bytes: 4096 << (shift / 4), level: level % 7, extreme: level > 7 }
        }
        5 => EncoderConfig::Deflate { level: level.clamp(1, 12) },
        6 => EncoderConfig::Zstd { max_window_bytes: 1 << 15, level: level + 1 },
        _ => EncoderConfig::Zstd { max_window_bytes: 1024 << (shift / 2), level: 3 },
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, src)) = input.split_first_chunk::<5>() else { return };
    let config = config(choice[0]);
    let cluster = 64 + usize::from(u16::from_le_bytes([choice[1], choice[2]])) % 16384;
    let src = src.repeat(1 + usize::from(choice[3]) * usize::from(choice[4] & 1));
    let mut encoder = Encoder::new(&config).expect("a valid configuration");
    let (fit, dst) = guarded(cluster, |dst| encoder.fit(&src, dst).expect("a cluster is long enough"));
    assert_eq!(fit.consumed_bytes == 0, src.is_empty());
    if src.is_empty() {
        return;
    }
    let (stream, plain) = (&dst[..fit.written_bytes], &src[..fit.consumed_bytes]);
    assert_ne!(stream[0], 0);

    let mut decoder = Decoder::new(config.format()).expect("a valid format");
    let mut decoded = vec![0; plain.len()];
    decoder.decode(stream, &mut decoded, Want::All).expect("the stream decodes");
    assert!(decoded == plain);
    let (mut piece, mut ring) = ([0; 1000], vec![0; ring_bytes(config.format())]);
    let mut rest = Pieces::new(stream);
    decoder.decode_range(&mut rest, &mut piece, &mut ring, 0, &mut decoded, Want::All).expect("a range");
    assert!(decoded == plain);

    let mut again = vec![0; cluster];
    assert_eq!(encoder.fit(&src, &mut again), Ok(fit));
    assert_eq!(again[..fit.written_bytes], *stream);
    // A part fits as all of the source does, or nothing is known.
    let part = &src[..src.len() * usize::from(choice[3]) / 255];
    if let Some(of_part) = encoder.fit_of_part(part, &mut again).expect("no error") {
        assert_eq!(of_part, fit);
        assert_eq!(again[..fit.written_bytes], *stream);
    }
    if let Some(len) = encoder.whole(plain, &mut again).expect("no error") {
        decoder.decode(&again[..len], &mut decoded, Want::All).expect("the whole decodes");
        assert!(decoded == plain);
    }
});
