//! The places of metadata, clusters and plain data, to find those that overlap.
//!
//! Runs that touch are merged, so the tables have one entry for each gap between uses of one kind, and one for each
//! cluster, whose first byte and length several extents may share.

use pagefold_image::Address;
use pagefold_image::account::{Account, TableAccount};
use pagefold_image::byte_runs::ChargedRuns;
use std::collections::HashMap;

/// The use of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceUse {
    /// Superblock, inodes, attributes, indexes, inline tails.
    Metadata,
    /// A cluster; several extents may use it as a whole.
    Cluster,
    /// A shared attribute; several inodes may use it as a whole.
    Attribute,
    /// Uncompressed contents.
    Plain,
}

impl SpaceUse {
    const ALL: [SpaceUse; 4] = [SpaceUse::Metadata, SpaceUse::Cluster, SpaceUse::Attribute, SpaceUse::Plain];

    pub(super) fn name(self) -> &'static str {
        match self {
            SpaceUse::Metadata => "metadata",
            SpaceUse::Cluster => "a cluster",
            SpaceUse::Attribute => "a shared attribute",
            SpaceUse::Plain => "plain contents",
        }
    }

    /// Whether several owners may use exactly the same range.
    fn is_shared_whole(self) -> bool {
        matches!(self, SpaceUse::Cluster | SpaceUse::Attribute)
    }
}

/// The answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Nothing else used the range.
    New,
    /// The same cluster, or plain contents that may be shared.
    Shared,
    /// The range overlaps a use of this kind that it must not share; the first common byte.
    Overlaps(SpaceUse, u64),
}

/// The uses of an image's bytes.
pub(super) struct Spaces {
    runs: ChargedRuns<4>,
    /// The length of each cluster and shared attribute, by its address.
    clusters: HashMap<Address, u32>,
    clusters_account: TableAccount,
    is_over_budget: bool,
}

impl Spaces {
    pub(super) fn new(account: &Account) -> Self {
        Spaces {
            runs: ChargedRuns::new(account),
            clusters: HashMap::new(),
            clusters_account: TableAccount::new::<(Address, u32)>(account),
            is_over_budget: false,
        }
    }

    /// Whether a range could not be recorded for want of memory. Then overlaps are no longer found.
    pub(super) fn is_over_budget(&self) -> bool {
        self.is_over_budget || self.runs.is_over_budget()
    }

    /// Records that a range, which is not empty, has this use, and returns whether it may.
    pub(super) fn claim(&mut self, kind: SpaceUse, at: Address, end: u64) -> Claim {
        let len_bytes = u32::try_from(end - at.offset).unwrap_or(u32::MAX);
        if kind.is_shared_whole() && self.clusters.get(&at) == Some(&len_bytes) {
            return Claim::Shared;
        }
        let found = SpaceUse::ALL.into_iter().find_map(|other| {
            let may_share = kind == SpaceUse::Plain && other == SpaceUse::Plain;
            let from = self.runs.overlap(other as usize, at, end)?;
            Some(if may_share { Claim::Shared } else { Claim::Overlaps(other, from) })
        });
        self.record(kind, at, end, len_bytes);
        found.unwrap_or(Claim::New)
    }

    fn record(&mut self, kind: SpaceUse, at: Address, end: u64, len_bytes: u32) {
        if self.runs.insert(kind as usize, at, end).is_none() || !kind.is_shared_whole() {
            return;
        }
        match self.clusters_account.reserve_one(self.clusters.len(), self.clusters.capacity()) {
            true => _ = self.clusters.insert(at, len_bytes),
            false => self.is_over_budget = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_image::Space;
    use pagefold_image::budget::Budget;

    #[test]
    fn ranges_are_merged_and_overlaps_found() {
        let account = Account::new(&Budget::new(4 << 20, 1 << 20).unwrap());
        let mut spaces = Spaces::new(&account);
        let mut claim = |kind, start, end| spaces.claim(kind, Address::image(start), end);
        assert_eq!(claim(SpaceUse::Metadata, 100, 200), Claim::New);
        assert_eq!(claim(SpaceUse::Metadata, 200, 300), Claim::New);
        assert_eq!(claim(SpaceUse::Metadata, 299, 310), Claim::Overlaps(SpaceUse::Metadata, 299));
        assert_eq!(claim(SpaceUse::Cluster, 1000, 2000), Claim::New);
        assert_eq!(claim(SpaceUse::Cluster, 1000, 2000), Claim::Shared);
        assert_eq!(claim(SpaceUse::Cluster, 1000, 1500), Claim::Overlaps(SpaceUse::Cluster, 1000));
        assert_eq!(claim(SpaceUse::Plain, 500, 1001), Claim::Overlaps(SpaceUse::Cluster, 1000));
        assert_eq!(claim(SpaceUse::Plain, 400, 600), Claim::Shared);
        assert_eq!(claim(SpaceUse::Plain, 310, 400), Claim::New);
        assert_eq!(claim(SpaceUse::Metadata, 50, 101), Claim::Overlaps(SpaceUse::Metadata, 100));
        assert_eq!([0, 1, 2, 3].map(|kind| spaces.runs.count(kind)), [1, 1, 0, 1]);
        let elsewhere = Address { space: Space::Metabox, offset: 100 };
        assert_eq!(spaces.claim(SpaceUse::Metadata, elsewhere, 200), Claim::New);
    }
}
