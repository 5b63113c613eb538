//! How files are divided into their own bytes and references: tables that may spill, of all files.
//!
//! They are filled while files are compared (`references`), and read when the files are written, a reference at a time.

use super::cuts::{Cuts, SortedCuts};
use crate::BuildError;
use crate::table::{Hashes, Spill, Table};
use crate::tree::InodeId;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A part of a file that another file has, or the same file has before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileDivision {
    /// The numbers of its references: the first, and the one behind the last.
    pub references: (u64, u64),
    /// Its bytes before this are in blocks, because references name them.
    pub in_blocks: u64,
}

impl FileDivision {
    /// Whether the file refers to others, or to itself.
    pub fn has_references(&self) -> bool {
        self.references.0 < self.references.1
    }

    fn numbers(&self) -> Range<usize> {
        self.references.0 as usize..self.references.1 as usize
    }
}

/// The divisions of files that are divided.
#[derive(Debug)]
pub struct NumberedDivisions {
    numbers: Hashes,
    divisions: Table<[u64; 3]>,
}

impl NumberedDivisions {
    pub fn new(spill: &Spill) -> Self {
        NumberedDivisions { numbers: Hashes::new(spill), divisions: Table::new(spill) }
    }

    /// The division of a file. One that is undivided has neither references nor bytes that others name.
    pub fn get(&self, id: InodeId) -> FileDivision {
        self.numbers.get(&key(id)).map_or(FileDivision::default(), |number| {
            let [first, end, in_blocks] = self.divisions.get(number as usize);
            FileDivision { references: (first, end), in_blocks }
        })
    }

    /// Changes the division of a file.
    pub fn change(&mut self, id: InodeId, change: impl FnOnce(&mut FileDivision)) -> Result<(), BuildError> {
        let next = self.divisions.len() as u64;
        let number = match self.numbers.get_or_insert(&key(id), next)? {
            Some(number) => number as usize,
            None => self.divisions.push([0; 3])?,
        };
        let mut division = self.get(id);
        change(&mut division);
        let FileDivision { references: (first, end), in_blocks } = division;
        self.divisions.set(number, [first, end, in_blocks]);
        Ok(())
    }
}

fn key(id: InodeId) -> [u8; crate::table::HASH_BYTES] {
    Hashes::key_of(id.index() as u64, 0)
}

/// References, file after file; those of a file are ascending and do not overlap.
#[derive(Debug)]
pub struct References(Table<Record>);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Record {
    start: u64,
    end: u64,
    source: u64,
    source_start: u64,
}

impl References {
    pub fn new(spill: &Spill) -> Self {
        References(Table::new(spill))
    }

    /// Number of references.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends a reference, and returns its number.
    pub fn push(&mut self, reference: &Reference) -> Result<usize, BuildError> {
        let &Reference { start, end, source, source_start } = reference;
        self.0.push(Record { start, end, source: source.index() as u64, source_start })
    }

    /// The reference of a file that has the byte at this position.
    pub fn at(&self, file: FileDivision, at: u64) -> Option<Reference> {
        let numbers = file.numbers();
        let number = self.0.partition_point(numbers.clone(), |reference| reference.end <= at);
        (number < numbers.end).then(|| self.get(number)).filter(|reference| reference.start <= at)
    }

    fn get(&self, number: usize) -> Reference {
        let Record { start, end, source, source_start } = self.0.get(number);
        Reference { start, end, source: InodeId::at(source as usize), source_start }
    }
}

/// The divisions of all files.
#[derive(Debug)]
pub struct Divided {
    divisions: NumberedDivisions,
    references: References,
    cuts: SortedCuts,
}

impl Divided {
    pub(super) fn new(
        divisions: NumberedDivisions,
        references: References,
        cuts: Cuts,
    ) -> Result<Self, BuildError> {
        Ok(Divided { divisions, references, cuts: cuts.sorted()? })
    }

    /// No file is divided.
    pub fn none(spill: &Spill) -> Self {
        let (divisions, references) = (NumberedDivisions::new(spill), References::new(spill));
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
