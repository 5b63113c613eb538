//! The chunks of all files so far, and the longest runs of them that a further file has too.
//!
//! Contents are not kept: a chunk is known by its hash, of which equal values cannot be made. The index takes a
//! fixed number of chunks. Files that do not fit are searched for chunks of earlier ones, and not remembered.

use super::gear::ChunkSizes;
use crate::Result;
use crate::table::{Hashes, Key, Spill, Table};
use crate::tree::InodeId;
use std::collections::{HashMap, VecDeque};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most chunks that are remembered. Each takes 60 to 140 bytes.
const CHUNKS_MAX: usize = 1_800_000;
/// The average chunk is not longer, bytes: a chunk is a part of a segment.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// A chunk that repeats one at most this many bytes before it is compressed to next to nothing.
const NEAR_BYTES: u64 = 128 << 10;
/// No chunk has this number.
const UNKNOWN: u64 = u64::MAX;

/// A chunk of a file.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct FoundChunk {
    /// The beginning of the SHA-256 of what makes chunks equal.
    pub hash: Key,
    /// Length, bytes.
    pub len_bytes: u32,
    /// Bytes that it takes when it is compressed, roughly.
    pub stored_bytes: u32,
}

/// A part of a file that lies in an earlier file too, or earlier in the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C, packed(4))]
pub struct ChunkMatch {
    /// Its beginning in the file, bytes.
    pub start: u64,
    /// Its end, bytes.
    pub end: u64,
    /// The file that has the contents.
    pub source: InodeId,
    /// Their beginning in it, bytes.
    pub source_start: u64,
    /// Bytes that it would take when it is compressed, roughly.
    pub stored_bytes: u64,
}

/// A chunk of the sequence of all files' chunks.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Known {
    /// The number of the first chunk with its contents.
    first: u64,
    /// Its beginning in its file, bytes.
    offset: u64,
}

/// The chunks of all files so far.
#[derive(Debug)]
pub struct ChunkIndex {
    chunks_max: usize,
    /// The number of the first chunk with a hash.
    first: Hashes,
    /// All chunks, file after file.
    sequence: Table<Known>,
    /// The files, by the numbers of their first chunks.
    files: Table<FirstChunk>,
}

/// A file whose chunks are remembered.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct FirstChunk {
    /// The number of its first chunk.
    number: u64,
    /// The file.
    id: u64,
}

/// Returns the sizes of chunks for contents of this many bytes: `least_bytes` on average, or more if the index would be
/// more than three quarters full otherwise.
pub fn chunk_sizes(least_bytes: usize, content_bytes: u64) -> ChunkSizes {
    let bytes = content_bytes / (CHUNKS_MAX as u64 / 4 * 3);
    let average_bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(CHUNK_BYTES_MAX);
    ChunkSizes::new(average_bytes.max(least_bytes))
}

/// A file that is being compared.
struct Compared {
    /// Its chunks.
    known: Table<Known>,
    /// For each chunk, the bytes that it would take when it is compressed: none if it repeats one shortly before.
    stored_bytes: Table<u32>,
    /// Its length, bytes.
    end: u64,
    /// Number of its first chunk, if the index remembers it; else that of the next file's.
    base: usize,
}

impl ChunkIndex {
    /// Makes an empty index.
    pub fn new(spill: &Spill) -> Self {
        Self::with_capacity(CHUNKS_MAX, spill)
    }

    fn with_capacity(chunks_max: usize, spill: &Spill) -> Self {
        let (sequence, files) = (Table::new(spill), Table::new(spill));
        ChunkIndex { chunks_max, first: Hashes::new(spill), sequence, files }
    }

    /// Adds a file with these chunks, and returns the runs that it has in common
    /// with earlier files or with itself, in their order, without those that would take fewer than `least_bytes`. They do
    /// not overlap.
    pub fn add_file(
        &mut self,
        id: InodeId,
        chunks: &Table<FoundChunk>,
        least_bytes: u64,
    ) -> Result<Table<ChunkMatch>> {
        let file = self.remember(id, chunks)?;
        let mut runs = Table::new(chunks.spill());
        // Chunks before this are in runs.
        let (mut at, mut taken) = (0, 0);
        while at < chunks.len() {
            let found = self.run_at(&file, at, taken).filter(|(run, _)| run.stored_bytes >= least_bytes);
            match found {
                Some((run, end)) => {
                    runs.push(run)?;
                    (at, taken) = (end, end);
                }
                None => at += 1,
            }
        }
        Ok(runs)
    }

    /// Adds the chunks of a file to the sequence, if they fit.
    fn remember(&mut self, id: InodeId, chunks: &Table<FoundChunk>) -> Result<Compared> {
        let base = self.sequence.len();
        let is_remembered = chunks.len() <= self.chunks_max - base;
        let spill = chunks.spill();
        let (mut known, mut stored_bytes) = (Table::new(spill), Table::new(spill));
        let (mut offset, mut recent) = (0, RecentChunks::default());
        for (number, chunk) in (base as u64..).zip(chunks.iter()) {
            let first = match is_remembered {
                true => self.first.get_or_insert(&chunk.hash, number)?.unwrap_or(number),
                false => self.first.get(&chunk.hash).unwrap_or(UNKNOWN),
            };
            let is_near = recent.add(first, offset);
            stored_bytes.push(if is_near { 0 } else { chunk.stored_bytes })?;
            known.push(Known { first, offset })?;
            offset += u64::from(chunk.len_bytes);
        }
        if is_remembered {
            self.files.push(FirstChunk { number: base as u64, id: id.index() as u64 })?;
            for chunk in known.iter() {
                self.sequence.push(chunk)?;
            }
        }
        Ok(Compared { known, stored_bytes, end: offset, base })
    }

    /// Returns the longest run around chunk `at` of a file that lies where the first chunk with these contents is, and the
    /// number of the chunk after it. The run begins at or after chunk `taken`.
    fn run_at(&self, file: &Compared, at: usize, taken: usize) -> Option<(ChunkMatch, usize)> {
        let source = file.known.get(at).first as usize;
        // A chunk of the file itself has to be an earlier one; an unknown one is after the end.
        if file.stored_bytes.get(at) == 0 || source >= self.sequence.len() || source >= file.base + at {
            return None;
        }
        let (source_base, source_end, id) = self.file_of(source);
        // In the file itself, what is referred to ends before the run begins.
        let is_itself = source >= file.base;
        let source_end = if is_itself { source_end.min(file.base + at) } else { source_end };
        let is_same = |in_sequence: usize, in_file: usize| {
            let (a, b) = (self.sequence.get(in_sequence).first, file.known.get(in_file).first);
            a == b && a != UNKNOWN
        };
        let most_ahead = (source_end - source).min(file.known.len() - at);
        let ahead = (0..most_ahead).take_while(|n| is_same(source + n, at + n)).count();
        let most_back = if is_itself { file.base + at - (source + ahead) } else { usize::MAX };
        let most_back = most_back.min(source - source_base).min(at - taken);
        let back = (1..=most_back).take_while(|n| is_same(source - n, at - n)).count();
        let (first, end) = (at - back, at + ahead);
        let run = ChunkMatch {
            start: file.known.get(first).offset,
            end: if end < file.known.len() { file.known.get(end).offset } else { file.end },
            source: id,
            source_start: self.sequence.get(source - back).offset,
            stored_bytes: (first..end).map(|n| u64::from(file.stored_bytes.get(n))).sum(),
        };
        Some((run, end))
    }

    /// The file that has a chunk: its first chunk, that of the next file, and the file.
    fn file_of(&self, chunk: usize) -> (usize, usize, InodeId) {
        let next = self.files.partition_point(0..self.files.len(), |file| file.number as usize <= chunk);
        // The first file begins with chunk 0.
        let FirstChunk { number, id } = self.files.get(next - 1);
        let has_next = next < self.files.len();
        let end = if has_next { self.files.get(next).number as usize } else { self.sequence.len() };
        (number as usize, end, InodeId::at(id as usize))
    }
}

/// The chunks of the last [`NEAR_BYTES`] of a file.
#[derive(Default)]
struct RecentChunks {
    /// Where each was last, bytes.
    last: HashMap<u64, u64>,
    /// The same in order.
    recent: VecDeque<(u64, u64)>,
}

impl RecentChunks {
    /// Adds a chunk, and returns whether it is among the recent ones already.
    fn add(&mut self, chunk: u64, offset: u64) -> bool {
        while let Some((old, at)) = self.recent.pop_front_if(|(_, at)| offset - *at >= NEAR_BYTES) {
            if self.last.get(&old) == Some(&at) {
                self.last.remove(&old);
            }
        }
        self.recent.push_back((chunk, offset));
        self.last.insert(chunk, offset).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A chunk that is known by its contents, which are a number.
    fn chunk(contents: u8) -> FoundChunk {
        let len_bytes = 1000 + u32::from(contents);
        FoundChunk { hash: [contents; size_of::<Key>()], len_bytes, stored_bytes: len_bytes / 2 }
    }

    fn table(chunks: impl Iterator<Item = u8>) -> Table<FoundChunk> {
        let mut table = Table::new(&Spill::none());
        chunks.for_each(|contents| drop(table.push(chunk(contents))));
        table
    }

    /// The obvious twin of the index: it compares each chunk with all before.
    #[derive(Default)]
    struct SlowIndex(Vec<(InodeId, Vec<u8>)>);

    impl SlowIndex {
        fn add_file(&mut self, id: InodeId, contents: &[u8], least_bytes: u64) -> Vec<ChunkMatch> {
            self.0.push((id, contents.to_vec()));
            let (mut runs, mut at, mut taken) = (Vec::new(), 0, 0);
            while at < contents.len() {
                match self.run_at(at, taken).filter(|(run, _)| run.stored_bytes >= least_bytes) {
                    Some((run, end)) => {
                        runs.push(run);
                        (at, taken) = (end, end);
                    }
                    None => at += 1,
                }
            }
            runs
        }

        /// The run at chunk `at` of the last file.
        fn run_at(&self, at: usize, taken: usize) -> Option<(ChunkMatch, usize)> {
            let last = self.0.len() - 1;
            let file = &self.0[last].1;
            let places =
                self.0.iter().enumerate().flat_map(|(n, (_, all))| (0..all.len()).map(move |i| (n, i)));
            let (number, first) = places.into_iter().find(|(n, i)| self.0[*n].1[*i] == file[at])?;
            if (number, first) == (last, at) || stored_bytes(file, at) == 0 {
                return None;
            }
            let (id, source) = &self.0[number];
            let (mut from, mut source_from, mut len) = (at, first, 1);
            let may_end = |source_end: usize, from: usize| number != last || source_end <= from;
            while file.get(from + len).is_some_and(|next| source.get(source_from + len) == Some(next))
                && may_end(source_from + len + 1, from)
            {
                len += 1;
            }
            while from > taken
                && source_from > 0
                && file[from - 1] == source[source_from - 1]
                && may_end(source_from + len, from - 1)
            {
                (from, source_from, len) = (from - 1, source_from - 1, len + 1);
            }
            let offset =
                |all: &[u8], end: usize| all[..end].iter().map(|c| u64::from(chunk(*c).len_bytes)).sum();
            let run = ChunkMatch {
                start: offset(file, from),
                end: offset(file, from + len),
                source: *id,
                source_start: offset(source, source_from),
                stored_bytes: (from..from + len).map(|i| stored_bytes(file, i)).sum(),
            };
            Some((run, from + len))
        }
    }

    /// Bytes that a chunk takes: none if it repeats one shortly before.
    fn stored_bytes(file: &[u8], at: usize) -> u64 {
        let mut distance = 0;
        for before in file[..at].iter().rev() {
            distance += u64::from(chunk(*before).len_bytes);
            if *before == file[at] && distance < NEAR_BYTES {
                return 0;
            }
        }
        chunk(file[at]).stored_bytes.into()
    }

    /// Files of new chunks, and of parts of those before.
    fn files() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let piece = prop_oneof![
            (any::<u8>(), 1usize..20)
                .prop_map(|(first, len)| (0..len).map(|i| first.wrapping_add(i as u8)).collect()),
            proptest::collection::vec(0u8..6, 1..10),
            (any::<u8>(), 1usize..150).prop_map(|(first, len)| vec![first; len]),
        ];
        let file = proptest::collection::vec(piece, 0..8).prop_map(|pieces: Vec<Vec<u8>>| pieces.concat());
        proptest::collection::vec(file, 1..8)
    }

    proptest! {
        #[test]
        fn runs_are_those_of_the_slow_twin(files in files(), least_bytes in 1u64..6000) {
            let (mut index, mut slow) = (ChunkIndex::new(&Spill::none()), SlowIndex::default());
            let mut tree = crate::Tree::new(crate::Metadata::default());
            for (number, contents) in files.iter().enumerate() {
                let id = tree.add_bytes(format!("{number}").as_bytes(), *b"").unwrap();
                let chunks = table(contents.iter().copied());
                let runs = index.add_file(id, &chunks, least_bytes).unwrap();
                prop_assert_eq!(runs.iter().collect::<Vec<_>>(), slow.add_file(id, contents, least_bytes));
            }
        }
    }

    #[test]
    fn a_full_index_finds_what_it_knows() {
        let mut index = ChunkIndex::with_capacity(10, &Spill::none());
        let mut find = |chunks: std::ops::Range<u8>| {
            index.add_file(InodeId::ROOT, &table(chunks), 1).unwrap().iter().count()
        };
        assert_eq!(find(0..8), 0);
        // There is no room for these, and no file refers to them.
        assert_eq!((find(10..20), find(10..20)), (0, 0));
        assert_eq!((find(4..7), find(8..9)), (1, 0));
        // There was room for one chunk.
        assert_eq!(find(7..9), 2);
    }

    #[test]
    fn chunks_grow_with_the_contents() {
        let average = |content_bytes| chunk_sizes(1024, content_bytes);
        assert_eq!(average(0), ChunkSizes::new(1024));
        assert_eq!(average(1 << 30), ChunkSizes::new(1024));
        assert_eq!(average(8 << 30), ChunkSizes::new(8192));
        // The longest chunk has a length of 32 bits, whatever a tree says that it has.
        assert!(average(u64::MAX).max_bytes() <= u32::MAX as usize);
    }
}
