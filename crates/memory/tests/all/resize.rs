//! A region that grows and shrinks keeps its bytes, and what is cut off reads as zeroes when it comes back.

use crate::support::{MODES, Random, comes_true, each, noise, text};
use pagefold_memory::{Region, RegionConfig, RegionError};

const PAGES_MAX: u64 = 2048;
const LIMIT: u64 = 128 * 4096;

fn region(mode: usize, pages: u64) -> Region {
    let (service, eviction) = MODES[mode];
    let max_len_bytes = Some(PAGES_MAX * 4096);
    let config = RegionConfig { service, eviction, max_len_bytes, ..RegionConfig::new(pages * 4096, LIMIT) };
    Region::new(config).unwrap()
}

fn page(words: [u64; 512]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_region_that_is_resized_is_like_a_vector() {
    each("a_region_that_is_resized_is_like_a_vector", |mode| {
        let mut random = Random::new(mode as u64);
        let mut region = region(mode, 1);
        let start = region.as_ptr();
        let mut twin = vec![0_u8; 4096];
        for round in 0..20 {
            let len_bytes = 1 + random.below(PAGES_MAX * 4096);
            region.resize(len_bytes).unwrap();
            twin.resize(len_bytes.next_multiple_of(4096) as usize, 0);
            assert_eq!((region.len_bytes(), region.as_ptr()), (twin.len(), start));
            for _ in 0..40 {
                let at = random.below(twin.len() as u64 / 4096) as usize * 4096;
                let contents = if random.below(2) == 0 { page(noise(round)) } else { page(text(round)) };
                region.bytes_mut()[at..at + 4096].copy_from_slice(&contents);
                twin[at..at + 4096].copy_from_slice(&contents);
            }
            assert!(region.bytes() == twin, "round {round}");
        }
        assert!(region.stats().eviction.folded > 0 && region.stats().memory.resident_max <= LIMIT);
    });
}

#[test]
fn what_is_cut_off_takes_no_memory() {
    each("what_is_cut_off_takes_no_memory", |mode| {
        let mut region = region(mode, PAGES_MAX);
        for (i, bytes) in region.bytes_mut().chunks_mut(4096).enumerate() {
            bytes.copy_from_slice(&page(noise(i as u64)));
        }
        region.resize(4096).unwrap();
        // The pages that were staged are released when evictors come to them.
        assert!(comes_true(|| region.stats().folded_bytes <= 4096 && region.stats().stored_bytes <= 4096));
        assert!(region.bytes() == page(noise(0)));
    });
}

#[test]
fn sizes_that_a_region_cannot_have_are_refused() {
    each("sizes_that_a_region_cannot_have", |mode| {
        let mut region = region(mode, 3);
        region.bytes_mut().fill(7);
        assert!(matches!(region.resize(0), Err(RegionError::BadLength(0))));
        let error = region.resize(PAGES_MAX * 4096 + 1).unwrap_err();
        assert!(
            matches!(error, RegionError::BeyondMax { .. }) && error.to_string().contains("8 MiB"),
            "{error}"
        );
        assert!(region.bytes() == [7; 3 * 4096]);
        assert!(region.pin(..4 * 4096).is_err() && region.bytes().get(3 * 4096).is_none());
        // A pin that is never dropped keeps its page from being cut off.
        std::mem::forget(region.pin(2 * 4096..).unwrap());
        assert!(matches!(region.resize(4096), Err(RegionError::Range(_))));
        assert_eq!(region.len_bytes(), 3 * 4096);
    });
}
