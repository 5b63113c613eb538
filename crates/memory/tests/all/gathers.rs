//! Elements that a list of indices takes from several arrays come in ahead, from the second array on.

use crate::support::{MODES, can, comes_true, noise, write};
use pagefold_memory::{Region, RegionConfig};

const PAGES: u64 = 8192;
const LIMIT: u64 = 2048 * 4096;
/// Elements of each array. The elements of the first one have 4 bytes, those of the second 8.
const ELEMENTS: u64 = 2048 * 1024;
/// The offset of the second array, bytes.
const SECOND: u64 = ELEMENTS * 4;

/// Returns four bytes of the region as they were written.
fn written(at: u64) -> u32 {
    (noise(at / 4096)[at as usize % 4096 / 8] >> (at % 8 * 8)) as u32
}

/// Reads an element of every index in an array, and returns how many faults that took.
fn gather(region: &Region, indices: &[u64], base: u64, element: u64) -> u64 {
    let before = region.stats().faults.folded;
    for at in indices.iter().map(|i| base + i * element) {
        let number = region.as_ptr().wrapping_add(at as usize).cast::<u32>();
        // SAFETY: in the region and aligned, and no thread writes to it.
        assert_eq!(unsafe { number.read_volatile() }, written(at), "{at}");
    }
    region.stats().faults.folded - before
}

#[test]
fn the_second_array_of_a_gather_comes_in_with_few_faults() {
    for (service, eviction) in MODES {
        if !can("the_second_array_of_a_gather_comes_in_with_few_faults", service, eviction) {
            continue;
        }
        let config = RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) };
        let region = Region::new(config).unwrap();
        (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
        assert!(comes_true(|| region.stats().folded_bytes >= (PAGES * 4096 - LIMIT) * 3 / 4));
        // Neighbours use only memory for which nobody has to wait; how much evictors have ready depends on the machine.
        region.set_limit(PAGES * 4096).unwrap();
        let mut x = 1_u64;
        let indices: Vec<_> = std::iter::repeat_with(|| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 20) % ELEMENTS
        })
        .take(400)
        .collect();
        let first = gather(&region, &indices, 0, 4);
        let second = gather(&region, &indices, SECOND, 8);
        assert!(first > 200 && second < first * 2 / 3, "{second} faults after {first}");
        let stats = region.stats();
        assert!(stats.neighbours_used > 0, "{} of {}", stats.neighbours_used, stats.neighbours_brought);
    }
}
