//! One page: what it becomes when written, and how it comes back.

use crate::engine::counters::Counter;
use crate::engine::error::StoreError;
use crate::engine::store::Store;
use crate::parking::{Reader, Wanted};
use crate::slot::{Content, Generation, Slot, SlotGuard};
use pagefold_codec::{CodecError, fill, same_filled};
use pagefold_page::{PAGE_SIZE, Page, PageIndex};
use pagefold_pool::{FRAME_LEN, FrameStock, Frames, Handle, Owner, OwnerKind, Purpose, PutError};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

/// A page that compresses to at least this is stored raw: less than 1/32 saved is not worth a
/// decompression at every read. Not a cliff: a raw object costs its 4096 bytes and no more.
const RAW_LEN_MIN: usize = PAGE_SIZE - PAGE_SIZE / 32;

impl Store {
    /// The slot of a page, allocated if need be.
    pub(crate) fn slot(&self, index: PageIndex) -> Result<&Slot, StoreError> {
        match self.table.get(index) {
            Some(slot) => Ok(slot),
            None => self.new_slot(index),
        }
    }

    #[cold]
    fn new_slot(&self, index: PageIndex) -> Result<&Slot, StoreError> {
        let source = self.pool.source();
        let mut stock = FrameStock::new(source, Purpose::Slots);
        loop {
            match self.table.ensure(index, source, stock.frames()) {
                Ok(slot) => return Ok(slot),
                Err(error) => self.take_frames(index, &mut stock, error)?,
            }
        }
    }

    /// What `page` becomes, its object stored but in no slot yet.
    pub(crate) fn fold(&self, cpu: usize, index: PageIndex, page: &Page) -> Result<Content, StoreError> {
        if self.same_filled.load(Relaxed)
            && let Some(fill_word) = same_filled(page)
        {
            return Ok(Content::SameFilled(fill_word));
        }
        match self.try_fold(cpu, index, page, &mut Frames::none())? {
            Ok(content) => Ok(content),
            Err(error) => self.fold_slowly(cpu, index, page, error),
        }
    }

    /// Compresses and stores a page for which no memory was ready: takes the frames it needs first.
    #[cold]
    fn fold_slowly(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        mut error: PutError,
    ) -> Result<Content, StoreError> {
        let mut stock = FrameStock::new(self.pool.source(), Purpose::Objects);
        loop {
            // The stream is back by now: others compress while this thread waits for memory.
            self.take_frames(index, &mut stock, error)?;
            self.counters.add(cpu, Counter::SlowWrites, 1);
            match self.try_fold(cpu, index, page, stock.frames())? {
                Ok(content) => return Ok(content),
                // Another writer has filled the class's last frame meanwhile, so that two are needed and not one.
                Err(e) => error = e,
            }
        }
    }

    /// One compression with this CPU's stream and one attempt at storing the result.
    pub(crate) fn try_fold(
        &self,
        cpu: usize,
        index: PageIndex,
        page: &Page,
        stock: &mut Frames,
    ) -> Result<Result<Content, PutError>, StoreError> {
        let owner = Owner::new(OwnerKind::Slot, index.0);
        let mut executor = self.streams.get(cpu);
        let executor = &mut *executor;
        let len = executor
            .stream
            .compress(page, &mut executor.buf[..])
            .map_err(|source| StoreError::Compress { index, source })?;
        if len >= RAW_LEN_MIN {
            let put = self.pool.try_put_from(stock, page, owner);
            return Ok(put.map(|handle| Content::Raw { handle: handle.to_bits() }));
        }
        let put = self.pool.try_put_from(stock, &executor.buf[..len], owner);
        Ok(put.map(|handle| Content::Folded { handle: handle.to_bits(), len_bytes: len as u16, priority: 0 }))
    }

    /// After an attempt that found too little memory: takes the frames that it needed into `stock`, or says why there
    /// are none.
    fn take_frames(
        &self,
        index: PageIndex,
        stock: &mut FrameStock,
        error: PutError,
    ) -> Result<(), StoreError> {
        let (frames, refused) = match error {
            PutError::NotReady { frames } => (frames, None),
            PutError::Refused { frames, source } => (frames, Some(source)),
        };
        let charged = match refused {
            Some(source) if !source.is_limit() => Err(source),
            _ => stock.charge(frames).or_else(|refused| {
                match refused.is_limit() && self.make_room(stock, frames) {
                    true => Ok(()),
                    false => Err(refused),
                }
            }),
        };
        charged.and_then(|()| stock.fill()).map_err(|source| StoreError::NoMemory { index, source })
    }

    /// At the memory limit: charges the frames as soon as automatic writeback has made room, or by closing the holes
    /// between objects if there is no writeback or no hope in it. False if there is no room to be had.
    fn make_room(&self, stock: &mut FrameStock, frames: usize) -> bool {
        let needed_bytes = (frames * FRAME_LEN) as u64;
        if needed_bytes > self.mem_limit_bytes() {
            // However much were written back.
            return false;
        }
        let mut charge = || stock.charge(frames).is_ok();
        let is_written_back = self.parking.as_ref().is_some_and(|parking| {
            parking.policy().state().throttle().wait_for_room(needed_bytes, &mut charge)
        });
        is_written_back || (self.compact() > 0 && charge())
    }

    /// Puts contents in a slot and frees what they replace.
    pub(crate) fn publish(&self, cpu: usize, slot: &Slot, new: Content) {
        let mut guard = slot.lock();
        self.stamp(&mut guard);
        let old = guard.publish(new);
        self.account(cpu, old, new);
        self.account_written(cpu, new);
        self.release(old);
    }

    /// Notes when a page was written, where somebody wants to know.
    #[inline]
    fn stamp(&self, guard: &mut SlotGuard) {
        if let Some(parking) = &self.parking {
            guard.set_stamp(parking.clock.now());
        }
    }

    /// Puts contents in a slot if it is unchanged since `seen`; else gives them up and returns false.
    pub(crate) fn publish_if_unchanged(
        &self,
        cpu: usize,
        slot: &Slot,
        seen: Generation,
        new: Content,
    ) -> bool {
        let mut guard = slot.lock();
        if guard.generation() != seen {
            drop(guard);
            self.release(new);
            return false;
        }
        self.stamp(&mut guard);
        let old = guard.publish(new);
        self.account(cpu, old, new);
        self.account_written(cpu, new);
        self.release(old);
        true
    }

    /// Reads a slot's page, and says which generation of it this was.
    pub(crate) fn unfold(
        &self,
        reader: &mut Reader,
        index: PageIndex,
        slot: &Slot,
        page: &mut Page,
    ) -> Result<Generation, StoreError> {
        loop {
            let guard = slot.lock();
            let generation = guard.generation();
            match (guard.content(), &self.parking) {
                (Content::Parked(parked), Some(parking)) => {
                    let wanted = Wanted { index, generation, parked };
                    if let Some(read) = self.read_back(parking, reader, wanted, slot, guard, page)? {
                        return Ok(read);
                    }
                }
                _ => {
                    self.unfold_held(reader.cpu, index, guard, page)?;
                    return Ok(generation);
                }
            }
        }
    }

    /// The page of a slot that holds it in memory.
    fn unfold_held(
        &self,
        cpu: usize,
        index: PageIndex,
        guard: SlotGuard,
        page: &mut Page,
    ) -> Result<(), StoreError> {
        let mut compressed = [MaybeUninit::uninit(); PAGE_SIZE];
        match self.take_out(guard, &mut compressed, page) {
            Held::Empty => page.fill(0),
            Held::SameFilled(fill_word) => fill(page, fill_word),
            Held::Raw => {}
            Held::Folded(bytes) => {
                self.expand(cpu, bytes, page).map_err(|source| StoreError::Corrupt { index, source })?;
            }
        }
        Ok(())
    }

    /// Copies out what a slot has in memory, and unlocks it: nothing else is done under the lock.
    pub(crate) fn take_out<'a>(
        &self,
        mut guard: SlotGuard,
        compressed: &'a mut [MaybeUninit<u8>; PAGE_SIZE],
        page: &mut Page,
    ) -> Held<'a> {
        if let Some(parking) = &self.parking {
            guard.touch(parking.clock.now());
        }
        match guard.content() {
            // A store without a backing has no parked pages.
            Content::Empty | Content::Parked(_) => Held::Empty,
            Content::SameFilled(fill_word) => Held::SameFilled(fill_word),
            Content::Raw { handle } => {
                // SAFETY: the slot is locked and holds the handle: nobody frees it, and `relocate`
                // refuses to move it. A raw object has PAGE_SIZE bytes.
                unsafe { self.pool.copy_over(Handle::from_bits(handle), page) };
                Held::Raw
            }
            Content::Folded { handle, len_bytes, .. } => {
                let compressed = &mut compressed[..usize::from(len_bytes)];
                // SAFETY: as for raw pages; the slot's length is that of the object.
                Held::Folded(unsafe { self.pool.copy_out(Handle::from_bits(handle), compressed) })
            }
        }
    }

    /// The page that these bytes of an object or a record stand for, with a stream of this CPU.
    pub(crate) fn expand(&self, cpu: usize, bytes: &[u8], page: &mut Page) -> Result<(), CodecError> {
        self.expand_with(|bytes, page| self.streams.get(cpu).stream.decompress(bytes, page), bytes, page)
    }

    /// The page that these bytes of an object or a record stand for: as they are, or decompressed.
    pub(crate) fn expand_with(
        &self,
        decompress: impl FnOnce(&[u8], &mut Page) -> Result<usize, CodecError>,
        bytes: &[u8],
        page: &mut Page,
    ) -> Result<(), CodecError> {
        if let Ok(whole) = <&Page>::try_from(bytes) {
            page.copy_from_slice(whole);
            return Ok(());
        }
        match decompress(bytes, page)? {
            PAGE_SIZE => Ok(()),
            _ => Err(CodecError::Corrupt { codec: self.codec.name(), src_len_bytes: bytes.len() }),
        }
    }
}

/// What was copied out of a slot.
pub(crate) enum Held<'a> {
    /// Nothing: the page is zeroes.
    Empty,
    /// The word that the page repeats.
    SameFilled(u64),
    /// The page, which was written where it was wanted.
    Raw,
    /// Compressed bytes, to be expanded.
    Folded(&'a [u8]),
}
