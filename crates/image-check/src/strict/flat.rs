//! Rules of contents in consecutive blocks, and of inline tails.

use super::inode::RawInode;
use super::{Faults, Kind, Strict};
use pagefold_image::format::chunk;
use pagefold_image::{Address, ImageError, rules};

/// Judges layout 0.
pub(super) fn check_plain(
    strict: &mut Strict<'_>,
    inode: &RawInode,
    faults: &mut Faults<'_>,
) -> Result<(), ImageError> {
    strict.claim_metadata(inode, inode.tail.offset, faults);
    let Some(start) = start(strict, inode) else { return Ok(()) };
    let len = inode.size.div_ceil(strict.block_bytes()).saturating_mul(strict.block_bytes());
    strict.claim(Kind::Plain, start, len, faults);
    let Some(end) = start.checked_add(inode.size) else { return Ok(()) };
    check_fill(strict, end, len - inode.size, faults)
}

/// Judges layout 2.
pub(super) fn check_inline(
    strict: &mut Strict<'_>,
    inode: &RawInode,
    faults: &mut Faults<'_>,
) -> Result<(), ImageError> {
    let block_bytes = strict.block_bytes();
    let tail_bytes = inode.size % block_bytes;
    let fits = inode.tail.offset % block_bytes + tail_bytes <= block_bytes;
    let claimed_bytes = if fits { tail_bytes } else { 0 };
    strict.claim_metadata(inode, inode.tail.offset + claimed_bytes, faults);
    if !fits {
        let what = format!("an inline tail of {tail_bytes} bytes crosses the end of its block");
        faults.add(&rules::INLINE_TAIL, inode.tail, what);
    }
    if let Some(start) = start(strict, inode) {
        strict.claim(Kind::Plain, start, inode.size - tail_bytes, faults);
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
pub(super) fn check_fill(
    strict: &Strict<'_>,
    at: Address,
    len_bytes: u64,
    faults: &mut Faults<'_>,
) -> Result<(), ImageError> {
    // A builder may leave out the padding of the last block.
    let len = len_bytes.min(strict.image.room_at(at)?).min(strict.block_bytes()) as usize;
    let mut rest = vec![0; len];
    strict.image.stored().read_at(at, &mut rest)?;
    if let Some(first) = rest.iter().position(|byte| *byte != 0) {
        let at = Address { offset: at.offset + first as u64, ..at };
        faults.add(&rules::TAIL_FILL, at, "bytes behind the contents of a file, in its last block");
    }
    Ok(())
}
