//! Both decoders read streams that the kernel's 842 compressor wrote, and this crate's compressor writes the same.
//!
//! The fixtures are compressed bytes only; the tests generate the content again and compare.
//! `fixtures/c842_kernel/README.md` describes how the fixtures were made.

use crate::support::c842_reference::decode;
use crate::support::lzo_kernel_content::{KINDS, cluster};
use pagefold_codec::c842::{Workspace, compress, compress_bound, decompress};
use pagefold_page::PAGE_SIZE;
use std::collections::BTreeMap;
use std::path::Path;

/// The streams by the numbers of their pages.
fn fixtures() -> BTreeMap<usize, Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/c842_kernel");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let streams = paths.filter(|path| path.extension().is_some_and(|extension| extension == "842"));
    let number = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    streams.map(|path| (number(&path), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn both_decoders_read_the_kernels_streams_and_the_compressor_writes_the_same() {
    let fixtures = fixtures();
    let kinds: std::collections::BTreeSet<_> = fixtures.keys().map(|index| index % KINDS).collect();
    assert!(fixtures.len() >= 20 && kinds.len() >= KINDS - 1, "{kinds:?} of {} fixtures", fixtures.len());
    for (index, stream) in fixtures {
        let page = cluster(index, PAGE_SIZE);
        let mut out = vec![0x55; PAGE_SIZE];
        assert_eq!(decompress(&stream, &mut out), Ok(PAGE_SIZE), "{index}");
        assert!(out == page, "{index}: wrong content");
        assert!(decode(&stream, PAGE_SIZE).as_ref() == Ok(&page), "{index}: reference");
        let mut ours = vec![0; compress_bound(PAGE_SIZE)];
        let len = compress(&mut Workspace::new(), &page, &mut ours).unwrap();
        assert!(ours[..len] == stream, "{index}: {len} bytes instead of {}", stream.len());
    }
}
