//! Rules of the indexes of compressed files: the header, and what an extent and its stored bytes must be like.
//!
//! `lclusters` walks over the entries that `full` and `compact` read; `records` walks over extent records. Both pass
//! each extent to [`Index::extent`](extents::Index::extent).

mod compact;
mod entry;
mod extents;
mod full;
mod lclusters;
mod records;
mod tail;

use super::context::Strict;
use super::inode::{Layout, RawInode};
use extents::Index;
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::{HEADER_BYTES, MapHeader, advise};
use pagefold_image::{Address, Result, rules};

/// Judges the index of a file of layout 1 or 3.
pub(super) fn check(strict: &mut Strict<'_>, inode: &RawInode) -> Result<()> {
    if inode.size == 0 {
        inode.claim(strict, inode.tail.offset);
        return Ok(());
    }
    strict.usage.compressed = true;
    strict.usage.incompat |= incompat::ZERO_PADDING;
    let at = Address { offset: inode.tail.offset.next_multiple_of(HEADER_BYTES), ..inode.tail };
    if !strict.is_zero(inode.tail, at.offset - inode.tail.offset)? {
        strict.fault(&rules::INDEX_HEADER, inode.tail, "bytes before the header are not zero");
    }
    let header = MapHeader::parse(strict.array(at)?);
    if let Some(offset) = header.whole_fragment() {
        inode.claim(strict, at.offset + HEADER_BYTES);
        tail::check_fragment(strict, inode, at, offset, inode.size);
        return Ok(());
    }
    let has_records = inode.layout() == Layout::Full
        && strict.has_incompat(incompat::WIDE_ADDRESSES)
        && header.advises(advise::EXTENTS);
    let lcluster_bits = strict.block_bits() + header.lcluster_shift();
    let mut index = Index { inode, at, header, lcluster_bits, has_records, stored_bytes: 0 };
    index.check_header(strict)?;
    let is_complete = match has_records {
        true => records::check(&mut index, strict)?,
        false => lclusters::check(&mut index, strict)?,
    };
    let (counted, found) = (inode.wide_u(strict), index.stored_bytes.div_ceil(strict.block_bytes()));
    // Each shared cluster is counted in one inode, which need not be the one that the walk meets first.
    let may_share = strict.has_incompat(incompat::DEDUPE);
    if is_complete && counted != found && !(may_share && counted < found) {
        let what = format!("the inode counts {counted} compressed blocks, and its index has {found}");
        strict.fault(&rules::INODE_BLOCKS, inode.at, what);
    }
    Ok(())
}
