//! Entries of the compact form, pack by pack.

use super::entry::Entry;
use super::extents::Index;
use crate::strict::context::Strict;
use pagefold_image::format::zmap::{BLOCKS_MASK, EntryType, HEADER_BYTES, IS_BLOCKS, Pack, advise};
use pagefold_image::{Address, Result, rules};

/// A walk over the packs of an index, in ascending order.
pub(super) struct Packs {
    begin: u64,
    /// Entries in packs of 2 before those in packs of 16, and the entries in packs of 16.
    before: u64,
    middle: u64,
    count: u64,
    big: bool,
    entry_bits: u32,
    current: Option<Current>,
    /// The block of the last head, in any pack so far.
    last_head: Option<u32>,
}

struct Current {
    at: u64,
    pack: Pack,
    /// The first entry's number.
    first: u64,
    /// Blocks of the pack's clusters so far.
    blocks: u32,
}

impl Packs {
    pub(super) fn new(index: &Index<'_>, count: u64) -> Self {
        let begin = index.at.offset + HEADER_BYTES;
        let before = (32 - begin % 32) / 4 % 8;
        let (before, middle) = match index.header.advises(advise::COMPACTED_2B) && before < count {
            true => (before, (count - before) / 16 * 16),
            false => (count, 0),
        };
        let big = index.header.advises(advise::BIG_CLUSTER_1);
        let entry_bits = u32::from(index.lcluster_bits.max(12));
        Packs { begin, before, middle, count, big, entry_bits, current: None, last_head: None }
    }

    /// Offset of the end of the last pack.
    pub(super) fn end(&self) -> u64 {
        let in_pairs = (self.count - self.middle).next_multiple_of(2);
        self.begin + 4 * in_pairs + 2 * self.middle
    }

    /// The offset of the pack of entry `number`, the number of its first entry, and whether it has 16.
    fn place(&self, number: u64) -> (u64, u64, bool) {
        let middle_at = self.begin + 4 * self.before;
        match number.checked_sub(self.before) {
            None => (self.begin + number / 2 * 8, number & !1, false),
            Some(n) if n < self.middle => (middle_at + n / 16 * 32, self.before + n / 16 * 16, true),
            Some(n) => {
                let n = n - self.middle;
                (middle_at + 2 * self.middle + n / 2 * 8, self.before + self.middle + (n & !1), false)
            }
        }
    }

    /// Reads entry `number`; the one before it was read last.
    pub(super) fn entry(&mut self, strict: &Strict<'_>, index: &Index<'_>, number: u64) -> Result<Entry> {
        let (offset, first, is_long) = self.place(number);
        if self.current.as_ref().is_none_or(|current| current.at != offset) {
            let at = Address { offset, ..index.at };
            let pack = match is_long {
                true => Pack::sixteen(strict.array(at)?),
                false => Pack::two(strict.array(at)?),
            };
            self.current = Some(Current { at: offset, pack, first, blocks: 0 });
            self.check_pack(at, strict);
        }
        let at = Address { offset, ..index.at };
        let (kind, low) = self.decode(number);
        let mut entry = Entry::new(at, kind);
        let Some(current) = &mut self.current else { return Ok(entry) };
        let is_last = number - current.first + 1 == u64::from(current.pack.entries);
        match kind {
            EntryType::NonHead if low & IS_BLOCKS != 0 => {
                let blocks = low & BLOCKS_MASK;
                entry.blocks = Some(blocks);
                // The head before it was counted with one block, if it is in this pack.
                let counted = u32::from(number > current.first);
                current.blocks = (current.blocks + u32::from(blocks)).saturating_sub(counted);
            }
            EntryType::NonHead if is_last => entry.forward = Some(low),
            EntryType::NonHead => entry.back = Some(low),
            _ => {
                let before = if self.big { current.blocks } else { current.blocks + 1 };
                entry.offset = low.into();
                entry.block = current.pack.base.wrapping_add(before);
                current.blocks += 1;
                self.last_head = Some(entry.block);
            }
        }
        Ok(entry)
    }

    /// The type and the low bits of an entry of the current pack.
    fn decode(&self, number: u64) -> (EntryType, u16) {
        let Some(current) = &self.current else { return (EntryType::NonHead, 0) };
        let bits = current.pack.entry((number - current.first) as u32);
        (EntryType::from_bits(bits >> self.entry_bits), bits & ((1 << self.entry_bits) - 1))
    }

    /// Judges the address of the current pack, and the entry that its only entry leaves unused.
    fn check_pack(&self, at: Address, strict: &Strict<'_>) {
        let Some(current) = &self.current else { return };
        let base = current.pack.base;
        let (kind, low) = self.decode(current.first);
        let counts_earlier = !self.big || (kind == EntryType::NonHead && low & IS_BLOCKS != 0);
        if let Some(last) = self.last_head.filter(|last| counts_earlier && *last != base) {
            let what = format!("a pack's address is {base}, and the last head before it is at block {last}");
            strict.fault(&rules::INDEX_PACK, at, what);
        }
        let unused = current.first + u64::from(current.pack.entries) > self.count;
        if unused && current.pack.entry(1) != 0 {
            strict.fault(&rules::INDEX_ENTRY, at, "the second entry of the last pack, which has only one");
        }
    }
}
