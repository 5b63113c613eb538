//! Hostile images, made by rules from a few bytes of input: huge claims, holes, loops, shared blocks, deep trees, many and
//! long names, one block as everything. And a budget for what they cost.
//!
//! An image has a superblock, inodes of 64 bytes with room behind each for attributes, an index or an array, and blocks of
//! directories and contents. The input chooses each field from the values that a rule of the format makes interesting; when
//! it ends, all further choices are the first one.

use pagefold_backing::{BackingError, ByteSource};
use pagefold_image::{Image, ImageError, Options, ReadAhead};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of a block.
const BLOCK: usize = 4096;
/// Bytes from one inode to the next.
const STRIDE: usize = 512;
const FILES_MAX: usize = 24;
const DATA_BLOCKS_MAX: usize = 4;

/// CPU time that a reader of a whole image may take, and one request. It is generous because of sanitizers: the readers
/// of a program without them take a twentieth.
pub const WHOLE: Duration = Duration::from_secs(20);
pub const REQUEST: Duration = Duration::from_secs(5);
/// Reads of the medium that one input may cause: each is a system call, if the medium is a file.
const READS_MAX: u64 = 4 << 20;

/// The choices of an input.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Choices(input)
    }

    pub fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.byte()) % values.len()]
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Lengths that a file may claim.
const SIZES: [u64; 12] =
    [0, 64, 4095, 4096, 3 * 4096, 1 << 20, 64 << 20, 1 << 32, 1 << 40, 1 << 62, i64::MAX as u64, u64::MAX];
const MODES: [u16; 6] = [0o100_644, 0o040_755, 0o120_777, 0o100_644, 0o040_755, 0o010_666];

/// An image that the choices describe.
pub fn image(choices: &mut Choices<'_>) -> Vec<u8> {
    let files = 1 + usize::from(choices.byte()) % FILES_MAX;
    let data_blocks = 1 + usize::from(choices.byte()) % DATA_BLOCKS_MAX;
    let inode_blocks = (files * STRIDE).div_ceil(BLOCK);
    let first_data = 1 + inode_blocks;
    let mut bytes = vec![0; BLOCK * (first_data + data_blocks)];
    let blocks = bytes.len() / BLOCK;
    for block in bytes[first_data * BLOCK..].chunks_exact_mut(BLOCK) {
        data_block(block, files, choices);
    }
    let starts = [first_data as u32, u32::MAX, 0, 1, blocks as u32 - 1, blocks as u32, u32::MAX - 1];
    for number in 0..files {
        let inode = &mut bytes[BLOCK + number * STRIDE..][..STRIDE];
        put_inode(inode, number == 0, &starts, choices);
    }
    put_superblock(&mut bytes, files, choices);
    bytes
}

fn nid(file: usize) -> u64 {
    (file * STRIDE / 32) as u64
}

/// A block of names, or bytes that are something else.
fn data_block(block: &mut [u8], files: usize, choices: &mut Choices<'_>) {
    match choices.byte() % 8 {
        0..=4 => {}
        5 => return block.fill(0xff),
        6 => return,
        _ => return block.iter_mut().zip(0..).for_each(|(byte, n): (&mut u8, u32)| *byte = (n / 4) as u8),
    }
    let len = choices.of(&[3, 1, 2, 255, 254, 20]);
    let count = (BLOCK / (12 + len)).min(choices.of(&[2, 4, 16, 340]));
    let spelling = choices.byte();
    let target = choices.byte();
    let (entries, names) = block.split_at_mut(count * 12);
    for n in 0..count {
        let name = &mut names[n * len..][..len];
        for (place, byte) in name.iter_mut().rev().enumerate() {
            // Counted in ascending order, or all the same.
            *byte = match spelling % 4 {
                0..=1 => b'a' + (n >> (4 * place.min(3)) & 15) as u8,
                2 => b'x',
                _ => b'/',
            };
        }
        match (n, len, spelling & 4) {
            (0, 1, 0) => name[0] = b'.',
            (1, 2, 0) => name.fill(b'.'),
            _ => {}
        }
        let file = match target % 4 {
            0 => n % files,
            1 => 0,
            2 => usize::from(target) % files,
            _ => files - 1,
        };
        let entry = &mut entries[n * 12..][..12];
        entry[..8].copy_from_slice(&nid(file).to_le_bytes());
        entry[8..10].copy_from_slice(&((count * 12 + n * len) as u16).to_le_bytes());
        entry[10] = choices.of(&[2, 1, 7, 0, 9]);
    }
}

/// An inode, and bytes behind it.
fn put_inode(inode: &mut [u8], is_root: bool, starts: &[u32], choices: &mut Choices<'_>) {
    let layout = choices.byte() % 6;
    let mode = if is_root { 0o040_755 } else { choices.of(&MODES) };
    let size = choices.of(&SIZES);
    let start = match layout {
        // The format of chunks: 2^n blocks, with devices or without.
        4 => u32::from(choices.of(&[0u16, 1, 31, 0x20, 0x3f, 0x60, 10])),
        _ => choices.of(starts),
    };
    let xattr_count: u16 = choices.of(&[0, 0, 0, 2, 100, u16::MAX]);
    inode[0] = 1 | layout << 1;
    inode[2..4].copy_from_slice(&xattr_count.to_le_bytes());
    inode[4..6].copy_from_slice(&mode.to_le_bytes());
    inode[8..16].copy_from_slice(&size.to_le_bytes());
    inode[16..20].copy_from_slice(&start.to_le_bytes());
    inode[44..48].copy_from_slice(&u32::from(choices.of(&[1u8, 2, 0, 255])).to_le_bytes());
    let behind = &mut inode[64..];
    match choices.byte() % 6 {
        // A header of an index with records, or of one with entries.
        0 => {
            let (count, advise) = (u64::from(choices.byte() % 16), u64::from(choices.byte() & 0x3f));
            behind[..8]
                .copy_from_slice(&(count | advise << 32 | u64::from(choices.byte()) << 56).to_le_bytes());
            let (physical, step) = (choices.of(starts), choices.of(&[4096u64, 1, 0, 1 << 20, 1 << 58]));
            for (n, record) in behind[32..].chunks_exact_mut(32).enumerate() {
                record[..4]
                    .copy_from_slice(&choices.of(&[4096u32, 0, 1, 1 << 20, 1 << 28 | 4096]).to_le_bytes());
                record[4..8].copy_from_slice(&physical.wrapping_mul(BLOCK as u32).to_le_bytes());
                record[12..20].copy_from_slice(&step.wrapping_mul(n as u64).to_le_bytes());
            }
        }
        // The same block, a hole, or heads of clusters, again and again.
        1 => repeat(behind, &choices.of(starts).to_le_bytes()),
        2 => behind.fill(0xff),
        3 => {
            let entry = [choices.byte() & 3, 0, 0, 0, choices.byte(), 0, choices.byte(), 0];
            repeat(&mut behind[16..], &entry);
        }
        // Attributes: shared ones, which are all the same, or empty ones.
        4 => {
            behind[4] = choices.byte();
            repeat(&mut behind[12..], &[choices.byte() & 3, 1, choices.byte() & 7, 0]);
        }
        _ => {}
    }
}

fn repeat(bytes: &mut [u8], unit: &[u8]) {
    bytes.iter_mut().zip(unit.iter().cycle()).for_each(|(to, from)| *to = *from);
}

fn put_superblock(bytes: &mut [u8], files: usize, choices: &mut Choices<'_>) {
    let blocks = (bytes.len() / BLOCK) as u32;
    let file = |choices: &mut Choices<'_>| nid(usize::from(choices.byte()) % files);
    let incompat = choices.of(&[0x4u32, 0x5, 0x85, 0x184, 0x25, 0x1a5, 0x87]);
    let (packed, metabox) = (file(choices), file(choices));
    let claimed = choices.of(&[blocks, 0, 1, u32::MAX]);
    let sb = &mut bytes[1024..];
    sb[..4].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    sb[12] = 12;
    sb[0x24..0x28].copy_from_slice(&claimed.to_le_bytes());
    sb[0x28..0x2c].copy_from_slice(&1u32.to_le_bytes());
    sb[0x2c..0x30].copy_from_slice(&(blocks - 1).to_le_bytes());
    if incompat & 0x20 != 0 {
        sb[0x60..0x68].copy_from_slice(&packed.to_le_bytes());
    }
    if incompat & 0x80 != 0 {
        // With 48-bit addresses the root is here; and it may be in the metabox, as every file.
        sb[14..16].fill(0);
        let in_metabox = u64::from(incompat & 0x100 != 0 && choices.byte() & 1 == 0) << 63;
        sb[0x70..0x78].copy_from_slice(&in_metabox.to_le_bytes());
    }
    if incompat & 0x100 != 0 {
        sb[13] = 1;
        sb[128..136].copy_from_slice(&metabox.to_le_bytes());
    }
    sb[0x50..0x54].copy_from_slice(&incompat.to_le_bytes());
}

/// A medium in memory that counts its reads, and allows only so many.
#[derive(Debug)]
struct Counting {
    bytes: Vec<u8>,
    reads: AtomicU64,
}

impl ByteSource for Counting {
    fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BackingError> {
        assert!(self.reads.fetch_add(1, Ordering::Relaxed) < READS_MAX, "too many reads of the medium");
        // The reader compares ranges with the length.
        buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
        Ok(())
    }

    fn describe(&self) -> String {
        "a hostile image".to_string()
    }
}

/// Opens an image, if it can be.
pub fn open(bytes: Vec<u8>) -> Result<Image, ImageError> {
    let options = Options {
        memory_bytes: 32 << 20,
        read_ahead: ReadAhead::Off,
        cache_full_reads: false,
        ..Options::default()
    };
    within(WHOLE, "open", || Image::open(Arc::new(Counting { bytes, reads: AtomicU64::new(0) }), options))
}

thread_local! {
    /// Errors that the readers of this thread returned, so that a target sees that its images are read.
    pub static ERRORS: Cell<u64> = const { Cell::new(0) };
}

/// Counts an error, and passes the rest.
pub fn counted<T, E>(result: Result<T, E>) -> Option<T> {
    if result.is_err() {
        ERRORS.set(ERRORS.get() + 1);
    }
    result.ok()
}

/// Runs a reader, which may take so much CPU time of this thread.
pub fn within<T>(budget: Duration, what: &str, run: impl FnOnce() -> T) -> T {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let begun = now();
    let result = run();
    let taken = now() - begun;
    assert!(taken <= budget, "{what} took {taken:?} of CPU time");
    result
}
