//! The statistics count what a region takes besides the memory of its pages, also where few pages are touched in a large
//! range.

use crate::support::{each, read, text, write};
use pagefold_memory::{Region, RegionConfig};

/// Pages that are touched, each alone in its 4 MiB.
const PAGES: u64 = 1024;
const STEP: u64 = 1024;
const LIMIT: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

#[test]
fn tables_of_a_sparse_region_are_counted() {
    each("tables_of_a_sparse_region", |mode| {
        let (service, eviction) = crate::support::MODES[mode];
        let config =
            RegionConfig { service, eviction, ..RegionConfig::new(PAGES * STEP * PAGE_BYTES, LIMIT) };
        let region = Region::new(config).unwrap();
        let memory = region.stats().memory;
        assert!(memory.metadata < 64 << 10 && memory.page_tables == 0, "{memory:?}");
        (0..PAGES).for_each(|at| write(&region, at * STEP, &text(at)));
        (0..PAGES).for_each(|at| assert!(read(&region, at * STEP) == text(at), "{at}"));
        let stats = region.stats();
        let memory = stats.memory;
        // The words of each page, its hash, its slot, and its page table take a page of memory each.
        let evicted = stats.folded_bytes / PAGE_BYTES;
        assert!(evicted >= PAGES - LIMIT / PAGE_BYTES, "{stats:#?}");
        let metadata = (PAGES + 2 * evicted) * PAGE_BYTES..(3 * PAGES + 64) * PAGE_BYTES;
        assert!(metadata.contains(&memory.metadata), "{stats:#?}");
        assert!(memory.metadata <= memory.metadata_max, "{stats:#?}");
        let page_tables = PAGES * PAGE_BYTES..(PAGES + 16) * PAGE_BYTES;
        assert!(page_tables.contains(&memory.page_tables), "{stats:#?}");
    });
}
