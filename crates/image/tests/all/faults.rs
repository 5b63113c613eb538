//! Media that fail, are slow, or end early, under one reader and under many: errors have the right type, wrong data is
//! not cached, nothing hangs, and a read that failed once succeeds the next time.

use crate::support::features::{Feature, feature, features, memory, tree};
use crate::support::walk::{assert_same, contents, sha256, walk};
use pagefold_backing::layer::{DelayLayer, DelayOptions, ErrorLayer, SystemClock, When};
use pagefold_backing::{ByteSource, Demand};
use pagefold_image::{Image, ImageError, Options, ReadAhead};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// `EIO`.
const ERRNO: i32 = 5;
/// Images that together use every path of reading.
const NAMES: [&str; 8] =
    ["lz4big", "tails", "zstd", "fragments", "records8", "recordfragments", "metaboxall", "blob"];

/// The smallest budget that an image can be opened with.
fn least_bytes(feature: &Feature) -> u64 {
    match Image::open(feature.medium(), feature.options(Options { memory_bytes: 0, ..Options::default() })) {
        Err(ImageError::TooLittleMemory { needed_bytes, .. }) => needed_bytes,
        other => panic!("{}: {other:?}", feature.name),
    }
}

/// Puts the image and each of its devices on separate media that fail by the rule `when`.
fn failing(
    feature: &Feature,
    options: Options,
    when: When,
) -> (Arc<dyn ByteSource>, Options, Vec<Arc<pagefold_backing::layer::ErrorControl>>) {
    let layer = |bytes: &[u8]| {
        let layer = ErrorLayer::new(memory(bytes));
        layer.control().fail_reads(when, ERRNO);
        (layer.control(), Arc::new(layer) as Arc<dyn ByteSource>)
    };
    let (control, medium) = layer(&feature.bytes);
    let (mut controls, devices): (Vec<_>, Vec<_>) = feature.devices.iter().map(|bytes| layer(bytes)).unzip();
    controls.push(control);
    (medium, Options { devices, ..options }, controls)
}

fn is_injected(error: &ImageError) -> bool {
    matches!(error, ImageError::Read { .. })
}

#[test]
fn every_read_may_fail_once() {
    let wanted = tree();
    for name in NAMES {
        let feature = feature(name);
        let least = least_bytes(feature);
        for nth in 1_u64.. {
            let options = Options {
                memory_bytes: if nth.is_multiple_of(3) { least } else { least + (1 << 20) },
                read_ahead: if nth.is_multiple_of(4) { ReadAhead::BestEffort } else { ReadAhead::Off },
                cache_full_reads: nth.is_multiple_of(2),
                ..Options::default()
            };
            let (medium, options, controls) = failing(feature, options, When::Nth(nth));
            let check_error = |error: ImageError| assert!(is_injected(&error), "{name}, read {nth}: {error}");
            let image = Image::open(medium.clone(), options.clone()).or_else(|error| {
                check_error(error);
                Image::open(medium, options)
            });
            let image = image.unwrap();
            // Each medium fails once, so at most as many walks fail as there are media.
            let mut failed = 0;
            while let Err(error) = walk(&image, 20_000).map(|found| assert_same(name, &found, &wanted)) {
                check_error(error);
                failed += 1;
                assert!(failed <= controls.len(), "{name}, read {nth}");
            }
            let budget = image.stats().budget;
            assert!(budget.peak_bytes <= budget.limit_bytes, "{budget:?}");
            if controls.iter().all(|control| control.injected() == 0) {
                assert!(nth > 8, "{name} takes {nth} reads");
                break;
            }
        }
    }
}

#[test]
fn an_image_is_readable_again_after_its_medium_recovers() {
    let wanted = tree();
    for feature in features() {
        for nth in [1, 2, 3, 5, 8, 13, 21, 34, 55] {
            let (medium, options, controls) = failing(feature, Options::default(), When::From(nth));
            let heal = || controls.iter().for_each(|control| control.clear());
            let image = Image::open(medium.clone(), options.clone()).or_else(|error| {
                assert!(is_injected(&error), "{error}");
                heal();
                Image::open(medium, options)
            });
            let image = image.unwrap();
            if let Err(error) = walk(&image, 1 << 20) {
                assert!(is_injected(&error), "{}: {error}", feature.name);
            }
            heal();
            assert_same(&feature.name, &walk(&image, 1 << 20).unwrap(), &wanted);
        }
    }
}

#[test]
fn truncated_media_are_reported_as_truncated() {
    let wanted = tree();
    for feature in features() {
        for part in 0..97 {
            let len = feature.bytes.len() * part / 97;
            let options = feature.options(Options::default());
            let found = Image::open(memory(&feature.bytes[..len]), options).and_then(|i| walk(&i, 1 << 20));
            match found {
                // The end of the medium may be unused.
                Ok(found) => assert_same(&feature.name, &found, &wanted),
                Err(ImageError::Truncated { at, len_bytes, end }) => {
                    assert!(end <= len as u64, "{} cut at {len}: {len_bytes} at {at}, {end}", feature.name);
                }
                Err(ImageError::NotAnImage { .. }) => assert!(len < 1024 + 128),
                Err(other) => panic!("{} cut at {len}: {other}", feature.name),
            }
        }
    }
}

/// The next number of a linear congruential generator.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Runs eight readers of one image with little memory, on a slow medium whose reads sometimes fail.
fn stress(name: &'static str, read_ahead: ReadAhead, more_bytes: u64, per_million: u32) {
    let feature = feature(name);
    let options = Options {
        memory_bytes: least_bytes(feature) + more_bytes,
        read_ahead,
        cache_full_reads: more_bytes.is_multiple_of(2),
        ..feature.options(Options::default())
    };
    let delay = Duration::from_micros(20);
    let delays = DelayOptions { delay, depth: 4, bytes_per_s: None, jitter: delay * 4, seed: more_bytes };
    let layer =
        ErrorLayer::new(DelayLayer::new(memory(&feature.bytes), delays, Arc::new(SystemClock::default())));
    let control = layer.control();
    let image = Image::open(Arc::new(layer), options).unwrap();
    control.fail_reads(When::Chance { per_million, seed: more_bytes + 1 }, ERRNO);
    let files: Vec<_> = tree().into_iter().filter(|entry| entry.sha256.is_some()).collect();
    std::thread::scope(|scope| {
        for reader in 0..8_u64 {
            let (image, files) = (&image, &files);
            scope.spawn(move || {
                let mut random = reader * 7919 + more_bytes;
                for _ in 0..60 {
                    let file = &files[next(&mut random) as usize % files.len()];
                    let step = 1 + next(&mut random) as usize % 30_000;
                    let found = image.find(file.path.as_bytes()).and_then(|node| contents(&node, step));
                    match found {
                        Ok(found) => assert_eq!(Some(sha256(&found)), file.sha256, "{name}: {}", file.path),
                        Err(error) => assert!(is_injected(&error), "{name}: {}: {error}", file.path),
                    }
                }
            });
        }
    });
    let budget = image.stats().budget;
    assert!(budget.peak_bytes <= budget.limit_bytes, "{budget:?}");
    control.clear();
    assert_same(name, &walk(&image, 9_999).unwrap(), &tree());
    // If the whole budget can be granted, no operation leaked a part of it.
    let limit_bytes = image.stats().budget.limit_bytes;
    drop(image.budget().grant(limit_bytes, Demand::Required).unwrap());
}

/// Runs `work` in a separate thread, and fails if it does not end in time: a thread that hangs cannot fail itself.
fn within(limit: Duration, work: impl FnOnce() + Send + 'static) {
    let (ended, end) = channel();
    let thread = std::thread::spawn(move || {
        work();
        ended.send(())
    });
    if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = end.recv_timeout(limit) {
        panic!("still running after {limit:?}");
    }
    thread.join().unwrap().unwrap();
}

#[test]
fn readers_with_little_memory_on_a_failing_medium_do_not_hang() {
    for (name, read_ahead) in [
        ("lz4big", ReadAhead::BestEffort),
        ("zstd", ReadAhead::Waiting),
        ("fragments", ReadAhead::BestEffort),
        ("metabox512", ReadAhead::Waiting),
        ("metaboxall", ReadAhead::BestEffort),
        ("lzma", ReadAhead::Waiting),
        ("recordfragments", ReadAhead::Off),
    ] {
        for more_bytes in [0, 20_481, 300_000] {
            within(Duration::from_secs(100), move || stress(name, read_ahead, more_bytes, 20_000));
        }
    }
}

/// A reader that waits for memory must hold none, or two readers could wait for each other.
#[test]
fn no_reader_holds_memory_while_it_waits_for_memory() {
    // LZ4 has no decoder state, so readers hold all memory that is in use and not in the cache.
    let feature = feature("metabox");
    let options = Options { read_ahead: ReadAhead::Off, ..feature.options(Options::default()) };
    let image = Image::open(feature.medium(), options).unwrap();
    let (held, counter) = (image.clone(), AtomicU64::new(0));
    image.budget().refuse_when(move |_, demand| {
        let stats = held.stats();
        let in_use_bytes = stats.budget.in_use_bytes - stats.cached_bytes;
        if demand == Demand::Required {
            assert_eq!(in_use_bytes, 0, "held by a reader that waits");
            counter.fetch_add(1, Ordering::Relaxed);
        }
        // Refuse requests while memory is held, and all requests while the number of required ones is odd.
        in_use_bytes > 0 || !counter.load(Ordering::Relaxed).is_multiple_of(2)
    });
    assert_same("metabox", &walk(&image, 1 << 20).unwrap(), &tree());
    image.budget().refuse_when(|_, _| false);
}
