//! Parts of a region are copied to buffers and from them as plain bytes are, and pages stay where they are.

use crate::support::{MODES, Random, comes_true, each, noise, read, text, write};
use pagefold_memory::{RangeError, Region, RegionConfig};

const PAGES: u64 = 2048;
const LIMIT: u64 = 256 * 4096;
const PAGE: usize = 4096;

fn region(mode: usize) -> Region {
    let (service, eviction) = MODES[mode];
    Region::new(RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) }).unwrap()
}

/// Pages of all kinds: compressible ones, zeroes, and ones that do not compress.
fn contents(page: u64) -> [u64; 512] {
    match page % 4 {
        0 => noise(page),
        1 => [0; 512],
        _ => text(page),
    }
}

fn bytes(pages: impl Iterator<Item = u64>) -> Vec<u8> {
    pages.flat_map(contents).flat_map(u64::to_ne_bytes).collect()
}

fn faults(region: &Region) -> u64 {
    let faults = region.stats().faults;
    faults.folded + faults.staged + faults.zero
}

#[test]
fn data_of_many_times_the_limit_is_written_and_read_without_faults() {
    each("data_of_many_times_the_limit", |mode| {
        let mut region = region(mode);
        let expected = bytes(0..PAGES);
        // Pages are resident while there is memory, and their first touches are faults.
        region.write_part(0, &expected).unwrap();
        assert!(faults(&region) <= LIMIT / 4096, "{:?}", region.stats());
        assert!(region.stats().memory.resident_max <= LIMIT && region.stats().folded_bytes > 0);
        let before = faults(&region);
        for _ in 0..2 {
            let mut copy = vec![0xaa; expected.len()];
            region.read_part(0, &mut copy).unwrap();
            assert!(copy == expected);
        }
        // A page that leaves the range at the very moment costs a fault: evictors may still be at work.
        assert!(faults(&region) - before <= 64, "{} faults: {:?}", faults(&region) - before, region.stats());
        for page in (0..PAGES).step_by(7) {
            assert_eq!(read(&region, page), contents(page), "page {page}");
        }
    });
}

#[test]
fn scattered_items_are_read_without_faults() {
    each("scattered_items", |mode| {
        let mut region = region(mode);
        let expected = bytes(0..PAGES);
        region.write_part(0, &expected).unwrap();
        let before = faults(&region);
        // Items in pages, over their borders, of whole pages and more.
        for len_bytes in [1, 8, 24, 4096, 5000] {
            let mut random = Random::new(len_bytes as u64);
            let mut offsets: Vec<usize> = (0..3000)
                .map(|_| (random.next() % (expected.len() - len_bytes + 1) as u64) as usize)
                .chain([0, expected.len() - len_bytes])
                .collect();
            for _ in 0..2 {
                let mut next = 0;
                let each = |at: usize, item: &[u8]| {
                    assert_eq!(at, next);
                    assert!(item == &expected[offsets[at]..][..len_bytes], "item {at} of {len_bytes} bytes");
                    next += 1;
                };
                region.read_items(&offsets, len_bytes, each).unwrap();
                assert_eq!(next, offsets.len());
                offsets.sort_unstable();
            }
        }
        assert!(faults(&region) - before <= 64, "{} faults: {:?}", faults(&region) - before, region.stats());
        let mut calls = 0;
        let result = region.read_items(&[5, expected.len() - 7, 9], 8, |_, _| calls += 1);
        assert!(
            matches!(result, Err(RangeError::OutOfRange { .. })) && calls == 1,
            "{result:?}, {calls} calls"
        );
        let too_long = region.read_items(&[], usize::MAX, |_, _| ());
        assert!(matches!(too_long, Err(RangeError::OutOfRange { .. })));
    });
}

#[test]
fn an_untouched_region_reads_as_zeroes_and_stays_untouched() {
    each("an_untouched_region", |mode| {
        let region = region(mode);
        let mut copy = vec![0xaa; PAGES as usize * PAGE - 5];
        region.read_part(5, &mut copy).unwrap();
        assert!(copy.iter().all(|byte| *byte == 0));
        assert_eq!((faults(&region), region.stats().memory.resident), (0, 0));
    });
}

#[test]
fn folded_pages_are_overwritten_in_the_store() {
    each("folded_pages_are_overwritten", |mode| {
        let mut region = region(mode);
        (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
        let settled = |region: &Region| {
            let before = region.stats().eviction.folded;
            std::thread::sleep(std::time::Duration::from_millis(20));
            region.stats().eviction.folded == before
        };
        assert!(comes_true(|| settled(&region)), "{:?}", region.stats());
        let before = faults(&region);
        let expected = bytes(1..PAGES + 1);
        region.write_part(0, &expected).unwrap();
        // Pages whose frames are being folded just then fault.
        assert!(faults(&region) - before <= 64, "{} faults: {:?}", faults(&region) - before, region.stats());
        assert!(region.bytes() == expected);
    });
}

#[test]
fn random_copies_agree_with_plain_bytes() {
    each("random_copies_agree", |mode| {
        let (mut region, mut random) = (region(mode), Random::new(mode as u64));
        let mut twin = vec![0_u8; PAGES as usize * PAGE];
        for step in 0..300 {
            let start = random.below(twin.len() as u64) as usize;
            let magnitude = random.below(19);
            let len = random.below(1 << magnitude) as usize;
            let part = start..(start + len).min(twin.len());
            match random.below(5) {
                0 | 1 => {
                    let input = bytes(random.next() % 1000..1200);
                    let part = part.start..part.end.min(part.start + input.len());
                    region.write_part(part.start, &input[..part.len()]).unwrap();
                    twin[part.clone()].copy_from_slice(&input[..part.len()]);
                }
                2 => {
                    region.discard(part.clone()).unwrap();
                    twin[part].fill(0);
                }
                3 => {
                    region.bytes_mut()[part.clone()].fill(step as u8);
                    twin[part].fill(step as u8);
                }
                _ => {
                    let mut copy = vec![0xaa; part.len()];
                    region.read_part(part.start, &mut copy).unwrap();
                    assert!(copy == twin[part.clone()], "step {step}, {part:?}");
                }
            }
        }
        assert!(region.bytes() == twin);
        assert!(region.stats().memory.resident_max <= LIMIT, "{:?}", region.stats());
    });
}

#[test]
fn a_store_that_refuses_pages_leaves_them_in_the_range() {
    each("a_store_that_refuses_pages", |mode| {
        let (service, eviction) = MODES[mode];
        let max_pool_bytes = Some(64 * 4096);
        let config =
            RegionConfig { service, eviction, max_pool_bytes, ..RegionConfig::new(PAGES * 4096, LIMIT) };
        let mut region = Region::new(config).unwrap();
        let expected: Vec<u8> = (0..600).flat_map(noise).flat_map(u64::to_ne_bytes).collect();
        region.write_part(0, &expected).unwrap();
        let mut copy = vec![0; expected.len()];
        region.read_part(0, &mut copy).unwrap();
        assert!(copy == expected && region.bytes()[..expected.len()] == expected);
        assert!(region.stats().pool.reject_reclaim_fail > 0, "{:?}", region.stats());
    });
}

#[test]
fn a_buffer_may_lie_in_the_same_region() {
    each("a_buffer_in_the_same_region", |mode| {
        let mut region = region(mode);
        let half = PAGES as usize / 2 * PAGE;
        let expected = bytes(0..PAGES / 2);
        region.write_part(0, &expected).unwrap();
        let (bytes, parts) = region.parts();
        let (low, high) = bytes.split_at_mut(half);
        parts.read_part(low, high).unwrap();
        assert!(*high == expected);
        low.fill(1);
        parts.write_part(low, high).unwrap();
        assert!(*low == expected);
    });
}

/// Fails, instead of waiting for ever, if it does not end.
fn ends(run: impl FnOnce() + Send + 'static) {
    let (sender, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        run();
        sender.send(()).unwrap();
    });
    match ended.recv_timeout(std::time::Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it waits for ever"),
        _ => thread.join().unwrap(),
    }
}

/// Faults on the buffer read ahead, up to the page that is being copied.
#[test]
fn pages_that_do_not_compress_are_shifted_by_a_few_pages() {
    each("pages_that_do_not_compress_are_shifted", |mode| {
        ends(move || {
            let mut region = region(mode);
            let expected: Vec<u8> = (0..PAGES).flat_map(noise).flat_map(u64::to_ne_bytes).collect();
            region.write_part(0, &expected).unwrap();
            for (round, gap) in [1, 2, 5, 8, 16].into_iter().enumerate() {
                let (bytes, parts) = region.parts();
                for at in 0..PAGES as usize / gap - 1 {
                    let both = &mut bytes[at * gap * PAGE..(at + 2) * gap * PAGE];
                    let (low, high) = both.split_at_mut(gap * PAGE);
                    parts.read_part(high, low).unwrap();
                }
                let shift: usize = [1, 2, 5, 8, 16][..=round].iter().sum();
                assert!(region.bytes()[..PAGE * 1024] == expected[shift * PAGE..][..PAGE * 1024], "{gap}");
            }
        });
    });
}

/// Evictors fold the pages that are copied, while faults on the buffer wait for memory.
#[test]
fn staged_pages_are_copied_to_a_buffer_that_needs_memory() {
    each("staged_pages_are_copied", |mode| {
        ends(move || {
            let (service, eviction) = MODES[mode];
            let config = RegionConfig::new(512 * 4096, 64 * 4096);
            let mut region =
                Region::new(RegionConfig { service, eviction, fold_threads: 1, ..config }).unwrap();
            let (bytes, parts) = region.parts();
            let (low, high) = bytes.split_at_mut(256 * PAGE);
            for round in 0..150_usize {
                let pages = round % 128..round % 128 + 64;
                pages.clone().for_each(|page| low[page * PAGE + 8] = round as u8);
                for page in pages {
                    let to = &mut high[(255 - page) * PAGE..][..PAGE];
                    parts.read_part(&low[page * PAGE..][..PAGE], to).unwrap();
                    assert_eq!(to[8], round as u8);
                }
            }
        });
    });
}

#[test]
fn bytes_outside_are_refused() {
    each("bytes_outside_are_refused", |mode| {
        let mut region = region(mode);
        let len_bytes = region.len_bytes();
        for (offset, count) in [(len_bytes, 1), (len_bytes - 1, 2), (usize::MAX, 1), (usize::MAX - 3, 4096)] {
            let mut buffer = vec![7; count];
            let refused = |result| matches!(result, Err(RangeError::OutOfRange { .. }));
            assert!(refused(region.read_part(offset, &mut buffer)));
            assert!(refused(region.write_part(offset, &buffer)));
            assert_eq!(buffer, vec![7; count]);
        }
        region.read_part(len_bytes, &mut []).unwrap();
        region.write_part(len_bytes, &[]).unwrap();
        let (_, parts) = region.parts();
        assert_eq!(parts.read_part(&[1, 2], &mut [0, 0]), Err(RangeError::NotInRegion { len_bytes: 2 }));
    });
}
