//! Rules of contents in consecutive blocks, and of inline tails.

use super::context::Strict;
use super::inode::RawInode;
use super::spaces::SpaceUse;
use pagefold_image::format::chunk;
use pagefold_image::{Address, Result, rules};

/// Judges layout 0.
pub(super) fn check_plain(strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
    inode.claim(strict, inode.tail.offset);
    let Some(start) = start(strict, inode) else { return Ok(()) };
    let len = inode.size.div_ceil(strict.block_bytes()).saturating_mul(strict.block_bytes());
    strict.claim(SpaceUse::Plain, start, len);
    let Some(end) = start.checked_add(inode.size) else { return Ok(()) };
    check_fill(strict, end, len - inode.size)
}

/// Judges layout 2.
pub(super) fn check_inline(strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
    let block_bytes = strict.block_bytes();
    let tail_bytes = inode.size % block_bytes;
    let fits = inode.tail.offset % block_bytes + tail_bytes <= block_bytes;
    let claimed_bytes = if fits { tail_bytes } else { 0 };
    inode.claim(strict, inode.tail.offset + claimed_bytes);
    if !fits {
        let what = format!("an inline tail of {tail_bytes} bytes crosses the end of its block");
        strict.fault(&rules::INLINE_TAIL, inode.tail, what);
    }
    if let Some(start) = start(strict, inode) {
        strict.claim(SpaceUse::Plain, start, inode.size - tail_bytes);
    }
    Ok(())
}

/// The first byte of the first block; `None` for a hole.
fn start(strict: &Strict<'_>, inode: &RawInode) -> Option<Address> {
    let hole = match inode.has_wide_address(strict) {
        true => chunk::HOLE_WIDE,
        false => u64::from(chunk::HOLE),
    };
    let block = inode.wide_u(strict);
    let offset = block.checked_mul(strict.block_bytes())?;
    (block != hole && inode.size > 0).then_some(Address::image(offset))
}

/// Judges the bytes between the contents and the end of their last block.
pub(super) fn check_fill(strict: &Strict<'_>, at: Address, len_bytes: u64) -> Result<()> {
    // A builder may leave out the padding of the last block.
    let len = len_bytes.min(strict.image.bytes_left_at(at)?).min(strict.block_bytes()) as usize;
    let mut rest = vec![0; len];
    strict.image.stored().read_at(at, &mut rest)?;
    if let Some(first) = rest.iter().position(|byte| *byte != 0) {
        let at = Address { offset: at.offset + first as u64, ..at };
        strict.fault(&rules::TAIL_FILL, at, "bytes after the contents of a file, in its last block");
    }
    Ok(())
}
