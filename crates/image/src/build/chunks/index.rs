//! The chunks of all files so far, and the longest runs of them that a further file has too.
//!
//! Contents are not kept: a chunk is known by its hash, of which equal values cannot be made. The index has room for a
//! fixed number of chunks. Files that do not fit are searched for chunks of earlier ones, and not remembered.

use super::gear::ChunkSizes;
use crate::build::tree::InodeId;
use std::collections::HashMap;

/// Most chunks that are remembered. Each takes at most 64 bytes.
const CHUNKS_MAX: usize = 1_800_000;
/// The average chunk is so large that contents of the expected length fill this part of the index.
const FILLED_PART: u64 = 2;
/// Of a hash, these bytes are kept: 2^64 contents would have to be tried for two with one value.
const HASH_BYTES: usize = 16;
/// A chunk that repeats one at most so far before it, bytes, is compressed to next to nothing.
const NEAR_BYTES: u64 = 128 << 10;
/// No chunk has this number.
const UNKNOWN: u32 = u32::MAX;

/// A chunk of a file.
#[derive(Debug, Clone, Copy)]
pub struct FoundChunk {
    /// SHA-256 of what makes chunks equal.
    pub sha256: [u8; 32],
    /// Length, bytes.
    pub len_bytes: u32,
    /// Whether it has no end of its own, but is as long as a chunk may be: bytes that repeat themselves are so. It takes
    /// next to nothing when it is compressed.
    pub is_longest: bool,
}

/// A part of a file that lies in an earlier file too, or earlier in the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Its beginning in the file, bytes.
    pub start: u64,
    /// Its end, bytes.
    pub end: u64,
    /// The file that has the contents.
    pub source: InodeId,
    /// Their beginning in it, bytes.
    pub source_start: u64,
    /// Bytes of it that sharing saves: without those that are compressed to next to nothing.
    pub varied_bytes: u64,
}

/// A chunk of the sequence of all files' chunks.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The number of the first chunk with its contents.
    first: u32,
    /// Its beginning in its file, bytes.
    offset: u64,
}

/// The chunks of all files so far.
#[derive(Debug)]
pub struct ChunkIndex {
    chunks_max: usize,
    /// The number of the first chunk with a hash.
    first: HashMap<[u8; HASH_BYTES], u32>,
    /// All chunks, file after file.
    sequence: Vec<Known>,
    /// The files, by the numbers of their first chunks.
    files: Vec<(u32, InodeId)>,
}

/// Returns the sizes of chunks for contents of this many bytes: `least_bytes` on average, or more if the index would be
/// too full otherwise.
pub fn chunk_sizes(least_bytes: usize, content_bytes: u64) -> ChunkSizes {
    let bytes = content_bytes.saturating_mul(FILLED_PART) / CHUNKS_MAX as u64;
    let average_bytes = usize::try_from(bytes).unwrap_or(usize::MAX >> 8).min(usize::MAX >> 8);
    ChunkSizes::new(average_bytes.max(least_bytes))
}

/// A file that is being compared.
struct Compared {
    /// Its chunks.
    known: Vec<Known>,
    /// For each chunk, its bytes that sharing saves: none of those that are compressed to next to nothing.
    varied_bytes: Vec<u32>,
    /// Its length, bytes.
    end: u64,
    /// Number of its first chunk, if the index remembers it; else that of the next file's.
    base: usize,
}

impl ChunkIndex {
    /// Makes an empty index.
    pub fn new() -> Self {
        Self::with_room(CHUNKS_MAX)
    }

    fn with_room(chunks_max: usize) -> Self {
        ChunkIndex { chunks_max, first: HashMap::new(), sequence: Vec::new(), files: Vec::new() }
    }

    /// Adds a file with these chunks, and returns the runs of at least `least_bytes` varied bytes that it has in common
    /// with earlier files or with itself, in their order. They do not overlap.
    pub fn add_file(&mut self, id: InodeId, chunks: &[FoundChunk], least_bytes: u64) -> Vec<Run> {
        let file = self.remember(id, chunks);
        let mut runs: Vec<Run> = Vec::new();
        // Chunks before this are in runs.
        let (mut at, mut taken) = (0, 0);
        while at < chunks.len() {
            let found = self.run_at(&file, at, taken).filter(|(run, _)| run.varied_bytes >= least_bytes);
            match found {
                Some((run, end)) => {
                    runs.push(run);
                    (at, taken) = (end, end);
                }
                None => at += 1,
            }
        }
        runs
    }

    /// Adds the chunks of a file to the sequence, if there is room.
    fn remember(&mut self, id: InodeId, chunks: &[FoundChunk]) -> Compared {
        let base = self.sequence.len();
        let has_room = chunks.len() <= self.chunks_max - base;
        let (mut known, mut varied_bytes) = (Vec::with_capacity(chunks.len()), Vec::new());
        let (mut offset, mut last_offsets) = (0, HashMap::new());
        for (number, chunk) in (base as u32..).zip(chunks) {
            let mut key = [0; HASH_BYTES];
            key.copy_from_slice(&chunk.sha256[..HASH_BYTES]);
            let first = match has_room {
                true => *self.first.entry(key).or_insert(number),
                false => self.first.get(&key).copied().unwrap_or(UNKNOWN),
            };
            let last = last_offsets.insert(first, offset);
            let is_near = last.is_some_and(|last| offset - last < NEAR_BYTES);
            varied_bytes.push(if is_near || chunk.is_longest { 0 } else { chunk.len_bytes });
            known.push(Known { first, offset });
            offset += u64::from(chunk.len_bytes);
        }
        if has_room {
            self.files.push((base as u32, id));
            self.sequence.extend_from_slice(&known);
        }
        Compared { known, varied_bytes, end: offset, base }
    }

    /// Returns the longest run around chunk `at` of a file that lies where the first chunk with these contents is, and the
    /// number of the chunk behind it. The run begins at or behind chunk `taken`.
    fn run_at(&self, file: &Compared, at: usize, taken: usize) -> Option<(Run, usize)> {
        let source = file.known[at].first as usize;
        // A chunk of the file itself has to be an earlier one; an unknown one is behind the end.
        if file.varied_bytes[at] == 0 || source >= self.sequence.len() || source >= file.base + at {
            return None;
        }
        let file_number = self.files.partition_point(|(base, _)| *base as usize <= source) - 1;
        let (source_base, id) = self.files[file_number];
        let source_end = self.files.get(file_number + 1).map_or(self.sequence.len(), |next| next.0 as usize);
        // In the file itself, what is referred to ends before the run begins.
        let is_itself = source >= file.base;
        let source_end = if is_itself { source_end.min(file.base + at) } else { source_end };
        let is_same = |(a, b): &(&Known, &Known)| a.first == b.first && a.first != UNKNOWN;
        let ahead = self.sequence[source..source_end].iter().zip(&file.known[at..]);
        let ahead = ahead.take_while(is_same).count();
        let most_back = if is_itself { file.base + at - (source + ahead) } else { usize::MAX };
        let before = self.sequence[source_base as usize..source].iter().rev();
        let back = before.zip(file.known[taken..at].iter().rev()).take(most_back).take_while(is_same).count();
        let (first, end) = (at - back, at + ahead);
        let run = Run {
            start: file.known[first].offset,
            end: file.known.get(end).map_or(file.end, |next| next.offset),
            source: id,
            source_start: self.sequence[source - back].offset,
            varied_bytes: file.varied_bytes[first..end].iter().map(|bytes| u64::from(*bytes)).sum(),
        };
        Some((run, end))
    }
}
