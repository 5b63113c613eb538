//! One uncompressed page per 4 KiB block, first fit: the kernel's layout, for comparison.
//!
//! A page is stored without a header in the lowest free block. A location is the block's number in its lower half and
//! the page's crc32c in its upper half, so that a corrupt page is detected here too. Freed blocks are not discarded
//! on the medium. The blocks of a medium that is too small for the log begin at its first byte, as in the kernel.

use crate::layout::packer::{NextStep, NoSpace, PackedPage, Packer};
use crate::layout::request::{Entry, WriteRequest};
use crate::slot::BackingLocation;
use pagefold_page::{PAGE_SIZE, UnitMap};
use parking_lot::Mutex;

/// The number of a block on the backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockIndex(u32);

/// The blocks of a backing and the map of used ones.
#[derive(Debug)]
pub(crate) struct Blocks {
    map: Mutex<Map>,
    count: u32,
    /// Where they begin on the medium, bytes.
    start: u64,
}

#[derive(Debug)]
struct Map {
    taken: UnitMap,
    taken_count: u32,
}

impl Blocks {
    /// Creates the blocks of a medium from byte `start` to `len_bytes`, all free; at most as many as locations can
    /// address.
    pub(crate) fn new(start: u64, len_bytes: u64) -> Self {
        let count = (len_bytes.saturating_sub(start) / PAGE_SIZE as u64).min(u64::from(u32::MAX)) as u32;
        Blocks { map: Mutex::new(Map { taken: UnitMap::new(count as usize), taken_count: 0 }), count, start }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn free_count(&self) -> u32 {
        self.count - self.map.lock().taken_count
    }

    fn allocate(&self) -> Option<BlockIndex> {
        let mut map = self.map.lock();
        let block = map.taken.take(1)?;
        map.taken_count += 1;
        Some(BlockIndex(block as u32))
    }

    fn free(&self, block: BlockIndex) {
        let mut map = self.map.lock();
        map.taken.release(block.0 as usize, 1);
        map.taken_count -= 1;
    }

    /// Takes the block of a page that a dead process has written. False if there is none, or another page has it.
    pub(crate) fn claim(&self, written_back: BackingLocation) -> bool {
        let block = written_back.location as u32;
        let mut map = self.map.lock();
        let is_free = block < self.count && map.taken.mark_all(block as usize, 1) == 1;
        map.taken_count += u32::from(is_free);
        is_free
    }

    /// Frees the block of a page that has left it, or was not written to it.
    pub(crate) fn release(&self, written_back: BackingLocation) {
        self.free(BlockIndex(written_back.location as u32));
    }

    /// Where the page begins on the medium, bytes.
    pub(crate) fn offset(&self, written_back: BackingLocation) -> u64 {
        self.start + u64::from(written_back.location as u32) * PAGE_SIZE as u64
    }

    /// Whether `page` has the checksum of the page that was written there.
    pub(crate) fn is_intact(written_back: BackingLocation, page: &[u8]) -> bool {
        crc32c::crc32c(page) == (written_back.location >> 32) as u32
    }
}

/// Fills writes of one page each.
pub(crate) struct BlockPacker<'a> {
    blocks: &'a Blocks,
    /// The block of the write being filled, or of the next.
    reserved: Option<BlockIndex>,
    current: Option<WriteRequest>,
}

impl<'a> BlockPacker<'a> {
    pub(crate) fn new(blocks: &'a Blocks) -> Self {
        BlockPacker { blocks, reserved: None, current: None }
    }
}

impl Packer for BlockPacker<'_> {
    fn prepare(&mut self, _len_bytes: usize) -> Result<NextStep, NoSpace> {
        match &self.current {
            Some(request) if !request.entries.is_empty() => {
                Ok(self.current.take().map_or(NextStep::Begin, NextStep::Submit))
            }
            Some(_) => Ok(NextStep::Ready),
            None => {
                if self.reserved.is_none() {
                    self.reserved = Some(self.blocks.allocate().ok_or(NoSpace)?);
                }
                Ok(NextStep::Begin)
            }
        }
    }

    fn begin(&mut self, mut request: WriteRequest) {
        request.len = 0;
        self.current = Some(request);
    }

    fn payload_buf(&mut self) -> &mut [u8] {
        self.current.as_mut().map_or(&mut [], |request| &mut request.bytes()[..PAGE_SIZE])
    }

    fn add(&mut self, page: PackedPage) {
        let (Some(block), Some(request)) = (self.reserved.take(), &mut self.current) else { return };
        let crc = crc32c::crc32c(&request.bytes()[..PAGE_SIZE]);
        let location = u64::from(crc) << 32 | u64::from(block.0);
        let to = BackingLocation { location, len_bytes: PAGE_SIZE as u16, priority: 0 };
        request.offset = self.blocks.offset(to);
        request.len = PAGE_SIZE;
        request.entries.push(Entry { index: page.index, generation: page.generation, from: page.from, to });
    }

    fn finish(&mut self) -> Option<WriteRequest> {
        if let Some(block) = self.reserved.take() {
            self.blocks.free(block);
        }
        self.current.take()
    }

    fn wants_pages(&self) -> bool {
        true
    }
}

impl Drop for BlockPacker<'_> {
    /// Frees a block that was reserved and not used, however the pass ends.
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::format::DATA_START;

    #[test]
    fn the_lowest_free_block_is_taken_and_none_twice() {
        let blocks = Blocks::new(DATA_START, DATA_START + 130 * PAGE_SIZE as u64 + 17);
        assert_eq!(blocks.count(), 130);
        let taken: Vec<_> = std::iter::from_fn(|| blocks.allocate()).map(|b| b.0).collect();
        assert_eq!(taken, (0..130).collect::<Vec<_>>());
        assert_eq!(blocks.free_count(), 0);
        for block in [129, 3, 64] {
            blocks.free(BlockIndex(block));
        }
        let again: Vec<_> = std::iter::from_fn(|| blocks.allocate()).map(|b| b.0).collect();
        assert_eq!(again, [3, 64, 129]);
    }

    #[test]
    fn an_unused_reserved_block_is_freed() {
        let blocks = Blocks::new(0, 2 * PAGE_SIZE as u64);
        let mut packer = BlockPacker::new(&blocks);
        assert!(matches!(packer.prepare(4096), Ok(NextStep::Begin)));
        assert_eq!(blocks.free_count(), 1);
        drop(packer);
        assert_eq!(blocks.free_count(), 2);
    }
}
