//! The positions at which extents should begin, of all files.
//!
//! While references are looked for, only the cuts near a position matter: a table of hashes has those of each block. Then
//! they are sorted, and each file takes its own. Both tables may spill, so that their number is not bounded by memory.

use crate::Result;
use crate::options::BLOCK_BYTES;
use crate::table::{Hashes, Key, Spill, Table};
use crate::tree::InodeId;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The end of a list of cuts: no cut has this number.
const NONE: u64 = u64::MAX;

/// A cut.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Cut {
    /// The number of the file's inode.
    file: u64,
    /// The position in it, bytes.
    at: u64,
    /// The number of another cut in the same block of the file, or [`NONE`].
    next: u64,
}

/// The cuts so far.
#[derive(Debug)]
pub struct Cuts {
    all: Table<Cut>,
    /// The number of the first cut in a block, by file and block.
    first: Hashes,
}

impl Cuts {
    /// There are none.
    pub fn new(spill: &Spill) -> Self {
        Cuts { all: Table::new(spill), first: Hashes::new(spill) }
    }

    /// Adds a cut, unless there is one at the same position.
    pub fn insert(&mut self, file: InodeId, at: u64) -> Result<()> {
        let cut = Cut { file: file.index() as u64, at, next: NONE };
        let number = self.all.len() as u64;
        let Some(first) = self.first.get_or_insert(&key(file, at / BLOCK), number)? else {
            self.all.push(cut)?;
            return Ok(());
        };
        if self.from(first).any(|known| known.at == at) {
            return Ok(());
        }
        let first_cut = self.all.get(first as usize);
        self.all.push(Cut { next: first_cut.next, ..cut })?;
        self.all.set(first as usize, Cut { next: number, ..first_cut });
        Ok(())
    }

    /// The cuts of a file in a range of some blocks, ascending.
    pub fn near(&self, file: InodeId, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        blocks.flat_map(move |block| self.in_block(file, block)).filter(move |at| range.contains(at))
    }

    fn in_block(&self, file: InodeId, block: u64) -> Vec<u64> {
        let first = self.first.get(&key(file, block)).unwrap_or(NONE);
        let mut cuts: Vec<_> = self.from(first).map(|cut| cut.at).collect();
        cuts.sort_unstable();
        cuts
    }

    /// This cut, and those that follow it in its block.
    fn from(&self, first: u64) -> impl Iterator<Item = Cut> + '_ {
        let cut = |number: u64| (number != NONE).then(|| self.all.get(number as usize));
        std::iter::successors(cut(first), move |before| cut(before.next))
    }

    /// Sorts the cuts. No further one is added.
    pub fn sorted(mut self) -> Result<SortedCuts> {
        self.all.sort_by(|a, b| (a.file, a.at).cmp(&(b.file, b.at)))?;
        Ok(SortedCuts(self.all))
    }
}

/// All cuts, by file and position.
#[derive(Debug)]
pub struct SortedCuts(Table<Cut>);

impl SortedCuts {
    /// There are none.
    pub fn none(spill: &Spill) -> Self {
        SortedCuts(Table::new(spill))
    }

    /// The cuts of a file in a range, ascending.
    pub fn of(&self, file: InodeId, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let (file, end) = (file.index() as u64, range.end);
        let first = self.0.partition_point(0..self.0.len(), |cut| (cut.file, cut.at) < (file, range.start));
        let cuts = (first..self.0.len()).map(|number| self.0.get(number));
        cuts.take_while(move |cut| cut.file == file && cut.at < end).map(|cut| cut.at)
    }
}

fn key(file: InodeId, block: u64) -> Key {
    Hashes::key_of(file.index() as u64, block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn cuts_are_those_of_a_sorted_set(
            drawn in proptest::collection::vec((0usize..3, 0u64..60_000), 0..200),
            asked in proptest::collection::vec((0usize..3, 0u64..60_000, 0u64..20_000), 1..30),
        ) {
            let (mut cuts, mut twin) = (Cuts::new(&Spill::none()), BTreeSet::new());
            for (file, at) in drawn {
                cuts.insert(InodeId::at(file), at).unwrap();
                twin.insert((file, at));
            }
            let wanted = |file: usize, range: Range<u64>| {
                twin.range((file, range.start)..(file, range.end)).map(|(_, at)| *at).collect::<Vec<_>>()
            };
            let ranges: Vec<_> = asked.into_iter().map(|(file, start, len)| (file, start..start + len)).collect();
            for (file, range) in &ranges {
                let near: Vec<_> = cuts.near(InodeId::at(*file), range.clone()).collect();
                prop_assert_eq!(near, wanted(*file, range.clone()));
            }
            let cuts = cuts.sorted().unwrap();
            for (file, range) in ranges {
                let found: Vec<_> = cuts.of(InodeId::at(file), range.clone()).collect();
                prop_assert_eq!(found, wanted(file, range));
            }
        }
    }
}
