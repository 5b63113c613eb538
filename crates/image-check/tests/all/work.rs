//! How much work an image may cost: hostile images end every reader with an error or a finding, and well-formed ones that
//! share, repeat or leave out almost everything cost little.
//!
//! Nothing here looks at a clock: a reader without a limit would not end.

use crate::support::handmade::{
    File, HUGE, REGULAR, block_of_names, image, image_of, metabox_image, multi_block_directory, put_chunks,
    repeated_block, set_chunk_bits, set_nlink, set_size, unused, unused_after,
};
use pagefold_backing::{Backing, MemoryBacking};
use pagefold_image::extract::{ExtractError, ExtractOptions, extract};
use pagefold_image::startup::{PrefetchCounters, StartList, prefetch};
use pagefold_image::tar::{TarError, TarOptions};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image::{Findings, Image, ImageError, Options, ReadAhead, tar};
use pagefold_image_check::{CheckOptions, Report, check};
use pagefold_sys::beneath::Folder;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn open(bytes: &[u8]) -> Result<Image, ImageError> {
    let medium = MemoryBacking::new(bytes.len());
    medium.write_at(0, bytes).unwrap();
    Image::open(Arc::new(medium), Options { read_ahead: ReadAhead::Off, ..Options::default() })
}

fn checked(image: &Image, strict: bool) -> Report {
    check(image, &CheckOptions { strict, ..CheckOptions::default() }, &|_| ()).unwrap()
}

fn says(findings: &Findings, what: &str) -> bool {
    findings.recorded().iter().any(|finding| finding.what.contains(what))
}

/// The beginning of the message at the limit of work.
const LIMIT: &str = "steps of work, which no image of its size needs";

/// Bytes that an extraction and an archive may have.
const OUTPUT_BYTES: u64 = 16 << 20;

/// Runs the readers of a whole image, and returns their findings. Those with an output may fail at a limit.
fn all_readers(image: &Image) -> [Findings; 5] {
    let target = tempfile::tempdir().unwrap();
    let folder = Folder::open(target.path()).unwrap();
    let options = ExtractOptions { max_bytes: Some(OUTPUT_BYTES), ..ExtractOptions::default() };
    let extracted = match extract(image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()) {
        Ok(report) => report.findings,
        Err(ExtractError::Limit { .. }) => Findings::default(),
        Err(error) => panic!("{error}"),
    };
    let options = TarOptions { max_bytes: OUTPUT_BYTES, ..TarOptions::default() };
    let archived = match tar::write(image, &[], &options, std::io::sink()) {
        Ok(report) => report.findings,
        Err(TarError::Limit { .. } | TarError::Image(ImageError::TooMuchWork { .. })) => Findings::default(),
        Err(error) => panic!("{error}"),
    };
    [
        checked(image, false).findings,
        checked(image, true).findings,
        TreeStats::of_image(image, &Limits::default()).unwrap().findings,
        extracted,
        archived,
    ]
}

#[test]
fn a_metabox_with_holes_or_too_large_is_refused() {
    // One extent record of a block, and one of a hole.
    let refused = |size| open(&metabox_image(size, &[(0, 4096), (4096, 0)])).unwrap_err().to_string();
    assert!(refused(8192).contains("a hole in the metabox, at its byte 4096"), "{}", refused(8192));
    for size in [1 << 40, HUGE] {
        assert!(refused(size).contains("a metabox of"), "{}", refused(size));
    }
    // Without the hole, the same image can be read.
    let image = open(&metabox_image(4096, &[(0, 4096)])).unwrap();
    assert_eq!(image.root().unwrap().entries().unwrap().count(), 0);
    // Plain bytes behind the end of the image.
    let plain = open(&metabox_image(12288, &[])).unwrap_err();
    assert!(matches!(plain, ImageError::Truncated { .. }), "{plain}");
}

#[test]
fn a_directory_that_is_an_endless_hole_ends_every_reader() {
    let image = open(&image(&[File::hole(0o040_755, HUGE)])).unwrap();
    for findings in all_readers(&image) {
        assert!(
            says(&findings, "too many faults in this directory") && findings.errors() > 0,
            "{findings:?}"
        );
    }
    let found = image.root().unwrap().entries().unwrap().take(2).collect::<Vec<_>>();
    assert!(matches!(found[..], [Err(ImageError::Corrupt { .. })]), "{found:?}");
}

#[test]
fn a_directory_of_one_bad_block_20000_times_ends_every_reader() {
    let image = open(&repeated_block(&block_of_names(b"/"))).unwrap();
    for findings in all_readers(&image) {
        assert!(says(&findings, "too many faults in this directory"), "{findings:?}");
    }
    // The library passes each of these names as an error, and ends with another one.
    let (count, last) =
        image.root().unwrap().entries().unwrap().fold((0, None), |(n, _), e| (n + 1, Some(e)));
    assert!(count > 1000 && matches!(last, Some(Err(ImageError::TooMuchWork { .. }))), "{count} {last:?}");
    // A lookup reads few blocks, whatever they contain.
    assert!(image.root().unwrap().lookup(b"a").is_err());
}

const FILES: usize = 200;
const ARRAY_BYTES: usize = 16 << 10;
const CHUNKS_BYTES: u64 = ARRAY_BYTES as u64 / 4 * 4096;

/// The arrays of chunks of all files lie over each other, up to the end of the image.
fn overlapping_arrays() -> Vec<u8> {
    let names: Vec<_> = (0..FILES).map(|n| format!("{n:03}")).collect();
    let entries: Vec<_> = names.iter().map(|name| (name.as_str(), REGULAR)).collect();
    let mut bytes = image_of(&entries, (0..FILES).map(|_| File::hole(0o100_644, 0)).collect());
    // The same array for all files: chunks that are one block behind the end of the image, and so many extents.
    bytes.extend([0x40; ARRAY_BYTES]);
    for file in 0..FILES {
        put_chunks(&mut bytes, 1 + 2 * file, &[]);
        set_size(&mut bytes, 1 + 2 * file, 2 * CHUNKS_BYTES);
    }
    // Blocks that are counted, so that the limit is that of the whole image.
    let blocks = (bytes.len() / 4096) as u32;
    bytes[1024 + 0x24..][..4].copy_from_slice(&blocks.to_le_bytes());
    bytes
}

#[test]
fn indexes_that_lie_over_each_other_reach_the_limit() {
    let image = open(&overlapping_arrays()).unwrap();
    let report = checked(&image, true);
    assert!(!report.complete && says(&report.findings, LIMIT), "{}", report.findings.errors());
    let shown = TreeStats::of_image(&image, &Limits::default()).unwrap();
    assert!(says(&shown.findings, LIMIT), "{}", shown.findings.errors());
}

/// A list names a file whose extents lie nowhere, again and again.
#[test]
fn a_list_of_a_start_is_looked_up_to_the_limit() {
    let files = std::iter::once(File::hole(0o100_644, CHUNKS_BYTES));
    let mut bytes = image_of(&[("f", REGULAR)], files.chain((0..200).map(|_| unused())).collect());
    put_chunks(&mut bytes, 1, &[0x40; ARRAY_BYTES]);
    let image = open(&bytes).unwrap();
    let list = StartList::parse(format!("/f\t0\t{CHUNKS_BYTES}\n").repeat(400).as_bytes());
    let counters = PrefetchCounters::default();
    prefetch(&image, &list, &counters, &AtomicBool::new(false));
    let stats = counters.stats();
    assert!(stats.has_ended && stats.skipped > 200 && stats.skipped < 400, "{stats:?}");
}

#[test]
fn a_sparse_file_of_exbibytes_and_one_block_for_128_mib_cost_little() {
    const CHUNKS: usize = 32 << 10;
    let data = File::regular(&[7; 4096]);
    let mut files = vec![File::hole(0o100_644, 7 << 60), File::hole(0o100_644, 64 << 40)];
    files.extend([data, File::hole(0o100_644, (CHUNKS * 4096) as u64)]);
    files.extend((0..unused_after(CHUNKS * 4) / 2).map(|_| unused()));
    let names = [("exbibytes", REGULAR), ("holes", REGULAR), ("once", REGULAR), ("shared", REGULAR)];
    let mut bytes = image_of(&names, files);
    // Chunks of 4 TiB that are holes.
    put_chunks(&mut bytes, 3, &[0xff; 64]);
    set_chunk_bits(&mut bytes, 3, 30);
    // The last block has the contents of `once`.
    let last = (bytes.len() / 4096 - 1) as u32;
    put_chunks(&mut bytes, 7, &last.to_le_bytes().repeat(CHUNKS));
    let image = open(&bytes).unwrap();
    let report = checked(&image, false);
    assert!(report.complete && report.findings.errors() == 0, "{:?}", report.findings.recorded());
    assert!(checked(&image, true).complete);
    assert_eq!(report.bytes, 4096 + (CHUNKS * 4096) as u64);
    let stats = TreeStats::of_image(&image, &Limits::default()).unwrap();
    assert_eq!((stats.findings.errors(), stats.mappings[0].bytes), (0, (7 << 60) + (64 << 40)));
    assert_eq!(image.find(b"/shared").unwrap().extents().count(), CHUNKS);
}

#[test]
fn a_file_with_30000_names_costs_little() {
    const NAMES: usize = 30_000;
    let directory = multi_block_directory((0..NAMES).map(|n| format!("{n:05}")), 1);
    let mut bytes = image(&[directory, File::regular(b"contents")]);
    set_nlink(&mut bytes, 1, NAMES as u32);
    let image = open(&bytes).unwrap();
    for strict in [false, true] {
        let report = checked(&image, strict);
        assert!(report.complete && report.findings.errors() == 0, "{:?}", report.findings.recorded());
        assert_eq!((report.names, report.inodes), (NAMES as u64, 2));
    }
    assert_eq!(image.root().unwrap().entries().unwrap().filter(|entry| entry.is_ok()).count(), NAMES);
}
