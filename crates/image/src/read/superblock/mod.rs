//! The superblock, the configuration records of algorithms, and the table of devices.
//!
//! Every value that readers depend on is checked here, so other modules use it without checks. The number of blocks is
//! for display only: some images have zero there.

mod config;

pub use config::Algorithms;

use super::Bytes;
use super::bytes::{advance, array_at};
use crate::format::config::Algorithm;
use crate::format::device::RawDeviceSlot;
use crate::format::features::{self, KernelVersion, compat, incompat};
use crate::format::inode::NID_METABOX;
use crate::format::superblock::{self as disk, RawMetaboxSlot, RawSuperblock};
use crate::format::{inode, xattr};
use crate::{Address, ImageError, Nid, Result, Space};

/// A further device of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// Name of the device, padded with NULs: a path or a digest.
    pub tag: [u8; 64],
    /// Number of blocks according to the table, unchecked.
    pub blocks: u64,
    /// First block in the unified address space, if the device is mapped there.
    pub unified_start: Option<u64>,
}

/// The location of the long prefixes of attribute names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixPlace {
    /// In the image, or in the metabox.
    Space(Space),
    /// In the contents of the packed file.
    Packed,
}

/// The table of long prefixes of attribute names; [`Prefixes::read`](super::xattr::Prefixes::read) reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixTable {
    /// The file or space that `offset` refers to.
    pub place: PrefixPlace,
    /// Offset of the table, bytes.
    pub offset: u64,
    /// Number of long prefixes; at most 128.
    pub count: u8,
}

/// The decoded superblock, with the records and tables that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// log2 of the block size, 9 to 16.
    pub block_bits: u8,
    /// The root directory.
    pub root_nid: Nid,
    /// Number of inodes, or 0; unchecked.
    pub inos: u64,
    /// Base of the times of compact inodes, seconds since 1970.
    pub epoch: i64,
    /// Nanoseconds of the times of compact inodes.
    pub fixed_nsec: u32,
    /// Time of the image's creation, seconds after `epoch`; 0 if unknown.
    pub build_time: u32,
    /// Number of blocks, or 0; unchecked, for display only.
    pub blocks: u64,
    /// First block of the inodes.
    pub meta_blkaddr: u32,
    /// First block of shared attributes.
    pub xattr_blkaddr: u32,
    /// The volume's identity.
    pub uuid: [u8; 16],
    /// The volume's name, padded with NULs.
    pub volume_name: [u8; 16],
    /// Feature bits that a reader may ignore.
    pub compat: u32,
    /// Feature bits that a reader must know; all of them are known.
    pub incompat: u32,
    /// The compression algorithms and their parameters.
    pub algorithms: Algorithms,
    /// Offset of the end of the superblock, its extension slots and the configuration records, bytes.
    pub header_end: u64,
    /// Offset of the table of devices, bytes; 0 if there is none.
    pub device_table_at: u64,
    /// Devices besides the image itself, in the order of their numbers, which begin at 1.
    pub devices: Vec<Device>,
    /// The packed file, which holds fragments.
    pub packed_nid: Option<Nid>,
    /// The metabox, which may hold inodes.
    pub metabox_nid: Option<Nid>,
    /// Long prefixes of attribute names.
    pub prefixes: PrefixTable,
    /// Number of the long prefix that is the name of the attribute that marks files of equal contents.
    pub image_share_prefix: Option<u8>,
    /// Whether filters of attribute names are valid.
    pub xattr_filter: bool,
    /// Whether shared attributes are in the metabox instead of the image.
    pub shared_xattrs_in_metabox: bool,
    /// Whether compressed streams are at the end of their cluster, after zeroes; otherwise at its beginning.
    pub zero_padding: bool,
    /// Whether clusters may have more than one block. The bit also says that algorithms have records.
    pub big_pcluster: bool,
    /// Whether block addresses have 48 bits.
    pub wide_addresses: bool,
}

/// Makes an error for the field at `offset` of the superblock.
fn corrupt(offset: u64, what: impl Into<std::borrow::Cow<'static, str>>) -> ImageError {
    ImageError::corrupt(Address::image(disk::OFFSET + offset), what)
}

impl Superblock {
    /// Reads and checks the superblock, the configuration records and the device table.
    ///
    /// Memory: the device table, 88 bytes per device and at most 65535 devices. A table that leaves the image is an
    /// error.
    pub fn read(bytes: &dyn Bytes) -> Result<Self> {
        let raw = read_raw(bytes)?;
        let compat = raw.feature_compat.get();
        let incompat = raw.feature_incompat.get();
        let has = |bit: u32| incompat & bit != 0;
        let extslots_end = RawSuperblock::LEN as u64 + disk::EXTSLOT_LEN * u64::from(raw.sb_extslots);
        check_fits_block(&raw, extslots_end)?;
        if compat & compat::SB_CHKSUM != 0 {
            verify_checksum(bytes, &raw)?;
        }
        refuse_unknown(incompat)?;
        if raw.dirblkbits != 0 {
            return Err(ImageError::Unsupported { features: "directory blocks of several blocks".into() });
        }
        if raw.fixed_nsec.get() >= 1_000_000_000 {
            return Err(corrupt(0x20, "more nanoseconds than a second has"));
        }
        let (algorithms, header_end) = Algorithms::read(bytes, &raw, extslots_end)?;
        let device_table_at = u64::from(raw.devt_slotoff.get()) * RawDeviceSlot::LEN as u64;
        let wide_addresses = has(incompat::WIDE_ADDRESSES);
        let wide_root = wide_addresses && raw.rootnid_8b.get() != 0;
        let metabox_nid = if has(incompat::METABOX) { Some(read_metabox(bytes, &raw)?) } else { None };
        let packed_nid = match raw.packed_nid.get() {
            nid if !has(incompat::FRAGMENTS) || nid == 0 => None,
            nid if nid & NID_METABOX != 0 => return Err(corrupt(0x60, "the packed file is in the metabox")),
            nid => Some(Nid(nid)),
        };
        let blocks_hi = if wide_root { u64::from(raw.rootnid_2b.get()) << 32 } else { 0 };
        let root = if wide_root { raw.rootnid_8b.get() } else { u64::from(raw.rootnid_2b.get()) };
        let shares = compat & compat::ISHARE_XATTRS != 0 && has(incompat::XATTR_PREFIXES);
        let shared_xattrs_in_metabox = compat & compat::SHARED_EA_IN_METABOX != 0;
        if shared_xattrs_in_metabox && metabox_nid.is_none() {
            return Err(corrupt(0x08, "shared attributes are in a metabox, but there is none"));
        }
        Ok(Superblock {
            block_bits: raw.blkszbits,
            root_nid: Nid(root),
            inos: raw.inos.get(),
            epoch: raw.epoch.get().cast_signed(),
            fixed_nsec: raw.fixed_nsec.get(),
            build_time: raw.build_time.get(),
            blocks: blocks_hi | u64::from(raw.blocks_lo.get()),
            meta_blkaddr: raw.meta_blkaddr.get(),
            xattr_blkaddr: raw.xattr_blkaddr.get(),
            uuid: raw.uuid,
            volume_name: raw.volume_name,
            compat,
            incompat,
            algorithms,
            header_end,
            device_table_at: if has(incompat::DEVICE_TABLE) { device_table_at } else { 0 },
            devices: if has(incompat::DEVICE_TABLE) { read_devices(bytes, &raw)? } else { Vec::new() },
            packed_nid,
            metabox_nid,
            prefixes: prefix_table(&raw, packed_nid, metabox_nid)?,
            image_share_prefix: shares.then_some(raw.ishare_xattr_prefix_id),
            xattr_filter: compat & compat::XATTR_FILTER != 0 && raw.xattr_filter_reserved == 0,
            shared_xattrs_in_metabox,
            zero_padding: has(incompat::ZERO_PADDING),
            big_pcluster: has(incompat::BIG_PCLUSTER),
            wide_addresses,
        })
    }

    /// Length of a block, bytes.
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_bits
    }

    /// Longest LZ4 cluster, bytes, from the configuration record; the format's limit if there is none.
    pub fn max_lz4_cluster_bytes(&self) -> u32 {
        match self.big_pcluster && self.algorithms.contains(Algorithm::Lz4) {
            true => u32::from(self.algorithms.max_pcluster_blocks) << self.block_bits,
            false => super::extent::MAX_CLUSTER_BYTES,
        }
    }

    /// Returns the address of a block of the image; `None` on overflow.
    pub fn block_address(&self, block: u64) -> Option<Address> {
        Some(Address::image(block.checked_mul(u64::from(self.block_bytes()))?))
    }

    /// Returns the address of an inode, whether or not there is one.
    pub fn inode_address(&self, nid: Nid) -> Result<Address> {
        let slot = nid.0 & !NID_METABOX;
        let beyond = || corrupt(0, format!("inode {nid} has an address beyond all numbers"));
        let within = slot.checked_mul(inode::SLOT_LEN).ok_or_else(beyond)?;
        if nid.0 & NID_METABOX == 0 {
            let start = u64::from(self.meta_blkaddr) << self.block_bits;
            return Address::image(start).checked_add(within).ok_or_else(beyond);
        }
        if self.metabox_nid.is_none() {
            return Err(corrupt(0x50, format!("inode {nid} is in a metabox, but there is none")));
        }
        Ok(Address { space: Space::Metabox, offset: within })
    }

    /// The volume's name, without the padding.
    pub fn volume_name(&self) -> &[u8] {
        self.volume_name.split(|byte| *byte == 0).next().unwrap_or(&[])
    }

    /// The first version of Linux that supports all features and algorithms of the image, and blocks as short as its.
    pub fn required_kernel(&self) -> KernelVersion {
        let by_algorithm = self.algorithms.iter().map(features::algorithm_kernel);
        let by_block = features::block_kernel(self.block_bits, self.algorithms.is_declared);
        by_algorithm.fold(features::first_kernel(self.incompat).max(by_block), KernelVersion::max)
    }
}

/// Reads the superblock's fields. Fails if there is no superblock.
fn read_raw(bytes: &dyn Bytes) -> Result<RawSuperblock> {
    let found = array_at(bytes, Address::image(disk::OFFSET)).map_err(|error| match error {
        ImageError::Truncated { end, .. } => ImageError::NotAnImage {
            what: format!("it has {end} bytes, fewer than a superblock needs").into(),
        },
        other => other,
    })?;
    let raw = RawSuperblock::parse(&found);
    if raw.magic.get() != disk::MAGIC {
        return Err(ImageError::NotAnImage { what: "there is no superblock at byte 1024".into() });
    }
    if !disk::BLOCK_BITS.contains(&raw.blkszbits) {
        return Err(corrupt(0x0c, format!("a block size of 2^{} bytes", raw.blkszbits)));
    }
    Ok(raw)
}

/// Bytes that the checksum covers: from byte 1024 to the end of that block.
fn covered_bytes(block_bits: u8) -> u64 {
    match 1u64 << block_bits {
        small if small <= disk::OFFSET => small,
        large => large - disk::OFFSET,
    }
}

fn check_fits_block(raw: &RawSuperblock, len_bytes: u64) -> Result<()> {
    if len_bytes > covered_bytes(raw.blkszbits) {
        return Err(corrupt(0x0d, format!("a superblock of {len_bytes} bytes, which leaves its block")));
    }
    Ok(())
}

fn verify_checksum(bytes: &dyn Bytes, raw: &RawSuperblock) -> Result<()> {
    let mut covered = vec![0; covered_bytes(raw.blkszbits) as usize];
    bytes.read_at(Address::image(disk::OFFSET), &mut covered)?;
    if let Some(field) = covered.get_mut(disk::CHECKSUM_OFFSET..disk::CHECKSUM_OFFSET + 4) {
        field.fill(0);
    }
    // The format omits the final inversion of CRC-32C.
    let found = !crc32c::crc32c(&covered);
    if found != raw.checksum.get() {
        let wanted = raw.checksum.get();
        return Err(corrupt(
            0x04,
            format!("the superblock's checksum is {found:#010x} but should be {wanted:#010x}"),
        ));
    }
    Ok(())
}

fn refuse_unknown(bits: u32) -> Result<()> {
    match features::split(bits, &incompat::ALL) {
        (_, 0) => Ok(()),
        (_, unknown) => Err(ImageError::Unsupported { features: format!("unknown features {unknown:#x}") }),
    }
}

fn read_metabox(bytes: &dyn Bytes, raw: &RawSuperblock) -> Result<Nid> {
    if raw.sb_extslots == 0 {
        return Err(corrupt(0x0d, "a metabox, but no extension slot with its inode"));
    }
    let slot = Address::image(disk::OFFSET + RawSuperblock::LEN as u64);
    let nid = RawMetaboxSlot::parse(&array_at(bytes, slot)?).metabox_nid.get();
    if nid & NID_METABOX != 0 {
        return Err(corrupt(0x80, "the metabox is in the metabox"));
    }
    Ok(Nid(nid))
}

fn read_devices(bytes: &dyn Bytes, raw: &RawSuperblock) -> Result<Vec<Device>> {
    let len = RawDeviceSlot::LEN as u64;
    let mut at = Address::image(u64::from(raw.devt_slotoff.get()) * len);
    let mut devices = Vec::new();
    for _ in 0..raw.extra_devices.get() {
        let slot = RawDeviceSlot::parse(&array_at(bytes, at)?);
        let unified = u64::from(slot.uniaddr_hi.get()) << 32 | u64::from(slot.uniaddr_lo.get());
        devices.push(Device {
            tag: slot.tag,
            blocks: u64::from(slot.blocks_hi.get()) << 32 | u64::from(slot.blocks_lo.get()),
            unified_start: (unified != 0).then_some(unified),
        });
        at = advance(at, len)?;
    }
    Ok(devices)
}

fn prefix_table(
    raw: &RawSuperblock,
    packed_nid: Option<Nid>,
    metabox_nid: Option<Nid>,
) -> Result<PrefixTable> {
    let plain = raw.feature_compat.get() & compat::PLAIN_XATTR_PFX != 0;
    let place = match (metabox_nid, packed_nid) {
        (Some(_), _) if !plain => PrefixPlace::Space(Space::Metabox),
        (None, Some(_)) if !plain => PrefixPlace::Packed,
        _ => PrefixPlace::Space(Space::Device(0)),
    };
    let used = raw.feature_incompat.get() & incompat::XATTR_PREFIXES != 0;
    let count = if used { raw.xattr_prefix_count } else { 0 };
    if count > xattr::LONG_PREFIX_COUNT_MAX {
        return Err(corrupt(0x5b, format!("{count} long prefixes of attribute names")));
    }
    Ok(PrefixTable { place, offset: u64::from(raw.xattr_prefix_start.get()) * xattr::ALIGN, count })
}

#[cfg(test)]
mod tests;
