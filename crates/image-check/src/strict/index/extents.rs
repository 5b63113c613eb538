//! An index that is judged: its header, and what an extent and its stored bytes must be like.

use crate::strict::context::Strict;
use crate::strict::extent::Extent;
use crate::strict::inode::{Layout, RawInode};
use crate::strict::spaces::{Claim, SpaceUse};
use crate::strict::stream;
use pagefold_image::format::config::Algorithm;
use pagefold_image::format::features::incompat;
use pagefold_image::format::zmap::{FULL_ENTRIES_OFFSET, HEADER_BYTES, MapHeader, advise};
use pagefold_image::read::extent::{MAX_CLUSTER_BYTES, MAX_DECODED_BYTES};
use pagefold_image::{Address, Result, rules};

/// The bits of a header's advice that have a meaning.
const ADVICE: u16 = 0x3f;

/// An index that is being judged.
pub(super) struct Index<'i> {
    pub(super) inode: &'i RawInode,
    /// The header.
    pub(super) at: Address,
    pub(super) header: MapHeader,
    pub(super) lcluster_bits: u8,
    /// Whether the index consists of extent records.
    pub(super) has_records: bool,
    /// Stored bytes of the clusters so far.
    pub(super) stored_bytes: u64,
}

impl Index<'_> {
    pub(super) fn check_header(&self, strict: &Strict<'_>) -> Result<()> {
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
            strict.fault(&rules::INDEX_HEADER, self.at, what);
        }
        if fragment && inline {
            strict.fault(&rules::INDEX_HEADER, self.at, "a last extent that is both inline and a fragment");
        }
        if self.inode.layout() == Layout::Full && !self.has_records {
            let gap = Address { offset: self.at.offset + HEADER_BYTES, ..self.at };
            if !strict.is_zero(gap, FULL_ENTRIES_OFFSET - HEADER_BYTES)? {
                strict.fault(&rules::INDEX_HEADER, gap, "bytes after the header are not zero");
            }
        }
        let (first, second) = (advise::BIG_CLUSTER_1, advise::BIG_CLUSTER_2);
        let is_mixed = self.header.advises(first) != self.header.advises(second);
        if self.inode.layout() == Layout::Compact && is_mixed {
            strict.fault(&rules::INDEX_HEADER, self.at, "a compact index with one of the big cluster bits");
        }
        Ok(())
    }

    /// Judges an extent and its cluster.
    pub(super) fn extent(&mut self, strict: &mut Strict<'_>, extent: Extent) -> Result<()> {
        self.check_features(strict, &extent);
        if !check_limits(strict, &extent) {
            return Ok(());
        }
        if self.is_interlaced(strict, &extent) && extent.stored_bytes > strict.block_bytes() {
            strict.fault(&rules::INTERLACED, extent.entry, "an interlaced extent of several blocks");
        }
        let claim = match extent.inline {
            true => Claim::New,
            false => strict.claim(SpaceUse::Cluster, extent.at, extent.stored_bytes),
        };
        if !extent.inline {
            self.stored_bytes += extent.stored_bytes;
        }
        match claim {
            Claim::New => {
                let is_interlaced = self.is_interlaced(strict, &extent);
                stream::check(strict, &extent, is_interlaced)
            }
            Claim::Shared => {
                strict.uses(incompat::DEDUPE, "a cluster of several extents", extent.entry);
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
    fn check_features(&self, strict: &mut Strict<'_>, extent: &Extent) {
        if let Some(number) = extent.algorithm {
            strict.usage.algorithms |= 1u16.checked_shl(number.into()).unwrap_or(0);
            let listed =
                Algorithm::from_number(number).is_some() && strict.limits.algorithms & 1 << number != 0;
            if !listed {
                let what = format!("an extent of algorithm {number}, which the image does not list");
                strict.fault(&rules::ALGORITHM_UNSET, extent.entry, what);
            }
        }
        if extent.partial {
            strict.uses(incompat::DEDUPE, "a prefix of a cluster", extent.entry);
        }
        if extent.inline {
            strict.uses(incompat::ZTAILPACKING, "an inline cluster", extent.entry);
        }
        if !extent.inline && extent.stored_bytes > strict.block_bytes() {
            strict.uses(incompat::BIG_PCLUSTER, "a cluster of several blocks", extent.entry);
        }
    }
}

/// Judges the lengths of an extent; false if its cluster cannot be read.
fn check_limits(strict: &Strict<'_>, extent: &Extent) -> bool {
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
    strict.fault(&rules::EXTENT_LIMIT, extent.entry, what);
    stored != 0 && stored <= u64::from(MAX_CLUSTER_BYTES)
}
