//! Both decoders read streams that the Linux kernel's lzo-rle compressor wrote, through f2fs.
//!
//! The fixtures are compressed bytes only; the tests generate the content again and compare.
//! `fixtures/lzo_rle_kernel/README.md` describes how the fixtures were made.

use pagefold_codec::lzo::decompress;
use std::path::Path;

/// A stream that the kernel wrote, and its content.
struct Fixture {
    name: String,
    stream: Vec<u8>,
    expect: Vec<u8>,
}

/// Reads all fixtures, sorted by name. The name identifies the cluster: `16k-0007.lzo` is the eighth of those of
/// 16 KiB.
fn fixtures() -> Vec<Fixture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/lzo_rle_kernel");
    let mut fixtures = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "lzo") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let (kib, index) = name.split_once("k-").unwrap();
        let expect = crate::support::lzo_kernel_content::cluster(
            index.parse().unwrap(),
            kib.parse::<usize>().unwrap() << 10,
        );
        fixtures.push(Fixture { stream: std::fs::read(&path).unwrap(), expect, name });
    }
    fixtures.sort_by(|a, b| a.name.cmp(&b.name));
    fixtures
}

#[test]
fn both_decoders_read_the_kernels_streams() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 20, "only {} fixtures", fixtures.len());
    for Fixture { name, stream, expect } in fixtures {
        assert!(stream.starts_with(&[17, 1]), "{name} is not of version 1");
        let mut out = vec![0x55; expect.len()];
        assert_eq!(decompress(&stream, &mut out), Ok(expect.len()), "{name}");
        assert!(out == expect, "{name}: wrong content");
        assert!(
            crate::support::lzo_reference::decode(&stream, expect.len()).as_ref() == Ok(&expect),
            "{name}: reference"
        );
    }
}

/// Checks that many fixtures have zero runs: such a stream decodes differently when read as version 0.
#[test]
fn many_fixtures_have_zero_runs() {
    let with_runs = fixtures().into_iter().filter(|fixture| {
        let mut plain = fixture.stream.clone();
        plain[1] = 0;
        crate::support::lzo_reference::decode(&plain, fixture.expect.len()).as_ref() != Ok(&fixture.expect)
    });
    let count = with_runs.count();
    assert!(count >= 10, "only {count} fixtures have zero runs");
}
