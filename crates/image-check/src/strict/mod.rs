//! The strict check: rules of the format that readers do not depend on, or that this crate's reader tolerates.
//!
//! It is written from `docs/formats/erofs.md` and reads the structures of [`pagefold_image::format`] itself: inodes, attributes,
//! indexes and streams are not taken from [`pagefold_image::read`], so a fault of the reader does not hide one of the image.
//! Only the contents of directories come through the reader, since they may be compressed.
//!
//! | module | rules |
//! |---|---|
//! | `superblock`, `records`, `devices` | the superblock, the configuration records, the table of devices |
//! | `inode`, `flat`, `chunks` | an inode, and the layouts without an index |
//! | `directory`, `xattr`, `prefixes` | blocks of directories, attributes, and the long prefixes of their names |
//! | `index` | indexes: `full`, `compact` and `lclusters`, or `records`; `tail` is a last extent elsewhere |
//! | `stream` | the bytes of clusters |
//! | `usage` | features and algorithms that the image uses, against its bits |
//! | `spaces`, `numbers` | the places of all structures, to find overlaps; inode numbers |
//!
//! All of it runs in the walking thread. Each rule is reported once per file, with its first fault. Memory: one
//! cluster of at most 1 MiB, a block, and tables of `spaces` and of inode numbers that are charged to the budget.

mod chunks;
mod devices;
mod directory;
mod flat;
mod index;
mod inode;
mod numbers;
mod prefixes;
mod records;
mod spaces;
mod stream;
mod superblock;
mod usage;
mod xattr;

use inode::RawInode;
use numbers::Numbers;
use pagefold_image::account::Account;
use pagefold_image::format::superblock::RawSuperblock;
use pagefold_image::read::Bytes;
use pagefold_image::rules::{self, Rule};
use pagefold_image::walk::WalkSummary;
use pagefold_image::work::{CountedBytes, WorkLimit};
use pagefold_image::{Address, Finding, Image, ImageError, Nid, Space};
use records::Limits;
use spaces::{Claim, Kind, Spaces};
use usage::Usage;

/// A strict check in progress.
pub(super) struct Strict<'a> {
    image: &'a Image,
    /// The bytes of metadata. Reading a structure is a step of work.
    bytes: CountedBytes<'a>,
    report: &'a dyn Fn(Finding),
    raw: RawSuperblock,
    limits: Limits,
    usage: Usage,
    spaces: Spaces,
    numbers: Numbers,
    /// The bytes of one cluster.
    cluster: Vec<u8>,
    /// Inodes that no directory names: the packed file and the metabox.
    hidden_inodes: u64,
    /// Whether the walk missed inodes, so that their number says nothing.
    has_missed_inodes: bool,
}

/// Reports the faults of one file, or of the image as a whole: the first one of each rule.
pub(super) struct Faults<'a> {
    report: &'a dyn Fn(Finding),
    path: &'a [u8],
    broken: Vec<&'static str>,
}

impl<'a> Faults<'a> {
    fn new(report: &'a dyn Fn(Finding), path: &'a [u8]) -> Self {
        Faults { report, path, broken: Vec::new() }
    }

    /// Reports that `rule` is broken at `at`, unless an earlier fault broke it.
    fn add(&mut self, rule: &'static Rule, at: Address, what: impl Into<String>) {
        if !self.broken.contains(&rule.name) {
            self.broken.push(rule.name);
            (self.report)(Finding::breaks(rule, self.path, Some(at), what));
        }
    }

    /// Reports an error for which the image is not at fault. The ordinary check reports the others.
    fn failed(&self, checked: Result<(), ImageError>) {
        if let Some(error) = checked.err().filter(|error| !error.is_damage()) {
            (self.report)(Finding::of(self.path, &error));
        }
    }
}

impl<'a> Strict<'a> {
    /// Starts a check, and judges the superblock, the records and the device table.
    pub(super) fn new(
        image: &'a Image,
        work: &'a WorkLimit,
        report: &'a dyn Fn(Finding),
    ) -> Result<Self, ImageError> {
        let raw = superblock::read(image)?;
        let mut strict = Strict {
            image,
            bytes: CountedBytes { bytes: image.metadata(), work },
            report,
            raw,
            limits: Limits::default(),
            usage: Usage::default(),
            spaces: Spaces::new(&Account::new(image.budget())),
            numbers: Numbers::new(&Account::new(image.budget())),
            cluster: Vec::new(),
            hidden_inodes: 0,
            has_missed_inodes: false,
        };
        let mut faults = Faults::new(report, b"");
        superblock::check(&mut strict, &mut faults);
        let checks = [records::check, devices::check, prefixes::check];
        for check in checks {
            let checked = check(&mut strict, &mut faults);
            faults.failed(checked);
        }
        Ok(strict)
    }

    /// Judges an inode at its first name. The ordinary check reports what cannot be read.
    pub(super) fn inode(&mut self, nid: Nid, path: &[u8]) {
        let mut faults = Faults::new(self.report, path);
        let inode = match RawInode::read(self, nid) {
            Ok(inode) => inode,
            Err(error) => return faults.failed(Err(error)),
        };
        if inode.size > i64::MAX.unsigned_abs() {
            return;
        }
        inode::check(self, &inode, &mut faults);
        let checked = xattr::check(self, &inode, &mut faults);
        faults.failed(checked);
        let checked = match inode.layout() {
            _ if !inode.kind.has_contents() => {
                self.claim_metadata(&inode, inode.tail.offset, &mut faults);
                Ok(())
            }
            inode::Layout::Plain => flat::check_plain(self, &inode, &mut faults),
            inode::Layout::Inline => flat::check_inline(self, &inode, &mut faults),
            inode::Layout::Chunks => chunks::check(self, &inode, &mut faults),
            inode::Layout::Full | inode::Layout::Compact => index::check(self, &inode, &mut faults),
            inode::Layout::Unknown => Ok(()),
        };
        faults.failed(checked);
        if inode.kind == pagefold_image::read::FileKind::Directory {
            directory::check(self, nid, &mut faults);
        }
    }

    /// Judges an inode that the reader refuses.
    pub(super) fn unreadable_inode(&mut self, nid: Nid, path: &[u8]) {
        self.has_missed_inodes = true;
        self.inode(nid, path);
    }

    /// Judges the packed file or the metabox.
    pub(super) fn hidden_inode(&mut self, nid: Nid, path: &[u8]) {
        self.hidden_inodes += 1;
        self.inode(nid, path);
    }

    /// Judges what only the whole image shows.
    pub(super) fn finish(mut self, summary: &WalkSummary) {
        let mut faults = Faults::new(self.report, b"");
        if !summary.ended_early {
            if !self.has_missed_inodes {
                superblock::check_inodes(&self, summary.inodes + self.hidden_inodes, &mut faults);
            }
            usage::check(&mut self, &mut faults);
        }
        if self.spaces.is_over_budget() || self.numbers.is_over_budget() {
            let what = "too little memory to compare the places of all data and all inode numbers: raise it \
                        with --memory";
            (self.report)(Finding::failure(b"", what));
        }
    }

    /// The bytes of metadata.
    fn bytes(&self) -> &dyn Bytes {
        &self.bytes
    }

    fn array<const N: usize>(&self, at: Address) -> Result<[u8; N], ImageError> {
        pagefold_image::read::bytes::array_at(self.bytes(), at)
    }

    fn block_bits(&self) -> u8 {
        self.raw.blkszbits
    }

    fn block_bytes(&self) -> u64 {
        1 << self.raw.blkszbits
    }

    fn has_incompat(&self, bit: u32) -> bool {
        self.raw.feature_incompat.get() & bit != 0
    }

    fn has_compat(&self, bit: u32) -> bool {
        self.raw.feature_compat.get() & bit != 0
    }

    /// Records that a feature is used, whose bit must be set then.
    fn uses(&mut self, bit: u32, name: &str, at: Address, faults: &mut Faults<'_>) {
        self.usage.incompat |= bit;
        if !self.has_incompat(bit) {
            faults.add(&rules::FEATURE_UNSET, at, format!("{name}, without the feature bit {bit:#x}"));
        }
    }

    /// Whether all these bytes are zero. They must be few.
    fn is_zero(&self, at: Address, len_bytes: u64) -> Result<bool, ImageError> {
        let mut bytes = vec![0; len_bytes as usize];
        self.bytes().read_at(at, &mut bytes)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// Claims the metadata of an inode, from its first byte to `end`.
    fn claim_metadata(&mut self, inode: &RawInode, end: u64, faults: &mut Faults<'_>) {
        self.claim(Kind::Metadata, inode.at, end.saturating_sub(inode.at.offset), faults);
    }

    /// Claims a range of the image for one use, and reports a use that it must not share. Ranges of further devices
    /// are not tracked.
    fn claim(&mut self, kind: Kind, at: Address, len_bytes: u64, faults: &mut Faults<'_>) -> Claim {
        let own = match at.space {
            Space::Device(0) => self.image.is_own(at),
            Space::Device(_) => false,
            Space::Metabox => true,
        };
        if !own || len_bytes == 0 {
            return Claim::New;
        }
        let end = at.offset.saturating_add(len_bytes);
        let blocks = self.image.superblock().blocks;
        if at.space == Space::Device(0) && blocks != 0 && end > blocks.saturating_mul(self.block_bytes()) {
            let what = format!("{} up to byte {end}, in an image of {blocks} blocks", kind.name());
            faults.add(&rules::SB_BLOCKS, at, what);
        }
        let claim = self.spaces.claim(kind, at, end);
        if let Claim::Overlaps(other, from) = claim {
            let what = format!("{} up to byte {end} overlaps {} at byte {from}", kind.name(), other.name());
            faults.add(&rules::SPACE_OVERLAP, at, what);
        }
        claim
    }
}
