//! Positioned reads and writes, complete ones: the kernel may do less than was asked, or be interrupted.
//!
//! Direct I/O also wants alignment, which the bounced variants provide: whole blocks
//! in an aligned buffer, a bounded piece at a time.

use crate::{BackingError, Buffer, Operation};
use pagefold_sys::blockdev;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

/// Bytes of one piece of a bounced request.
const BOUNCE_BYTES: usize = 1 << 20;

/// What the kernel did of a request that it did not refuse.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All of it.
    Done,
    /// So many bytes, whole blocks; the rest is to be asked for again.
    Part(usize),
    /// A read met the end of the file: what it did not fill is zeroes.
    EndOfFile,
    /// A write of less than a block, and again would be the same again.
    Stuck,
}

/// What it means that `moved` of `rest` bytes were read or written.
pub(super) fn progress(operation: Operation, moved: usize, rest: usize, block_bytes: usize) -> Progress {
    let whole_blocks = moved - moved % block_bytes;
    match operation {
        _ if moved >= rest => Progress::Done,
        // A direct read ends inside a block only where the file does.
        Operation::Read if moved == 0 || whole_blocks != moved => Progress::EndOfFile,
        Operation::Write if whole_blocks == 0 => Progress::Stuck,
        _ => Progress::Part(whole_blocks),
    }
}

/// Fills `buf`; what lies behind the file's end reads as zeroes. All is aligned to `block_bytes`.
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
            Ok(n) => match progress(Operation::Read, n, rest.len(), block_bytes) {
                Progress::Part(bytes) => done += bytes,
                Progress::Done | Progress::Stuck => break,
                Progress::EndOfFile => {
                    rest[n..].fill(0);
                    break;
                }
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(BackingError::io("read", offset, len_bytes, &e)),
        }
    }
    Ok(())
}

/// Stores `data`. All is aligned to `block_bytes`.
pub(super) fn write_aligned(
    file: &File,
    offset: u64,
    data: &[u8],
    block_bytes: usize,
) -> Result<(), BackingError> {
    let failed = |errno| BackingError::Io { operation: "write", offset, len_bytes: data.len() as u64, errno };
    let mut done = 0;
    while done < data.len() {
        let rest = &data[done..];
        match file.write_at(rest, offset + done as u64) {
            Ok(n) => match progress(Operation::Write, n, rest.len(), block_bytes) {
                Progress::Part(bytes) => done += bytes,
                Progress::Done => break,
                Progress::Stuck | Progress::EndOfFile => return Err(failed(libc::EIO)),
            },
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e.raw_os_error().unwrap_or(libc::EIO))),
        }
    }
    Ok(())
}

/// One piece of a request: where its blocks begin, where its bytes lie in them, how many.
struct Piece {
    block_offset: u64,
    skip_bytes: usize,
    len_bytes: usize,
    blocks_bytes: usize,
}

/// The piece that begins at `offset`, of at most `len_bytes`.
fn piece(offset: u64, len_bytes: usize, block_bytes: usize) -> Piece {
    let skip_bytes = offset as usize & (block_bytes - 1);
    let len_bytes = len_bytes.min(BOUNCE_BYTES - skip_bytes);
    let blocks_bytes = (skip_bytes + len_bytes).next_multiple_of(block_bytes);
    Piece { block_offset: offset - skip_bytes as u64, skip_bytes, len_bytes, blocks_bytes }
}

/// Fills `buf`, aligned or not, by way of an aligned buffer.
pub(super) fn read_bounced(
    file: &File,
    offset: u64,
    buf: &mut [u8],
    block_bytes: usize,
) -> Result<(), BackingError> {
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

/// Stores `data`, aligned or not, by way of an aligned buffer; blocks at the edges are read first.
pub(super) fn write_bounced(
    file: &File,
    offset: u64,
    data: &[u8],
    block_bytes: usize,
) -> Result<(), BackingError> {
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

/// Gives a range back to the medium, or does nothing where it cannot take it: a discard is a hint.
pub(super) fn discard(
    file: &File,
    is_block_device: bool,
    offset: u64,
    len_bytes: u64,
) -> Result<(), BackingError> {
    let done = match is_block_device {
        true => discard_blocks(file, offset, len_bytes),
        false => punch_hole(file, offset, len_bytes),
    };
    match done {
        Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY) => Ok(()),
        Err(errno) => Err(BackingError::Io { operation: "discard", offset, len_bytes, errno }),
        Ok(()) => Ok(()),
    }
}

/// The whole blocks inside the range; a device takes no others.
fn discard_blocks(file: &File, offset: u64, len_bytes: u64) -> Result<(), i32> {
    let block_bytes = blockdev::logical_block_bytes(file).map_err(|e| e.errno)? as u64;
    let end = (offset + len_bytes) / block_bytes * block_bytes;
    match offset.next_multiple_of(block_bytes) {
        start if start < end => blockdev::discard(file, start, end - start).map_err(|e| e.errno),
        _ => Ok(()),
    }
}

fn punch_hole(file: &File, offset: u64, len_bytes: u64) -> Result<(), i32> {
    if len_bytes == 0 {
        return Ok(());
    }
    blockdev::punch_hole(file, offset, len_bytes).map_err(|e| e.errno)
}
