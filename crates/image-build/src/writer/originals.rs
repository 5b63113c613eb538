//! Files whose contents later ones have, all or a part: where their extents are.
//!
//! There may be as many as the tree has files, so they lie in tables that may spill.

use super::open_file::OpenFile;
use crate::Result;
use crate::compress::extents::{ExtentTable, Extents, StoredExtent};
use crate::compression::Compression;
use crate::table::{Spill, Table};
use crate::tree::InodeId;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A number that a field does not have.
const NONE: u64 = u64::MAX;

/// The files that were stored as originals.
#[derive(Debug)]
pub(super) struct Originals {
    /// For each inode the number of its original, counted from 1, or 0.
    numbers: Table<u32>,
    files: Table<StoredFile>,
    extents: Table<StoredExtent>,
    /// The compressions of originals; they have a few.
    compressions: Vec<Option<Compression>>,
}

/// A file: see [`OpenFile`], whose fields it has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct StoredFile {
    /// Its extents in the table of all.
    extents: [u64; 2],
    first_block: u64,
    blocks: u64,
    next_block: u64,
    fragment: u64,
    shared_bytes: u64,
    /// Its tail in the area of inodes.
    tail: [u64; 2],
    /// The number of its compression.
    compression: u32,
    /// Not 0: it needs an index.
    is_cut: u32,
}

/// A file as it was stored.
pub(super) struct Original<'o> {
    originals: &'o Originals,
    file: StoredFile,
}

impl Originals {
    /// None so far.
    pub(super) fn new(spill: &Spill) -> Self {
        let (numbers, files, extents) = (Table::new(spill), Table::new(spill), Table::new(spill));
        Originals { numbers, files, extents, compressions: Vec::new() }
    }

    /// Adds a file, whose tail is at a place in the area of inodes. `compression`: that of its extents, if any is compressed.
    pub(super) fn add(
        &mut self,
        id: InodeId,
        compression: Option<Compression>,
        file: &OpenFile,
        tail: Range<u64>,
    ) -> Result<()> {
        let first = self.extents.len() as u64;
        for extent in file.extents.all().iter() {
            self.extents.push(StoredExtent::of(&extent))?;
        }
        let known = self.compressions.iter().position(|one| *one == compression);
        let number = known.unwrap_or_else(|| {
            self.compressions.push(compression);
            self.compressions.len() - 1
        });
        self.files.push(StoredFile {
            extents: [first, self.extents.len() as u64],
            first_block: file.first_block.unwrap_or(NONE),
            blocks: file.blocks,
            next_block: file.next_block,
            fragment: file.fragment.unwrap_or(NONE),
            shared_bytes: file.shared_bytes,
            tail: [tail.start, tail.end],
            compression: number as u32,
            is_cut: file.is_cut.into(),
        })?;
        // No more than inodes, which have numbers of 32 bits.
        self.numbers.put(id.index(), self.files.len() as u32, 0)
    }

    /// The original of an inode.
    pub(super) fn get(&self, id: InodeId) -> Option<Original<'_>> {
        let index = (self.numbers.get_or(id.index(), 0) as usize).checked_sub(1)?;
        Some(Original { originals: self, file: self.files.get(index) })
    }
}

impl Original<'_> {
    /// Its compression, if any extent is compressed.
    pub(super) fn compression(&self) -> Option<Compression> {
        self.originals.compressions[self.file.compression as usize]
    }

    /// Its tail in the area of inodes.
    pub(super) fn tail(&self) -> Range<u64> {
        self.file.tail[0]..self.file.tail[1]
    }

    /// Its extents.
    pub(super) fn extents(&self) -> Extents<'_> {
        let [first, end] = self.file.extents.map(|number| number as usize);
        Extents::new(&self.originals.extents, first..end)
    }

    /// The file with all extents, and this tail.
    pub(super) fn open_file(&self, tail: Vec<u8>) -> Result<OpenFile> {
        let known = |number: u64| (number != NONE).then_some(number);
        let mut extents = ExtentTable::new(self.originals.extents.spill());
        for extent in self.extents().iter() {
            extents.push(&extent)?;
        }
        Ok(OpenFile {
            extents,
            first_block: known(self.file.first_block),
            blocks: self.file.blocks,
            next_block: self.file.next_block,
            tail,
            fragment: known(self.file.fragment),
            shared_bytes: self.file.shared_bytes,
            is_cut: self.file.is_cut != 0,
            ..OpenFile::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::extents::Placed;
    use crate::compress::stored::Stored;
    use proptest::prelude::*;

    fn extents() -> impl Strategy<Value = Vec<Placed>> {
        let stored = prop_oneof![
            Just(Stored::Plain),
            any::<u16>().prop_map(|blocks| Stored::Compressed { blocks }),
            any::<bool>().prop_map(|compressed| Stored::Inline { compressed }),
            Just(Stored::Fragment),
        ];
        let extent = (1u64..90_000, any::<u64>(), stored, any::<bool>());
        proptest::collection::vec(extent, 0..20).prop_map(|drawn| {
            let mut at = 0;
            let placed = drawn.into_iter().map(|(len, block, stored, is_prefix)| {
                let start = at;
                at += len;
                Placed { start, block, stored, is_prefix }
            });
            placed.collect()
        })
    }

    proptest! {
        #[test]
        fn files_come_back_as_they_were(
            drawn in proptest::collection::vec((0usize..50, extents(), any::<[u32; 4]>(), any::<[bool; 3]>()), 0..9),
            start in 0u64..2_000_000,
        ) {
            let mut originals = Originals::new(&Spill::none());
            let mut twin = std::collections::BTreeMap::new();
            for (id, placed, [blocks, next, shared, tail], [has_first, has_fragment, is_cut]) in drawn {
                let mut extents = ExtentTable::default();
                placed.iter().for_each(|extent| extents.push(extent).unwrap());
                let file = OpenFile {
                    extents,
                    first_block: has_first.then_some(next.into()),
                    blocks: blocks.into(),
                    next_block: next.into(),
                    fragment: has_fragment.then_some(shared.into()),
                    shared_bytes: shared.into(),
                    is_cut,
                    ..OpenFile::default()
                };
                let compression = Compression::parse(if has_first { "lz4" } else { "zstd:3" }).unwrap();
                let tail = u64::from(tail)..u64::from(tail) + 9;
                originals.add(InodeId::at(id), compression, &file, tail.clone()).unwrap();
                twin.insert(id, (compression, file, tail, placed));
            }
            for id in 0..60 {
                let found = originals.get(InodeId::at(id));
                let wanted = twin.get(&id);
                prop_assert_eq!(found.is_some(), wanted.is_some());
                let (Some(found), Some((compression, file, tail, placed))) = (found, wanted) else { continue };
                prop_assert_eq!((found.compression(), found.tail()), (*compression, tail.clone()));
                prop_assert_eq!(format!("{:?}", found.open_file(Vec::new()).unwrap()), format!("{file:?}"));
                let again: Vec<_> = found.extents().iter().collect();
                prop_assert_eq!(&again, placed);
                let first = placed.partition_point(|extent| extent.start < start);
                prop_assert_eq!((found.extents().first_from(start), file.extents.all().first_from(start)), (first, first));
            }
        }
    }
}
