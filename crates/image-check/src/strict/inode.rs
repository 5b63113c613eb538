//! The fields of an inode as they are stored, and the rules for them.

use super::context::Strict;
use super::spaces::SpaceUse;
use pagefold_image::format::features::incompat;
use pagefold_image::format::inode::{self as disk, RawCompactInode, RawExtendedInode};
use pagefold_image::read::FileKind;
use pagefold_image::{Address, ImageError, Nid, Result, Space, rules};

/// The layout of an inode's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Plain,
    Full,
    Inline,
    Compact,
    Chunks,
    /// A number that no table has. The reader refuses it.
    Unknown,
}

/// An inode of either form, as it is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawInode {
    pub(super) nid: Nid,
    pub(super) at: Address,
    pub(super) extended: bool,
    pub(super) kind: FileKind,
    pub(super) size: u64,
    /// `i_u`.
    pub(super) u: u32,
    /// `i_nb`.
    pub(super) nb: u16,
    /// Bytes of the attributes.
    pub(super) xattr_bytes: u64,
    /// The first byte after the attributes.
    pub(super) tail: Address,
    format: u16,
    ino: u32,
    reserved_is_zero: bool,
    has_valid_owner: bool,
}

impl RawInode {
    /// Reads inode `nid`.
    pub(super) fn read(strict: &Strict<'_>, nid: Nid) -> Result<Self> {
        let start = u64::from(strict.raw.meta_blkaddr.get()) << strict.block_bits();
        let slot = nid.0 & !disk::NID_METABOX;
        let beyond = || ImageError::corrupt(Address::image(0), "an inode beyond all numbers");
        let within = slot.checked_mul(disk::SLOT_LEN).ok_or_else(beyond)?;
        let at = match nid.0 & disk::NID_METABOX {
            0 => Address::image(start).checked_add(within).ok_or_else(beyond)?,
            _ => Address { space: Space::Metabox, offset: within },
        };
        let compact = RawCompactInode::parse(&strict.array(at)?);
        let kind = |mode| FileKind::from_mode(mode).ok_or_else(|| ImageError::corrupt(at, "no file type"));
        let mut inode = RawInode {
            nid,
            at,
            extended: false,
            kind: kind(compact.i_mode.get())?,
            size: compact.i_size.get().into(),
            u: compact.i_u.get(),
            nb: compact.i_nb.get(),
            xattr_bytes: disk::xattr_area_len(compact.i_xattr_icount.get()).into(),
            tail: at,
            format: compact.i_format.get(),
            ino: compact.i_ino.get(),
            reserved_is_zero: compact.reserved.get() == 0,
            has_valid_owner: true,
        };
        let mut len = RawCompactInode::LEN as u64;
        if inode.format & disk::FORMAT_EXTENDED != 0 {
            let raw = RawExtendedInode::parse(&strict.array(at)?);
            len = RawExtendedInode::LEN as u64;
            inode.extended = true;
            inode.size = raw.i_size.get();
            inode.reserved_is_zero = raw.reserved == [0; 16];
            inode.has_valid_owner = raw.i_uid.get() != u32::MAX && raw.i_gid.get() != u32::MAX;
        }
        inode.tail = at.checked_add(len + inode.xattr_bytes).ok_or_else(beyond)?;
        Ok(inode)
    }

    pub(super) fn layout(&self) -> Layout {
        match self.format >> disk::FORMAT_LAYOUT_SHIFT & disk::FORMAT_LAYOUT_MASK {
            disk::LAYOUT_FLAT_PLAIN => Layout::Plain,
            disk::LAYOUT_COMPRESSED_FULL => Layout::Full,
            disk::LAYOUT_FLAT_INLINE => Layout::Inline,
            disk::LAYOUT_COMPRESSED_COMPACT => Layout::Compact,
            disk::LAYOUT_CHUNK_BASED => Layout::Chunks,
            _ => Layout::Unknown,
        }
    }

    /// Bit 4 of the format.
    pub(super) fn flag(&self) -> bool {
        self.format & disk::FORMAT_NLINK_1_OR_DOT_OMITTED != 0
    }

    /// Whether `i_nb` holds bits 32 to 47 of an address.
    pub(super) fn has_wide_address(&self, strict: &Strict<'_>) -> bool {
        match self.extended {
            true => strict.has_incompat(incompat::WIDE_ADDRESSES),
            false => self.flag() && self.kind != FileKind::Directory,
        }
    }

    /// `i_u`, with the upper bits from `i_nb` if the inode has them there.
    pub(super) fn wide_u(&self, strict: &Strict<'_>) -> u64 {
        let high = if self.has_wide_address(strict) { u64::from(self.nb) } else { 0 };
        high << 32 | u64::from(self.u)
    }

    /// Claims the metadata of the inode, from its first byte to `end`.
    pub(super) fn claim(&self, strict: &mut Strict<'_>, end: u64) {
        strict.claim(SpaceUse::Metadata, self.at, end.saturating_sub(self.at.offset));
    }
}

/// Judges the fields that all inodes have.
pub(super) fn check(strict: &mut Strict<'_>, inode: &RawInode) {
    let is_directory = inode.kind == FileKind::Directory;
    if !inode.reserved_is_zero {
        strict.fault(&rules::INODE_RESERVED, inode.at, "reserved bytes of the inode are not zero");
    }
    if !inode.has_valid_owner {
        strict.fault(
            &rules::INODE_OWNER,
            inode.at,
            "the owner or the group is 4294967295, which is no valid ID",
        );
    }
    if inode.format & disk::FORMAT_RESERVED != 0 {
        let what = format!("reserved bits of the inode's format: {:#06x}", inode.format);
        strict.fault(&rules::INODE_RESERVED, inode.at, what);
    }
    if inode.flag() && inode.extended && !is_directory {
        strict.fault(&rules::INODE_RESERVED, inode.at, "bit 4 of the format of an extended inode");
    }
    if inode.extended && inode.nb != 0 && !strict.has_incompat(incompat::WIDE_ADDRESSES) {
        strict.fault(&rules::INODE_RESERVED, inode.at, "upper bits of an address, without the feature 48bit");
    }
    if matches!(inode.kind, FileKind::Fifo | FileKind::Socket) && inode.u != 0 {
        strict.fault(&rules::INODE_RESERVED, inode.at, "i_u of a pipe or a socket is not zero");
    }
    if inode.flag() && !inode.extended && !is_directory {
        strict.uses(incompat::WIDE_ADDRESSES, "an inode with upper bits of an address", inode.at);
    }
    if inode.flag() && is_directory {
        strict.usage.incompat |= incompat::WIDE_ADDRESSES;
    }
    if inode.at.space == Space::Metabox {
        strict.uses(incompat::METABOX, "an inode in the metabox", inode.at);
    }
    if inode.ino != 0 && !strict.numbers.insert(inode.ino) {
        let what = format!("another inode has the number {} too", inode.ino);
        strict.fault(&rules::INODE_NUMBER, inode.at, what);
    }
}
