//! Every codec of the table keeps the contract of `Stream`, whatever the page.

use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecError, CodecSpec, Stream, table};
use pagefold_page::PAGE_SIZE;
use proptest::prelude::*;

/// All codecs at their lowest, default and highest level, with and without dictionary.
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
    let mut folded = vec![0; COMPRESS_BUF_LEN];
    let len = stream.compress(page, &mut folded).unwrap_or_else(|e| panic!("{label}: {e}"));
    folded.truncate(len);
    let mut unfolded = vec![0xa5; PAGE_SIZE];
    let got = stream.decompress(&folded, &mut unfolded).unwrap_or_else(|e| panic!("{label}: {e}"));
    assert_eq!(got, page.len(), "{label}");
    assert!(unfolded[..got] == *page, "{label}: contents differ");
    folded
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
fn compress_any_page_round_trips_in_every_codec() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        for page in sample_pages() {
            round_trip(&mut *stream, &page, &label(&spec));
        }
    }
}

#[test]
fn compress_result_does_not_depend_on_what_ran_before() {
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
fn decompress_hostile_bytes_is_an_error_or_stays_inside() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        for page in sample_pages() {
            let folded = round_trip(&mut *stream, &page, &label(&spec));
            let mut out = vec![0; PAGE_SIZE];
            for cut in 0..folded.len().min(200) {
                let _ = stream.decompress(&folded[..cut], &mut out);
            }
            for at in 0..folded.len().min(300) {
                let mut bad = folded.clone();
                bad[at] ^= 0x81;
                let _ = stream.decompress(&bad, &mut out);
            }
            // After all that, a good page still decodes.
            round_trip(&mut *stream, &page, &label(&spec));
        }
    }
}

#[test]
fn decompress_into_too_short_a_destination_is_an_error() {
    for spec in all_specs() {
        let mut stream = Codec::new(&spec).unwrap().stream().unwrap();
        let folded = round_trip(&mut *stream, &sample_pages()[2], &label(&spec));
        let result = stream.decompress(&folded, &mut vec![0; PAGE_SIZE - 1]);
        assert!(matches!(result, Err(CodecError::Corrupt { .. })), "{}: {result:?}", label(&spec));
    }
}

#[test]
fn dictionary_makes_pages_like_it_smaller() {
    // Noise: without the dictionary there is nothing to find in it.
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
fn new_wrong_parameters_are_refused_by_name() {
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
fn table_names_are_unique() {
    let mut names: Vec<_> = pagefold_codec::names().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), table().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn compress_structured_pages_round_trip(
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
