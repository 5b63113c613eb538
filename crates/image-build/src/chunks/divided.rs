//! How files are divided into their own bytes and references: tables that may spill, of all files.
//!
//! They are filled while files are compared (`references`), and read when the files are written, a reference at a time.

use super::cuts::{Cuts, SortedCuts};
use crate::Result;
use crate::table::{Hashes, Key, Spill, Table};
use crate::tree::InodeId;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A part of a file that another file has, or the same file has before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, packed(4))]
pub struct Reference {
    /// Its beginning in the file, bytes.
    pub start: u64,
    /// Its end, bytes; a multiple of the block size.
    pub end: u64,
    /// The file that has the contents.
    pub source: InodeId,
    /// Their beginning in it, bytes.
    pub source_start: u64,
}

/// The division of a file that has references, or to which others refer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FileDivision {
    /// The numbers of its references: the first, and the one after the last.
    pub references: [u64; 2],
    /// Its bytes before this are in blocks, because references name them.
    pub in_blocks: u64,
}

impl FileDivision {
    /// Whether the file refers to others, or to itself.
    pub fn has_references(&self) -> bool {
        self.references[0] < self.references[1]
    }

    fn numbers(&self) -> Range<usize> {
        self.references[0] as usize..self.references[1] as usize
    }
}

/// The divisions of files that are divided.
#[derive(Debug)]
pub struct NumberedDivisions {
    numbers: Hashes,
    divisions: Table<FileDivision>,
}

impl NumberedDivisions {
    pub fn new(spill: &Spill) -> Self {
        NumberedDivisions { numbers: Hashes::new(spill), divisions: Table::new(spill) }
    }

    /// The division of a file. One that is undivided has neither references nor bytes that others name.
    pub fn get(&self, id: InodeId) -> FileDivision {
        let number = self.numbers.get(&key(id));
        number.map_or(FileDivision::default(), |number| self.divisions.get(number as usize))
    }

    /// Changes the division of a file.
    pub fn change(&mut self, id: InodeId, change: impl FnOnce(&mut FileDivision)) -> Result<()> {
        let next = self.divisions.len() as u64;
        let number = match self.numbers.get_or_insert(&key(id), next)? {
            Some(number) => number as usize,
            None => self.divisions.push(FileDivision::default())?,
        };
        let mut division = self.divisions.get(number);
        change(&mut division);
        self.divisions.set(number, division);
        Ok(())
    }
}

fn key(id: InodeId) -> Key {
    Hashes::key_of(id.index() as u64, 0)
}

/// Returns the reference of a file that has the byte at this position. `references` has those of all files, file after
/// file; those of a file are ascending and do not overlap.
pub fn reference_at(references: &Table<Reference>, file: FileDivision, at: u64) -> Option<Reference> {
    let numbers = file.numbers();
    let number = references.partition_point(numbers.clone(), |reference| reference.end <= at);
    (number < numbers.end).then(|| references.get(number)).filter(|reference| reference.start <= at)
}

/// The divisions of all files.
#[derive(Debug)]
pub struct Divided {
    divisions: NumberedDivisions,
    references: Table<Reference>,
    cuts: SortedCuts,
}

impl Divided {
    pub(super) fn new(
        divisions: NumberedDivisions,
        references: Table<Reference>,
        cuts: Cuts,
    ) -> Result<Self> {
        Ok(Divided { divisions, references, cuts: cuts.sorted()? })
    }

    /// No file is divided.
    pub fn none(spill: &Spill) -> Self {
        let (divisions, references) = (NumberedDivisions::new(spill), Table::new(spill));
        Divided { divisions, references, cuts: SortedCuts::none(spill) }
    }

    /// The division of a file.
    pub fn of(&self, id: InodeId) -> FileDivision {
        self.divisions.get(id)
    }

    /// Whether a file has references, or cuts for those of others.
    pub fn is_divided(&self, id: InodeId) -> bool {
        self.of(id) != FileDivision::default() || self.cuts(id, 0..u64::MAX).next().is_some()
    }

    /// The reference of a file with this number, counted from 0; they are ascending.
    pub fn reference(&self, id: InodeId, number: usize) -> Option<Reference> {
        self.of(id).numbers().nth(number).map(|number| self.references.get(number))
    }

    /// Positions in a part of a file at which extents should begin, ascending: those that references name, and the
    /// beginnings and ends of the file's own references.
    pub fn cuts(&self, id: InodeId, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.cuts.of(id, range)
    }
}
