//! The frame source refuses each request for memory in turn: the old page stays readable, and the next write
//! succeeds.

use crate::support::{PlainBytes, page};
use pagefold_page::PAGE_SIZE;
use pagefold_pool::{Arena, RefuseNth};
use pagefold_store::{MemLimit, SourceError, Store, StoreConfig, StoreError};
use std::sync::Arc;

const PAGES: u64 = 40;

fn check(store: &Store, model: &PlainBytes, n: u64) {
    let mut all = vec![0; model.0.len()];
    store.read(0, &mut all).unwrap();
    assert!(all == model.0, "contents differ after refusing frame {n}");
}

#[test]
fn refusing_the_nth_frame_for_every_n_keeps_the_old_page() {
    let len_bytes = 600 * PAGE_SIZE as u64; // three chunks of slots, so that those are refused too
    let mut refused_any = true;
    let mut n = 0;
    while refused_any {
        let source = Arc::new(RefuseNth::new(Arena::new(64 << 20).unwrap(), u64::MAX));
        let config = StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(len_bytes) };
        let store = Store::with_source(config, source.clone()).unwrap();
        let mut model = PlainBytes(vec![0; len_bytes as usize]);
        for i in 0..PAGES {
            store.write(i * 4096, &page(i + 2)).unwrap();
            model.write(i * 4096, &page(i + 2));
        }
        source.refuse_after(n);
        refused_any = false;
        // Overwrites, new pages in chunks that are not allocated yet, and parts of pages.
        for i in 0..3 * PAGES {
            let (offset, data) = match i % 3 {
                0 => (i / 3 * 4096, page(i + 3).to_vec()),
                1 => ((256 + i * 2) * 4096, page(i + 2).to_vec()),
                _ => (i / 3 * 4096 + 700, page(i)[..900].to_vec()),
            };
            match store.write(offset, &data) {
                Ok(()) => model.write(offset, &data),
                Err(StoreError::NoMemory { source: SourceError::RefusedByTest, .. }) => refused_any = true,
                Err(e) => panic!("{e}"),
            }
            // Reading one page detects damage early; all pages are compared at the end.
            let mut got = [0; PAGE_SIZE];
            store.read(offset / 4096 * 4096, &mut got).unwrap();
            assert!(got == model.0[offset as usize / 4096 * 4096..][..PAGE_SIZE], "frame {n}, step {i}");
        }
        check(&store, &model, n);
        source.allow();
        for i in 0..PAGES {
            store.write(i * 4096, &page(i)).unwrap();
            model.write(i * 4096, &page(i));
        }
        check(&store, &model, n);
        n += 1;
    }
    assert!(n > 20, "only {n} frames were ever asked for: the test proves too little");
}
