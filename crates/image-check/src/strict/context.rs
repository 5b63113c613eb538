//! The state of a strict check, and what all rules need: bytes of the image, the report of a fault, and claims of space.

use super::numbers::Numbers;
use super::spaces::{Claim, SpaceUse, Spaces};
use pagefold_image::account::Account;
use pagefold_image::format::config;
use pagefold_image::format::superblock::{OFFSET, RawSuperblock};
use pagefold_image::read::Bytes;
use pagefold_image::read::bytes::array_at;
use pagefold_image::rules::{self, Rule};
use pagefold_image::work::{CountedBytes, WorkLimit};
use pagefold_image::{Address, Finding, Image, Result, Space};
use std::cell::RefCell;

/// The features and algorithms that an image uses.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Bits of incompatible features.
    pub(super) incompat: u32,
    /// Bits of compatible features.
    pub(super) compat: u32,
    /// Bit `n` is set for the algorithm of number `n`.
    pub(super) algorithms: u16,
    /// Whether any file is compressed.
    pub(super) compressed: bool,
}

/// The limits of clusters in the records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Window of LZ4, bytes.
    pub(super) lz4_window: u64,
    /// Longest LZ4 cluster, bytes.
    pub(super) lz4_cluster: u64,
    /// Window of deflate, bytes.
    pub(super) deflate_window: u64,
    /// Window of zstd, bytes.
    pub(super) zstd_window: u64,
    /// Bit `n` is set for the algorithm of number `n`.
    pub(super) algorithms: u16,
}

impl Default for Limits {
    fn default() -> Self {
        let lz4_window = config::LZ4_WINDOW_BYTES_DEFAULT.into();
        Limits { lz4_window, lz4_cluster: 1 << 20, deflate_window: 1 << 15, zstd_window: 0, algorithms: 1 }
    }
}

/// A strict check in progress.
pub(in super::super) struct Strict<'a> {
    pub(super) image: &'a Image,
    /// The bytes of metadata. Reading a structure is a step of work.
    pub(super) bytes: CountedBytes<'a>,
    report: &'a dyn Fn(Finding),
    /// The path of the file that is judged; empty for the image as a whole.
    path: Vec<u8>,
    /// The rules that it breaks.
    broken: RefCell<Vec<&'static str>>,
    pub(super) raw: RawSuperblock,
    pub(super) limits: Limits,
    pub(super) usage: Usage,
    pub(super) spaces: Spaces,
    pub(super) numbers: Numbers,
    /// The bytes of one cluster.
    pub(super) cluster: Vec<u8>,
    /// Inodes that no directory names: the packed file and the metabox.
    pub(super) hidden_inodes: u64,
    /// Whether the walk missed inodes, so that their number says nothing.
    pub(super) has_missed_inodes: bool,
}

impl<'a> Strict<'a> {
    /// The state before anything is judged.
    pub(super) fn begin(image: &'a Image, work: &'a WorkLimit, report: &'a dyn Fn(Finding)) -> Result<Self> {
        Ok(Strict {
            image,
            bytes: CountedBytes { bytes: image.metadata(), work },
            report,
            path: Vec::new(),
            broken: RefCell::default(),
            raw: RawSuperblock::parse(&array_at(image.metadata(), Address::image(OFFSET))?),
            limits: Limits::default(),
            usage: Usage::default(),
            spaces: Spaces::new(&Account::new(image.budget())),
            numbers: Numbers::new(&Account::new(image.budget())),
            cluster: Vec::new(),
            hidden_inodes: 0,
            has_missed_inodes: false,
        })
    }

    /// Goes on to another file, or with an empty path to the image as a whole.
    pub(super) fn judge(&mut self, path: &[u8]) {
        self.path = path.to_vec();
        self.broken.take();
    }

    /// Reports that the file breaks `rule` at `at`, unless an earlier fault of it broke the same.
    pub(super) fn fault(&self, rule: &'static Rule, at: Address, what: impl Into<String>) {
        let mut broken = self.broken.borrow_mut();
        if !broken.contains(&rule.name) {
            broken.push(rule.name);
            (self.report)(Finding::breaks(rule, &self.path, Some(at), what));
        }
    }

    /// Reports an error for which the image is not at fault. The ordinary check reports the others.
    pub(super) fn failed(&self, checked: Result<()>) {
        if let Some(error) = checked.err().filter(|error| !error.is_damage()) {
            (self.report)(Finding::of(&self.path, &error));
        }
    }

    /// Reports that the check is incomplete, for a reason outside of the image.
    pub(super) fn incomplete(&self, what: &str) {
        (self.report)(Finding::failure(b"", what));
    }

    /// The bytes of metadata.
    pub(super) fn bytes(&self) -> &dyn Bytes {
        &self.bytes
    }

    pub(super) fn array<const N: usize>(&self, at: Address) -> Result<[u8; N]> {
        array_at(self.bytes(), at)
    }

    pub(super) fn block_bits(&self) -> u8 {
        self.raw.blkszbits
    }

    pub(super) fn block_bytes(&self) -> u64 {
        1 << self.raw.blkszbits
    }

    pub(super) fn has_incompat(&self, bit: u32) -> bool {
        self.raw.feature_incompat.get() & bit != 0
    }

    pub(super) fn has_compat(&self, bit: u32) -> bool {
        self.raw.feature_compat.get() & bit != 0
    }

    /// Records that a feature is used, whose bit must be set then.
    pub(super) fn uses(&mut self, bit: u32, name: &str, at: Address) {
        self.usage.incompat |= bit;
        if !self.has_incompat(bit) {
            self.fault(&rules::FEATURE_UNSET, at, format!("{name}, without the feature bit {bit:#x}"));
        }
    }

    /// Whether all these bytes are zero. They must be few.
    pub(super) fn is_zero(&self, at: Address, len_bytes: u64) -> Result<bool> {
        let mut bytes = vec![0; len_bytes as usize];
        self.bytes().read_at(at, &mut bytes)?;
        Ok(bytes.iter().all(|byte| *byte == 0))
    }

    /// Claims a range of the image for one use, and reports a use that it must not share. Ranges of further devices
    /// are not tracked.
    pub(super) fn claim(&mut self, kind: SpaceUse, at: Address, len_bytes: u64) -> Claim {
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
            self.fault(&rules::SB_BLOCKS, at, what);
        }
        let claim = self.spaces.claim(kind, at, end);
        if let Claim::Overlaps(other, from) = claim {
            let what = format!("{} up to byte {end} overlaps {} at byte {from}", kind.name(), other.name());
            self.fault(&rules::SPACE_OVERLAP, at, what);
        }
        claim
    }
}
