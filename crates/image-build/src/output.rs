//! The file that the image is written to: data from the beginning on, and the superblock at the end.

use super::devices::Geometry;
use super::table::Table;
use super::target::Target;
use crate::{BuildError, Result};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use twox_hash::XxHash3_128;

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 20;
/// Bytes that are hashed and written at once if more are appended.
const PIECE_BYTES: usize = 256 << 10;

/// The file that an image is written to. Tests have others than [`File`], which fail.
pub trait ImageFile {
    /// Sets the length, bytes.
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;

    /// Writes all of `bytes` from byte `offset` on.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

impl ImageFile for File {
    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        File::set_len(self, len_bytes)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }
}

/// The image while it is written. Blocks are appended; a hash of them becomes the image's identity.
pub struct Output<'a> {
    file: &'a dyn ImageFile,
    /// Bytes that are appended but not yet written.
    buffer: Vec<u8>,
    /// Bytes written, and at the beginning those that [`Output::finish`] writes.
    written: u64,
    hash: XxHash3_128,
    /// A block, bytes.
    block_bytes: u64,
    /// The kernel that limits the number of blocks.
    target: Target,
}

impl<'a> Output<'a> {
    /// Begins an image whose first blocks, the head, are written last.
    pub fn new(file: &'a dyn ImageFile, geometry: &Geometry, target: Target) -> Self {
        let block_bytes = u64::from(geometry.block_bytes);
        let (buffer, written) = (Vec::with_capacity(BUFFER_BYTES), geometry.head_blocks() * block_bytes);
        Output { file, buffer, written, hash: XxHash3_128::new(), block_bytes, target }
    }

    /// The block that is appended next.
    pub fn next_block(&self) -> u64 {
        (self.written + self.buffer.len() as u64) / self.block_bytes
    }

    /// Leaves a hole up to a block, unless that is appended already.
    pub fn skip_to(&mut self, block: u64) -> Result<()> {
        self.flush()?;
        self.written = self.written.max(block.saturating_mul(self.block_bytes));
        Ok(())
    }

    /// Appends bytes, filled up to whole blocks with zeroes.
    pub fn append_padded(&mut self, mut bytes: Vec<u8>) -> Result<()> {
        bytes.resize(bytes.len().next_multiple_of(self.block_bytes as usize), 0);
        self.append(&bytes)
    }

    /// Appends a table of whole blocks.
    pub fn append_table(&mut self, blocks: &Table<u8>) -> Result<()> {
        for start in (0..blocks.len()).step_by(BUFFER_BYTES) {
            let end = blocks.len().min(start + BUFFER_BYTES);
            self.append(&blocks.read_at(start as u64..end as u64))?;
        }
        Ok(())
    }

    /// Appends whole blocks; or any bytes, if [`pad`](Self::pad) follows before the next block is asked for.
    pub fn append(&mut self, blocks: &[u8]) -> Result<()> {
        self.target.check_blocks(self.next_block() + (blocks.len() as u64).div_ceil(self.block_bytes))?;
        if self.buffer.len() + blocks.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if blocks.len() <= BUFFER_BYTES {
            self.hash.write(blocks);
            self.buffer.extend_from_slice(blocks);
            return Ok(());
        }
        // A piece that has just been hashed is in the processor's caches.
        for piece in blocks.chunks(PIECE_BYTES) {
            self.hash.write(piece);
            self.write_out(piece)?;
        }
        Ok(())
    }

    /// Fills up the last block with zeroes.
    pub fn pad(&mut self) -> Result<()> {
        let within = (self.written + self.buffer.len() as u64) % self.block_bytes;
        let missing = if within == 0 { 0 } else { self.block_bytes - within };
        self.append(&vec![0; missing as usize])
    }

    /// Writes what was appended before byte `end` of the image.
    pub fn flush_up_to(&mut self, end: u64) -> Result<()> {
        if end > self.written { self.flush() } else { Ok(()) }
    }

    /// Writes what was appended, and returns the hash of it and of `further` bytes, which will be in the first blocks.
    pub fn flush_all(&mut self, further: &[u8]) -> Result<u128> {
        self.flush()?;
        self.hash.write(further);
        Ok(self.hash.finish_128())
    }

    /// Writes the first blocks.
    pub fn finish(self, head: &[u8]) -> Result<()> {
        self.file.write_all_at(head, 0).map_err(|source| BuildError::Write { offset: 0, source })
    }

    /// Writes what was appended.
    pub fn flush(&mut self) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.write_out(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        result
    }

    fn write_out(&mut self, bytes: &[u8]) -> Result<()> {
        let offset = self.written;
        self.file.write_all_at(bytes, offset).map_err(|source| BuildError::Write { offset, source })?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}
