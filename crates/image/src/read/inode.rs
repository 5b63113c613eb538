//! Inodes: the type and attributes of a file, and the addresses of its data and extended attributes.

use super::bytes::{advance, array_at};
use super::{Bytes, FileKind, Superblock};
use crate::format::chunk;
use crate::format::inode::{self as disk, RawCompactInode, RawExtendedInode};
use crate::{Address, ImageError, Nid, Result};

/// A point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970, without leap seconds; negative before.
    pub seconds: i64,
    /// Nanoseconds to add, below 10^9.
    pub nanoseconds: u32,
}

/// The number of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNumber {
    /// Number of the driver, 12 bits.
    pub major: u32,
    /// Number of the driver's device, 20 bits.
    pub minor: u32,
}

/// The layout of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Consecutive blocks.
    Plain {
        /// First byte of the first block. `None`: the whole file is a hole.
        start: Option<Address>,
    },
    /// Consecutive full blocks, and the rest at the inode's `tail`.
    Inline {
        /// First byte of the first full block. `None`: all full blocks, if any, are a hole.
        start: Option<Address>,
        /// Length of the rest, bytes; less than a block.
        tail_bytes: u32,
    },
    /// Compressed; the index has 8 bytes per logical cluster, or extent records.
    CompressedFull,
    /// Compressed; the index is packed.
    CompressedCompact,
    /// Chunks, each with its own address.
    Chunks {
        /// log2 of a chunk's bytes; below 63.
        chunk_bits: u8,
        /// Whether entries have 8 bytes and a device; otherwise they have 4.
        indexed: bool,
        /// Whether block numbers have 48 bits; only in entries of 8 bytes.
        wide: bool,
    },
}

/// The user and group that Linux shows for a file whose owner is no valid ID: the default of `fs.overflowuid`.
pub const OVERFLOW_ID: u32 = 65534;

/// A decoded inode. All checks that need no other part of the image have passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// The inode's number.
    pub nid: Nid,
    /// Address of the inode.
    pub address: Address,
    /// Whether the inode has the extended form of 64 bytes instead of 32.
    pub extended: bool,
    /// The type of file.
    pub kind: FileKind,
    /// `st_mode`: type and permissions.
    pub mode: u16,
    /// Owner; [`OVERFLOW_ID`] if the stored number is no valid ID.
    pub uid: u32,
    /// Group; [`OVERFLOW_ID`] if the stored number is no valid ID.
    pub gid: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// The inode number for `stat`. Not unique, and not used for lookups.
    pub ino: u32,
    /// Length of the contents, bytes; at most `i64::MAX`.
    pub size: u64,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Device number; only of device nodes.
    pub device: Option<DeviceNumber>,
    /// Whether this is a directory without an entry `.`.
    pub dot_omitted: bool,
    /// Length of the extended attributes after the inode, bytes; 0 if there are none.
    pub xattr_bytes: u32,
    /// Address after the extended attributes, where an inline tail, an index or an array of chunks begins.
    pub tail: Address,
    /// The layout of the contents. Files without contents have `Plain` without a start.
    pub layout: Layout,
    /// Number of blocks of a compressed file according to the inode, unchecked; 0 for other layouts.
    pub compressed_blocks: u64,
}

/// The fields of an inode of either form, as in the extended one.
struct Fields {
    extended: bool,
    raw: RawExtendedInode,
    /// Upper bits of addresses, if this inode has them.
    address_hi: Option<u16>,
}

impl Inode {
    /// Reads inode `nid`.
    pub fn read(bytes: &dyn Bytes, sb: &Superblock, nid: Nid) -> Result<Self> {
        let address = sb.inode_address(nid)?;
        let fields = Fields::read(bytes, sb, address)?;
        let raw = &fields.raw;
        let corrupt = |what: String| ImageError::corrupt(address, format!("inode {nid} has {what}"));
        if raw.i_format.get() & disk::FORMAT_RESERVED != 0 {
            return Err(corrupt(format!("an unknown format, {:#06x}", raw.i_format.get())));
        }
        let mode = raw.i_mode.get();
        let Some(kind) = FileKind::from_mode(mode) else {
            return Err(corrupt(format!("a mode without a file type, {mode:#o}")));
        };
        let size = raw.i_size.get();
        if size > i64::MAX.unsigned_abs() {
            return Err(corrupt(format!("a size of {size} bytes")));
        }
        let (seconds, nanoseconds) = (raw.i_mtime.get().cast_signed(), raw.i_mtime_nsec.get());
        if nanoseconds >= 1_000_000_000 {
            return Err(corrupt(format!("a time with {nanoseconds} nanoseconds")));
        }
        let xattr_bytes = disk::xattr_area_len(raw.i_xattr_icount.get());
        let tail = advance(address, fields.len_bytes() + u64::from(xattr_bytes))?;
        let layout = fields.layout(sb, kind, tail).map_err(corrupt)?;
        let compressed = matches!(layout, Layout::CompressedFull | Layout::CompressedCompact);
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let (major, minor) = disk::decode_rdev(raw.i_u.get());
        Ok(Inode {
            nid,
            address,
            extended: fields.extended,
            kind,
            mode,
            uid: valid_id(raw.i_uid.get()),
            gid: valid_id(raw.i_gid.get()),
            nlink: raw.i_nlink.get(),
            ino: raw.i_ino.get(),
            size,
            mtime: Timestamp { seconds, nanoseconds },
            device: is_device.then_some(DeviceNumber { major, minor }),
            dot_omitted: kind == FileKind::Directory && fields.flag(),
            xattr_bytes,
            tail,
            layout,
            compressed_blocks: if compressed { fields.wide_u() } else { 0 },
        })
    }

    /// Returns the address of the extended attributes, if there are any.
    pub fn xattr_address(&self) -> Option<Address> {
        let offset = self.tail.offset.checked_sub(u64::from(self.xattr_bytes))?;
        (self.xattr_bytes != 0).then_some(Address { offset, ..self.tail })
    }
}

/// Replaces 2^32 - 1, which is the ID of no user or group. To `chown` it means that the owner stays, so an extracted file
/// would belong to the user who extracts it; and the kernel denies access to such a file of a mount even to root.
fn valid_id(id: u32) -> u32 {
    if id == u32::MAX { OVERFLOW_ID } else { id }
}

impl Fields {
    fn read(bytes: &dyn Bytes, sb: &Superblock, address: Address) -> Result<Self> {
        let compact = RawCompactInode::parse(&array_at(bytes, address)?);
        if compact.i_format.get() & disk::FORMAT_EXTENDED != 0 {
            let raw = RawExtendedInode::parse(&array_at(bytes, address)?);
            // Without 48-bit addresses the field is reserved, and a start of 32 ones means a hole.
            let address_hi = sb.wide_addresses.then(|| raw.i_nb.get());
            return Ok(Fields { extended: true, raw, address_hi });
        }
        let nb = compact.i_nb.get();
        let directory = FileKind::from_mode(compact.i_mode.get()) == Some(FileKind::Directory);
        let single = compact.i_format.get() & disk::FORMAT_NLINK_1_OR_DOT_OMITTED != 0 && !directory;
        let seconds = sb.epoch.saturating_add_unsigned(u64::from(compact.i_mtime.get()));
        let raw = RawExtendedInode {
            i_format: compact.i_format,
            i_xattr_icount: compact.i_xattr_icount,
            i_mode: compact.i_mode,
            i_nb: compact.i_nb,
            i_size: u64::from(compact.i_size.get()).into(),
            i_u: compact.i_u,
            i_ino: compact.i_ino,
            i_uid: u32::from(compact.i_uid.get()).into(),
            i_gid: u32::from(compact.i_gid.get()).into(),
            i_mtime: seconds.cast_unsigned().into(),
            i_mtime_nsec: sb.fixed_nsec.into(),
            i_nlink: if single { 1 } else { u32::from(nb) }.into(),
            reserved: [0; 16],
        };
        Ok(Fields { extended: false, raw, address_hi: single.then_some(nb) })
    }

    /// Length of the inode itself, bytes.
    fn len_bytes(&self) -> u64 {
        if self.extended { RawExtendedInode::LEN as u64 } else { RawCompactInode::LEN as u64 }
    }

    /// The flag bit, whose meaning depends on the type of file.
    fn flag(&self) -> bool {
        self.raw.i_format.get() & disk::FORMAT_NLINK_1_OR_DOT_OMITTED != 0
    }

    /// `i_u` with the upper bits, if this inode has them.
    fn wide_u(&self) -> u64 {
        u64::from(self.address_hi.unwrap_or(0)) << 32 | u64::from(self.raw.i_u.get())
    }

    /// First byte of the first block; `None` if all bits of the address are ones, which means a hole.
    fn start(&self, sb: &Superblock) -> Result<Option<Address>, String> {
        let none = if self.address_hi.is_some() { chunk::HOLE_WIDE } else { u64::from(chunk::HOLE) };
        match self.wide_u() {
            block if block == none => Ok(None),
            block => {
                let beyond = || format!("its data at block {block}, beyond all numbers");
                sb.block_address(block).map(Some).ok_or_else(beyond)
            }
        }
    }

    /// Decodes the layout. An error completes the sentence "the inode has ...".
    fn layout(&self, sb: &Superblock, kind: FileKind, tail: Address) -> Result<Layout, String> {
        let layout = self.raw.i_format.get() >> disk::FORMAT_LAYOUT_SHIFT & disk::FORMAT_LAYOUT_MASK;
        if layout > disk::LAYOUT_CHUNK_BASED {
            return Err(format!("an unknown data layout, {layout}"));
        }
        if !kind.has_contents() {
            return Ok(Layout::Plain { start: None });
        }
        match layout {
            disk::LAYOUT_FLAT_PLAIN => Ok(Layout::Plain { start: self.start(sb)? }),
            disk::LAYOUT_FLAT_INLINE => self.inline(sb, tail),
            disk::LAYOUT_COMPRESSED_FULL => Ok(Layout::CompressedFull),
            disk::LAYOUT_COMPRESSED_COMPACT => Ok(Layout::CompressedCompact),
            _ => self.chunks(sb),
        }
    }

    fn inline(&self, sb: &Superblock, tail: Address) -> Result<Layout, String> {
        let block_bytes = u64::from(sb.block_bytes());
        let tail_bytes = self.raw.i_size.get() % block_bytes;
        if tail.offset % block_bytes + tail_bytes > block_bytes {
            return Err(format!("an inline tail of {tail_bytes} bytes that leaves its block"));
        }
        Ok(Layout::Inline { start: self.start(sb)?, tail_bytes: tail_bytes as u32 })
    }

    fn chunks(&self, sb: &Superblock) -> Result<Layout, String> {
        // The lower half of the word is the format; the upper half must be zero.
        let u = self.raw.i_u.get();
        let format = (u & 0xffff) as u16;
        if format & chunk::FORMAT_RESERVED != 0 || u >> 16 != 0 {
            return Err(format!("an unknown chunk format, {u:#x}"));
        }
        let chunk_bits = sb.block_bits + (format & chunk::FORMAT_BITS_MASK) as u8;
        if chunk_bits >= 63 {
            return Err(format!("chunks of 2^{chunk_bits} bytes"));
        }
        let indexed = format & chunk::FORMAT_INDEXES != 0;
        Ok(Layout::Chunks { chunk_bits, indexed, wide: indexed && format & chunk::FORMAT_WIDE != 0 })
    }
}

#[cfg(test)]
mod tests;
