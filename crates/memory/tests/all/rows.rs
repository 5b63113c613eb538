//! Pages of rows that are not whole pages long come in together.

use crate::support::{MODES, can, comes_true, noise, write};
use pagefold_memory::{Region, RegionConfig};

const PAGES: u64 = 4096;
const LIMIT: u64 = 1024 * 4096;
/// Numbers of a row: 9.2 pages.
const ROW: u64 = 4729;
/// Rows that are read: evicted long before.
const ROWS: u64 = 240;
/// The column that is read.
const COLUMN: u64 = 1234;

#[test]
fn a_column_of_a_matrix_comes_in_with_few_faults() {
    for (service, eviction) in MODES {
        if !can("a_column_of_a_matrix_comes_in_with_few_faults", service, eviction) {
            continue;
        }
        let config = RegionConfig { service, eviction, ..RegionConfig::new(PAGES * 4096, LIMIT) };
        let region = Region::new(config).unwrap();
        (0..PAGES).for_each(|page| write(&region, page, &noise(page)));
        assert!(comes_true(|| region.stats().folded_bytes >= (PAGES * 4096 - LIMIT) * 3 / 4));
        // Neighbours use only memory for which nobody has to wait; how much evictors have ready depends on the machine.
        region.set_limit(PAGES * 4096).unwrap();
        let before = region.stats();
        for at in (0..ROWS).map(|row| row * ROW + COLUMN) {
            let number = region.as_ptr().wrapping_add(at as usize * 8).cast::<u64>();
            // SAFETY: in the region, and no thread writes to it.
            let number = unsafe { number.read_volatile() };
            assert_eq!(number, noise(at / 512)[at as usize % 512], "{at}");
        }
        let after = region.stats();
        let faults = after.faults.folded - before.faults.folded;
        let neighbours = after.neighbours_brought - before.neighbours_brought;
        assert!(faults < ROWS / 4 && neighbours > ROWS / 2, "{faults} faults, {neighbours} neighbours");
    }
}
