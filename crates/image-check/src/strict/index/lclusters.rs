//! The entries of logical clusters, of either form, from the first to the last.

use super::compact::Packs;
use super::entry::Entry;
use super::extents::Index;
use super::{full, tail};
use crate::strict::context::Strict;
use crate::strict::extent::Extent;
use crate::strict::inode::Layout;
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::{EntryType, FULL_ENTRIES_OFFSET, FULL_ENTRY_BYTES, advise};
use pagefold_image::{Address, Result, rules};

/// The longest distance that an entry may have; longer ones are written as this.
const DISTANCE_MAX: u64 = 2047;

/// The head of the extent that the walk is in.
struct Head {
    number: u64,
    entry: Entry,
    /// First byte of the extent in the file.
    start: u64,
    blocks: Option<u16>,
    /// Whether the entry after the head lacks the number of blocks.
    lacks_blocks: bool,
    /// The next head's number according to distances forward: exactly, and at least.
    next: Option<u64>,
    next_at_least: u64,
}

impl Head {
    fn new(number: u64, entry: Entry, start: u64) -> Self {
        Head { number, entry, start, blocks: None, lacks_blocks: false, next: None, next_at_least: 0 }
    }
}

/// The form of the entries.
enum Source {
    Full,
    Compact(Packs),
}

/// A walk over the entries.
struct Walk<'a, 'i, 's> {
    index: &'a mut Index<'i>,
    strict: &'a mut Strict<'s>,
    source: Source,
    count: u64,
    index_end: u64,
}

/// Judges all entries of an index and their extents; false if a fault hides some of them.
pub(super) fn check(index: &mut Index<'_>, strict: &mut Strict<'_>) -> Result<bool> {
    let count = index.inode.size.div_ceil(1 << index.lcluster_bits);
    let (source, end) = match index.inode.layout() {
        // The reader refuses such an index, because readers disagree about its entries.
        Layout::Compact if index.header.lcluster_shift() != 0 || index.lcluster_bits > 14 => {
            return Ok(false);
        }
        Layout::Compact => {
            let packs = Packs::new(index, count);
            let end = packs.end();
            (Source::Compact(packs), end)
        }
        _ => (Source::Full, index.at.offset + FULL_ENTRIES_OFFSET + FULL_ENTRY_BYTES * count),
    };
    let inline_bytes = if index.header.advises(advise::INLINE) { index.header.inline_bytes() } else { 0 };
    index.inode.claim(strict, end + u64::from(inline_bytes));
    Walk { index, strict, source, count, index_end: end }.run()
}

impl Walk<'_, '_, '_> {
    fn run(&mut self) -> Result<bool> {
        let size = self.index.inode.size;
        let mut current: Option<Head> = None;
        for number in 0..self.count {
            let entry = self.entry(number, current.as_ref())?;
            if entry.kind == EntryType::NonHead {
                let Some(head) = &mut current else {
                    self.strict.fault(&rules::INDEX_HEAD, entry.at, "the first entry is not a head");
                    return Ok(false);
                };
                self.inside(head, number, &entry);
                continue;
            }
            let Some(start) = self.start(number, &entry) else { return Ok(false) };
            if let Some(head) = current.take() {
                self.finish(head, number, start)?;
            }
            if start == size {
                return Ok(true);
            }
            current = Some(Head::new(number, entry, start));
        }
        let Some(head) = current else { return Ok(true) };
        if head.number + 1 < self.count && !size.is_multiple_of(1 << self.index.lcluster_bits) {
            self.strict.fault(&rules::INDEX_END, head.entry.at, "no entry marks the end of the last extent");
        }
        self.finish(head, self.count, size)?;
        Ok(true)
    }

    /// Reads entry `number`, which is after `head`, and judges its unused bits.
    fn entry(&mut self, number: u64, head: Option<&Head>) -> Result<Entry> {
        let entry = match &mut self.source {
            Source::Full => full::entry(self.strict, self.index, number)?,
            Source::Compact(packs) => packs.entry(self.strict, self.index, number)?,
        };
        let head_offset = head.map_or(0, |head| head.entry.offset);
        let is_odd = entry.kind == EntryType::NonHead && ![0, head_offset].contains(&entry.offset);
        if entry.has_unused_bits || is_odd {
            self.strict.fault(&rules::INDEX_ENTRY, entry.at, format!("entry {number} has unused bits"));
        }
        Ok(entry)
    }

    /// Returns where the extent of a head begins in the file; the size of the file if the head marks its end. `None`
    /// after reporting that this is nowhere.
    fn start(&self, number: u64, entry: &Entry) -> Option<u64> {
        let (size, lcluster_bytes) = (self.index.inode.size, 1u64 << self.index.lcluster_bits);
        let start = number * lcluster_bytes + entry.offset;
        let is_inside = entry.offset < lcluster_bytes && (number > 0 || entry.offset == 0);
        let may_be_end = entry.kind == EntryType::Plain;
        if is_inside && (start < size || (start == size && may_be_end)) {
            return Some(start);
        }
        let what = format!("entry {number} has an extent at byte {} of its logical cluster", entry.offset);
        self.strict.fault(&rules::INDEX_HEAD, entry.at, what);
        None
    }

    /// Whether clusters of this kind of head may have more than one block.
    fn is_big(&self, kind: EntryType) -> bool {
        self.index.header.advises(match kind {
            EntryType::Head1 => advise::BIG_CLUSTER_1,
            _ => advise::BIG_CLUSTER_2,
        })
    }

    /// Judges an entry inside an extent.
    fn inside(&self, head: &mut Head, number: u64, entry: &Entry) {
        let is_second = number == head.number + 1;
        let may_have_blocks = is_second && self.is_big(head.entry.kind);
        match entry.blocks {
            Some(blocks) if may_have_blocks => head.blocks = Some(blocks),
            Some(blocks) => {
                let what = format!("entry {number} has a number of blocks, {blocks}, which it must not have");
                self.strict.fault(&rules::INDEX_BLOCKS, entry.at, what);
            }
            None => head.lacks_blocks |= may_have_blocks,
        }
        let distance = (number - head.number).min(DISTANCE_MAX);
        if let Some(back) = entry.back.map(u64::from).filter(|back| *back != distance) {
            let what = format!("entry {number} has a distance back of {back} instead of {distance}");
            self.strict.fault(&rules::INDEX_BACK, entry.at, what);
        }
        let Some(forward) = entry.forward.map(u64::from) else { return };
        let next = number + forward;
        if forward == DISTANCE_MAX {
            head.next_at_least = head.next_at_least.max(next);
        } else if head.next.is_some_and(|other| other != next) {
            let what = format!("entry {number} has a distance forward of {forward}, and earlier ones differ");
            self.strict.fault(&rules::INDEX_FORWARD, entry.at, what);
        } else {
            head.next = Some(next);
        }
    }

    /// Judges an extent that ends at byte `end`, because the next head has this number or the index ends there.
    fn finish(&mut self, head: Head, next: u64, end: u64) -> Result<()> {
        let entry = &head.entry;
        if head.next.is_some_and(|claimed| claimed != next) || head.next_at_least > next {
            let claimed = head.next.unwrap_or(head.next_at_least);
            let what =
                format!("distances forward from entry {} lead to {claimed} instead of {next}", head.number);
            self.strict.fault(&rules::INDEX_FORWARD, entry.at, what);
        }
        let header = self.index.header;
        let is_last = end == self.index.inode.size;
        let algorithm = match entry.kind {
            EntryType::Head1 => Some(header.algorithm_1()),
            EntryType::Head2 => Some(header.algorithm_2()),
            EntryType::Plain | EntryType::NonHead => None,
        };
        if entry.kind == EntryType::Head2 {
            self.strict.uses(incompat::COMPR_HEAD2, "a second algorithm in one file", entry.at);
        }
        let len_bytes = end - head.start;
        if is_last && header.advises(advise::FRAGMENT) {
            let high = if self.index.inode.layout() == Layout::Full { u64::from(entry.block) } else { 0 };
            let offset = u64::from(header.fragment_offset()) | high << 32;
            tail::check_fragment(self.strict, self.index.inode, entry.at, offset, len_bytes);
            return Ok(());
        }
        let extent = Extent {
            entry: entry.at,
            len_bytes,
            at: Address::image(u64::from(entry.block) << self.strict.block_bits()),
            stored_bytes: u64::from(head.blocks.unwrap_or(1)) << self.strict.block_bits(),
            algorithm,
            partial: entry.partial,
            is_last,
            inline: false,
        };
        if is_last && header.advises(advise::INLINE) {
            return tail::check_inline(self.strict, self.index, extent, self.index_end);
        }
        if head.lacks_blocks || head.blocks == Some(0) {
            let what = format!("the entry after head {} has no number of blocks, or 0", head.number);
            self.strict.fault(&rules::INDEX_BLOCKS, entry.at, what);
        }
        self.index.extent(self.strict, extent)
    }
}
