//! `Store::load` agrees with `Store::read` and with plain bytes, in every state of a page. Known mistakes that these
//! tests exclude: a buffer too short for a record that spans three blocks; a load that writes the caller's page
//! although there is nothing to write; an error that is returned although the page was rewritten.

use crate::support::gate::Gated;
use crate::support::rig::*;
use crate::support::{PlainBytes, Random, page};
use pagefold_backing::layer::{ErrorLayer, When};
use pagefold_backing::{Backing, ByteSource, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use pagefold_codec::{CodecSpec, names};
use pagefold_page::{Page, PageIndex};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{LoadError, Loaded, Loader, MemLimit, Store, StoreConfig, fill};
use pagefold_testkit::skipped;
use std::sync::Arc;

const PAGES: u64 = 96;
const BACKING_LEN: usize = segments(12);

/// Loads a page, and checks that only [`Loaded::Page`] wrote to the buffer.
fn load(store: &Store, loader: &mut Loader, index: u64) -> Result<Page, LoadError> {
    let mut page = [0xee; 4096];
    prefetch(store, index);
    let loaded = store.load(PageIndex(index), loader, &mut page)?;
    assert!(loaded == Loaded::Page || page == [0xee; 4096], "{loaded:?} wrote the page");
    match loaded {
        Loaded::Page => {}
        Loaded::Empty => page.fill(0),
        Loaded::SameFilled(word) => fill(&mut page, word),
    }
    Ok(page)
}

/// Gives both prefetch hints.
fn prefetch(store: &Store, index: u64) {
    store.prefetch_slot(PageIndex(index));
    store.prefetch_object(PageIndex(index));
}

#[test]
fn prefetch_hints_change_nothing() {
    let store = store_on(Arc::new(MemoryBacking::new(BACKING_LEN)), LAYOUTS[0], PAGES);
    (0..PAGES).for_each(|i| prefetch(&store, i));
    assert_eq!(store.stats().memory.slots, 0);
    fill_store(&store, 5);
    write_back(&store, 0, PAGES / 2);
    let seen = || (0..PAGES).map(|i| read(&store, i).unwrap()).collect::<Vec<_>>();
    let (before, memory) = (seen(), store.stats().memory);
    let reads = stats(&store).bd.bd_reads;
    for index in (0..PAGES).chain([PAGES, PAGES + 1, 1 << 38, u64::MAX]) {
        prefetch(&store, index);
    }
    assert_eq!((stats(&store).bd.bd_reads, store.stats().memory), (reads, memory));
    assert!(seen() == before);
}

fn config(codec: &str) -> StoreConfig {
    let codec = CodecSpec::named(codec);
    StoreConfig { codec, mem_limit: MemLimit::Off, ..StoreConfig::new(PAGES * 4096) }
}

/// Pages of all kinds, one in five empty.
fn fill_store(store: &Store, seed: u64) {
    for index in (0..PAGES).filter(|i| i % 5 > 0) {
        write(store, index, &page(seed + index));
    }
    // Pages that each codec compresses well.
    for index in (0..PAGES).filter(|i| i % 5 == 1) {
        let line = raw_page(index, seed);
        let mut page = [0; 4096];
        page.chunks_mut(100).for_each(|c| c.copy_from_slice(&line[..c.len()]));
        write(store, index, &page);
    }
}

/// Compares each page loaded and read. Loads first, because a read may promote the page.
fn agree(store: &Store, loader: &mut Loader) {
    let loaded: Vec<Page> = (0..PAGES).map(|i| load(store, loader, i).unwrap()).collect();
    for (index, loaded) in (0..).zip(loaded) {
        assert!(loaded == read(store, index).unwrap(), "page {index}");
        assert_eq!(store.is_stored(PageIndex(index)), index % 5 > 0);
    }
}

#[test]
fn a_load_agrees_with_a_read_for_every_codec() {
    for name in names() {
        let store = Store::new(config(name)).unwrap();
        fill_store(&store, 0);
        agree(&store, &mut store.loader().unwrap());
    }
}

fn file(direct: Direct) -> Option<Arc<dyn Backing>> {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(BACKING_LEN as u64).unwrap();
    match FileBacking::new(file, FileOptions { direct, uring: Uring::Auto }) {
        Ok(file) => Some(Arc::new(file)),
        Err(e) => {
            skipped!("a_load_agrees_with_a_read_of_written_back_pages: {direct:?}: {e}");
            None
        }
    }
}

#[test]
fn a_load_agrees_with_a_read_of_written_back_pages() {
    for layout in LAYOUTS {
        let memory: Option<Arc<dyn Backing>> = Some(Arc::new(MemoryBacking::new(BACKING_LEN)));
        for backing in [memory, file(Direct::Off), file(Direct::On)].into_iter().flatten() {
            for name in names() {
                let mut store = Store::new(config(name)).unwrap();
                store.attach(WritebackConfig { backing: backing.clone(), layout }).unwrap();
                fill_store(&store, 3);
                write_back_all(&store);
                // Promote some pages.
                (0..PAGES).filter(|i| i % 7 == 1).for_each(|i| write(&store, i, &page(i)));
                (0..PAGES).filter(|i| i % 5 == 0).for_each(|i| store.discard(i * 4096, 4096).unwrap());
                let before = stats(&store);
                agree(&store, &mut store.loader().unwrap());
                let after = stats(&store);
                assert!(after.bd.bd_reads > before.bd.bd_reads && after.reads > before.reads);
                assert_eq!((after.unreadable_pages, after.corrupt_pages, after.read_repeats), (0, 0, 0));
            }
        }
    }
}

#[test]
fn loads_agree_with_plain_bytes_along_a_random_history() {
    for layout in LAYOUTS {
        let store = store_on(Arc::new(MemoryBacking::new(BACKING_LEN)), layout, PAGES);
        writeback(&store).settings().promote.store(true);
        let (mut loader, mut random) = (store.loader().unwrap(), Random(77));
        let mut model = PlainBytes(vec![0; PAGES as usize * 4096]);
        for _ in 0..20_000 {
            let index = random.below(PAGES);
            match random.below(20) {
                0..4 => {
                    let page = page(random.next());
                    write(&store, index, &page);
                    model.write(index * 4096, &page);
                }
                4 => {
                    store.discard(index * 4096, 4096).unwrap();
                    model.discard(index * 4096, 4096);
                }
                5 => {
                    write_back(&store, index, (index + 20).min(PAGES - 1));
                }
                6 => store.run_maintenance(true),
                7 => assert!(read(&store, index).is_ok()),
                _ => {
                    let loaded = load(&store, &mut loader, index).unwrap();
                    assert!(loaded[..] == model.0[index as usize * 4096..][..4096], "page {index}");
                }
            }
        }
        assert!(stats(&store).bd.bd_reads > 1000);
    }
}

#[test]
fn a_page_outside_the_store_is_empty() {
    let store = Store::new(StoreConfig::new(300 * 4096)).unwrap();
    (0..300).for_each(|i| write(&store, i, &raw_page(i, 1)));
    let mut loader = store.loader().unwrap();
    for index in [300, 511, 512, 1 << 40, u64::MAX] {
        assert_eq!(load(&store, &mut loader, index).unwrap(), [0; 4096]);
        assert!(!store.is_stored(PageIndex(index)));
    }
}

#[test]
fn words_fill_pages_in_memory_order() {
    for word in [0, u64::MAX, 0x0102_0304_0506_0708, 0xff << 56] {
        let mut page = [0xee; 4096];
        fill(&mut page, word);
        for bytes in page.chunks(8) {
            assert_eq!(bytes, word.to_ne_bytes());
        }
        let store = Store::new(StoreConfig::new(4096)).unwrap();
        write(&store, 0, &page);
        let loaded = store.load(PageIndex(0), &mut store.loader().unwrap(), &mut [0; 4096]);
        assert_eq!(loaded, Ok(Loaded::SameFilled(word)));
    }
}

#[test]
fn bytes_held_and_their_limit_are_those_of_the_statistics() {
    let store = Store::new(config("lz4")).unwrap();
    assert_eq!((store.in_use_bytes(), store.mem_limit_bytes()), (0, u64::MAX));
    fill_store(&store, 0);
    assert!(store.in_use_bytes() > 0);
    assert_eq!(store.in_use_bytes(), store.stats().mm.mem_used_total);
    store.set_mem_limit(MemLimit::Bytes(5 << 20));
    assert_eq!(store.mem_limit_bytes(), 5 << 20);
    discard_all(&store);
    assert_eq!(store.in_use_bytes(), 0);
}

#[test]
fn a_failing_medium_is_reported_and_the_page_stays() {
    for layout in LAYOUTS {
        let backing = Arc::new(ErrorLayer::new(MemoryBacking::new(BACKING_LEN)));
        let medium = backing.control();
        let store = store_on(backing, layout, PAGES);
        let mut loader = store.loader().unwrap();
        write(&store, 7, &soft_page(7, 1));
        write_back_all(&store);
        medium.fail_reads(When::Always, libc::ENXIO);
        let error = load(&store, &mut loader, 7).unwrap_err();
        let LoadError::ReadBack { index: PageIndex(7), offset, errno: libc::ENXIO } = error else {
            panic!("{error}")
        };
        assert!((DATA_START..DATA_START + 4096).contains(&offset));
        assert!(error.to_string().contains("page 7") && error.to_string().contains(&offset.to_string()));
        assert_eq!((stats(&store).unreadable_pages, store.stats().io.failed_reads), (1, 1));
        medium.clear();
        assert!(load(&store, &mut loader, 7).unwrap() == soft_page(7, 1));
    }
}

#[test]
fn a_corrupt_record_is_reported_and_the_page_can_be_rewritten() {
    for layout in LAYOUTS {
        let backing = Arc::new(MemoryBacking::new(BACKING_LEN));
        let store = store_on(backing.clone(), layout, PAGES);
        let mut loader = store.loader().unwrap();
        write(&store, 7, &soft_page(7, 1));
        write_back_all(&store);
        let mut byte = [0];
        backing.read_at(DATA_START + 700, &mut byte).unwrap();
        backing.write_at(DATA_START + 700, &[!byte[0]]).unwrap();
        for count in 1..3 {
            let error = load(&store, &mut loader, 7).unwrap_err();
            assert!(matches!(error, LoadError::CorruptRecord { index: PageIndex(7), .. }), "{error}");
            // A corrupt record is read twice before it is reported.
            let now = stats(&store);
            assert_eq!((now.corrupt_pages, now.read_repeats, now.reads), (count, count, 2 * count));
        }
        assert!(read(&store, 7).is_err());
        write(&store, 7, &soft_page(7, 2));
        assert!(load(&store, &mut loader, 7).unwrap() == soft_page(7, 2));
    }
}

#[test]
fn an_error_is_not_reported_if_the_page_was_rewritten_in_the_meantime() {
    for layout in LAYOUTS {
        for errno in [0, libc::EIO] {
            let medium = Gated::new(BACKING_LEN);
            let store = store_on(medium.clone(), layout, PAGES);
            let mut loader = store.loader().unwrap();
            write(&store, 7, &soft_page(7, 1));
            write_back_all(&store);
            medium.reads.close();
            std::thread::scope(|s| {
                let _opens = medium.opens_on_failure();
                let loaded = s.spawn(|| load(&store, &mut loader, 7));
                medium.reads.wait_for_arrival();
                write(&store, 7, &soft_page(7, 2));
                medium.reads.open(errno);
                assert!(loaded.join().unwrap().unwrap() == soft_page(7, 2));
            });
            assert_eq!((stats(&store).unreadable_pages, stats(&store).read_repeats), (0, 1));
        }
    }
}

#[test]
fn a_segment_is_not_overwritten_while_a_load_reads_it() {
    let medium = Gated::new(segments(6));
    let store = store_on(medium.clone(), LayoutKind::Log, PAGES);
    let mut loader = store.loader().unwrap();
    (0..63).for_each(|i| write(&store, i, &raw_page(i, 1)));
    write_back(&store, 0, 62);
    let first_segment = || {
        let mut bytes = vec![0; SEGMENT_LEN as usize];
        medium.inner.read_at(DATA_START, &mut bytes).unwrap();
        bytes
    };
    let before = first_segment();
    medium.reads.close_for(1);
    std::thread::scope(|s| {
        let _opens = medium.opens_on_failure();
        let loaded = s.spawn(|| load(&store, &mut loader, 7).unwrap());
        medium.reads.wait_for_arrival();
        discard_all(&store);
        // Reuse all other segments many times.
        for version in 2..40 {
            (20..90).for_each(|i| write(&store, i, &raw_page(i, version)));
            assert!(write_back_all(&store).written_back_pages > 60);
            store.run_maintenance(true);
        }
        assert!(first_segment() == before, "the segment was given away under the load");
        medium.reads.open(0);
        // The page was discarded, and the load detects it.
        assert!(loaded.join().unwrap() == [0; 4096]);
    });
    assert_eq!((stats(&store).read_repeats, stats(&store).corrupt_pages), (1, 0));
    assert_all_free(&store);
}
