//! Saves while pages change: the saved contents are those of one moment, whatever happens during the save.

use crate::support::rig::{LAYOUTS, segments, write_back};
use crate::support::{PlainBytes, Random, page};
use pagefold_backing::MemoryBacking;
use pagefold_backing::layer::{ErrorLayer, When};
use pagefold_page::{PAGE_SIZE, PageIndex};
use pagefold_store::recompress::RecompressRequest;
use pagefold_store::writeback::{LayoutKind, WritebackConfig};
use pagefold_store::{
    CodecSpec, MemLimit, Save, SaveError, SavedContents, Store, StoreConfig, StoreError, WritebackThread,
};
use pagefold_sys::sharedmem::SharedMemory;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

pub const PAGES: u64 = 500;
pub const PAGE: u64 = PAGE_SIZE as u64;

/// The contents of a saved page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    Compressed(u8, Vec<u8>),
    Raw(Box<[u8; PAGE_SIZE]>),
    SameFilled(u64),
    Lost,
}

#[derive(Default)]
pub struct Target(pub BTreeMap<u64, Saved>);

impl Target {
    pub fn step(&mut self, save: &mut Save) -> Result<bool, SaveError> {
        save.step(&mut |index, contents| self.take(index, contents))
    }

    pub fn take_captured(&mut self, save: &mut Save) {
        save.take_captured(&mut |index, contents| self.take(index, contents)).unwrap();
    }

    fn take(&mut self, index: PageIndex, contents: SavedContents<'_>) -> std::io::Result<()> {
        let saved = match contents {
            SavedContents::Compressed { priority, bytes } => Saved::Compressed(priority, bytes.to_vec()),
            SavedContents::Raw(page) => Saved::Raw(Box::new(*page)),
            SavedContents::SameFilled(word) => Saved::SameFilled(word),
            SavedContents::Lost => Saved::Lost,
        };
        assert!(self.0.insert(index.0, saved).is_none(), "page {index} twice");
        Ok(())
    }

    pub fn finish(mut self, mut save: Save) -> Self {
        while self.step(&mut save).unwrap() {}
        self
    }

    /// The saved bytes, read through a store that they are restored to.
    pub fn bytes(&self) -> Vec<u8> {
        let store = Store::new(config(MemLimit::Off)).unwrap();
        for (index, saved) in &self.0 {
            let contents = match saved {
                Saved::Compressed(priority, bytes) => {
                    SavedContents::Compressed { priority: *priority, bytes }
                }
                Saved::Raw(page) => SavedContents::Raw(page),
                Saved::SameFilled(word) => SavedContents::SameFilled(*word),
                Saved::Lost => SavedContents::Lost,
            };
            assert!(store.restore(PageIndex(*index), contents).unwrap());
            assert!(!store.restore(PageIndex(*index), contents).unwrap(), "a page with contents stays");
        }
        let mut bytes = vec![1; (PAGES * PAGE) as usize];
        store.read(0, &mut bytes).unwrap();
        bytes
    }
}

pub fn config(mem_limit: MemLimit) -> StoreConfig {
    StoreConfig {
        mem_limit,
        access_times: true,
        further_codecs: [Some(CodecSpec::named("zstd")), None, None],
        ..StoreConfig::new(PAGES * PAGE)
    }
}

pub fn store(layout: Option<LayoutKind>, mem_limit: MemLimit) -> Store {
    let mut store = Store::new(config(mem_limit)).unwrap();
    if let Some(layout) = layout {
        let backing = Arc::new(MemoryBacking::new(segments(20)));
        store.attach(WritebackConfig { backing, layout }).unwrap();
    }
    store
}

/// A random operation on the store and on its model.
pub fn change(store: &Store, model: &mut PlainBytes, random: &mut Random) {
    let index = random.below(PAGES);
    let (offset, most) = (index * PAGE, (PAGES - index) * PAGE);
    match random.below(20) {
        0..8 => {
            let page = page(random.next());
            if store.write(offset, &page).is_ok() {
                model.write(offset, &page);
            }
        }
        8..12 => {
            let (at, len) = (random.below(4000), random.below(5000) + 1);
            let (at, len) = (offset + at, len.min(most.saturating_sub(at)));
            let data = vec![random.next() as u8; len as usize];
            // A write of several pages that fails may have changed the first.
            if at / PAGE == (at + len.max(1) - 1) / PAGE && store.write(at, &data).is_ok() {
                model.write(at, &data);
            }
        }
        12..14 => {
            let len = (random.below(20) * 1000).min(most);
            store.discard(offset, len).unwrap();
            model.discard(offset, len);
        }
        14 => {
            let word = random.below(2) * 0x0101_0101_0101_0101;
            store.write_same_filled(PageIndex(index), word).unwrap();
            model.write(offset, &[word as u8; PAGE_SIZE]);
        }
        15 | 16 if store.writeback().is_some() => {
            write_back(store, index, (index + 40).min(PAGES - 1));
        }
        17 => {
            let request = RecompressRequest { pages_max: Some(30), ..RecompressRequest::default() };
            store.recompress(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        }
        18 => _ = store.compact(),
        _ => {
            let mut page = [0; PAGE_SIZE];
            store.read(offset, &mut page).unwrap();
            assert!(page == model.0[offset as usize..][..PAGE_SIZE]);
        }
    }
}

/// Changes between all steps of saves: in memory, with both layouts, and at a memory limit.
#[test]
fn a_save_has_the_contents_of_its_beginning() {
    let layouts = [None].into_iter().chain(LAYOUTS.map(Some));
    let mut changed = 0;
    for (layout, limit) in layouts.flat_map(|l| [(l, MemLimit::Off), (l, MemLimit::Bytes(300 << 10))]) {
        for seed in 1..9 {
            let store = store(layout, limit);
            let mut model = PlainBytes(vec![0; (PAGES * PAGE) as usize]);
            let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
            (0..900).for_each(|_| change(&store, &mut model, &mut random));
            for _ in 0..3 {
                let mut save = store.begin_save().unwrap();
                assert!(matches!(store.begin_save(), Err(SaveError::Busy)));
                let before = model.0.clone();
                let mut target = Target::default();
                loop {
                    (0..random.below(120)).for_each(|_| change(&store, &mut model, &mut random));
                    if random.below(3) == 0 {
                        target.take_captured(&mut save);
                        (0..random.below(20)).for_each(|_| change(&store, &mut model, &mut random));
                    }
                    if !target.step(&mut save).unwrap() {
                        break;
                    }
                }
                drop(save);
                changed += u64::from(before != model.0);
                assert!(target.bytes() == before, "{layout:?} {limit:?} {seed}");
                // Without a save, nothing is captured any more, and all memory is that of the pages.
                (0..50).for_each(|_| change(&store, &mut model, &mut random));
                let mut now = vec![0; model.0.len()];
                store.read(0, &mut now).unwrap();
                assert!(now == model.0);
            }
            store.discard(0, store.len_bytes()).unwrap();
            assert_eq!(store.stats().mm.mem_used_total, 0);
        }
    }
    assert!(changed > 100, "{changed}");
}

/// At the limit, a write overwrites the object in its place: the save gets the old bytes first.
#[test]
fn bytes_that_are_overwritten_in_their_place_are_saved_before() {
    let store = store(None, MemLimit::Bytes(40 * PAGE));
    let kinds = |seed: u64| page(seed * 8 + 2);
    let fits =
        (0..PAGES).take_while(|index| store.write(index * PAGE, &kinds(*index)).is_ok()).count() as u64;
    let mut before = vec![0; (PAGES * PAGE) as usize];
    store.read(0, &mut before).unwrap();
    let save = store.begin_save().unwrap();
    (0..fits).for_each(|index| store.write(index * PAGE, &kinds(index + 1000)).unwrap());
    (0..fits).for_each(|index| store.write(index * PAGE, &kinds(index + 2000)).unwrap());
    assert!(Target::default().finish(save).bytes() == before);
}

/// Pages as a writer of the test below leaves them: it writes the same version to all of its pages in an order.
fn versions(bytes: &[u8], writer: u64) -> Vec<u64> {
    let of = |index: u64| &bytes[(index * PAGE) as usize..][..PAGE_SIZE];
    order(writer)
        .map(|index| {
            let version = u64::from_le_bytes(of(index)[..8].try_into().unwrap());
            assert!(version == 0 && of(index) == [0; PAGE_SIZE] || of(index) == stamped(index, version));
            version
        })
        .collect()
}

const WRITERS: u64 = 3;
const OWN_PAGES: u64 = 150;

/// The pages of a writer in the order in which it writes them: all over the disk.
fn order(writer: u64) -> impl Iterator<Item = u64> {
    (0..OWN_PAGES).map(move |at| at * 77 % OWN_PAGES * WRITERS + writer)
}

fn stamped(index: u64, version: u64) -> [u8; PAGE_SIZE] {
    let mut page = page((index + version) % 6 + 2);
    page[..8].copy_from_slice(&version.to_le_bytes());
    page
}

/// Calls `run` 40 times while threads write their pages in order, each time after `writes` further pages. Ends early if the
/// writers, whose work is bounded, have ended.
pub fn beside_writers(store: &Arc<Store>, writes: u64, mut run: impl FnMut()) {
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let writers = (0..WRITERS).map(|writer| {
            let (stop, written) = (&stop, &written);
            s.spawn(move || {
                let mut version = 1;
                // Bounded, so that a failed assertion ends the test.
                while !stop.load(SeqCst) && version < 5000 {
                    for index in order(writer) {
                        store.write(index * PAGE, &stamped(index, version)).unwrap();
                        written.fetch_add(1, SeqCst);
                    }
                    version += 1;
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        for _ in 0..40 {
            let start = written.load(SeqCst);
            while written.load(SeqCst) < start + writes && !writers.iter().all(|writer| writer.is_finished())
            {
                std::thread::yield_now();
            }
            run();
        }
        stop.store(true, SeqCst);
    });
}

/// Asserts that the saved bytes are of one moment: the pages of a writer in its order have one version, or the first of them
/// have that version and the rest the one before. Returns for how many writers the latter is so.
pub fn assert_one_moment(bytes: &[u8]) -> u64 {
    let mut torn = 0;
    for writer in 0..WRITERS {
        let versions = versions(bytes, writer);
        let (first, last) = (versions[0], versions[versions.len() - 1]);
        assert!(versions.is_sorted_by(|a, b| a >= b) && first - last <= 1, "{versions:?}");
        torn += u64::from(first != last);
    }
    torn
}

/// Threads write while saves run.
#[test]
fn saves_beside_threads_are_consistent() {
    for (layout, limit) in [(None, MemLimit::Off), (Some(LayoutKind::Log), MemLimit::Bytes(500 << 10))] {
        let store = Arc::new(store(layout, limit));
        let thread = layout.map(|_| WritebackThread::start(store.clone()).unwrap());
        let mut torn = 0;
        beside_writers(&store, 300, || {
            let bytes = Target::default().finish(store.begin_save().unwrap()).bytes();
            torn += assert_one_moment(&bytes);
        });
        drop(thread);
        assert!(torn > 0, "no save began in the middle of a round");
    }
}

#[test]
fn an_error_of_the_target_or_the_medium_ends_the_save_and_harms_nothing() {
    let store = store(None, MemLimit::Off);
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index)).unwrap());
    let mut save = store.begin_save().unwrap();
    let error = save.step(&mut |_, _| Err(std::io::Error::from_raw_os_error(28))).unwrap_err();
    assert!(matches!(error, SaveError::Target(e) if e.raw_os_error() == Some(28)));
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index + 1)).unwrap());
    drop(save);
    let saved = Target::default().finish(store.begin_save().unwrap());
    assert_eq!(saved.bytes()[..PAGE_SIZE], page(1));

    let backing = Arc::new(ErrorLayer::new(MemoryBacking::new(segments(6))));
    let medium = backing.control();
    let mut store = Store::new(config(MemLimit::Off)).unwrap();
    store.attach(WritebackConfig { backing, layout: LayoutKind::Log }).unwrap();
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index)).unwrap());
    write_back(&store, 0, PAGES - 1);
    medium.fail_reads(When::Always, libc::EIO);
    let error = {
        let mut save = store.begin_save().unwrap();
        loop {
            match Target::default().step(&mut save) {
                Ok(more) => assert!(more),
                Err(error) => break error,
            }
        }
    };
    assert!(matches!(error, SaveError::Page(StoreError::ReadBack { .. })), "{error}");
    // A writer that has to read the old contents and cannot is not stopped: the save fails.
    let mut save = store.begin_save().unwrap();
    store.write((PAGES - 1) * PAGE, &page(3)).unwrap();
    let error = Target::default().step(&mut save).unwrap_err();
    assert!(matches!(error, SaveError::Page(StoreError::ReadBack { .. })), "{error}");
}

/// Writers that wait for a save go on when another thread gives it up, and the save fails.
#[test]
fn a_save_that_is_given_up_lets_writers_go_on() {
    let store =
        Store::new(StoreConfig { mem_limit: MemLimit::Off, ..StoreConfig::new(5000 * PAGE) }).unwrap();
    (0..5000).for_each(|index| store.write(index * PAGE, &page(index * 8 + 2)).unwrap());
    let mut save = store.begin_save().unwrap();
    let watch = save.watch();
    std::thread::scope(|s| {
        // More pages than can be captured.
        let writer = s.spawn(|| (0..5000).for_each(|index| store.write(index * PAGE, &page(index)).unwrap()));
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!writer.is_finished() && !watch.is_given_up());
        watch.give_up();
        writer.join().unwrap();
    });
    let error = Target::default().step(&mut save).unwrap_err();
    assert!(matches!(error, SaveError::GivenUp), "{error}");
    drop(save);
    store.begin_save().unwrap();
}

/// A lost page is saved as lost, and restored so. A page beyond the store, or of a codec that it lacks, is refused.
#[test]
fn lost_pages_stay_lost_and_impossible_ones_are_refused() {
    let store = store(None, MemLimit::Off);
    assert!(store.restore(PageIndex(3), SavedContents::Lost).unwrap());
    let mut page = [0; PAGE_SIZE];
    assert!(matches!(store.read(3 * PAGE, &mut page), Err(StoreError::Lost { .. })));
    let saved = Target::default().finish(store.begin_save().unwrap());
    assert_eq!(saved.0, BTreeMap::from([(3, Saved::Lost)]));
    let bytes = [1; 10];
    for (index, contents) in [
        (PAGES, SavedContents::SameFilled(1)),
        (u64::MAX, SavedContents::Lost),
        (1, SavedContents::Compressed { priority: 2, bytes: &bytes }),
        (1, SavedContents::Compressed { priority: 200, bytes: &bytes }),
        (1, SavedContents::Compressed { priority: 0, bytes: &[] }),
    ] {
        assert!(store.restore(PageIndex(index), contents).is_err(), "{contents:?}");
    }
    // Bytes that do not decode are an error of the read.
    store.restore(PageIndex(1), SavedContents::Compressed { priority: 1, bytes: &bytes }).unwrap();
    assert!(matches!(store.read(PAGE, &mut page), Err(StoreError::Corrupt { .. })));
}

#[test]
fn restored_pages_obey_the_limit() {
    let store = store(None, MemLimit::Bytes(20 * PAGE));
    let page = page(2);
    let refused = (0..PAGES)
        .find_map(|index| store.restore(PageIndex(index), SavedContents::Raw(&page)).err())
        .unwrap();
    assert!(matches!(refused, StoreError::NoMemory { .. }), "{refused}");
}

/// A process that dies in a save leaves the pages and nothing else.
#[test]
fn a_save_leaves_nothing_in_memory_that_outlives_the_process() {
    let memory = SharedMemory::new().unwrap();
    let store = Store::new_kept(config(MemLimit::Off), memory.try_clone().unwrap()).unwrap();
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index)).unwrap());
    let mut save = store.begin_save().unwrap();
    Target::default().step(&mut save).unwrap();
    (0..PAGES).for_each(|index| store.write(index * PAGE, &page(index + 1)).unwrap());
    let stats = store.stats();
    std::mem::forget(save);
    std::mem::forget(store);
    let (next, recovered) = Store::recover(config(MemLimit::Off), memory, None).unwrap();
    assert_eq!(recovered.lost_pages, 0);
    assert_eq!(next.stats().mm.mem_used_total, stats.mm.mem_used_total);
    for index in 0..PAGES {
        let mut read = [1; PAGE_SIZE];
        next.read(index * PAGE, &mut read).unwrap();
        assert!(read == page(index + 1), "{index}");
    }
    assert_eq!(Target::default().finish(next.begin_save().unwrap()).bytes()[..PAGE_SIZE], page(1));
}
