//! Encoding clusters: every configuration fills clusters of every length with streams that decode to the beginning of
//! the source, by both ways of decoding, and depend on nothing but the source and the cluster's length.

use crate::support::cluster::lz4_slow::{self, Extent};
use crate::support::cluster::{PieceInput, Random, compressible, lz4_library, range, whole};
use pagefold_codec::CodecError;
use pagefold_codec::cluster::encode::{Encoder, EncoderConfig, Fit};
use pagefold_codec::cluster::{Decoder, Format, Want};
use proptest::prelude::*;

const CLUSTERS: [usize; 6] = [64, 512, 4096, 16 << 10, 64 << 10, 1 << 20];

/// Lists every format with its fastest, usual and densest settings, and with short windows.
fn configs() -> Vec<EncoderConfig> {
    let mut configs = Vec::new();
    for window_bytes in [65535, 16383, 4096, 1] {
        configs.push(EncoderConfig::Lz4 { window_bytes });
        let levels: &[i32] = if window_bytes == 65535 { &[1, 3, 6, 9, 10, 12] } else { &[3, 9, 12] };
        configs.extend(levels.iter().map(|level| EncoderConfig::Lz4Hc { window_bytes, level: *level }));
    }
    configs.extend([1, 2, 6, 9, 12].map(|level| EncoderConfig::Deflate { level }));
    for (dict_bytes, level, extreme) in [(4096, 0, false), (1 << 16, 6, false), (100_000, 3, true)] {
        configs.push(EncoderConfig::MicroLzma { dict_bytes, level, extreme });
    }
    for (max_window_bytes, level) in
        [(1024, 3), (40_000, 12), (1 << 15, 1), (1 << 19, 12), (1 << 20, 3), (1 << 20, 19)]
    {
        configs.push(EncoderConfig::Zstd { max_window_bytes, level });
    }
    configs
}

/// Makes sources of every kind: this many zeroes, runs, text, noise, mixtures, machine code, tiny ones.
fn sources(zeroes: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut random = Random(77);
    let mut noise = |len: usize| -> Vec<u8> { (0..len).map(|_| random.next() as u8).collect() };
    let text: Vec<u8> = (0..9_000u32)
        .flat_map(|i| format!("{} pages of {:x} are folded\n", i * 7 % 1000, i * i).into_bytes())
        .collect();
    // The middle of this test program: machine code, tables, strings.
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let middle = program.len() / 3;
    let program = program[middle..program.len().min(middle + (5 << 16))].to_vec();
    let sparse = (0..600_000).map(|i| if i % 4001 == 0 { i as u8 } else { 0 }).collect();
    let alternating = (0..40).flat_map(|i| if i % 2 == 0 { noise(9000) } else { vec![7; 9000] }).collect();
    vec![
        ("one byte", vec![9]),
        ("tiny", b"a cluster".to_vec()),
        ("16 bytes", vec![5; 16]),
        ("zeroes", vec![0; zeroes]),
        ("text", text),
        ("noise", noise(300_000)),
        ("short noise", noise(40)),
        ("program", program),
        ("sparse", sparse),
        ("alternating", alternating),
        ("mixed", compressible(5, 300_000)),
    ]
}

/// Fills a cluster of this length.
fn fill(encoder: &mut Encoder, src: &[u8], cluster: usize, label: &str) -> (Fit, Vec<u8>) {
    const GUARD: usize = 64;
    let mut dst = vec![0x44; cluster + GUARD];
    let fit = encoder.fit(src, &mut dst[..cluster]).unwrap_or_else(|e| panic!("{label}: {e}"));
    assert_eq!(dst[cluster..], [0x44; GUARD], "{label}");
    assert!(fit.written_bytes <= cluster && fit.consumed_bytes <= src.len(), "{label}: {fit:?}");
    assert!(fit.consumed_bytes > 0, "{label}");
    // Any data fills a part of the cluster, if there is more; `clusters_are_full_if_the_source_is_longer` asks for
    // more.
    assert!(fit.consumed_bytes >= src.len().min(cluster / 4), "{label}: {fit:?}");
    dst.truncate(fit.written_bytes);
    (fit, dst)
}

/// Fills a cluster of this length, and checks the stream.
fn fit(encoder: &mut Encoder, src: &[u8], cluster: usize, label: &str) -> (Fit, Vec<u8>) {
    let (fit, dst) = fill(encoder, src, cluster, label);
    check_stream(encoder.config(), &dst, &src[..fit.consumed_bytes], label);
    (fit, dst)
}

/// An encoder makes the same of a part as of every source that begins with it, and a part that goes on somewhat
/// behind the cluster is enough for lz4hc.
#[test]
fn a_part_fits_as_the_whole_source_does() {
    let (mut random, sources) = (Random(5), sources(100_000));
    for (window_bytes, level) in [(65535, 1), (65535, 9), (4096, 3)] {
        let mut encoder = Encoder::new(&EncoderConfig::Lz4Hc { window_bytes, level }).unwrap();
        assert!(encoder.fits_parts());
        for (name, src) in &sources {
            for cluster in [64, 4096, 64 << 10] {
                let label = format!("{window_bytes}, {level}, {name}, {cluster}");
                let (mut dst, mut part_dst) = (vec![0; cluster], vec![0; cluster]);
                let whole = encoder.fit(src, &mut dst).unwrap();
                let enough = whole.consumed_bytes.max(2 * cluster) + (8 << 10);
                let mut lens: Vec<_> = (0..3).map(|_| random.next() as usize % (src.len() + 1)).collect();
                lens.extend(
                    (0..6).map(|_| (whole.consumed_bytes + random.next() as usize % 600).min(src.len())),
                );
                lens.extend((enough < src.len()).then_some(enough));
                for len in lens {
                    let part = encoder.fit_of_part(&src[..len], &mut part_dst).unwrap();
                    let is_as_whole = |part: Fit| {
                        part == whole && part_dst[..part.written_bytes] == dst[..part.written_bytes]
                    };
                    assert!(part.is_none_or(is_as_whole), "{label}: {len}, {part:?}");
                    let is_plain = ["program", "text", "mixed", "noise"].contains(name);
                    assert!(part.is_some() || !is_plain || len != enough, "{label}: {len} of {}", src.len());
                }
            }
        }
    }
}

#[test]
fn no_other_encoder_knows_what_a_part_has_for_all_sources() {
    for config in configs().into_iter().filter(|config| !matches!(config, EncoderConfig::Lz4Hc { .. })) {
        let mut encoder = Encoder::new(&config).unwrap();
        assert!(!encoder.fits_parts());
        assert_eq!(encoder.fit_of_part(&[7; 100_000], &mut [0; 4096]), Ok(None), "{config:?}");
    }
}

fn check_stream(config: EncoderConfig, stream: &[u8], plain: &[u8], label: &str) {
    assert_ne!(stream[0], 0, "{label}: leading zeroes are padding");
    let mut decoder = Decoder::new(config.format()).unwrap();
    let decoded = whole(&mut decoder, stream, plain.len(), Want::All);
    assert!(decoded.as_deref() == Some(plain), "{label}: the whole stream");
    let mut input = PieceInput::new(stream, &[4096]);
    let decoded = range(&mut decoder, &mut input, 0, plain.len(), Want::All);
    assert!(decoded.as_deref() == Ok(plain), "{label}: a range");
    if let Format::Lz4 { window_bytes } = config.format() {
        let decoded = lz4_slow::decode(stream, plain.len(), window_bytes as usize, Extent::All);
        assert!(decoded.as_deref() == Some(plain), "{label}: the slow decoder");
        assert!(lz4_library(stream, plain.len()).as_deref() == Some(plain), "{label}: liblz4");
    }
}

#[test]
fn every_encoder_fills_clusters_of_every_length() {
    let sources = sources(1 << 20);
    for config in configs() {
        let mut used = Encoder::new(&config).unwrap();
        for (kind, src) in &sources {
            for cluster in CLUSTERS.into_iter().filter(|cluster| *cluster < 1 << 20 || src.len() >= 1 << 20) {
                let label = format!("{config:?}, {kind}, {cluster}");
                let filled = fit(&mut used, src, cluster, &label);
                if matches!(cluster, 512 | 65536) && src.len() < 1 << 20 {
                    let mut fresh = Encoder::new(&config).unwrap();
                    assert!(
                        filled == fill(&mut fresh, src, cluster, &label),
                        "{label}: depends on earlier calls"
                    );
                }
            }
        }
    }
}

#[test]
fn clusters_are_full_if_the_source_is_longer() {
    let sources = sources(13 << 20);
    for config in configs() {
        let mut encoder = Encoder::new(&config).unwrap();
        for (kind, src) in &sources {
            for cluster in [4096, 64 << 10] {
                let label = format!("{config:?}, {kind}, {cluster}");
                // The test above checks the streams of all but the longest source.
                let is_new = *kind == "zeroes" && cluster == 64 << 10;
                let (fit, _) = (if is_new { fit } else { fill })(&mut encoder, src, cluster, &label);
                let is_full = fit.written_bytes >= cluster - cluster / 20;
                assert!(is_full || fit.consumed_bytes == src.len().min(12 << 20), "{label}: {fit:?}");
            }
        }
    }
}

#[test]
fn sources_are_compressed_less_than_twice_on_average() {
    let sources = sources(1 << 20);
    // An image's writer goes through a source cluster by cluster.
    for config in configs() {
        for cluster in [4096, 64 << 10] {
            let mut encoder = Encoder::new(&config).unwrap();
            let (mut consumed, mut dst) = (0, vec![0; cluster]);
            for (kind, src) in
                sources.iter().filter(|(kind, _)| matches!(*kind, "text" | "program" | "mixed"))
            {
                let mut rest = &src[..];
                while !rest.is_empty() {
                    let fit =
                        encoder.fit(rest, &mut dst).unwrap_or_else(|e| panic!("{config:?}, {kind}: {e}"));
                    consumed += fit.consumed_bytes as u64;
                    rest = &rest[fit.consumed_bytes..];
                }
            }
            let input = encoder.input_bytes();
            println!("{config:?}, {cluster}: {:.3}", input as f64 / consumed as f64);
            assert!(
                (consumed..=2 * consumed).contains(&input),
                "{config:?}, {cluster}: {input} for {consumed}"
            );
        }
    }
}

#[test]
fn whole_sources_fit_or_not() {
    let sources = sources(1 << 20);
    for config in configs() {
        let mut encoder = Encoder::new(&config).unwrap();
        for (kind, src) in &sources {
            let label = format!("{config:?}, {kind}");
            let src = &src[..src.len().min(100_000)];
            let mut dst = vec![0; src.len() + src.len() / 16 + 1000];
            let len = encoder.whole(src, &mut dst).unwrap().unwrap_or_else(|| panic!("{label}"));
            check_stream(config, &dst[..len], src, &label);
            assert_eq!(encoder.whole(src, &mut dst[..len * 9 / 10]), Ok(None), "{label}");
            assert_eq!(encoder.whole(src, &mut dst[..1]), Ok(None), "{label}");
        }
        assert_eq!(encoder.whole(&[], &mut [0; 100]), Ok(None));
        assert_eq!(encoder.whole(&vec![0; (12 << 20) + 1], &mut vec![0; 1 << 20]), Ok(None));
        assert_eq!(encoder.fit(&[], &mut [0; 512]), Ok(Fit::default()));
        assert!(matches!(encoder.fit(&[1], &mut [0; 63]), Err(CodecError::Room { .. })));
    }
}

#[test]
fn wrong_levels_and_windows_are_refused() {
    let level = |config| matches!(Encoder::new(&config), Err(CodecError::Level { .. }));
    let window = |config| matches!(Encoder::new(&config), Err(CodecError::Window { .. }));
    for wrong in [0, 13] {
        assert!(level(EncoderConfig::Lz4Hc { window_bytes: 65535, level: wrong }));
    }
    for wrong in [0, 13] {
        assert!(level(EncoderConfig::Deflate { level: wrong }));
    }
    for wrong in [-1, 10] {
        assert!(level(EncoderConfig::MicroLzma { dict_bytes: 4096, level: wrong, extreme: false }));
    }
    for wrong in [0, 23] {
        assert!(level(EncoderConfig::Zstd { max_window_bytes: 1 << 20, level: wrong }));
    }
    assert!(window(EncoderConfig::Lz4 { window_bytes: 65536 }));
    assert!(window(EncoderConfig::Lz4Hc { window_bytes: 0, level: 9 }));
    assert!(window(EncoderConfig::Zstd { max_window_bytes: 1 << 21, level: 3 }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn structured_sources_round_trip_in_every_configuration(
        runs in prop::collection::vec((any::<u8>(), 1usize..700, 0u8..3), 1..80),
        cluster in 64usize..9000,
    ) {
        let mut random = Random(runs.len() as u64 | 1 << 33);
        let mut src: Vec<u8> = Vec::new();
        for (byte, len, kind) in runs {
            src.extend((0..len).map(|i| match kind {
                0 => byte,
                1 => byte.wrapping_add(i as u8),
                _ => random.next() as u8,
            }));
        }
        for config in configs() {
            let mut encoder = Encoder::new(&config).unwrap();
            fit(&mut encoder, &src, cluster, &format!("{config:?}"));
        }
    }
}
