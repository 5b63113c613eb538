//! Turns runs of equal chunks into references: where a file stores nothing, and where the other file has to be cut.
//!
//! A reference lies so that an index can express it:
//!
//! - It ends at a block's beginning in its file: what follows can begin there, whatever the last extent of the reference is.
//! - It begins at a block's beginning too, because an extent can end there even if nothing compresses; or else where the
//!   contents have a cut already.
//! - It begins where the file's own bytes begin, or a block or more after that; two if not at a block's beginning.
//! - It leaves the end of the file alone, which is stored with the inode or in the packed file.
//! - The file with the contents gets a cut where the reference begins, two blocks or more from all other cuts. A cut costs
//!   half a block, so one that is near is used again.

use super::cuts::Cuts;
use super::divided::{Divided, NumberedDivisions, Reference, reference_at};
use super::index::ChunkMatch;
use crate::Result;
use crate::options::BLOCK_BYTES;
use crate::table::{Spill, Table};
use crate::tree::InodeId;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How far after the beginning of a run a cut may be that serves for it too, and the least distance of cuts, bytes.
const NEAR_BYTES: u64 = 2 * BLOCK;
/// A file refers to others only if that saves this part of its length: its index becomes four times as long.
const SAVED_PART_MIN: u64 = 512;

/// A reference and its cuts take some 250 bytes of tables, which may spill. Beyond the first of these numbers a reference
/// must save twice as much, and twice as much again for each further one of the second. So their number grows with the
/// logarithm of the contents, and which there are depends on the contents alone.
const REFERENCES_FREE: u64 = 1 << 16;
const REFERENCES_STEP: u64 = 1 << 15;

/// Least length of a reference, bytes.
const LEN_BYTES_MIN: u64 = 2 * BLOCK;

/// A file whose runs become references.
#[derive(Debug, Clone, Copy)]
pub struct File {
    /// The file.
    pub id: InodeId,
    /// Its length, bytes.
    pub len_bytes: u64,
    /// No reference reaches after this, bytes; less than the length.
    pub limit: u64,
}

/// The divisions of the files so far.
#[derive(Debug)]
pub struct Divisions {
    /// Whether a reference may begin anywhere, since clusters may have three blocks.
    begins_anywhere: bool,
    divided: NumberedDivisions,
    /// The references, file after file.
    references: Table<Reference>,
    cuts: Cuts,
    /// For each inode the length of its file, bytes; 0: it was not added.
    lengths: Table<u64>,
}

impl Divisions {
    /// Makes divisions for clusters of up to this many bytes.
    pub fn new(cluster_bytes: u32, spill: &Spill) -> Self {
        Divisions {
            begins_anywhere: cluster_bytes >= 3 * BLOCK_BYTES,
            divided: NumberedDivisions::new(spill),
            references: Table::new(spill),
            cuts: Cuts::new(spill),
            lengths: Table::new(spill),
        }
    }

    /// Ends the search: the divisions of all files.
    pub fn finish(self) -> Result<Divided> {
        Divided::new(self.divided, self.references, self.cuts)
    }

    /// Adds a file with its runs. A reference saves at least `least_bytes`, or a multiple of it if there are many.
    pub fn add(&mut self, file: File, runs: &Table<ChunkMatch>, least_bytes: u64) -> Result<()> {
        self.lengths.put(file.id.index(), file.len_bytes, 0)?;
        let saved_bytes: u64 = runs.iter().map(|run| run.stored_bytes).sum();
        if saved_bytes < file.len_bytes / SAVED_PART_MIN {
            return Ok(());
        }
        let mut own_start = 0;
        for run in runs.iter() {
            let least_bytes = least_bytes.saturating_mul(saving_factor(self.references.len() as u64));
            if let Some(reference) = self.place(&file, &run, own_start, least_bytes) {
                own_start = reference.end;
                self.commit(&file, reference)?;
            }
        }
        Ok(())
    }

    /// Finds the reference for a run of a file, of which the bytes from `own_start` on have no reference yet; `None` if
    /// there is none that saves `least_bytes`.
    fn place(&self, file: &File, run: &ChunkMatch, own_start: u64, least_bytes: u64) -> Option<Reference> {
        let end = run.end.min(file.limit) / BLOCK * BLOCK;
        let first = if run.start == own_start { own_start } else { run.start.max(own_start + BLOCK) };
        let mut start = first.next_multiple_of(BLOCK);
        // Each step moves the beginning by a block, and a reference that becomes too short is dropped.
        loop {
            let reference = Reference {
                start,
                end,
                source: run.source,
                source_start: run.source_start + start.checked_sub(run.start)?,
            };
            let len_bytes = end.checked_sub(start)?;
            if len_bytes < LEN_BYTES_MIN || saved_bytes(run, len_bytes) < least_bytes {
                return None;
            }
            match self.move_to_cut(&reference) {
                Some(0) => return self.may_begin_at(file, start).then_some(reference),
                Some(step) if (start + step).is_multiple_of(BLOCK) && start + step >= own_start + BLOCK => {
                    start += step
                }
                Some(step) if start + step >= own_start + 2 * BLOCK => start += step,
                _ => start += BLOCK,
            }
        }
    }

    /// Returns how far to move the start of `reference`, bytes, so that it coincides with a cut: 0 also if a new cut may be
    /// added there, `None` if another cut is too close.
    fn move_to_cut(&self, reference: &Reference) -> Option<u64> {
        let (owner, at) = self.owner(reference.source, reference.source_start);
        let is_possible =
            |cut: &u64| self.begins_anywhere || (reference.start + (*cut - at)).is_multiple_of(BLOCK);
        if let Some(cut) = self.cuts.near(owner, at..at + NEAR_BYTES).find(is_possible) {
            return Some(cut - at);
        }
        let near = (at + 1).saturating_sub(NEAR_BYTES)..at + NEAR_BYTES;
        // The beginning of a file is one of its cuts.
        (at == 0 || at >= NEAR_BYTES && self.cuts.near(owner, near).next().is_none()).then_some(0)
    }

    /// Whether a reference of the file may begin here, because no cut of the file is near.
    fn may_begin_at(&self, file: &File, start: u64) -> bool {
        self.cuts.near(file.id, (start + 1).saturating_sub(BLOCK)..start).next().is_none()
    }

    /// Notes a reference, and its cut in the file that has the contents.
    fn commit(&mut self, file: &File, reference: Reference) -> Result<()> {
        let Reference { start, end, source, source_start } = reference;
        let source_end = source_start + (end - start);
        let (owner, at) = self.owner(source, source_start);
        self.cuts.insert(owner, at)?;
        // Equal ends of both files begin at the same place in the packed file.
        let source_len_bytes = self.lengths.get_or(source.index(), 0);
        let has_same_end = source_len_bytes.checked_sub(source_end) == Some(file.len_bytes - end);
        self.divided.change(source, |division| division.in_blocks = division.in_blocks.max(source_end))?;
        // A reference has two blocks at least, so this begins after the first one.
        let near = source_end + 1 - BLOCK..source_end + BLOCK;
        if has_same_end && end == file.limit && self.cuts.near(source, near).next().is_none() {
            self.cuts.insert(source, source_end)?;
        }
        let number = self.references.push(reference)? as u64;
        self.divided.change(file.id, |division| {
            let first = if division.has_references() { division.references[0] } else { number };
            division.references = [first, number + 1];
        })?;
        self.cuts.insert(file.id, start)?;
        self.cuts.insert(file.id, end)
    }

    /// Follows references to the file that stores a byte itself.
    fn owner(&self, mut id: InodeId, mut at: u64) -> (InodeId, u64) {
        let reference = |id, at| reference_at(&self.references, self.divided.get(id), at);
        while let Some(found) = reference(id, at) {
            (id, at) = (found.source, found.source_start + (at - found.start));
        }
        (id, at)
    }
}

/// How many times as much as the first references the next one must save.
fn saving_factor(references: u64) -> u64 {
    let steps = references.saturating_sub(REFERENCES_FREE).div_ceil(REFERENCES_STEP);
    1u64.checked_shl(u32::try_from(steps).unwrap_or(u32::MAX)).unwrap_or(u64::MAX)
}

/// Bytes that a reference to `len_bytes` of a run saves, roughly.
fn saved_bytes(run: &ChunkMatch, len_bytes: u64) -> u64 {
    let bytes =
        u128::from(run.stored_bytes) * u128::from(len_bytes) / u128::from((run.end - run.start).max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metadata, Tree};
    use proptest::prelude::*;

    const LEAST_BYTES: u64 = 6 << 10;

    /// A file: its length, and runs as the bytes before each, its length, its source and where in it that is, both as
    /// parts of what is possible.
    type Drawn = (u64, Vec<(u64, u64, f64, f64)>);

    fn drawn() -> impl Strategy<Value = Vec<Drawn>> {
        let run = (0u64..30_000, 8000u64..200_000, 0.0..1.0, 0.0..1.0);
        proptest::collection::vec((200_000u64..900_000, proptest::collection::vec(run, 0..6)), 1..10)
    }

    /// The runs of the file of this number; its own beginning may be a source too.
    fn runs(drawn: &[Drawn], ids: &[InodeId], number: usize) -> Vec<ChunkMatch> {
        let (mut runs, mut at) = (Vec::new(), 0);
        for (gap, len, source, place) in &drawn[number].1 {
            let start = at + gap;
            let end = (start + len).min(drawn[number].0);
            let source = ((number + 1) as f64 * source) as usize;
            let room = if source == number { start } else { drawn[source].0 };
            let Some(room) = room.checked_sub(end.saturating_sub(start)) else { continue };
            if end < start + 8000 {
                break;
            }
            let source_start = (room as f64 * place) as u64;
            runs.push(ChunkMatch {
                start,
                end,
                source: ids[source],
                source_start,
                stored_bytes: (end - start) / 2,
            });
            at = end;
        }
        runs
    }

    fn table(runs: &[ChunkMatch]) -> Table<ChunkMatch> {
        let mut table = Table::new(&Spill::none());
        for run in runs {
            table.push(*run).unwrap();
        }
        table
    }

    fn references(divided: &Divided, id: InodeId) -> Vec<Reference> {
        (0..).map_while(|number| divided.reference(id, number)).collect()
    }

    /// The file that stores a byte of a file, and where: the obvious twin of `Divisions::owner`.
    fn owner(divided: &Divided, id: InodeId, at: u64) -> (InodeId, u64) {
        let has = |reference: &Reference| reference.start <= at && at < reference.end;
        match references(divided, id).into_iter().find(has) {
            Some(found) => owner(divided, found.source, found.source_start + (at - found.start)),
            None => (id, at),
        }
    }

    /// Checks a division against the rules at the head of this module.
    fn check(
        divided: &Divided,
        begins_anywhere: bool,
        file: &File,
        runs: &[ChunkMatch],
    ) -> Result<(), TestCaseError> {
        let all_cuts = |id| divided.cuts(id, 0..u64::MAX).collect::<Vec<_>>();
        let mut own_start = 0;
        for reference in &references(divided, file.id) {
            let run =
                runs.iter().find(|run| run.start <= reference.start && reference.end <= run.end).unwrap();
            prop_assert_eq!(reference.source, run.source);
            prop_assert_eq!(reference.source_start - run.source_start, reference.start - run.start);
            prop_assert!(reference.end <= file.limit && reference.end.is_multiple_of(BLOCK));
            prop_assert!(reference.end - reference.start >= LEN_BYTES_MIN);
            let own = reference.start.checked_sub(own_start).unwrap();
            let is_aligned = reference.start.is_multiple_of(BLOCK);
            prop_assert!(
                own == 0 || own >= if is_aligned { BLOCK } else { 2 * BLOCK },
                "{} bytes before",
                own
            );
            prop_assert!(is_aligned || begins_anywhere);
            // The file that stores the bytes begins an extent there.
            let (owner, at) = owner(divided, reference.source, reference.source_start);
            prop_assert!(all_cuts(owner).contains(&at) || at == 0);
            let source_end = reference.source_start + (reference.end - reference.start);
            prop_assert!(divided.of(reference.source).in_blocks >= source_end);
            prop_assert!(reference.source != file.id || source_end <= reference.start);
            own_start = reference.end;
        }
        let cuts = all_cuts(file.id);
        prop_assert!(cuts.windows(2).all(|pair| pair[0] == 0 || pair[1] - pair[0] >= BLOCK), "{:?}", cuts);
        Ok(())
    }

    proptest! {
        #[test]
        fn references_are_such_that_an_index_can_express_them(drawn in drawn(), cluster in 1u32..5) {
            let mut tree = Tree::new(Metadata::default());
            let ids: Vec<_> = (0..drawn.len())
                .map(|number| tree.add_bytes(format!("{number}").as_bytes(), *b"").unwrap())
                .collect();
            let mut divisions = Divisions::new(cluster * BLOCK_BYTES, &Spill::none());
            let mut files = Vec::new();
            for (number, (len_bytes, _)) in drawn.iter().enumerate() {
                let limit = (len_bytes - 1) / BLOCK * BLOCK;
                let file = File { id: ids[number], len_bytes: *len_bytes, limit };
                let runs = runs(&drawn, &ids, number);
                divisions.add(file, &table(&runs), LEAST_BYTES).unwrap();
                files.push((file, runs));
            }
            let divided = divisions.finish().unwrap();
            for (file, runs) in &files {
                check(&divided, cluster >= 3, file, runs)?;
            }
        }
    }

    /// A terabyte of files that share every other 8 KiB has no more references than a bounded table has.
    #[test]
    fn the_number_of_references_grows_with_the_logarithm_of_the_contents() {
        let mut tree = Tree::new(Metadata::default());
        let ids = [b"a", b"b"].map(|name| tree.add_bytes(name, *b"").unwrap());
        let spill = Spill::in_directory(&std::env::temp_dir(), 0).unwrap();
        let mut divisions = Divisions::new(65536, &spill);
        let len_bytes = 1 << 40;
        let source = File { id: ids[0], len_bytes, limit: len_bytes - BLOCK };
        divisions.add(source, &table(&[]), LEAST_BYTES).unwrap();
        let run = |number: u64| {
            let (start, end) = (number * 16_384, number * 16_384 + 8192);
            ChunkMatch { start, end, source: ids[0], source_start: start, stored_bytes: 8192 }
        };
        let runs: Vec<_> = (0..200_000).map(run).collect();
        let file = File { id: ids[1], len_bytes: 200_000 * 16_384, limit: 199_999 * 16_384 };
        divisions.add(file, &table(&runs), LEAST_BYTES).unwrap();
        // These runs save less than twice the least.
        let count = divisions.references.len();
        assert_eq!(count as u64, REFERENCES_FREE + 1);
        // References, two cuts each and where cuts are: 32, 24 and 32 bytes.
        assert!(spill.mapped_bytes() > count as u64 * (32 + 2 * (24 + 32)));
        let divided = divisions.finish().unwrap();
        assert!(divided.reference(ids[1], count - 1).is_some() && divided.reference(ids[1], count).is_none());
        let factors = [0, 1, 2, 3].map(|steps| saving_factor(REFERENCES_FREE + steps * REFERENCES_STEP));
        assert_eq!(factors, [1, 2, 4, 8]);
        assert_eq!(saving_factor(u64::MAX), u64::MAX);
        // A reference cannot save a terabyte from here on.
        assert!(LEAST_BYTES * saving_factor(REFERENCES_FREE + 28 * REFERENCES_STEP) > 1 << 40);
    }

    #[test]
    fn a_cut_serves_for_several_references() {
        let mut tree = Tree::new(Metadata::default());
        let ids = [b"a", b"b", b"c"].map(|name| tree.add_bytes(name, *b"").unwrap());
        let mut divisions = Divisions::new(65536, &Spill::none());
        for (number, moved) in [0, 5, 77].into_iter().enumerate() {
            let (start, source_start) = (100_000 + moved, 100_000);
            let run = ChunkMatch { start, end: 300_000, source: ids[0], source_start, stored_bytes: 100_000 };
            let file = File { id: ids[number], len_bytes: 400_000, limit: 399_360 };
            let runs = if number == 0 { &[] } else { std::slice::from_ref(&run) };
            divisions.add(file, &table(runs), LEAST_BYTES).unwrap();
        }
        let divided = divisions.finish().unwrap();
        let made: Vec<_> = divided.cuts(ids[0], 0..200_000).collect();
        assert_eq!(made, [102_395], "the first multiple of a block after the run's beginning in `b`");
        let starts = ids[1..].iter().map(|id| divided.reference(*id, 0).unwrap().start);
        assert_eq!(starts.collect::<Vec<_>>(), [102_400, 102_472]);
    }
}
