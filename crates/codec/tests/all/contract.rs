//! Every codec of the table obeys the contract of `Stream`, for any page.

use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream, table};
use pagefold_page::PAGE_SIZE;
use proptest::prelude::*;

/// Lists all codecs at their lowest, default and highest level, with and without dictionary.
fn all_specs() -> Vec<CodecSpec> {
    let dictionary: Vec<u8> = (0..20_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let mut specs = Vec::new();
    for b in table() {
        let levels = b.levels.map_or(vec![None], |l| vec![None, Some(l.min), Some(l.max)]);
        for level in levels {
            specs.push(CodecSpec { name: b.name.into(), level, dictionary: None });
            if b.dictionary {
                let dictionary = Some(dictionary.clone());
                specs.push(CodecSpec { name: b.name.into(), level, dictionary });
            }
        }
    }
    specs
}

fn label(spec: &CodecSpec) -> String {
    format!("{} {:?} dictionary {}", spec.name, spec.level, spec.dictionary.is_some())
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
    let spec = |name: &str, level, dictionary| CodecSpec { name: name.into(), level, dictionary };
    let error = |s| Codec::new(&s).err().unwrap();
    assert!(error(spec("lz5", None, None)).to_string().contains("lz4, lz4hc, zstd, deflate"));
    assert_eq!(
        error(spec("zstd", Some(23), None)),
        CodecError::Level { codec: "zstd", level: 23, min: -50, max: 22 }
    );
    assert_eq!(error(spec("lzo", Some(1), None)), CodecError::NoLevels { codec: "lzo" });
    assert_eq!(error(spec("deflate", None, Some(vec![1]))), CodecError::NoDictionary { codec: "deflate" });
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
