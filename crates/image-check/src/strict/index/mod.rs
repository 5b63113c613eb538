//! Rules of the indexes of compressed files: the header, and what an extent and its stored bytes must be like.
//!
//! `lclusters` walks over the entries that `full` and `compact` read; `records` walks over extent records. Both pass
//! each extent to [`Index::extent`].

mod compact;
mod full;
mod lclusters;
mod records;
mod tail;

use super::inode::{Layout, RawInode};
use super::spaces::{Claim, Kind};
use super::{Faults, Strict, stream};
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::{FULL_ENTRIES_OFFSET, HEADER_BYTES, MapHeader, advise};
use pagefold_image::read::extent::{MAX_CLUSTER_BYTES, MAX_DECODED_BYTES};
use pagefold_image::read::superblock::algorithm;
use pagefold_image::{Address, ImageError, rules};

/// The bits of a header's advice that have a meaning.
const ADVICE: u16 = 0x3f;

/// An index that is being judged.
struct Index<'i> {
    inode: &'i RawInode,
    /// The header.
    at: Address,
    header: MapHeader,
    lcluster_bits: u8,
    /// Whether the index consists of extent records.
    has_records: bool,
    /// Stored bytes of the clusters so far.
    stored_bytes: u64,
}

/// An extent that has a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// The entry or record, for messages.
    pub(super) entry: Address,
    /// Length of the extent, bytes.
    pub(super) len_bytes: u64,
    /// First stored byte.
    pub(super) at: Address,
    /// Stored length, bytes.
    pub(super) stored_bytes: u64,
    /// The number of the algorithm; `None` for plain bytes.
    pub(super) algorithm: Option<u8>,
    pub(super) partial: bool,
    /// Whether the file ends with it.
    pub(super) is_last: bool,
    /// Whether the bytes lie behind the index.
    pub(super) inline: bool,
}

/// Judges the index of a file of layout 1 or 3.
pub(super) fn check(
    strict: &mut Strict<'_>,
    inode: &RawInode,
    faults: &mut Faults<'_>,
) -> Result<(), ImageError> {
    if inode.size == 0 {
        strict.claim_metadata(inode, inode.tail.offset, faults);
        return Ok(());
    }
    strict.usage.compressed = true;
    strict.usage.incompat |= incompat::ZERO_PADDING;
    let at = Address { offset: inode.tail.offset.next_multiple_of(HEADER_BYTES), ..inode.tail };
    if !strict.is_zero(inode.tail, at.offset - inode.tail.offset)? {
        faults.add(&rules::INDEX_HEADER, inode.tail, "bytes before the header are not zero");
    }
    let header = MapHeader::parse(strict.array(at)?);
    if let Some(offset) = header.whole_fragment() {
        strict.claim_metadata(inode, at.offset + HEADER_BYTES, faults);
        tail::check_fragment(strict, inode, at, offset, inode.size, faults);
        return Ok(());
    }
    let has_records = inode.layout() == Layout::Full
        && strict.has_incompat(incompat::WIDE_ADDRESSES)
        && header.advises(advise::EXTENTS);
    let lcluster_bits = strict.block_bits() + header.lcluster_shift();
    let mut index = Index { inode, at, header, lcluster_bits, has_records, stored_bytes: 0 };
    index.check_header(strict, faults)?;
    let is_complete = match has_records {
        true => records::check(&mut index, strict, faults)?,
        false => lclusters::check(&mut index, strict, faults)?,
    };
    let (counted, found) = (inode.wide_u(strict), index.stored_bytes.div_ceil(strict.block_bytes()));
    // Each shared cluster is counted in one inode, which need not be the one that the walk meets first.
    let may_share = strict.has_incompat(incompat::DEDUPE);
    if is_complete && counted != found && !(may_share && counted < found) {
        let what = format!("the inode counts {counted} compressed blocks, and its index has {found}");
        faults.add(&rules::INODE_BLOCKS, inode.at, what);
    }
    Ok(())
}

impl Index<'_> {
    fn check_header(&self, strict: &Strict<'_>, faults: &mut Faults<'_>) -> Result<(), ImageError> {
        let bytes: [u8; 8] = strict.array(self.at)?;
        let [a, b, c, d, _, _, _, last] = bytes;
        let has_count = self.has_records && self.header.record_bits() >= 4;
        let (fragment, inline) = (self.header.advises(advise::FRAGMENT), self.header.advises(advise::INLINE));
        let unused = match () {
            () if has_count => false,
            () if self.has_records => [a, b, c, d] != [0; 4],
            () if fragment => false,
            () if inline => [a, b] != [0; 2],
            () => [a, b, c, d] != [0; 4],
        };
        if unused || self.header.advise() & !ADVICE != 0 || (!has_count && last & 0x70 != 0) {
            let what = format!("unused bits of the header, which is {}", u64::from_le_bytes(bytes));
            faults.add(&rules::INDEX_HEADER, self.at, what);
        }
        if fragment && inline {
            faults.add(&rules::INDEX_HEADER, self.at, "a last extent that is both inline and a fragment");
        }
        if self.inode.layout() == Layout::Full && !self.has_records {
            let gap = Address { offset: self.at.offset + HEADER_BYTES, ..self.at };
            if !strict.is_zero(gap, FULL_ENTRIES_OFFSET - HEADER_BYTES)? {
                faults.add(&rules::INDEX_HEADER, gap, "bytes behind the header are not zero");
            }
        }
        let (first, second) = (advise::BIG_CLUSTER_1, advise::BIG_CLUSTER_2);
        let is_mixed = self.header.advises(first) != self.header.advises(second);
        if self.inode.layout() == Layout::Compact && is_mixed {
            faults.add(&rules::INDEX_HEADER, self.at, "a compact index with one of the big cluster bits");
        }
        Ok(())
    }

    /// Judges an extent and its cluster.
    fn extent(
        &mut self,
        strict: &mut Strict<'_>,
        extent: Extent,
        faults: &mut Faults<'_>,
    ) -> Result<(), ImageError> {
        self.check_features(strict, &extent, faults);
        if !check_limits(strict, &extent, faults) {
            return Ok(());
        }
        if self.is_interlaced(strict, &extent) && extent.stored_bytes > strict.block_bytes() {
            faults.add(&rules::INTERLACED, extent.entry, "an interlaced extent of several blocks");
        }
        let claim = match extent.inline {
            true => Claim::New,
            false => strict.claim(Kind::Cluster, extent.at, extent.stored_bytes, faults),
        };
        if !extent.inline {
            self.stored_bytes += extent.stored_bytes;
        }
        match claim {
            Claim::New => {
                let is_interlaced = self.is_interlaced(strict, &extent);
                stream::check(strict, &extent, is_interlaced, faults)
            }
            Claim::Shared => {
                strict.uses(incompat::DEDUPE, "a cluster of several extents", extent.entry, faults);
                Ok(())
            }
            Claim::Overlaps(..) => Ok(()),
        }
    }

    /// Whether the bytes of an extent are rotated in their block.
    fn is_interlaced(&self, strict: &Strict<'_>, extent: &Extent) -> bool {
        let whole_blocks = (extent.at.offset | extent.stored_bytes).is_multiple_of(strict.block_bytes());
        let is_plain = extent.algorithm.is_none() && !extent.inline && whole_blocks;
        is_plain && self.header.advises(advise::INTERLACED)
    }

    /// Records the features and the algorithm that an extent uses.
    fn check_features(&self, strict: &mut Strict<'_>, extent: &Extent, faults: &mut Faults<'_>) {
        if let Some(number) = extent.algorithm {
            strict.usage.algorithms |= 1u16.checked_shl(number.into()).unwrap_or(0);
            let listed = algorithm(number).is_some() && strict.limits.algorithms & 1 << number != 0;
            if !listed {
                let what = format!("an extent of algorithm {number}, which the image does not list");
                faults.add(&rules::ALGORITHM_UNSET, extent.entry, what);
            }
        }
        if extent.partial {
            strict.uses(incompat::DEDUPE, "a prefix of a cluster", extent.entry, faults);
        }
        if extent.inline {
            strict.uses(incompat::ZTAILPACKING, "an inline cluster", extent.entry, faults);
        }
        if !extent.inline && extent.stored_bytes > strict.block_bytes() {
            strict.uses(incompat::BIG_PCLUSTER, "a cluster of several blocks", extent.entry, faults);
        }
    }
}

/// Judges the lengths of an extent; false if its cluster cannot be read.
fn check_limits(strict: &Strict<'_>, extent: &Extent, faults: &mut Faults<'_>) -> bool {
    let (stored, len) = (extent.stored_bytes, extent.len_bytes);
    let is_lz4 = extent.algorithm == Some(0);
    let what = match extent.algorithm {
        _ if stored == 0 || stored > u64::from(MAX_CLUSTER_BYTES) => format!("a cluster of {stored} bytes"),
        Some(_)
            if is_lz4 && strict.has_incompat(incompat::COMPR_CFGS) && stored > strict.limits.lz4_cluster =>
        {
            format!("an LZ4 cluster of {stored} bytes; the record allows {}", strict.limits.lz4_cluster)
        }
        Some(_) if len > MAX_DECODED_BYTES => format!("a compressed extent of {len} bytes"),
        Some(_) if len < stored && !extent.partial && !extent.is_last => {
            format!("a compressed extent of {len} bytes in a cluster of {stored}, and not marked as a prefix")
        }
        None if len > stored => format!("a plain extent of {len} bytes in a cluster of {stored}"),
        _ => return true,
    };
    faults.add(&rules::EXTENT_LIMIT, extent.entry, what);
    stored != 0 && stored <= u64::from(MAX_CLUSTER_BYTES)
}
