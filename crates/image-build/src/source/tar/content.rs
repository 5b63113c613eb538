//! The contents of members, which are read from the archive when the image is built.

use super::archive::{Archive, BLOCK_BYTES};
use super::sparse::SparseRun;
use crate::Result;
use crate::content::{Content, Contents, DeviceRun, Reader, SourceDevice, Stored};
use crate::table::Table;
use std::ops::Range;
use std::sync::Arc;

/// The contents of all members. The tree has the position of a member's data in the archive, and if it is sparse the place
/// of its runs, which are consecutive: the first one counted from 1, and their number.
#[derive(Debug)]
pub struct Members {
    /// The archive.
    pub archive: Arc<Archive>,
    /// The runs of all sparse files.
    pub runs: Arc<Table<SparseRun>>,
}

impl Contents for Members {
    fn content(&self, file: &Stored, _path: &[u8]) -> Arc<dyn Content> {
        let [at, first, count, ..] = file.words;
        let runs = (first as usize).checked_sub(1).map(|first| first..first + count as usize);
        let runs = runs.map(|range| Runs { table: self.runs.clone(), range });
        Arc::new(MemberContent { archive: self.archive.clone(), at, len_bytes: file.len_bytes, runs })
    }

    fn devices(&self) -> Vec<SourceDevice> {
        // Members end in whole blocks; an end that is none is not needed.
        let len_bytes = self.archive.len_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        vec![SourceDevice { tag: [0; 64], len_bytes, block_bytes: BLOCK_BYTES as u32 }]
    }
}

/// The parts of a sparse file that the archive has.
#[derive(Debug)]
struct Runs {
    table: Arc<Table<SparseRun>>,
    range: Range<usize>,
}

impl Runs {
    fn iter(&self) -> impl Iterator<Item = SparseRun> + '_ {
        self.range.clone().map(|index| self.table.get(index))
    }

    /// The first run that ends after a position.
    fn first_after(&self, position: u64) -> Option<SparseRun> {
        let first = self.table.partition_point(self.range.clone(), |run| run.end <= position);
        (first < self.range.end).then(|| self.table.get(first))
    }
}

/// The contents of a member.
#[derive(Debug)]
struct MemberContent {
    archive: Arc<Archive>,
    /// First byte of the data in the archive.
    at: u64,
    /// Length of the file, bytes.
    len_bytes: u64,
    /// `None`: the file is not sparse.
    runs: Option<Runs>,
}

impl Content for MemberContent {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn device_runs(&self) -> Result<Option<Vec<DeviceRun>>> {
        self.archive.check()?;
        let Some(runs) = &self.runs else {
            return Ok(Some(vec![DeviceRun { range: 0..self.len_bytes, at: self.at }]));
        };
        // An empty run may mark the end of a sparse file.
        let runs = runs.iter().filter(|run| run.start < run.end);
        let placed = |run: SparseRun| DeviceRun { range: run.start..run.end, at: self.at + run.stored_at };
        Ok(Some(runs.map(placed).collect()))
    }

    fn in_image(&self) -> Option<u64> {
        if self.runs.is_some() { None } else { self.archive.in_image(self.at, self.len_bytes) }
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>> {
        self.archive.check()?;
        Ok(Box::new(MemberReader(self)))
    }
}

struct MemberReader<'c>(&'c MemberContent);

impl MemberReader<'_> {
    /// Where the bytes from `position` on are in the archive, and how many are alike; `None`: a hole.
    fn run(&self, position: u64) -> (Option<u64>, u64) {
        let content = self.0;
        let Some(runs) = &content.runs else {
            return (Some(content.at + position), content.len_bytes - position);
        };
        match runs.first_after(position) {
            Some(run) if run.start <= position => {
                (Some(content.at + run.stored_at + (position - run.start)), run.end - position)
            }
            Some(run) => (None, run.start - position),
            None => (None, u64::MAX),
        }
    }
}

impl Reader for MemberReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        Ok(self.0.runs.as_ref().map(|runs| runs.iter().map(|run| run.start..run.end).collect()))
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let (stored_at, run) = self.run(at + done as u64);
            let now = run.min((buf.len() - done) as u64) as usize;
            if now == 0 {
                return Err(self.0.archive.past_the_end());
            }
            let piece = &mut buf[done..done + now];
            match stored_at {
                Some(at) => self.0.archive.read_exact_at(piece, at)?,
                None => piece.fill(0),
            }
            done += now;
        }
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        self.0.archive.check()
    }
}
