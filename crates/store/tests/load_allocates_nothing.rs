//! A load allocates nothing, whatever the state and place of the page, and whatever fails.
//!
//! A fault handler loads pages in a thread that may have been interrupted inside the allocator. The tests count
//! requests to Rust's allocator and to C's `malloc`, which the C codecs use, by replacing both; glibc permits the
//! latter (its manual, "Replacing malloc"). Each test first shows that the counters work.

#![cfg(all(target_env = "gnu", not(loom)))]
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../codec/tests/support/counting_allocator.rs"]
mod counting_allocator;
mod support;

use crate::counting_allocator::counted;
use crate::support::rig::*;
use crate::support::{Random, page};
use pagefold_backing::layer::{DelayLayer, DelayOptions, ErrorLayer, StatsLayer, SystemClock, When};
use pagefold_backing::{Backing, Direct, FileBacking, FileOptions, MemoryBacking, Uring};
use pagefold_codec::{CodecSpec, table};
use pagefold_page::{Page, PageIndex};
use pagefold_pool::{Arena, FRAME_LEN, FrameSource, Frames, Purpose, SourceError, Take};
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{LoadError, Loaded, Loader, MemLimit, Store, StoreConfig};
use pagefold_testkit::skipped;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PAGES: u64 = 64;

fn load(store: &Store, loader: &mut Loader, index: u64) -> Result<Page, LoadError> {
    let mut page = [0xee; 4096];
    let (loaded, asked) = counted(|| {
        store.prefetch_slot(PageIndex(index));
        store.prefetch_object(PageIndex(index));
        store.load(PageIndex(index), loader, &mut page)
    });
    assert_eq!(asked, (0, 0), "page {index} of {:?}, {loaded:?}", store.codec());
    match loaded? {
        Loaded::Page => {}
        Loaded::Empty => page.fill(0),
        Loaded::SameFilled(word) => pagefold_store::fill(&mut page, word),
    }
    Ok(page)
}

/// All codecs of the table, and again with a dictionary and with window bits if they accept them.
fn codecs() -> Vec<CodecSpec> {
    let dictionary: Vec<u8> = (0..20_000u32).map(|i| (i / 7) as u8).collect();
    let plain = table().iter().map(|b| CodecSpec::named(b.name));
    let with = table().iter().filter(|b| b.dictionary);
    let with = with.map(|b| CodecSpec { dictionary: Some(dictionary.clone()), ..CodecSpec::named(b.name) });
    let windowed = table().iter().filter(|b| b.window_bits).flat_map(|b| {
        [-11, 15].map(|bits| CodecSpec { window_bits: Some(bits), ..CodecSpec::named(b.name) })
    });
    plain.chain(with).chain(windowed).collect()
}

fn config(codec: &CodecSpec) -> StoreConfig {
    let codec = codec.clone();
    StoreConfig { codec, mem_limit: MemLimit::Off, ..StoreConfig::new(PAGES * 4096) }
}

/// Whether this is one of the pages that every codec compresses.
fn is_soft(index: u64) -> bool {
    index % 8 > 5
}

/// Pages of every state in memory; those of empty slots are not written.
fn write_pages(store: &Store) {
    for index in (0..PAGES).filter(|i| i % 5 > 0) {
        let mut page = page(index);
        if is_soft(index) {
            let line = raw_page(index, 1);
            page.chunks_mut(100).for_each(|c| c.copy_from_slice(&line[..c.len()]));
        }
        write(store, index, &page);
    }
    let mm = store.stats().mm;
    assert!(
        mm.orig_data_size / 4096 > mm.same_pages + mm.huge_pages && mm.same_pages > 0 && mm.huge_pages > 0
    );
}

/// Loads every page, from a thread that has not loaded before.
fn load_all(store: &Store) {
    let expected: Vec<Page> = (0..PAGES).map(|i| read(store, i).unwrap()).collect();
    let (mut loader, asked) = counted(|| store.loader().unwrap());
    assert!(asked.0 > 0, "nothing is counted");
    std::thread::scope(|s| {
        s.spawn(|| {
            for (index, expected) in (0..).zip(&expected) {
                assert!(load(store, &mut loader, index).unwrap() == *expected, "page {index}");
            }
        });
    });
}

#[test]
fn of_a_page_in_memory() {
    for codec in codecs() {
        let store = Store::new(config(&codec)).unwrap();
        write_pages(&store);
        load_all(&store);
        // Rust's allocator calls C's: the difference are requests of C codecs.
        let asked = counted(|| drop(store.loader().unwrap())).1;
        let is_c = !codec.name.starts_with("lzo") && codec.name != "842";
        assert!(
            asked.0 > 0 && (asked.1 > asked.0) == is_c,
            "{}: the counters do not count: {asked:?}",
            codec.name
        );
    }
}

fn file(direct: Direct) -> Option<FileBacking> {
    let file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.set_len(segments(12) as u64).unwrap();
    let file = FileBacking::new(file, FileOptions { direct, uring: Uring::Auto });
    file.inspect_err(|e| skipped!("load_allocates_nothing: {direct:?}: {e}")).ok()
}

fn media() -> Vec<Arc<dyn Backing>> {
    let memory = || MemoryBacking::new(segments(12));
    let options = DelayOptions { delay: Duration::from_micros(1), ..DelayOptions::default() };
    let delayed = DelayLayer::new(memory(), options, Arc::new(SystemClock::default()));
    let mut media: Vec<Arc<dyn Backing>> = vec![Arc::new(memory()), Arc::new(delayed)];
    for direct in [Direct::Off, Direct::On] {
        media.extend(file(direct).map(|file| Arc::new(file) as Arc<dyn Backing>));
        media.extend(file(direct).map(|file| Arc::new(StatsLayer::new(file)) as Arc<dyn Backing>));
    }
    media
}

#[test]
fn of_a_written_back_page() {
    for backing in media() {
        for layout in LAYOUTS {
            for codec in codecs() {
                let mut store = Store::new(config(&codec)).unwrap();
                store.attach(WritebackConfig { backing: backing.clone(), layout }).unwrap();
                write_pages(&store);
                assert!(write_back_all(&store).written_back_pages > 30);
                load_all(&store);
                assert_eq!((stats(&store).corrupt_pages, stats(&store).unreadable_pages), (0, 0));
            }
        }
    }
}

type Failing = ErrorLayer<Box<dyn Backing>>;

/// Creates a store of written-back pages on a medium that can be made to fail, and returns both.
fn written_back_store(layout: LayoutKind, file: bool) -> Option<(Store, Arc<Failing>)> {
    let medium: Box<dyn Backing> =
        if file { Box::new(self::file(Direct::On)?) } else { Box::new(MemoryBacking::new(segments(12))) };
    let backing = Arc::new(ErrorLayer::new(medium));
    let store = store_on(backing.clone(), layout, PAGES);
    write_pages(&store);
    write_back_all(&store);
    Some((store, backing))
}

#[test]
fn of_a_written_back_page_that_cannot_be_read() {
    for (layout, is_file) in LAYOUTS.into_iter().flat_map(|l| [(l, false), (l, true)]) {
        let Some((store, backing)) = written_back_store(layout, is_file) else { continue };
        let medium = backing.control();
        let mut loader = store.loader().unwrap();
        let is_written_back = |i: u64| !i.is_multiple_of(5) && i % 8 > 1;
        medium.fail_reads(When::Always, libc::EIO);
        for index in (0..PAGES).filter(|i| is_written_back(*i)) {
            let error = load(&store, &mut loader, index).unwrap_err();
            assert!(matches!(error, LoadError::ReadBack { errno: libc::EIO, .. }), "{error}");
        }
        medium.clear();
        let len = 2 * SEGMENT_LEN as usize;
        backing.write_at(DATA_START, &vec![0x5a; len]).unwrap();
        for index in (0..PAGES).filter(|i| is_written_back(*i)) {
            let error = load(&store, &mut loader, index).unwrap_err();
            assert!(matches!(error, LoadError::CorruptRecord { .. }), "{error}");
        }
    }
}

/// A frame source that records the addresses of the frames for objects.
struct RecordingSource {
    arena: Arc<Arena>,
    frames: Arc<Mutex<Vec<usize>>>,
    /// The purpose of the last charge: the only writing thread obtains frames for it.
    charged: Mutex<Option<Purpose>>,
}

impl RecordingSource {
    fn note(&self, frames: &Frames) {
        for frame in frames.ids() {
            self.frames.lock().unwrap().push(self.arena.frame_ptr(frame).expose_provenance());
        }
    }
}

// SAFETY: all frames come from the arena and are passed on unchanged.
unsafe impl FrameSource for RecordingSource {
    fn try_take(&self, purpose: Purpose, count: usize) -> Take {
        let take = self.arena.try_take(purpose, count);
        if let (Take::Frames(frames), Purpose::Objects) = (&take, purpose) {
            self.note(frames);
        }
        take
    }
    fn charge(&self, purpose: Purpose, count: usize) -> Result<(), SourceError> {
        *self.charged.lock().unwrap() = Some(purpose);
        self.arena.charge(purpose, count)
    }
    fn refund(&self, purpose: Purpose, count: usize) {
        self.arena.refund(purpose, count);
    }
    fn obtain(&self, count: usize) -> Result<Frames, SourceError> {
        let obtained = self.arena.obtain(count)?;
        if *self.charged.lock().unwrap() == Some(Purpose::Objects) {
            self.note(&obtained);
        }
        Ok(obtained)
    }
    fn release(&self, frame: pagefold_pool::Frame, purpose: Purpose) {
        self.arena.release(frame, purpose);
    }
    fn shrink(&self) {}
    fn arena(&self) -> &Arena {
        &self.arena
    }
}

#[test]
fn of_a_page_that_does_not_decode() {
    for codec in codecs() {
        let config = config(&codec);
        let (arena, frames) = (Arc::new(Arena::new(1 << 24).unwrap()), Arc::default());
        let source = RecordingSource { arena, frames: Arc::clone(&frames), charged: Mutex::default() };
        let store = Store::with_source(config, Arc::new(source)).unwrap();
        write_pages(&store);
        let mut loader = store.loader().unwrap();
        for frame in frames.lock().unwrap().iter() {
            // SAFETY: a frame of the store, which still exists; no other thread uses the store, and only objects and
            // their owner words are overwritten, which loads do not interpret.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(*frame).write_bytes(0xff, FRAME_LEN) };
        }
        for index in (0..PAGES).filter(|i| i % 5 > 0 && is_soft(*i)) {
            let error = load(&store, &mut loader, index).err();
            assert_eq!(error, Some(LoadError::Corrupt { index: PageIndex(index) }), "{}", codec.name);
        }
        // A page that no codec compresses.
        assert!(load(&store, &mut loader, 2) == Ok([0xff; 4096]));
    }
}

#[test]
fn beside_writers_passes_and_the_cleaner() {
    for layout in LAYOUTS {
        let store = store_on(Arc::new(MemoryBacking::new(segments(6))), layout, PAGES);
        let (store, is_done) = (&store, &AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut random = Random(5);
                while !is_done.load(SeqCst) {
                    let first = random.below(PAGES);
                    write(store, first, &page(random.next()));
                    write_back(store, first, (first + 8).min(PAGES - 1));
                    store.run_maintenance(true);
                    store.compact();
                }
            });
            let loaders = [1, 2].map(|seed| {
                s.spawn(move || {
                    let (mut random, mut loader) = (Random(seed), store.loader().unwrap());
                    // Continue until enough pages were written back during loads: the writer may be scheduled late.
                    for turn in 0..3_000_000 {
                        if turn > 30_000 && turn % 256 == 0 && stats(store).bd.bd_reads > 1000 {
                            break;
                        }
                        // Few pages, so that threads access the same ones.
                        let mut page = [0; 4096];
                        let index = PageIndex(random.below(PAGES));
                        let (loaded, asked) = counted(|| store.load(index, &mut loader, &mut page));
                        assert!(loaded.is_ok() && asked == (0, 0), "{loaded:?} {asked:?}");
                    }
                })
            });
            let results = loaders.map(|l| l.join());
            is_done.store(true, SeqCst);
            results.into_iter().for_each(|r| r.unwrap());
        });
        assert!(stats(store).bd.bd_reads > 1000);
    }
}
