//! The superblock of a new image, and the configuration records after it.

use super::devices::Geometry;
use super::options::{BLOCK_BYTES, Options};
use super::target::Target;
use crate::{BuildError, Result};
use pagefold_codec::cluster::Format;
use pagefold_image::format::config::{
    Algorithm, RECORD_ALIGN, RawDeflateConfig, RawLz4Config, RawLzmaConfig, RawZstdConfig,
    ZSTD_WINDOW_LOG_BASE,
};
use pagefold_image::format::device::RawDeviceSlot;
use pagefold_image::format::features::{compat, incompat};
use pagefold_image::format::superblock::{CHECKSUM_OFFSET, MAGIC, OFFSET, RawMetaboxSlot, RawSuperblock};
use pagefold_image::format::xattr;
use pagefold_image::read::inode::Timestamp;
use std::collections::BTreeMap;

/// Room in the first block for the records of all algorithms, bytes.
const RECORD_BYTES_MAX: usize = 64;
/// Room for the extension slot.
const SLOT_BYTES_MAX: usize = RawMetaboxSlot::LEN;
/// Room in the first block for long prefixes of attribute names, bytes.
pub const PREFIX_BYTES_MAX: usize =
    BLOCK_BYTES as usize - OFFSET as usize - RawSuperblock::LEN - SLOT_BYTES_MAX - RECORD_BYTES_MAX;

/// Where the table of devices is, in slots: such an image has neither records nor prefixes, which would have this place.
const DEVICE_TABLE_SLOT: u16 = (OFFSET as usize + RawSuperblock::LEN).div_euclid(RawDeviceSlot::LEN) as u16;

/// The features of the format that the image uses.
#[derive(Debug, Clone, Default)]
pub struct Used {
    /// Formats of clusters, with their limits.
    pub formats: BTreeMap<u8, Format>,
    /// Whether a file has the advice of large clusters.
    pub big_clusters: bool,
    /// Whether a file has its last extent after the index.
    pub tail_packing: bool,
    /// Whether a file is stored in chunks.
    pub chunks: bool,
    /// Whether an inode has attributes.
    pub xattrs: bool,
    /// Whether block addresses have 48 bits.
    pub wide: bool,
    /// Whether several files have the same clusters.
    pub shared_clusters: bool,
    /// Whether files have fragments.
    pub fragments: bool,
    /// Number of long prefixes of attribute names.
    pub prefixes: u8,
    /// Whether contents are on further devices.
    pub devices: bool,
    /// Whether inodes are compressed.
    pub metabox: bool,
}

impl Used {
    /// The bits that a reader must know.
    pub fn incompat(&self) -> u32 {
        let bits = [
            (!self.formats.is_empty(), incompat::ZERO_PADDING),
            (self.has_records(), incompat::COMPR_CFGS),
            (self.chunks, incompat::CHUNKED_FILE),
            (self.devices, incompat::DEVICE_TABLE),
            (self.tail_packing, incompat::ZTAILPACKING),
            (self.shared_clusters, incompat::DEDUPE),
            (self.fragments, incompat::FRAGMENTS),
            (self.prefixes > 0, incompat::XATTR_PREFIXES),
            (self.wide, incompat::WIDE_ADDRESSES),
            (self.metabox, incompat::METABOX),
        ];
        bits.into_iter().filter(|(used, _)| *used).fold(0, |all, (_, bit)| all | bit)
    }

    /// Whether all that is used is in the target; a test holds it for all targets.
    pub fn is_in(&self, target: Target) -> bool {
        incompat::ALL.iter().all(|feature| self.incompat() & feature.bit == 0 || target.has(feature.bit))
    }

    /// Whether there are configuration records: an image of one-block clusters of LZ4 has none.
    fn has_records(&self) -> bool {
        self.big_clusters || self.formats.keys().any(|number| *number != Algorithm::Lz4 as u8)
    }

    /// The field that has the algorithms, or without configuration records the window of LZ4.
    fn algorithms(&self) -> u16 {
        if self.has_records() {
            return self.formats.keys().fold(0, |bits, number| bits | 1 << number);
        }
        match self.formats.values().next() {
            Some(Format::Lz4 { window_bytes }) => *window_bytes as u16,
            _ => 0,
        }
    }
}

/// Where the table of long prefixes of attribute names is.
#[derive(Debug)]
pub enum Prefixes {
    /// Behind the configuration records; empty without prefixes.
    InFirstBlock(Vec<u8>),
    /// In the metabox, or else in the packed file, at this byte.
    InFile {
        /// A multiple of 4.
        at: u64,
    },
}

impl Prefixes {
    /// The table, if it is in the first block.
    pub fn in_first_block(&self) -> &[u8] {
        match self {
            Prefixes::InFirstBlock(table) => table,
            Prefixes::InFile { .. } => &[],
        }
    }
}

/// Positions and counts of a finished image.
#[derive(Debug)]
pub struct Head {
    /// Number of the root directory.
    pub root_nid: u64,
    /// Block that the numbers of inodes count from.
    pub meta_block: u32,
    /// First block of shared attributes.
    pub xattr_block: u32,
    /// Blocks of the image.
    pub blocks: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of the packed file; 0: there is none.
    pub packed_nid: u64,
    /// Number of the metabox, if there is one.
    pub metabox_nid: Option<u64>,
    /// Long prefixes of attribute names.
    pub prefixes: Prefixes,
    /// Time of compact inodes.
    pub epoch: Timestamp,
    /// Time of creation, seconds since 1970.
    pub build_time: i64,
    /// Hash of all other blocks.
    pub hash: u128,
}

impl Head {
    /// Encodes the first blocks.
    pub fn encode(&self, used: &Used, options: &Options, geometry: &Geometry) -> Result<Vec<u8>> {
        let slot = self
            .metabox_nid
            .map(|nid| RawMetaboxSlot { metabox_nid: nid.into(), reserved: 0.into() }.encode());
        let mut records = Vec::new();
        if used.has_records() {
            used.formats.values().for_each(|format| push_record(*format, options, &mut records));
        }
        debug_assert!(records.len() <= RECORD_BYTES_MAX);
        records.resize(records.len().next_multiple_of(xattr::ALIGN as usize), 0);
        let slot_bytes = slot.map_or(0, |slot| slot.len());
        let prefixes_at = match self.prefixes {
            _ if used.prefixes == 0 => 0,
            Prefixes::InFile { at } => at,
            Prefixes::InFirstBlock(_) => OFFSET + (RawSuperblock::LEN + slot_bytes + records.len()) as u64,
        };
        let prefix_start = prefixes_at / xattr::ALIGN;
        let mut volume_name = [0; 16];
        volume_name[..options.volume_name.len()].copy_from_slice(&options.volume_name);
        let filter = if used.xattrs { compat::XATTR_FILTER } else { 0 };
        // The plan has chosen an epoch from which the time fits.
        let build_time = self.build_time.wrapping_sub(self.epoch.seconds);
        debug_assert!(u32::try_from(build_time).is_ok());
        // With 48 bits, the field of the root's number holds the upper bits of the number of blocks.
        let too_far = |_| BuildError::TooLarge { what: "the root directory has no number of 16 bits".into() };
        let (root_short, root_long) = match used.wide {
            true => ((self.blocks >> 32) as u16, self.root_nid),
            false => (u16::try_from(self.root_nid).map_err(too_far)?, 0),
        };
        let checksum = if options.form.checksum { compat::SB_CHKSUM } else { 0 };
        let raw = RawSuperblock {
            magic: MAGIC.into(),
            feature_compat: (checksum | compat::MTIME | filter).into(),
            blkszbits: geometry.block_bytes.trailing_zeros() as u8,
            sb_extslots: u8::from(slot.is_some()),
            rootnid_2b: root_short.into(),
            inos: self.inodes.into(),
            epoch: (self.epoch.seconds as u64).into(),
            fixed_nsec: self.epoch.nanoseconds.into(),
            blocks_lo: (self.blocks as u32).into(),
            meta_blkaddr: self.meta_block.into(),
            xattr_blkaddr: self.xattr_block.into(),
            uuid: options.form.uuid.unwrap_or_else(|| uuid(self.hash)),
            volume_name,
            feature_incompat: used.incompat().into(),
            u1: used.algorithms().into(),
            extra_devices: (geometry.devices.len() as u16).into(),
            devt_slotoff: if used.devices { DEVICE_TABLE_SLOT.into() } else { 0.into() },
            xattr_prefix_count: used.prefixes,
            xattr_prefix_start: (prefix_start as u32).into(),
            packed_nid: self.packed_nid.into(),
            build_time: (build_time as u32).into(),
            rootnid_8b: root_long.into(),
            ..RawSuperblock::zeroed()
        };
        let mut block = vec![0; OFFSET as usize];
        block.extend(raw.encode());
        block.extend(slot.into_iter().flatten());
        block.extend(records);
        block.extend(self.prefixes.in_first_block());
        block.extend(geometry.table(self.blocks)?);
        block.resize((geometry.head_blocks() * u64::from(geometry.block_bytes)) as usize, 0);
        if !options.form.checksum {
            return Ok(block);
        }
        // The format omits the final inversion of CRC-32C.
        let end = (geometry.block_bytes as usize)
            .max(OFFSET as usize + geometry.block_bytes.min(OFFSET as u32) as usize);
        let checksum = !crc32c::crc32c(&block[OFFSET as usize..end]);
        let at = OFFSET as usize + CHECKSUM_OFFSET;
        block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        Ok(block)
    }
}

/// The root is placed first, so its number is small.
/// Appends the configuration record of a format: its length, and what a decoder has to know.
fn push_record(format: Format, options: &Options, out: &mut Vec<u8>) {
    let record = match format {
        Format::Lz4 { window_bytes } => {
            let blocks = (options.cluster_bytes / BLOCK_BYTES) as u16;
            let max_distance = (window_bytes as u16).into();
            let max_pclusterblks = blocks.into();
            RawLz4Config { max_distance, max_pclusterblks, ..RawLz4Config::zeroed() }.encode().to_vec()
        }
        Format::MicroLzma { dict_bytes } => {
            RawLzmaConfig { dict_size: dict_bytes.into(), ..RawLzmaConfig::zeroed() }.encode().to_vec()
        }
        Format::Deflate => RawDeflateConfig { windowbits: 15, reserved: [0; 5] }.encode().to_vec(),
        Format::Zstd { max_window_bytes } => {
            let windowlog = max_window_bytes.ilog2() as u8 - ZSTD_WINDOW_LOG_BASE;
            RawZstdConfig { format: 0, windowlog, reserved: [0; 4] }.encode().to_vec()
        }
    };
    out.resize(out.len().next_multiple_of(RECORD_ALIGN as usize), 0);
    out.extend((record.len() as u16).to_le_bytes());
    out.extend(record);
}

/// Makes a hash a version 8 UUID, RFC 9562: one whose contents the maker defines.
fn uuid(hash: u128) -> [u8; 16] {
    let mut bytes = hash.to_be_bytes();
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}
