//! Positioned reads and writes (pread, pwrite) that repeat short and interrupted calls until all bytes are transferred.
//!
//! Direct I/O needs aligned requests. [`read`] and [`write`] serve misaligned ones too: they transfer whole blocks through
//! an aligned bounce buffer of at most 1 MiB, piece by piece.

use crate::{BackingError, Buffer, Operation};
use pagefold_sys::blockdev;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

/// The longest piece of a bounced request, bytes.
const BOUNCE_BYTES: usize = 1 << 20;

/// How far the kernel got with a request that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// All bytes were transferred.
    Complete,
    /// This many bytes were transferred, whole blocks; the caller repeats the call for the rest.
    Partial(usize),
    /// A read reached the end of the file. No request goes beyond the length that the file had, so it is shorter now: an
    /// error, since zeroes would be wrong contents.
    EndOfFile,
    /// A write transferred less than a block. A retry would begin at the same block, so it is an error.
    Stalled,
}

/// Classifies a call that transferred `moved` of the `rest` bytes it was given.
pub(super) fn classify_transfer(
    operation: Operation,
    moved: usize,
    rest: usize,
    block_bytes: usize,
) -> Transfer {
    let whole_blocks = moved - moved % block_bytes;
    match operation {
        _ if moved >= rest => Transfer::Complete,
        // A direct read ends inside a block only at the end of the file.
        Operation::Read if moved == 0 || whole_blocks != moved => Transfer::EndOfFile,
        Operation::Write if whole_blocks == 0 => Transfer::Stalled,
        _ => Transfer::Partial(whole_blocks),
    }
}

/// Whether a request for these bytes can be served without a copy.
pub(super) fn is_aligned(block_bytes: usize, offset: u64, bytes: &[u8]) -> bool {
    (offset as usize | bytes.as_ptr().addr() | bytes.len()) & (block_bytes - 1) == 0
}

/// Fills `buf`, aligned or not.
pub(super) fn read(file: &File, offset: u64, buf: &mut [u8], block_bytes: usize) -> Result<(), BackingError> {
    match is_aligned(block_bytes, offset, buf) {
        true => read_aligned(file, offset, buf, block_bytes),
        false => read_bounced(file, offset, buf, block_bytes),
    }
}

/// Stores `data`, aligned or not.
pub(super) fn write(file: &File, offset: u64, data: &[u8], block_bytes: usize) -> Result<(), BackingError> {
    match is_aligned(block_bytes, offset, data) {
        true => write_aligned(file, offset, data, block_bytes),
        false => write_bounced(file, offset, data, block_bytes),
    }
}

/// Fills `buf`. Offset, length and memory are aligned to `block_bytes`.
pub(super) fn read_aligned(
    file: &File,
    offset: u64,
    buf: &mut [u8],
    block_bytes: usize,
) -> Result<(), BackingError> {
    let len_bytes = buf.len() as u64;
    let mut done = 0;
    while done < buf.len() {
        let rest = &mut buf[done..];
        match file.read_at(rest, offset + done as u64) {
            Ok(n) => match classify_transfer(Operation::Read, n, rest.len(), block_bytes) {
                Transfer::Partial(bytes) => done += bytes,
                Transfer::Complete | Transfer::Stalled => break,
                Transfer::EndOfFile => {
                    let end = offset + (done + n) as u64;
                    return Err(BackingError::CutOff { offset, len_bytes, end });
                }
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(BackingError::io("read", offset, len_bytes, &e)),
        }
    }
    Ok(())
}

/// Stores `data`. Offset, length and memory are aligned to `block_bytes`.
fn write_aligned(file: &File, offset: u64, data: &[u8], block_bytes: usize) -> Result<(), BackingError> {
    let failed = |errno| BackingError::Io { operation: "write", offset, len_bytes: data.len() as u64, errno };
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        match file.write_at(rest, offset + done as u64) {
            Ok(n) => match classify_transfer(Operation::Write, n, rest.len(), block_bytes) {
                Transfer::Partial(bytes) => done += bytes,
                Transfer::Complete => break,
                Transfer::Stalled | Transfer::EndOfFile => return Err(failed(libc::EIO)),
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e.raw_os_error().unwrap_or(libc::EIO))),
        }
    }
    Ok(())
}

/// One piece of a bounced request.
struct Piece {
    /// Where its first block begins in the file.
    block_offset: u64,
    /// Bytes of the first block before the piece.
    skip_bytes: usize,
    /// Bytes of the piece itself.
    len_bytes: usize,
    /// Bytes of all its blocks.
    blocks_bytes: usize,
}

/// The piece that begins at `offset` and has at most `len_bytes`.
fn piece(offset: u64, len_bytes: usize, block_bytes: usize) -> Piece {
    let skip_bytes = offset as usize & (block_bytes - 1);
    let len_bytes = len_bytes.min(BOUNCE_BYTES - skip_bytes);
    let blocks_bytes = (skip_bytes + len_bytes).next_multiple_of(block_bytes);
    Piece { block_offset: offset - skip_bytes as u64, skip_bytes, len_bytes, blocks_bytes }
}

/// Fills `buf` through an aligned bounce buffer.
fn read_bounced(file: &File, offset: u64, buf: &mut [u8], block_bytes: usize) -> Result<(), BackingError> {
    let mut bounce = Buffer::new((buf.len() + 2 * block_bytes).min(BOUNCE_BYTES));
    let mut done = 0;
    while done < buf.len() {
        let p = piece(offset + done as u64, buf.len() - done, block_bytes);
        read_aligned(file, p.block_offset, &mut bounce[..p.blocks_bytes], block_bytes)?;
        buf[done..][..p.len_bytes].copy_from_slice(&bounce[p.skip_bytes..][..p.len_bytes]);
        done += p.len_bytes;
    }
    Ok(())
}

/// Stores `data` through an aligned bounce buffer. Partly written blocks at the edges are read first.
fn write_bounced(file: &File, offset: u64, data: &[u8], block_bytes: usize) -> Result<(), BackingError> {
    let mut bounce = Buffer::new((data.len() + 2 * block_bytes).min(BOUNCE_BYTES));
    let mut done = 0;
    while done < data.len() {
        let p = piece(offset + done as u64, data.len() - done, block_bytes);
        let blocks = &mut bounce[..p.blocks_bytes];
        let last = p.blocks_bytes - block_bytes;
        let end = p.skip_bytes + p.len_bytes;
        if p.skip_bytes != 0 {
            read_aligned(file, p.block_offset, &mut blocks[..block_bytes], block_bytes)?;
        }
        if end != p.blocks_bytes && (last > 0 || p.skip_bytes == 0) {
            read_aligned(file, p.block_offset + last as u64, &mut blocks[last..], block_bytes)?;
        }
        blocks[p.skip_bytes..end].copy_from_slice(&data[done..][..p.len_bytes]);
        write_aligned(file, p.block_offset, blocks, block_bytes)?;
        done += p.len_bytes;
    }
    Ok(())
}

/// Discards a range: BLKDISCARD on a block device, a punched hole in a file. A medium that does not support discards
/// ignores the call, as a discard is only a hint.
pub(super) fn discard(
    file: &File,
    is_block_device: bool,
    offset: u64,
    len_bytes: u64,
) -> Result<(), BackingError> {
    let done = match is_block_device {
        true => discard_blocks(file, offset, len_bytes),
        false => blockdev::punch_hole(file, offset..offset + len_bytes).map_err(|e| e.errno),
    };
    match done {
        Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => Ok(()),
        Err(errno) => Err(BackingError::Io { operation: "discard", offset, len_bytes, errno }),
        Ok(()) => Ok(()),
    }
}

/// Discards the whole blocks inside the range: a device refuses parts of blocks.
fn discard_blocks(file: &File, offset: u64, len_bytes: u64) -> Result<(), i32> {
    let block_bytes = blockdev::logical_block_bytes(file).map_err(|e| e.errno)? as u64;
    let end = (offset + len_bytes) / block_bytes * block_bytes;
    match offset.next_multiple_of(block_bytes) {
        start if start < end => blockdev::discard(file, start, end - start).map_err(|e| e.errno),
        _ => Ok(()),
    }
}
