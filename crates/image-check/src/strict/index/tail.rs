//! A last extent that lies elsewhere: after the index, or in the packed file.

use super::extents::Index;
use crate::strict::context::Strict;
use crate::strict::extent::Extent;
use crate::strict::inode::RawInode;
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::advise;
use pagefold_image::{Address, Result, rules};

/// Judges a last extent that lies at `index_end`.
pub(super) fn check_inline(
    strict: &mut Strict<'_>,
    index: &mut Index<'_>,
    extent: Extent,
    index_end: u64,
) -> Result<()> {
    let stored_bytes = u64::from(index.header.inline_bytes());
    let block_bytes = strict.block_bytes();
    let at = Address { offset: index_end, ..index.at };
    let what = match () {
        () if stored_bytes == 0 => "an inline cluster without bytes",
        () if index_end % block_bytes + stored_bytes > block_bytes => {
            "an inline cluster that crosses the end of its block"
        }
        () if extent.algorithm.is_none() && index.header.advises(advise::INTERLACED) => {
            "a plain inline cluster in an interlaced file, which readers interpret differently"
        }
        () => return index.extent(strict, Extent { at, stored_bytes, inline: true, ..extent }),
    };
    strict.fault(&rules::INLINE_CLUSTER, at, what);
    Ok(())
}

/// Judges a fragment of `len_bytes` bytes at byte `offset` of the packed file.
pub(super) fn check_fragment(
    strict: &mut Strict<'_>,
    inode: &RawInode,
    at: Address,
    offset: u64,
    len_bytes: u64,
) {
    strict.uses(incompat::FRAGMENTS, "a fragment", at);
    let packed = match strict.image.superblock().packed_nid {
        Some(nid) if nid != inode.nid => strict.image.node(nid).ok(),
        _ => None,
    };
    let packed_bytes = packed.map_or(0, |packed| packed.len_bytes());
    if offset.checked_add(len_bytes).is_none_or(|end| end > packed_bytes) {
        let what =
            format!("a fragment of {len_bytes} bytes at byte {offset} of a packed file of {packed_bytes}");
        strict.fault(&rules::FRAGMENT_RANGE, at, what);
    }
}
