//! Attributes inodes and extents to parts, as a walk meets them.

use super::claims::{Claim, Claims};
use super::top::{Top, by_fraction, by_stored};
use super::{Usage, UsagePart, WORST_LEN_BYTES};
use crate::account::Account;
use crate::format::inode::{RawCompactInode, RawExtendedInode, SLOT_LEN};
use crate::read::inode::Inode;
use crate::read::superblock::PrefixPlace;
use crate::read::xattr::Xattrs;
use crate::read::{Algorithm, Extent, FileKind, Mapping};
use crate::work::{CountedBytes, WorkLimit};
use crate::{Address, Image, Node, Result, Space};

/// The owner of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A name of the tree.
    Tree(FileKind),
    /// The packed file.
    Packed,
    /// The metabox.
    Metabox,
}

/// A file whose stored bytes are distributed evenly over its contents.
#[derive(Debug, Clone, Copy, Default)]
struct Spread {
    len_bytes: u64,
    stored_bytes: u64,
}

impl Spread {
    /// The stored bytes for some of its contents.
    fn of(&self, content_bytes: u64) -> u64 {
        let product = u128::from(content_bytes) * u128::from(self.stored_bytes);
        let share = product.checked_div(self.len_bytes.into()).unwrap_or(0);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

/// Collects the uses of an image's bytes. The calls for one inode are [`begin`](Self::begin),
/// [`extent`](Self::extent) for each of its extents, and [`end`](Self::end).
pub(crate) struct Collector {
    image: Image,
    claims: Claims,
    parts: [u64; UsagePart::ALL.len()],
    packed: Spread,
    metabox: Spread,
    fragment_bytes: u64,
    /// Those of directories among them.
    directory_fragment_bytes: u64,
    shared_bytes: u64,
    saved_bytes: u64,
    owner: Owner,
    /// Stored bytes of the present inode's contents.
    stored_bytes: u64,
    largest: Top,
    worst: Top,
}

impl Collector {
    /// Starts with the superblock and the tables that belong to it.
    pub(crate) fn new(image: &Image, account: &Account) -> Self {
        let mut collector = Collector {
            image: image.clone(),
            claims: Claims::new(image, account),
            parts: Default::default(),
            packed: Spread::default(),
            metabox: Spread::default(),
            fragment_bytes: 0,
            directory_fragment_bytes: 0,
            shared_bytes: 0,
            saved_bytes: 0,
            owner: Owner::Tree(FileKind::Regular),
            stored_bytes: 0,
            largest: Top::new(by_stored),
            worst: Top::new(by_fraction),
        };
        collector.superblock();
        collector
    }

    fn superblock(&mut self) {
        let image = self.image.clone();
        let superblock = image.superblock();
        self.metadata(UsagePart::Superblock, Address::image(0), superblock.header_end);
        let devices = superblock.devices.len() as u64 * crate::format::device::RawDeviceSlot::LEN as u64;
        self.metadata(UsagePart::Superblock, Address::image(superblock.device_table_at), devices);
        if let PrefixPlace::Space(space) = superblock.prefixes.place {
            let at = Address { space, offset: superblock.prefixes.offset };
            self.metadata(UsagePart::Xattrs, at, image.0.core.prefixes.table_bytes());
        }
    }

    /// Attributes the metabox. It comes before everything else.
    pub(crate) fn metabox(&mut self, work: &WorkLimit) -> Result<()> {
        let Some(nid) = self.image.superblock().metabox_nid else { return Ok(()) };
        let node = self.image.node(nid)?;
        self.begin(&node, Owner::Metabox, work);
        for extent in node.extents_within(work) {
            self.extent(&node, &extent?);
        }
        self.end(&node, b"");
        Ok(())
    }

    /// Attributes the metadata of an inode, which was not met before.
    pub(crate) fn begin(&mut self, node: &Node, owner: Owner, work: &WorkLimit) {
        (self.owner, self.stored_bytes) = (owner, 0);
        let inode = node.inode();
        let len = if inode.extended { RawExtendedInode::LEN } else { RawCompactInode::LEN };
        self.metadata(UsagePart::Inodes, inode.address, len as u64);
        if let Some(at) = inode.xattr_address() {
            self.metadata(UsagePart::Xattrs, at, u64::from(inode.xattr_bytes));
            self.shared_xattrs(inode, work);
        }
        let index_end = node.contents().index_end();
        self.metadata(UsagePart::Indexes, inode.tail, index_end.offset.saturating_sub(inode.tail.offset));
        let inline_bytes = node.contents().inline_part().map_or(0, |(_, len_bytes)| len_bytes);
        if let Some(end) = index_end.checked_add(inline_bytes) {
            // Slots are counted from the beginning of a block, or of the metabox.
            let rest = end.offset.checked_next_multiple_of(SLOT_LEN).map_or(0, |next| next - end.offset);
            self.metadata(UsagePart::Inodes, end, rest);
        }
    }

    fn shared_xattrs(&mut self, inode: &Inode, work: &WorkLimit) {
        let image = self.image.clone();
        let core = &image.0.core;
        let visit = |at, len_bytes| self.metadata(UsagePart::Xattrs, at, len_bytes);
        // The walk reports attributes that cannot be read.
        let bytes = CountedBytes { bytes: core, work };
        let xattrs = Xattrs::open(&bytes, &core.superblock, &core.prefixes, inode);
        let _ = xattrs.and_then(|xattrs| xattrs.visit_shared_places(visit));
    }

    /// Attributes the stored bytes of an extent, and returns whether they were before.
    pub(crate) fn extent(&mut self, node: &Node, extent: &Extent) -> Claim {
        let contents = node.contents();
        let is_inline = contents.inline_part().is_some_and(|(start, _)| extent.start == start);
        let block_bytes = u64::from(self.image.superblock().block_bytes());
        let (at, len_bytes, part) = match extent.mapping {
            Mapping::Hole => return Claim::default(),
            Mapping::Fragment { .. } => {
                self.fragment_bytes = self.fragment_bytes.saturating_add(extent.len_bytes);
                if self.owner == Owner::Tree(FileKind::Directory) {
                    let bytes = &mut self.directory_fragment_bytes;
                    *bytes = bytes.saturating_add(extent.len_bytes);
                }
                self.add_stored(self.packed.of(extent.len_bytes));
                return Claim::default();
            }
            Mapping::Plain(at) if is_inline || contents.has_byte_addresses() => {
                (at, extent.len_bytes, UsagePart::Plain)
            }
            Mapping::Plain(at) => (at, extent.len_bytes.next_multiple_of(block_bytes), UsagePart::Plain),
            Mapping::Interlaced { at, len_bytes } => (at, u64::from(len_bytes), UsagePart::Plain),
            Mapping::Compressed(cluster) => {
                (cluster.at, u64::from(cluster.len_bytes), algorithm_part(cluster.algorithm))
            }
        };
        let part = match self.owner {
            Owner::Packed => UsagePart::Fragments,
            Owner::Metabox => UsagePart::Metabox,
            Owner::Tree(FileKind::Directory) => UsagePart::Directories,
            Owner::Tree(_) if is_inline => UsagePart::Inline,
            Owner::Tree(_) => part,
        };
        let claim = match is_inline {
            true => self.claims.metadata(at, len_bytes),
            false => self.claims.contents(at, len_bytes),
        };
        match at.space {
            Space::Device(_) => {
                self.add(part, claim);
                self.add_stored(claim.new_bytes);
            }
            Space::Metabox => self.add_stored(self.metabox.of(claim.new_bytes)),
        }
        self.saved_bytes = self.saved_bytes.saturating_add(claim.shared_bytes());
        let shared = match extent.mapping {
            Mapping::Compressed(_) if claim.is_shared_whole() => extent.len_bytes,
            Mapping::Compressed(_) => 0,
            _ => claim.shared_bytes().min(extent.len_bytes),
        };
        self.shared_bytes = self.shared_bytes.saturating_add(shared);
        claim
    }

    /// Ends an inode, and lists it if it is a regular file.
    pub(crate) fn end(&mut self, node: &Node, path: &[u8]) {
        let (len_bytes, stored_bytes) = (node.len_bytes(), self.stored_bytes);
        match self.owner {
            Owner::Packed => self.packed = Spread { len_bytes, stored_bytes },
            Owner::Metabox => self.metabox = Spread { len_bytes, stored_bytes },
            Owner::Tree(FileKind::Regular) => {
                self.largest.offer(path, len_bytes, stored_bytes);
                if len_bytes >= WORST_LEN_BYTES {
                    self.worst.offer(path, len_bytes, stored_bytes);
                }
            }
            Owner::Tree(_) => {}
        }
    }

    /// Returns the uses; `None` if there was too little memory.
    pub(crate) fn finish(mut self) -> Option<Usage> {
        if self.claims.is_over_budget() {
            return None;
        }
        let used = self.parts.iter().sum();
        self.parts[UsagePart::Unused as usize] = self.image.media_bytes().saturating_sub(used);
        let shared_fragments = self.fragment_bytes.saturating_sub(self.packed.len_bytes);
        self.divide_packed();
        Some(Usage {
            parts: self.parts,
            fragment_bytes: self.fragment_bytes,
            shared_bytes: self.shared_bytes.saturating_add(shared_fragments),
            saved_bytes: self.saved_bytes.saturating_add(self.packed.of(shared_fragments)),
            largest: self.largest.into_files(),
            worst: self.worst.into_files(),
        })
    }

    /// Attributes the part of the packed file that directories have to these. Directories of a hostile image may have more
    /// than all of it.
    fn divide_packed(&mut self) {
        let of_directories = self.packed.of(self.directory_fragment_bytes);
        let moved = of_directories.min(self.parts[UsagePart::Fragments as usize]);
        self.parts[UsagePart::Fragments as usize] -= moved;
        self.parts[UsagePart::Directories as usize] += moved;
    }

    fn metadata(&mut self, part: UsagePart, at: Address, len_bytes: u64) {
        // The bytes of the metabox are counted where they are stored.
        if matches!(at.space, Space::Device(_)) {
            let claim = self.claims.metadata(at, len_bytes);
            self.add(part, claim);
        }
    }

    fn add(&mut self, part: UsagePart, claim: Claim) {
        // No byte is claimed twice, so a sum is at most the length of the devices, unless memory ran out.
        let bytes = &mut self.parts[part as usize];
        *bytes = bytes.saturating_add(claim.new_bytes);
    }

    fn add_stored(&mut self, bytes: u64) {
        self.stored_bytes = self.stored_bytes.saturating_add(bytes);
    }
}

fn algorithm_part(algorithm: Algorithm) -> UsagePart {
    match algorithm {
        Algorithm::Lz4 => UsagePart::Lz4,
        Algorithm::MicroLzma => UsagePart::Lzma,
        Algorithm::Deflate => UsagePart::Deflate,
        Algorithm::Zstd => UsagePart::Zstd,
    }
}
