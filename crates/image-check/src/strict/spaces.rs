//! The places of metadata, clusters and plain data, to find those that overlap.
//!
//! Runs that touch are merged, so the tables have one entry for each gap between uses of one kind, and one for each
//! cluster, whose first byte and length several extents may share.

use pagefold_image::Address;
use pagefold_image::account::{Account, TableAccount};
use pagefold_image::byte_runs::{ByteRuns, RUN_BYTES};
use std::collections::HashMap;

/// The use of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Superblock, inodes, attributes, indexes, inline tails.
    Metadata,
    /// A cluster; several extents may use it as a whole.
    Cluster,
    /// A shared attribute; several inodes may use it as a whole.
    Attribute,
    /// Uncompressed contents.
    Plain,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Metadata, Kind::Cluster, Kind::Attribute, Kind::Plain];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Metadata => "metadata",
            Kind::Cluster => "a cluster",
            Kind::Attribute => "a shared attribute",
            Kind::Plain => "plain contents",
        }
    }

    /// Whether several owners may use exactly the same range.
    fn is_shared_whole(self) -> bool {
        matches!(self, Kind::Cluster | Kind::Attribute)
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
    Overlaps(Kind, u64),
}

/// The uses of an image's bytes.
pub(super) struct Spaces {
    account: Account,
    charged_runs: u64,
    runs: [ByteRuns; 4],
    /// The length of each cluster and shared attribute, by its address.
    clusters: HashMap<Address, u32>,
    clusters_account: TableAccount,
    is_over_budget: bool,
}

impl Spaces {
    pub(super) fn new(account: &Account) -> Self {
        Spaces {
            account: account.clone(),
            charged_runs: 0,
            runs: Default::default(),
            clusters: HashMap::new(),
            clusters_account: TableAccount::new::<(Address, u32)>(account),
            is_over_budget: false,
        }
    }

    /// Whether a range could not be recorded for want of memory. Then overlaps are no longer found.
    pub(super) fn is_over_budget(&self) -> bool {
        self.is_over_budget
    }

    /// Records that a range, which is not empty, has this use, and returns whether it may.
    pub(super) fn claim(&mut self, kind: Kind, at: Address, end: u64) -> Claim {
        let len_bytes = u32::try_from(end - at.offset).unwrap_or(u32::MAX);
        if kind.is_shared_whole() && self.clusters.get(&at) == Some(&len_bytes) {
            return Claim::Shared;
        }
        let found = Kind::ALL.into_iter().find_map(|other| {
            let may_share = kind == Kind::Plain && other == Kind::Plain;
            let from = self.runs[other as usize].overlap(at, end)?;
            Some(if may_share { Claim::Shared } else { Claim::Overlaps(other, from) })
        });
        self.record(kind, at, end, len_bytes);
        found.unwrap_or(Claim::New)
    }

    fn record(&mut self, kind: Kind, at: Address, end: u64, len_bytes: u32) {
        let runs: usize = self.runs.iter().map(ByteRuns::count).sum();
        if runs as u64 >= self.charged_runs {
            let more = (self.charged_runs / 2).max(64);
            if self.is_over_budget || !self.account.try_charge(more * RUN_BYTES) {
                self.is_over_budget = true;
                return;
            }
            self.charged_runs += more;
        }
        self.runs[kind as usize].insert(at, end);
        if !kind.is_shared_whole() {
            return;
        }
        match self.clusters_account.reserve_one(self.clusters.len(), self.clusters.capacity()) {
            true => _ = self.clusters.insert(at, len_bytes),
            false => self.is_over_budget = true,
        }
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        self.account.uncharge(self.charged_runs * RUN_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_backing::Budget;
    use pagefold_image::Space;

    #[test]
    fn ranges_are_merged_and_overlaps_found() {
        let account = Account::new(&Budget::new(4 << 20, 1 << 20).unwrap());
        let mut spaces = Spaces::new(&account);
        let mut claim = |kind, start, end| spaces.claim(kind, Address::image(start), end);
        assert_eq!(claim(Kind::Metadata, 100, 200), Claim::New);
        assert_eq!(claim(Kind::Metadata, 200, 300), Claim::New);
        assert_eq!(claim(Kind::Metadata, 299, 310), Claim::Overlaps(Kind::Metadata, 299));
        assert_eq!(claim(Kind::Cluster, 1000, 2000), Claim::New);
        assert_eq!(claim(Kind::Cluster, 1000, 2000), Claim::Shared);
        assert_eq!(claim(Kind::Cluster, 1000, 1500), Claim::Overlaps(Kind::Cluster, 1000));
        assert_eq!(claim(Kind::Plain, 500, 1001), Claim::Overlaps(Kind::Cluster, 1000));
        assert_eq!(claim(Kind::Plain, 400, 600), Claim::Shared);
        assert_eq!(claim(Kind::Plain, 310, 400), Claim::New);
        assert_eq!(claim(Kind::Metadata, 50, 101), Claim::Overlaps(Kind::Metadata, 100));
        assert_eq!(spaces.runs.each_ref().map(ByteRuns::count), [1, 1, 0, 1]);
        let elsewhere = Address { space: Space::Metabox, offset: 100 };
        assert_eq!(spaces.claim(Kind::Metadata, elsewhere, 200), Claim::New);
    }
}
