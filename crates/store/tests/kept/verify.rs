//! The checks of a recovered store: contents, counters, memory, and that it works.

use crate::support::rig::{SEGMENT_LEN, raw_page, soft_page};
use pagefold_backing::Backing;
use pagefold_codec::{COMPRESS_BUF_LEN, Codec, CodecSpec};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_store::writeback::{LayoutKind, Selection, Which, WritebackError};
use pagefold_store::{MemLimit, Recovered, SlotState, Store, StoreConfig, StoreError};
use pagefold_sys::sharedmem::SharedMemory;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

const FRAME: u64 = 4096;
/// The memory that statistics do not count: the header, the directory of slots, and parts of pages of links.
const HEADER_MAX: u64 = 8 * FRAME;
/// A page that compresses to this length or more is stored as it is.
const RAW_LEN_MIN: usize = PAGE_SIZE - PAGE_SIZE / 32;

/// A recovered store.
pub struct Subject {
    pub store: Store,
    pub recovered: Recovered,
    config: StoreConfig,
    memory: SharedMemory,
    backing: Option<Arc<dyn Backing>>,
    codecs: [Option<CodecSpec>; 2],
}

/// The contents of all pages of a store.
pub type Contents = Vec<Box<Page>>;

/// Reads all pages.
pub fn read_all(store: &Store) -> Contents {
    let read = |index: u64| {
        let mut page = Box::new([0xee; PAGE_SIZE]);
        store
            .read(index * FRAME, &mut page[..])
            .map(|()| page)
            .unwrap_or_else(|e| panic!("reading {index}: {e}"))
    };
    (0..store.len_bytes() / FRAME).map(read).collect()
}

/// All pages that are stored.
pub fn states(store: &Store) -> Vec<SlotState> {
    let mut states = Vec::new();
    store.each_slot_state(PageIndex(0)..PageIndex(u64::MAX), |state| {
        states.push(state);
        ControlFlow::Continue(())
    });
    states
}

impl Subject {
    /// Recovers a store.
    pub fn recover(
        config: StoreConfig,
        memory: &SharedMemory,
        backing: Option<Arc<dyn Backing>>,
    ) -> Result<Self, StoreError> {
        let codecs = [Some(config.codec.clone()), config.further_codecs[0].clone()];
        let (store, recovered) =
            Store::recover(config.clone(), memory.try_clone().unwrap(), backing.clone())?;
        // Reads shall leave pages where they are.
        store.writeback().iter().for_each(|writeback| writeback.settings().promote.store(false));
        Ok(Subject { store, recovered, config, memory: memory.try_clone().unwrap(), backing, codecs })
    }

    /// Checks that nothing is lost, and that the counters agree with the pages, whose contents are `contents`.
    pub fn check_counters(&self, contents: &Contents) {
        let states = states(&self.store);
        assert_eq!(
            self.recovered,
            Recovered { pages: states.len() as u64, lost_pages: 0, is_restoring: false }
        );
        let count = |is: fn(&SlotState) -> bool| states.iter().filter(|state| is(state)).count() as u64;
        let same_filled = count(|state| state.is_same_filled);
        let written_back = count(|state| state.is_written_back);
        let mm = self.store.stats().mm;
        assert_eq!(mm.orig_data_size, states.len() as u64 * FRAME, "orig_data_size");
        assert_eq!(mm.same_pages, same_filled, "same_pages");
        assert_eq!(mm.huge_pages, count(|state| state.is_raw && !state.is_written_back), "huge_pages");
        assert_eq!(mm.compr_data_size, self.compressed_len(&states, contents), "compr_data_size");
        assert_eq!(
            self.store.stats().recompress.pages_now[0],
            count(|state| state.is_recompressed && !state.is_written_back),
            "recompressed pages"
        );
        let objects: u64 = self.store.class_stats().iter().map(|class| class.live).sum();
        assert_eq!(objects, states.len() as u64 - same_filled - written_back, "objects");
        let frames: u64 = self.store.class_stats().iter().map(|class| class.frames).sum();
        assert_eq!(mm.mem_used_total, frames * FRAME, "mem_used_total");
        for state in states.iter().filter(|state| state.is_same_filled) {
            let page = &contents[state.index.0 as usize];
            assert!(page.chunks(8).all(|word| word == &page[..8]), "page {}", state.index.0);
        }
        if let Some(writeback) = self.store.writeback() {
            assert_eq!(writeback.stats().bd.bd_count, written_back, "bd_count");
        }
        self.check_memory();
    }

    /// The bytes that all objects should have.
    fn compressed_len(&self, states: &[SlotState], contents: &Contents) -> u64 {
        let mut streams: Vec<_> = self.codecs.iter().flatten().map(stream).collect();
        let in_memory = states.iter().filter(|state| !state.is_same_filled && !state.is_written_back);
        let mut len = |state: &SlotState| {
            if state.is_raw {
                return PAGE_SIZE as u64;
            }
            let mut buf = [0; COMPRESS_BUF_LEN];
            let stream = &mut streams[usize::from(state.is_recompressed)];
            let len = stream.compress(&contents[state.index.0 as usize][..], &mut buf).unwrap();
            assert!(len < RAW_LEN_MIN, "page {} is not raw", state.index.0);
            len as u64
        };
        in_memory.map(&mut len).sum()
    }

    /// Checks that the file uses the memory that the statistics count, and a header.
    fn check_memory(&self) {
        // The thread of a reserve uses memory for a moment before it counts it.
        let attempts = if self.config.reserve_bytes.is_some() { 200 } else { 1 };
        let mut result = Ok(());
        for _ in 0..attempts {
            result = self.compare_memory();
            if result.is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        result.unwrap();
    }

    fn compare_memory(&self) -> Result<(), String> {
        let memory = self.store.stats().memory;
        let (used, counted) =
            (self.memory.used_bytes().unwrap(), memory.objects + memory.slots + memory.ready);
        let most = counted + memory.links.next_multiple_of(FRAME) + HEADER_MAX;
        match used {
            _ if used < counted => Err(format!("the file uses {used} bytes, less than {memory:?}")),
            _ if used > most => Err(format!("the file uses {used} bytes: more than {memory:?} and a header")),
            _ => Ok(()),
        }
    }

    /// Checks that all pages can be written back, and read as before then. Does nothing in a store without a backing.
    pub fn check_write_back(&self, contents: &Contents) {
        if self.store.writeback().is_none() {
            return;
        }
        let on = &mut |_: &_| ControlFlow::Continue(());
        let report = self.store.write_back(&Selection::of(Which::All), on).unwrap();
        let left =
            states(&self.store).into_iter().filter(|state| !state.is_same_filled && !state.is_written_back);
        match report.error {
            None => {
                assert_eq!(left.map(|state| state.index).collect::<Vec<_>>(), [], "pages not written back")
            }
            Some(error) => assert_eq!(error, WritebackError::Full),
        }
        assert!(read_all(&self.store) == *contents, "a page reads wrong after it was written back");
    }

    /// Recovers the store again, as if this process had died.
    fn again(self) -> Self {
        let Subject { store, config, memory, backing, .. } = self;
        drop(store);
        Subject::recover(config, &memory, backing).unwrap()
    }

    /// Checks that the store works: writes the pages `indexes` again, in other forms, reads them, also after another
    /// recovery, and discards all.
    pub fn check_use(mut self, indexes: &[u64]) {
        self.store.set_mem_limit(MemLimit::Off);
        self.config.mem_limit = MemLimit::Off;
        for version in [901, 902] {
            let page = |index| match (index + version) % 2 {
                0 => raw_page(index, version),
                _ => soft_page(index, version),
            };
            indexes.iter().for_each(|index| self.store.write(index * FRAME, &page(*index)).unwrap());
            if version == 902 {
                self = self.again();
            }
            for index in indexes {
                let mut read = [0; PAGE_SIZE];
                self.store.read(index * FRAME, &mut read).unwrap();
                assert!(read == page(*index), "page {index} reads wrong after it was written again");
            }
        }
        self.check_memory();
        self.store.discard(0, self.store.len_bytes()).unwrap();
        let stats = self.store.stats();
        let left = (stats.mm.mem_used_total, stats.mm.orig_data_size, stats.mm.compr_data_size);
        assert_eq!(left, (0, 0, 0), "after all was discarded");
        assert_eq!((stats.mm.same_pages, stats.mm.huge_pages), (0, 0));
        assert!(self.store.class_stats().is_empty(), "{:?}", self.store.class_stats());
        self.check_memory();
        self.check_backing();
    }

    /// Checks that the backing is free, except for segments of the heads and of cached read-ahead.
    fn check_backing(&self) {
        let Some(writeback) = self.store.writeback() else { return };
        let stats = writeback.stats();
        assert_eq!((stats.bd.bd_count, stats.written_back_bytes), (0, 0));
        let in_use_max = match writeback.layout() {
            LayoutKind::Log => 6 * SEGMENT_LEN,
            LayoutKind::Blocks => 0,
        };
        assert!(stats.free_bytes + in_use_max >= stats.capacity_bytes, "{stats:?}");
    }
}

fn stream(codec: &CodecSpec) -> Box<dyn pagefold_codec::Stream> {
    Codec::new(codec).unwrap().stream().unwrap()
}
