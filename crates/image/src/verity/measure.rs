//! Computes the Merkle tree of a source and its descriptor.
//!
//! Threads take runs of 128 data blocks, whose hashes are one block of the lowest level. They read a run, hash it, and
//! pass that block on. The levels above are computed from the hashes of these blocks, which are kept in memory: 1/16384
//! of the data's length.

use super::hash::{BlockHasher, Hash};
use super::layout::Layout;
use super::{BLOCK_BYTES, Descriptor, HASH_BYTES, HASHES_PER_BLOCK, Salt, VerityError};
use pagefold_backing::ByteSource;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The longest source: 128 MiB of hashes would be in memory for it.
const MAX_DATA_BYTES: u64 = 1 << 46;
/// Bytes of data whose hashes fill a block of the tree.
const RUN_BYTES: usize = HASHES_PER_BLOCK * BLOCK_BYTES;

/// Receives blocks of the tree: the offset of each in the tree, bytes, and its contents.
type Sink<'a> = dyn Fn(u64, &[u8; BLOCK_BYTES]) -> std::io::Result<()> + Sync + 'a;

/// Computes the tree over all of `source` in `threads` threads, and returns the descriptor.
///
/// `write` is called once for each block of the tree, from several threads and in any order, with its offset in bytes.
/// `go_on` is called often, in the calling thread, with the number of bytes hashed so far. If it breaks, the computation
/// ends with [`VerityError::Cancelled`].
pub fn measure(
    source: &dyn ByteSource,
    salt: &Salt,
    threads: usize,
    write: &Sink<'_>,
    go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Descriptor, VerityError> {
    let layout = Layout::of(source.len_bytes());
    if layout.data_bytes > MAX_DATA_BYTES {
        return Err(VerityError::TooLong { data_bytes: layout.data_bytes, max_bytes: MAX_DATA_BYTES });
    }
    let work = Work {
        source,
        hasher: BlockHasher::new(salt),
        lowest: Mutex::new(vec![
            [0; HASH_BYTES];
            layout.levels.first().map_or(0, |l| (l.end - l.start) as usize)
        ]),
        layout,
        write,
        next_run: AtomicU64::new(0),
        done_bytes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    let root_hash = match work.layout.levels.is_empty() {
        true => work.only_block()?,
        false => {
            work.hash_runs(threads, go_on)?;
            work.hash_levels()?
        }
    };
    Ok(Descriptor { data_bytes: work.layout.data_bytes, root_hash, salt: salt.clone() })
}

struct Work<'a> {
    source: &'a dyn ByteSource,
    hasher: BlockHasher,
    layout: Layout,
    /// The hashes of the blocks of level 0.
    lowest: Mutex<Vec<Hash>>,
    write: &'a Sink<'a>,
    next_run: AtomicU64,
    done_bytes: AtomicU64,
    /// Whether a thread has failed, so that the others stop.
    failed: AtomicBool,
}

impl Work<'_> {
    /// The root hash of data without a tree.
    fn only_block(&self) -> Result<Hash, VerityError> {
        if self.layout.data_blocks == 0 {
            return Ok([0; HASH_BYTES]);
        }
        let mut block = vec![0; self.layout.data_bytes as usize];
        self.source.read_at(0, &mut block)?;
        Ok(self.hasher.hash(&block))
    }

    /// Hashes the data in several threads. The first error ends all of them.
    fn hash_runs(
        &self,
        threads: usize,
        go_on: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), VerityError> {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads)
                .map(|_| scope.spawn(|| self.take_runs(&mut |_| ControlFlow::Continue(()))))
                .collect();
            let ours = self.take_runs(go_on);
            let theirs = workers.into_iter().map(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            theirs.fold(ours, Result::and)
        })
    }

    /// Hashes runs until none is left.
    fn take_runs(&self, go_on: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<(), VerityError> {
        let runs = self.layout.data_bytes.div_ceil(RUN_BYTES as u64);
        let mut data = vec![0; RUN_BYTES];
        while !self.failed.load(Ordering::Relaxed) {
            let run = self.next_run.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                break;
            }
            let hashed = self.hash_run(run, &mut data).and_then(|done_bytes| match go_on(done_bytes) {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(VerityError::Cancelled),
            });
            hashed.inspect_err(|_| self.failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    /// Hashes one run, and returns the number of bytes hashed so far.
    fn hash_run(&self, run: u64, data: &mut [u8]) -> Result<u64, VerityError> {
        let at = run * RUN_BYTES as u64;
        let len_bytes = (self.layout.data_bytes - at).min(RUN_BYTES as u64) as usize;
        let data = &mut data[..len_bytes];
        self.source.read_at(at, data)?;
        let node = node(data.chunks(BLOCK_BYTES).map(|block| self.hasher.hash(block)));
        self.write(self.layout.levels[0].start + run, &node)?;
        let mut lowest = self.lowest.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lowest[run as usize] = self.hasher.hash(&node);
        drop(lowest);
        Ok(self.done_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed) + len_bytes as u64)
    }

    /// Computes the levels above the lowest, and returns the root hash.
    fn hash_levels(&self) -> Result<Hash, VerityError> {
        let mut below =
            std::mem::take(&mut *self.lowest.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for level in &self.layout.levels[1..] {
            let mut hashes = Vec::new();
            for (position, children) in level.clone().zip(below.chunks(HASHES_PER_BLOCK)) {
                let node = node(children.iter().copied());
                self.write(position, &node)?;
                hashes.push(self.hasher.hash(&node));
            }
            below = hashes;
        }
        Ok(below.first().copied().unwrap_or_default())
    }

    /// Passes on the block at this position of the tree.
    fn write(&self, position: u64, node: &[u8; BLOCK_BYTES]) -> Result<(), VerityError> {
        let written = (self.write)(position * BLOCK_BYTES as u64, node);
        written.map_err(|e| VerityError::WriteTree { what: e.to_string() })
    }
}

/// Makes a block of the tree from at most 128 hashes; zeroes follow them.
fn node(hashes: impl Iterator<Item = Hash>) -> [u8; BLOCK_BYTES] {
    let mut node = [0; BLOCK_BYTES];
    node.chunks_mut(HASH_BYTES).zip(hashes).for_each(|(place, hash)| place.copy_from_slice(&hash));
    node
}
