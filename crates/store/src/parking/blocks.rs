//! One page per 4 KiB block, first fit: the kernel's layout, for comparison with it.
//!
//! A page is stored uncompressed and without a header, in the lowest block that is
//! free. What a header would say is kept in memory: a location is the block's number
//! in its lower half and the page's crc32c in its upper, so that a corrupt page is
//! noticed here too. Blocks are not discarded when they are freed.

use crate::parking::log::DATA_START;
use crate::parking::packer::{NoRoom, Packed, Packer, Room};
use crate::parking::request::{Entry, WriteRequest};
use crate::slot::Parked;
use pagefold_page::PAGE_SIZE;
use parking_lot::Mutex;

/// The number of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockIndex(u32);

/// The blocks of a backing, and which of them are taken.
#[derive(Debug)]
pub(crate) struct Blocks {
    map: Mutex<Map>,
    count: u32,
}

#[derive(Debug)]
struct Map {
    /// One bit per block; set if taken. Bits past the end are set.
    taken: Box<[u64]>,
    /// No word before this one has a free block.
    first: usize,
    taken_count: u32,
}

impl Blocks {
    /// All blocks of a medium of so many bytes, free; as many as locations can name.
    pub(crate) fn new(len_bytes: u64) -> Self {
        let count = (len_bytes.saturating_sub(DATA_START) / PAGE_SIZE as u64).min(u64::from(u32::MAX)) as u32;
        let mut taken: Box<[u64]> = vec![0; (count as usize).div_ceil(64)].into();
        if let (Some(last), rest @ 1..) = (taken.last_mut(), count % 64) {
            *last = u64::MAX << rest;
        }
        Blocks { map: Mutex::new(Map { taken, first: 0, taken_count: 0 }), count }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.count - self.map.lock().taken_count
    }

    fn take(&self) -> Option<BlockIndex> {
        let mut map = self.map.lock();
        let from = map.first;
        let found = map.taken[from..].iter().position(|word| *word != u64::MAX);
        map.first = found.map_or(map.taken.len(), |at| from + at);
        let word = found.map(|at| from + at)?;
        let bit = map.taken[word].trailing_ones();
        map.taken[word] |= 1 << bit;
        map.taken_count += 1;
        Some(BlockIndex(word as u32 * 64 + bit))
    }

    fn give(&self, block: BlockIndex) {
        let mut map = self.map.lock();
        let word = block.0 as usize / 64;
        map.taken[word] &= !(1 << (block.0 % 64));
        map.first = map.first.min(word);
        map.taken_count -= 1;
    }

    /// A page is no longer at this place, or never came to be.
    pub(crate) fn release(&self, parked: Parked) {
        self.give(BlockIndex(parked.location as u32));
    }

    /// Where a page is, bytes.
    pub(crate) fn offset(parked: Parked) -> u64 {
        DATA_START + u64::from(parked.location as u32) * PAGE_SIZE as u64
    }

    /// Whether these bytes are the page that was parked there.
    pub(crate) fn is_intact(parked: Parked, page: &[u8]) -> bool {
        crc32c::crc32c(page) == (parked.location >> 32) as u32
    }
}

/// Fills writes of one page each.
pub(crate) struct BlockPacker<'a> {
    blocks: &'a Blocks,
    /// Taken for the write being filled, or the next.
    reserved: Option<BlockIndex>,
    current: Option<WriteRequest>,
}

impl<'a> BlockPacker<'a> {
    pub(crate) fn new(blocks: &'a Blocks) -> Self {
        BlockPacker { blocks, reserved: None, current: None }
    }
}

impl Packer for BlockPacker<'_> {
    fn room(&mut self, _len_bytes: usize) -> Result<Room, NoRoom> {
        match &self.current {
            Some(request) if !request.entries.is_empty() => {
                Ok(self.current.take().map_or(Room::Begin, Room::Submit))
            }
            Some(_) => Ok(Room::Ready),
            None => {
                if self.reserved.is_none() {
                    self.reserved = Some(self.blocks.take().ok_or(NoRoom)?);
                }
                Ok(Room::Begin)
            }
        }
    }

    fn begin(&mut self, mut request: WriteRequest) {
        request.len = 0;
        self.current = Some(request);
    }

    fn place(&mut self) -> &mut [u8] {
        self.current.as_mut().map_or(&mut [], |request| &mut request.bytes()[..PAGE_SIZE])
    }

    fn add(&mut self, page: Packed) {
        let (Some(block), Some(request)) = (self.reserved.take(), &mut self.current) else { return };
        let crc = crc32c::crc32c(&request.bytes()[..PAGE_SIZE]);
        let location = u64::from(crc) << 32 | u64::from(block.0);
        let to = Parked { location, len_bytes: PAGE_SIZE as u16, priority: 0 };
        request.offset = Blocks::offset(to);
        request.len = PAGE_SIZE;
        request.entries.push(Entry { index: page.index, generation: page.generation, from: page.from, to });
    }

    fn finish(&mut self) -> Option<WriteRequest> {
        if let Some(block) = self.reserved.take() {
            self.blocks.give(block);
        }
        self.current.take()
    }

    fn wants_pages(&self) -> bool {
        true
    }
}

impl Drop for BlockPacker<'_> {
    /// Whatever way a pass ends, a block that was reserved and not used is free again.
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_block_is_taken_and_none_twice() {
        let blocks = Blocks::new(DATA_START + 130 * PAGE_SIZE as u64 + 17);
        assert_eq!(blocks.count(), 130);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.take()).map(|b| b.0).collect();
        assert_eq!(taken, (0..130).collect::<Vec<_>>());
        assert_eq!(blocks.free_count(), 0);
        for block in [129, 3, 64] {
            blocks.give(BlockIndex(block));
        }
        let again: Vec<_> = std::iter::from_fn(|| blocks.take()).map(|b| b.0).collect();
        assert_eq!(again, [3, 64, 129]);
    }

    #[test]
    fn a_reserved_block_comes_back() {
        let blocks = Blocks::new(DATA_START + 2 * PAGE_SIZE as u64);
        let mut packer = BlockPacker::new(&blocks);
        assert!(matches!(packer.room(4096), Ok(Room::Begin)));
        assert_eq!(blocks.free_count(), 1);
        drop(packer);
        assert_eq!(blocks.free_count(), 2);
    }
}
