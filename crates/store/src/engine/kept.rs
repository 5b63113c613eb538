//! A store in memory that outlives its process, and its recovery by the next one.
//!
//! `docs/formats/shared-memory.md` says which state is in the memory, and in which order it is changed. Recovery takes the
//! slots as they are, after it has completed the changes that were noted; an object counts if a slot has its handle and the
//! object names that slot. It changes nothing that a second recovery needs, so this process may die meanwhile too.

use crate::engine::config::StoreConfig;
use crate::engine::fetch::Unfetched;
use crate::engine::store::Store;
use crate::error::StoreError;
use crate::kept::{KeptMemory, Shape};
use crate::pages::{Clock, Pages, SlotTable};
use crate::slot::{Content, Intents, Slot, Unfinished};
use crate::writeback::Writeback;
use pagefold_backing::Backing;
use pagefold_codec::CodecSpec;
use pagefold_page::PageIndex;
use pagefold_pool::{Arena, Handle, Owner, Pool, Recovery, SourceError};
use pagefold_sys::sharedmem::SharedMemory;
use pagefold_sys::{cpu, timer};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How many slots ahead a recovery prefetches the objects of slots.
const PREFETCH_SLOTS: u64 = 16;

/// The pages that a recovery has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Pages that are stored.
    pub pages: u64,
    /// Pages whose contents are lost, because what describes them is inconsistent. Reading them is an error until they are
    /// written again.
    pub lost_pages: u64,
    /// The process died during a restore. Before the store is used, [`Store::begin_restore`] has to follow with the same
    /// source; until then, pages that were not fetched cannot be read.
    pub is_restoring: bool,
}

/// The parts of a store in the memory of a process that has died.
struct Found {
    kept: KeptMemory,
    arena: Arc<Arena>,
    table: SlotTable,
    unfinished: Vec<Unfinished>,
}

impl Store {
    /// Creates an empty store whose contents are in `memory`, a new file, and in the backing if one is attached before the
    /// first page is stored. After the death of this process another one can [recover](Store::recover) it.
    pub fn new_kept(config: StoreConfig, memory: SharedMemory) -> Result<Self, StoreError> {
        let (codecs, counters) = Store::parts(&config)?;
        let frames = Arena::frames_for(config.arena_len_bytes());
        let clock = Clock::new();
        let kept = KeptMemory::create(memory, shape(&config), frames, clock.start());
        let kept = kept.map_err(|e| StoreError::SetUp(e.into()))?;
        let (arena, table) = parts_in(&kept, &config).map_err(StoreError::SetUp)?;
        let pages = Pages::kept(codecs, counters, clock, table, kept, Pool::new(arena.clone()));
        let mut store = Store::of(&config, pages);
        store.start_reserve(arena, &config)?;
        Ok(store)
    }

    /// Whether [`Store::recover`] can use this memory, as far as its header says. A process may still use it.
    pub fn check_kept(config: &StoreConfig, memory: &SharedMemory) -> Result<(), StoreError> {
        let memory = memory.try_clone().map_err(|e| StoreError::SetUp(e.into()))?;
        let opened = KeptMemory::open(memory, shape(config));
        opened.map(drop).map_err(StoreError::Unrecoverable)
    }

    /// Makes the store of a process that has died: of its memory, its backing if it had one attached, and the configuration
    /// with the same length and codecs. No process uses the memory or the backing any more: the former one has ended, with
    /// all its threads and I/O.
    pub fn recover(
        config: StoreConfig,
        memory: SharedMemory,
        backing: Option<Arc<dyn Backing>>,
    ) -> Result<(Self, Recovered), StoreError> {
        let (codecs, counters) = Store::parts(&config)?;
        let kept = KeptMemory::open(memory, shape(&config));
        let kept = kept.map_err(StoreError::Unrecoverable)?;
        let mut found = Found::new(&config, kept)?;
        let mut recovery = Recovery::new(found.arena.clone());
        found.claim_slots(&mut recovery)?;
        found.complete()?;
        let Found { kept, arena, table, unfinished } = found;
        let is_restoring = kept.is_restoring();
        let has_backing = kept.layout().is_some();
        let (start, ticks) = kept.clock();
        let clock = Clock::resumed(start.min(timer::monotonic()), ticks);
        // The pool follows when its objects are known; nothing is stored before.
        let mut pages = Pages::kept(codecs, counters, clock, table, kept, Pool::new(arena.clone()));
        let mut writeback = match (backing, has_backing) {
            (Some(backing), true) => Some(Writeback::recover(backing, &pages).map_err(StoreError::Attach)?),
            (None, false) => None,
            _ => {
                return Err(StoreError::Unrecoverable(
                    "the backing is missing, or was never attached".into(),
                ));
            }
        };
        let mut recovered = recover_slots(&pages, &mut recovery, writeback.as_ref());
        pages.pool = recovery.finish().map_err(StoreError::SetUp)?;
        write_redo(&pages, &unfinished);
        pages.intents.clear();
        writeback.iter_mut().for_each(|writeback| writeback.layout.recovered());
        let mut store = Store::of(&config, pages);
        store.access_times |= writeback.is_some();
        store.writeback = writeback;
        store.unfetched = Unfetched::recovered(is_restoring);
        recovered.is_restoring = is_restoring;
        store.pages.tick();
        store.start_reserve(arena, &config)?;
        Ok((store, recovered))
    }
}

/// The arena and the table of slots in the memory of a store.
fn parts_in(kept: &KeptMemory, config: &StoreConfig) -> Result<(Arc<Arena>, SlotTable), SourceError> {
    let arena = Arc::new(kept.arena()?);
    let table = SlotTable::over(config.page_count(), &arena, Some(kept.directory()?))?;
    Ok((arena, table))
}

/// The properties of a store that do not change.
fn shape(config: &StoreConfig) -> Shape {
    let mut codecs = [0; 4];
    let further = config.further_codecs.iter().map(Option::as_ref);
    let specs = std::iter::once(Some(&config.codec)).chain(further);
    for (mark, spec) in codecs.iter_mut().zip(specs) {
        *mark = spec.map_or(0, mark_of);
    }
    let directory_len = SlotTable::directory_bytes(config.page_count());
    Shape { len_bytes: config.len_bytes, directory_len, codecs }
}

/// A number that tells codecs apart that cannot read each other's bytes: by name, dictionary and format. Not 0.
fn mark_of(spec: &CodecSpec) -> u64 {
    let name = u64::from(crc32c::crc32c(spec.name.as_bytes())) | 1;
    let dictionary = crc32c::crc32c(spec.dictionary.as_deref().unwrap_or_default());
    let window_bits = spec.window_bits.unwrap_or_default().to_le_bytes();
    name | u64::from(crc32c::crc32c_append(dictionary, &window_bits)) << 32
}

impl Found {
    fn new(config: &StoreConfig, kept: KeptMemory) -> Result<Self, StoreError> {
        let (arena, table) = parts_in(&kept, config).map_err(StoreError::SetUp)?;
        let unfinished = kept.intents(&arena).unfinished();
        Ok(Found { kept, arena, table, unfinished })
    }

    fn claim_slots(&self, recovery: &mut Recovery) -> Result<(), StoreError> {
        match self.table.claim(self.kept.used_directory(), recovery) {
            true => Ok(()),
            false => Err(StoreError::Unrecoverable("the table of its pages is inconsistent".into())),
        }
    }

    /// Gives slots the contents that were noted for them.
    fn complete(&mut self) -> Result<(), StoreError> {
        for change in &self.unfinished {
            match self.table.slot_at(change.slot) {
                Some(slot) => change.complete(slot),
                None => return Err(StoreError::Unrecoverable("a noted change is of no page".into())),
            }
        }
        Ok(())
    }
}

/// Finds out what each slot has, and claims its object or place. A slot whose contents cannot be is lost.
fn recover_slots(pages: &Pages, recovery: &mut Recovery, writeback: Option<&Writeback>) -> Recovered {
    let mut recovered = Recovered::default();
    pages.each_slot(|index, slot, _| {
        // The first words of objects are anywhere in memory.
        let ahead = PageIndex(index.0 + PREFETCH_SLOTS);
        if pages.table.page_count().contains(ahead)
            && let Some((handle, _)) = pages.table.get(ahead).and_then(Slot::object_hint)
        {
            pages.pool.prefetch(Handle::from_bits(handle), 1);
        }
        match recover_slot(pages, index, slot, recovery, writeback) {
            Some(Content::Empty) => {}
            Some(content) => {
                pages.account(cpu::current(), Content::Empty, content);
                recovered.pages += 1;
            }
            None => {
                // Not noted: the notes are still those of the dead process.
                slot.lock().publish(Content::Lost, &Intents::NONE);
                recovered.lost_pages += 1;
            }
        }
        ControlFlow::Continue(())
    });
    recovered
}

/// The contents of a slot; `None` if they are lost.
fn recover_slot(
    pages: &Pages,
    index: PageIndex,
    slot: &Slot,
    recovery: &mut Recovery,
    writeback: Option<&Writeback>,
) -> Option<Content> {
    let content = slot.recover();
    let mut claim = |handle, len_bytes| {
        recovery.claim_object(Handle::from_bits(handle), len_bytes, Owner::new(index.0)).then_some(content)
    };
    match content {
        Content::Empty | Content::SameFilled(_) => Some(content),
        Content::Folded { handle, len_bytes, priority } => {
            pages.codecs.get(priority)?;
            claim(handle, usize::from(len_bytes))
        }
        Content::Raw { handle } => claim(handle, pagefold_page::PAGE_SIZE),
        Content::WrittenBack(written_back) => {
            pages.codecs.get(written_back.priority)?;
            let writeback = writeback.filter(|writeback| writeback.layout.claim(written_back))?;
            writeback.count_written_back(written_back);
            Some(content)
        }
        Content::Lost => None,
    }
}

/// Writes the bytes of objects that were about to be overwritten, now that these objects are known to be there.
fn write_redo(pages: &Pages, unfinished: &[Unfinished]) {
    for change in unfinished.iter().filter(|change| change.len_bytes > 0) {
        let (Some(kept), Some(slot)) = (&pages.kept, pages.table.slot_at(change.slot)) else { continue };
        let content = slot.lock().content();
        let handle = match content {
            Content::Folded { handle, len_bytes, .. } if u32::from(len_bytes) == change.len_bytes => handle,
            Content::Raw { handle } if change.len_bytes as usize == pagefold_page::PAGE_SIZE => handle,
            // Lost.
            _ => continue,
        };
        let bytes = kept.redo_bytes(change.len_bytes as usize);
        // SAFETY: the slot has the handle, so `claim_object` has found a place of at least so many bytes; no other thread
        // uses the store yet.
        let _ = unsafe { pages.pool.overwrite(Handle::from_bits(handle), &bytes, || Some(slot.lock())) };
    }
}
