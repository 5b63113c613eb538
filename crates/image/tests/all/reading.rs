//! File contents through the library: equal to the manifest for every image, in any budget, for any number of readers,
//! and whichever request for memory is refused.

use crate::support::{manifest, reference_image, reference_names};
use pagefold_backing::Demand;
use pagefold_image::{Image, ImageError, Node, Options, ReadAhead};
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Every reference image can be opened with this budget.
const SMALL_BYTES: u64 = 1 << 20;

fn open(name: &str, options: Options) -> Image {
    Image::open_file(&reference_image(name), options).unwrap()
}

/// The smallest budget that the image can be opened with.
fn least_bytes(name: &str) -> u64 {
    let options = Options { memory_bytes: 0, ..Options::default() };
    match Image::open_file(&reference_image(name), options) {
        Err(ImageError::TooLittleMemory { needed_bytes, .. }) => needed_bytes,
        other => panic!("{other:?}"),
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The whole contents, in reads of `step` bytes.
fn contents(node: &Node, step: usize) -> Result<Vec<u8>, ImageError> {
    let (mut all, mut buf) = (Vec::new(), vec![0; step]);
    loop {
        match node.read_at(all.len() as u64, &mut buf)? {
            0 => return Ok(all),
            len => all.extend_from_slice(&buf[..len]),
        }
    }
}

fn extent_count(node: &Node) -> u64 {
    let (mut at, mut count) = (0, 0);
    while let Some(extent) = node.extent_at(at).unwrap() {
        (at, count) = (extent.end(), count + 1);
    }
    count
}

/// Reads every regular file and compares it with the manifest.
fn compare_all(image: &Image, step: usize) {
    for entry in manifest().iter().filter(|entry| entry.sha256.is_some()) {
        let node = image.find(entry.path.as_bytes()).unwrap();
        let found = contents(&node, step).unwrap_or_else(|e| panic!("{}: {e}", entry.path));
        assert_eq!(Some(found.len() as u64), entry.size, "{}", entry.path);
        assert_eq!(Some(sha256(&found)), entry.sha256, "{}", entry.path);
    }
}

fn check_peak(image: &Image) {
    let budget = image.stats().budget;
    assert!(budget.peak_bytes <= budget.limit_bytes, "{budget:?}");
}

#[test]
fn contents_of_every_image_equal_the_manifest() {
    for name in reference_names() {
        for cache_full_reads in [false, true] {
            let image = open(name, Options { cache_full_reads, ..Options::default() });
            compare_all(&image, 1 << 20);
            check_peak(&image);
        }
    }
}

#[test]
fn the_least_budget_is_enough_and_is_not_exceeded() {
    for name in reference_names() {
        let memory_bytes = least_bytes(name);
        assert!(memory_bytes <= SMALL_BYTES, "{name}: {memory_bytes}");
        let image = open(name, Options { memory_bytes, ..Options::default() });
        compare_all(&image, 100_000);
        check_peak(&image);
        let stats = image.stats();
        assert!(stats.reads.windowed > 0, "{name}: {stats:?}");
        let refused = Image::open_file(
            &reference_image(name),
            Options { memory_bytes: memory_bytes - 1, ..Options::default() },
        );
        assert!(
            matches!(refused, Err(ImageError::TooLittleMemory { needed_bytes, .. }) if needed_bytes == memory_bytes)
        );
    }
}

#[test]
fn random_readers_with_little_memory_read_the_same_bytes() {
    for name in ["lz4hc64", "dedfrag", "fragzt", "zstd"] {
        let image = open(name, Options { memory_bytes: least_bytes(name) + 200_000, ..Options::default() });
        let wanted = open(name, Options::default());
        let files: Vec<_> =
            manifest().into_iter().filter(|e| e.size.is_some_and(|size| size > 100_000)).collect();
        std::thread::scope(|scope| {
            for reader in 0..4_u64 {
                let (image, wanted, files) = (&image, &wanted, &files);
                scope.spawn(move || {
                    let mut random = reader * 7919 + 1;
                    for _ in 0..300 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let file = &files[(random >> 33) as usize % files.len()];
                        let offset = (random >> 20) % file.size.unwrap();
                        let len = 1 + (random >> 7) as usize % 70_000;
                        let read = |image: &Image| {
                            let mut buf = vec![0; len];
                            let len =
                                image.find(file.path.as_bytes()).unwrap().read_at(offset, &mut buf).unwrap();
                            buf.truncate(len);
                            buf
                        };
                        assert!(read(image) == read(wanted), "{name}: {} at {offset}", file.path);
                    }
                });
            }
        });
        check_peak(&image);
    }
}

#[test]
fn readers_of_one_cluster_decode_it_once() {
    let biggest = manifest().into_iter().max_by_key(|entry| entry.size.unwrap_or(0)).unwrap();
    let options = Options { read_ahead: ReadAhead::Off, ..Options::default() };
    let image = open("lzma", options);
    let node = image.find(biggest.path.as_bytes()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| contents(&node, 32 << 10).unwrap());
        }
    });
    let extents = extent_count(&node);
    let stats = image.stats();
    assert!(
        stats.reads.clusters <= extents,
        "{} decodings of {extents} extents: {stats:?}",
        stats.reads.clusters
    );
    assert!(stats.reads.joined > 0, "{stats:?}");
}

#[test]
fn a_small_read_decodes_one_cluster_and_takes_one_page() {
    let image = open("zstd", Options { read_ahead: ReadAhead::Off, ..Options::default() });
    let biggest = manifest().into_iter().max_by_key(|entry| entry.size.unwrap_or(0)).unwrap();
    let node = image.find(biggest.path.as_bytes()).unwrap();
    let extent = node.extent_at(node.len_bytes() / 2).unwrap().unwrap();
    node.read_at(extent.start + 1000, &mut [0; 100]).unwrap();
    let after_one = image.stats();
    assert_eq!(after_one.reads.clusters, 1);
    // One page for output, besides metadata.
    assert!(after_one.reads.temporary_pages <= 1, "{after_one:?}");
    node.read_at(extent.start + 3000, &mut [0; 100]).unwrap();
    assert_eq!(image.stats().reads.clusters, 1, "the page is in the cache");
}

#[test]
fn read_ahead_caches_the_next_clusters_and_is_dropped_without_memory() {
    let image = open("lz4hc64", Options { cache_full_reads: false, ..Options::default() });
    let many = manifest().into_iter().filter(|entry| entry.size.is_some_and(|size| size > 400_000));
    let many = many.max_by_key(|entry| extent_count(&image.find(entry.path.as_bytes()).unwrap())).unwrap();
    let node = image.find(many.path.as_bytes()).unwrap();
    assert!(extent_count(&node) > 3);
    let mut buf = vec![0; 32 << 10];
    node.read_at(0, &mut buf).unwrap();
    node.read_at(32 << 10, &mut buf).unwrap();
    // The second sequential read has started read-ahead, which other threads perform.
    let deadline = Instant::now() + Duration::from_secs(30);
    while image.stats().reads.readahead_issued == 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(Some(sha256(&contents(&node, 32 << 10).unwrap())), many.sha256);
    let stats = image.stats();
    assert!(stats.reads.readahead_issued > 0 && stats.reads.readahead_dropped == 0, "{stats:?}");

    let biggest = manifest().into_iter().max_by_key(|entry| entry.size.unwrap_or(0)).unwrap();
    let memory_bytes = least_bytes("lz4hc64");
    let image = open("lz4hc64", Options { memory_bytes, ..Options::default() });
    let found = contents(&image.find(biggest.path.as_bytes()).unwrap(), 32 << 10).unwrap();
    assert_eq!(Some(sha256(&found)), biggest.sha256);
    let stats = image.stats();
    assert!(stats.reads.readahead_dropped > 0, "{stats:?}");
}

/// Refuses each request for memory in turn. Read-ahead and caching continue without memory; a read that needs memory
/// fails with an error, caches nothing, and succeeds when it is repeated.
#[test]
fn every_request_for_memory_may_be_refused() {
    for name in ["lz4hc64", "fragzt", "dedfrag", "zstd", "deflate", "lzma"] {
        let files: Vec<_> =
            manifest().into_iter().filter(|e| e.size.is_some_and(|size| size > 20_000)).collect();
        let options =
            Options { read_ahead: ReadAhead::Off, memory_bytes: least_bytes(name), ..Options::default() };
        for file in files.iter().take(12) {
            for nth in 0..64 {
                let image = open(name, options.clone());
                let node = image.find(file.path.as_bytes()).unwrap();
                let requests = std::sync::Arc::new(AtomicU64::new(0));
                let counter = requests.clone();
                image.budget().refuse_when(move |_, _| counter.fetch_add(1, Ordering::Relaxed) == nth);
                match contents(&node, 48 << 10) {
                    Ok(found) => assert_eq!(Some(sha256(&found)), file.sha256, "{name}: {}", file.path),
                    Err(ImageError::TooLittleMemory { .. }) => {
                        let again = contents(&node, 48 << 10).unwrap();
                        assert_eq!(Some(sha256(&again)), file.sha256, "{name}: {}", file.path);
                    }
                    Err(other) => panic!("{name}: {}: {other}", file.path),
                }
                check_peak(&image);
                if requests.load(Ordering::Relaxed) <= nth {
                    break;
                }
            }
        }
    }
}

#[test]
fn reads_do_not_depend_on_best_effort_requests() {
    let image = open("zstd", Options { read_ahead: ReadAhead::Off, ..Options::default() });
    let biggest = manifest().into_iter().max_by_key(|entry| entry.size.unwrap_or(0)).unwrap();
    // Every read succeeds although all best-effort requests are refused.
    image.budget().refuse_when(|_, demand| demand == Demand::BestEffort);
    let found = contents(&image.find(biggest.path.as_bytes()).unwrap(), 50_000).unwrap();
    assert_eq!(Some(sha256(&found)), biggest.sha256);
    let stats = image.stats();
    assert_eq!(stats.reads.windowed, stats.reads.clusters);
}
