//! Every codec of the table obeys the contract of `Stream`, for any page.

use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream, table};
use pagefold_page::PAGE_SIZE;
use proptest::prelude::*;

/// Lists all codecs at their lowest, default and highest level, with and without dictionary, and with window bits.
fn all_specs() -> Vec<CodecSpec> {
    let dictionary: Vec<u8> = (0..20_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let mut specs = Vec::new();
    for b in table() {
        let levels = b.levels.map_or(vec![None], |l| vec![None, Some(l.min), Some(l.max)]);
        for level in levels {
            let plain = CodecSpec { level, ..CodecSpec::named(b.name) };
            if b.dictionary {
                specs.push(CodecSpec { dictionary: Some(dictionary.clone()), ..plain.clone() });
            }
            specs.push(plain);
        }
        if b.window_bits {
            // zlib's lowest and highest level with windows; they are not those of the table.
            for (level, window_bits) in [(None, -11), (None, 15), (Some(0), 12), (Some(1), -9), (Some(9), 9)]
            {
                specs.push(CodecSpec { level, window_bits: Some(window_bits), ..CodecSpec::named(b.name) });
            }
        }
    }
    specs
}

fn label(spec: &CodecSpec) -> String {
    let (level, window_bits) = (spec.level, spec.window_bits);
    format!("{} {level:?} dictionary {} window {window_bits:?}", spec.name, spec.dictionary.is_some())
}

fn round_trip(stream: &mut dyn Stream, page: &[u8], label: &str) -> Vec<u8> {
    let mut compressed = vec![0; COMPRESS_BUF_LEN];
    let len = stream.compress(page, &mut compressed).unwrap_or_else(|e| panic!("{label}: {e}"));
    compressed.truncate(len);
    let mut decompressed = vec![0xa5; PAGE_SIZE];
    let got = stream.decompress(&compressed, &mut decompressed).unwrap_or_else(|e| panic!("{label}: {e}"));
    assert_eq!(got, page.len(), "{label}");
    assert!(decompressed[..got] == *page, "{label}: contents differ");
    compressed
}

fn sample_pages() -> Vec<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let noise: Vec<u8> = (0..PAGE_SIZE).map(|_| random() as u8).collect();
    let text: Vec<u8> = b"the quick brown page folds over the lazy slot; ".repeat(100)[..PAGE_SIZE].to_vec();
    let words: Vec<u8> =
        (0..PAGE_SIZE / 8).flat_map(|i| (0x7f00_0000_1000u64 + i as u64 * 48).to_le_bytes()).collect();
    let half: Vec<u8> = noise[..PAGE_SIZE / 2].iter().chain(&text[..PAGE_SIZE / 2]).copied().collect();
    vec![vec![0; PAGE_SIZE], noise, text, words, half]
}

#[test]
fn every_codec_round_trips_every_kind_of_page() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        for page in sample_pages() {
            round_trip(&mut *stream, &page, &label(&spec));
        }
    }
}

#[test]
fn compressed_bytes_do_not_depend_on_earlier_calls() {
    for spec in all_specs() {
        let codec = Codec::new(&spec).unwrap();
        let mut used = codec.stream().unwrap();
        for _ in 0..40 {
            for page in sample_pages() {
                let fresh = round_trip(&mut *codec.stream().unwrap(), &page, &label(&spec));
                assert_eq!(round_trip(&mut *used, &page, &label(&spec)), fresh, "{}", label(&spec));
            }
        }
    }
}

#[test]
fn decompressing_hostile_bytes_fails_or_stays_inside_the_destination() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        for page in sample_pages() {
            let compressed = round_trip(&mut *stream, &page, &label(&spec));
            let mut out = vec![0; PAGE_SIZE];
            for cut in 0..compressed.len().min(200) {
                let _ = stream.decompress(&compressed[..cut], &mut out);
            }
            for at in 0..compressed.len().min(300) {
                let mut bad = compressed.clone();
                bad[at] ^= 0x81;
                let _ = stream.decompress(&bad, &mut out);
            }
            // The stream still round-trips a page afterwards.
            round_trip(&mut *stream, &page, &label(&spec));
        }
    }
}

#[test]
fn decompressing_into_too_short_a_destination_is_an_error() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        let compressed = round_trip(&mut *stream, &sample_pages()[2], &label(&spec));
        let result = stream.decompress(&compressed, &mut vec![0; PAGE_SIZE - 1]);
        assert!(matches!(result, Err(CodecError::Corrupt { .. })), "{}: {result:?}", label(&spec));
    }
}

#[test]
fn a_dictionary_makes_similar_pages_smaller() {
    // Noise compresses with this dictionary only.
    let shared = sample_pages()[1].clone();
    for b in table().iter().filter(|b| b.dictionary) {
        let plain = Codec::new(&CodecSpec::named(b.name)).unwrap();
        let with = CodecSpec { dictionary: Some(shared.clone()), ..CodecSpec::named(b.name) };
        let with = Codec::new(&with).unwrap();
        let plain = round_trip(&mut *plain.stream().unwrap(), &shared, b.name).len();
        let with = round_trip(&mut *with.stream().unwrap(), &shared, b.name).len();
        assert!(with * 4 < plain, "{}: {with} with, {plain} without", b.name);
    }
}

#[test]
fn wrong_parameters_are_refused_with_the_codecs_name() {
    let spec = |name: &str, level, dictionary| CodecSpec { level, dictionary, ..CodecSpec::named(name) };
    let error = |s| Codec::new(&s).err().unwrap();
    assert!(error(spec("lz5", None, None)).to_string().contains("lz4, lz4hc, zstd, deflate"));
    assert_eq!(
        error(spec("zstd", Some(23), None)),
        CodecError::Level { codec: "zstd", level: 23, min: -131_072, max: 22 }
    );
    assert_eq!(error(spec("lzo", Some(1), None)), CodecError::NoLevels { codec: "lzo" });
    assert_eq!(error(spec("deflate", None, Some(vec![1]))), CodecError::NoDictionary { codec: "deflate" });
    for b in table().iter().filter(|b| !b.window_bits) {
        let spec = CodecSpec { window_bits: Some(-11), ..CodecSpec::named(b.name) };
        assert_eq!(error(spec), CodecError::NoWindowBits { codec: b.name });
    }
}

/// Every level that zram's codecs take is one of ours, except those of lz4 above liblz4's highest acceleration.
#[test]
fn the_levels_of_the_kernels_codecs_are_valid() {
    let levels: [(&str, &[i32], [i32; 2]); 4] = [
        ("lz4", &[1, 2, 3, 17, 4096, 65_537], [0, 65_538]),
        ("lz4hc", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [0, 17]),
        ("zstd", &[-131_072, -131_071, -1000, -51, -50, -7, -1, 0, 1, 2, 3, 19, 22], [-131_073, 23]),
        ("deflate", &[-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [-2, 13]),
    ];
    for (name, valid, invalid) in levels {
        let codec = |level| Codec::new(&CodecSpec { level: Some(level), ..CodecSpec::named(name) });
        for level in valid {
            let mut stream = codec(*level).unwrap().stream().unwrap();
            for page in sample_pages() {
                round_trip(&mut *stream, &page, &format!("{name}:{level}"));
            }
        }
        for level in invalid {
            let error = codec(level).err().unwrap();
            assert!(matches!(error, CodecError::Level { level: l, .. } if l == level), "{name}: {error}");
        }
    }
}

#[test]
fn levels_that_mean_the_same_compress_to_the_same_bytes() {
    let compressed = |name: &str, level: Option<i32>| -> Vec<Vec<u8>> {
        let codec = Codec::new(&CodecSpec { level, ..CodecSpec::named(name) }).unwrap();
        let mut stream = codec.stream().unwrap();
        sample_pages().iter().map(|page| round_trip(&mut *stream, page, name)).collect()
    };
    for level in 13..=16 {
        assert_eq!(compressed("lz4hc", Some(level)), compressed("lz4hc", Some(12)), "{level}");
    }
    assert_eq!(compressed("zstd", Some(0)), compressed("zstd", None));
    assert_eq!(compressed("deflate", Some(-1)), compressed("deflate", None));
    assert_ne!(compressed("deflate", Some(0)), compressed("deflate", Some(1)));
    assert_ne!(compressed("zstd", Some(-100)), compressed("zstd", Some(-1)));
}

#[test]
fn names_in_the_table_are_unique() {
    let mut names: Vec<_> = pagefold_codec::names().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn structured_pages_round_trip_in_every_codec(
        runs in prop::collection::vec((any::<u8>(), 1usize..300, any::<bool>()), 1..60)
    ) {
        let mut page: Vec<u8> = Vec::new();
        for (byte, len, counting) in runs {
            page.extend((0..len).map(|i| if counting { byte.wrapping_add(i as u8) } else { byte }));
        }
        page.resize(PAGE_SIZE, 0);
        for b in table() {
            let codec = Codec::new(&CodecSpec::named(b.name)).unwrap();
            round_trip(&mut *codec.stream().unwrap(), &page, b.name);
        }
    }
}
