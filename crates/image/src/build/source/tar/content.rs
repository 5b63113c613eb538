//! The contents of members, which are read from the archive when the image is built.

use super::archive::Archive;
use super::sparse::Run;
use crate::build::BuildError;
use crate::build::content::{Content, Contents, Reader, Stored};
use std::ops::Range;
use std::sync::Arc;

/// The contents of all members. The tree has the position of a member's data in the archive, and the number of its runs,
/// counted from 1, if it is sparse.
#[derive(Debug)]
pub struct Members {
    /// The archive.
    pub archive: Arc<Archive>,
    /// The runs of sparse files.
    pub runs: Vec<Arc<[Run]>>,
}

impl Contents for Members {
    fn content(&self, file: &Stored, _path: &[u8]) -> Arc<dyn Content> {
        let [at, number, ..] = file.words;
        let runs = (number as usize).checked_sub(1).and_then(|index| self.runs.get(index));
        let (archive, runs) = (self.archive.clone(), runs.cloned());
        Arc::new(MemberContent { archive, at, len_bytes: file.len_bytes, runs })
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
    /// The parts of a sparse file that the archive has; `None`: the file is not sparse.
    runs: Option<Arc<[Run]>>,
}

impl Content for MemberContent {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>, BuildError> {
        self.archive.check()?;
        Ok(Box::new(MemberReader { content: self, position: 0 }))
    }
}

struct MemberReader<'c> {
    content: &'c MemberContent,
    /// Position in the file.
    position: u64,
}

impl MemberReader<'_> {
    /// Where the next bytes are in the archive, and how many are alike; `None`: a hole.
    fn run(&self) -> (Option<u64>, u64) {
        let (content, position) = (self.content, self.position);
        let Some(runs) = &content.runs else {
            return (Some(content.at + position), content.len_bytes - position);
        };
        match runs.get(runs.partition_point(|run| run.end <= position)) {
            Some(run) if run.start <= position => {
                (Some(content.at + run.stored_at + (position - run.start)), run.end - position)
            }
            Some(run) => (None, run.start - position),
            None => (None, u64::MAX),
        }
    }
}

impl Reader for MemberReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>, BuildError> {
        Ok(self.content.runs.as_ref().map(|runs| runs.iter().map(|run| run.start..run.end).collect()))
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), BuildError> {
        let mut done = 0;
        while done < buf.len() {
            let (at, run) = self.run();
            let now = run.min((buf.len() - done) as u64) as usize;
            if now == 0 {
                return Err(self.content.archive.past_the_end());
            }
            let piece = &mut buf[done..done + now];
            match at {
                Some(at) => self.content.archive.read_exact_at(piece, at)?,
                None => piece.fill(0),
            }
            self.position += now as u64;
            done += now;
        }
        Ok(())
    }

    fn skip(&mut self, len_bytes: u64) -> Result<(), BuildError> {
        self.position += len_bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), BuildError> {
        self.content.archive.check()
    }
}
