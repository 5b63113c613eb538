//! Turns runs of equal chunks into references: where a file stores nothing, and where the other file has to be cut.
//!
//! A reference lies so that an index can express it:
//!
//! - It ends at a block's beginning in its file: what follows can begin there, whatever the last extent of the reference is.
//! - It begins at a block's beginning too, because an extent can end there even if nothing compresses; or else where the
//!   contents have a cut already.
//! - It begins where the file's own bytes begin, or a block or more behind that; two if not at a block's beginning.
//! - It leaves the end of the file alone, which is stored with the inode or in the packed file.
//! - The file with the contents gets a cut where the reference begins, two blocks or more from all other cuts. A cut costs
//!   half a block, so one that is near is used again.

use super::index::Run;
use crate::build::options::BLOCK_BYTES;
use crate::build::tree::InodeId;
use std::collections::{BTreeSet, HashMap};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How far behind the beginning of a run a cut may be that serves for it too, and the least distance of cuts, bytes.
const NEAR_BYTES: u64 = 2 * BLOCK;
/// A file refers to others only if this part of it lies there: its index becomes four times as long.
const SHARED_PART_MIN: u64 = 128;

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

/// How a file is divided into its own bytes and references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Division {
    /// The references, ascending; they do not overlap, and do not reach the end of the file.
    pub references: Vec<Reference>,
    /// Positions at which extents should begin: those that references name, and the beginnings and ends of its own.
    pub cuts: BTreeSet<u64>,
    /// Its bytes before this are in blocks, because references name them.
    pub in_blocks: u64,
}

/// A file whose runs become references.
#[derive(Debug, Clone, Copy)]
pub struct File {
    /// The file.
    pub id: InodeId,
    /// Its length, bytes.
    pub len_bytes: u64,
    /// No reference reaches behind this, bytes; less than the length.
    pub limit: u64,
}

/// The divisions of the files so far.
#[derive(Debug, Default)]
pub struct Divisions {
    /// Whether a reference may begin anywhere, since clusters may have three blocks.
    begins_anywhere: bool,
    divisions: HashMap<InodeId, Division>,
    lengths: HashMap<InodeId, u64>,
}

impl Divisions {
    /// Makes divisions for clusters of up to this many bytes.
    pub fn new(cluster_bytes: u32) -> Self {
        Divisions { begins_anywhere: cluster_bytes >= 3 * BLOCK_BYTES, ..Divisions::default() }
    }

    /// Takes the division of a file; `None` if it is undivided, and no other file refers to it.
    pub fn take(&mut self, id: InodeId) -> Option<Division> {
        self.divisions.remove(&id)
    }

    /// Adds a file with its runs, those of at least `least_bytes` where the reference is not shorter than that.
    pub fn add(&mut self, file: File, runs: &[Run], least_bytes: u64) {
        self.lengths.insert(file.id, file.len_bytes);
        let shared: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if shared < file.len_bytes / SHARED_PART_MIN {
            return;
        }
        let mut own_start = 0;
        for run in runs {
            if let Some(reference) = self.place(&file, run, own_start, least_bytes) {
                own_start = reference.end;
                self.commit(&file, reference);
            }
        }
    }

    /// Finds the reference for a run of a file, of which the bytes from `own_start` on have no reference yet; `None` if
    /// there is none of at least `least_bytes`.
    fn place(&self, file: &File, run: &Run, own_start: u64, least_bytes: u64) -> Option<Reference> {
        let end = run.end.min(file.limit) / BLOCK * BLOCK;
        let first = if run.start == own_start { own_start } else { run.start.max(own_start + BLOCK) };
        let mut start = first.next_multiple_of(BLOCK);
        // Each step moves the beginning by a block, and a reference that becomes too short is none.
        loop {
            let reference = Reference {
                start,
                end,
                source: run.source,
                source_start: run.source_start + start.checked_sub(run.start)?,
            };
            if end.checked_sub(start)? < least_bytes {
                return None;
            }
            match self.move_to_cut(&reference) {
                Some(0) => return self.has_room(file, start).then_some(reference),
                Some(step) if (start + step).is_multiple_of(BLOCK) && start + step >= own_start + BLOCK => {
                    start += step
                }
                Some(step) if start + step >= own_start + 2 * BLOCK => start += step,
                _ => start += BLOCK,
            }
        }
    }

    /// By how much a reference has to begin later, bytes, so that it begins at a cut; 0 also if a new cut is possible
    /// there. `None`: there is another cut shortly before.
    fn move_to_cut(&self, reference: &Reference) -> Option<u64> {
        let (owner, at) = self.owner(reference.source, reference.source_start);
        let Some(division) = self.divisions.get(&owner) else {
            // The beginning of a file is one of its cuts.
            return (at == 0 || at >= NEAR_BYTES).then_some(0);
        };
        let is_possible =
            |cut: &&u64| self.begins_anywhere || (reference.start + (**cut - at)).is_multiple_of(BLOCK);
        if let Some(cut) = division.cuts.range(at..at + NEAR_BYTES).find(is_possible) {
            return Some(cut - at);
        }
        let near = (at + 1).saturating_sub(NEAR_BYTES)..at + NEAR_BYTES;
        (at == 0 || division.cuts.range(near).next().is_none() && at >= NEAR_BYTES).then_some(0)
    }

    /// Whether a reference of the file may begin here, because none of its own cuts is near.
    fn has_room(&self, file: &File, start: u64) -> bool {
        let before =
            self.divisions.get(&file.id).and_then(|division| division.cuts.range(..start).next_back());
        before.is_none_or(|before| start - before >= BLOCK)
    }

    /// Notes a reference, and its cut in the file that has the contents.
    fn commit(&mut self, file: &File, reference: Reference) {
        let Reference { start, end, source, source_start } = reference;
        let source_end = source_start + (end - start);
        let (owner, at) = self.owner(source, source_start);
        self.divisions.entry(owner).or_default().cuts.insert(at);
        // Equal ends of both files begin at the same place in the packed file.
        let source_len_bytes = self.lengths.get(&source).copied().unwrap_or(0);
        let has_same_end = source_len_bytes.checked_sub(source_end) == Some(file.len_bytes - end);
        let source_division = self.divisions.entry(source).or_default();
        source_division.in_blocks = source_division.in_blocks.max(source_end);
        let last = source_division.cuts.range(..source_end + BLOCK).next_back().copied().unwrap_or(0);
        if has_same_end && end == file.limit && last + BLOCK <= source_end {
            source_division.cuts.insert(source_end);
        }
        let division = self.divisions.entry(file.id).or_default();
        division.references.push(reference);
        division.cuts.extend([start, end]);
    }

    /// Follows references to the file that stores a byte itself.
    fn owner(&self, mut id: InodeId, mut at: u64) -> (InodeId, u64) {
        while let Some(division) = self.divisions.get(&id) {
            let number = division.references.partition_point(|reference| reference.end <= at);
            match division.references.get(number).filter(|reference| reference.start <= at) {
                Some(reference) => {
                    (id, at) = (reference.source, reference.source_start + (at - reference.start))
                }
                None => break,
            }
        }
        (id, at)
    }
}
