//! The superblock: 128 bytes at byte 1024, and 16 more for each extension slot.

use super::le::{Le16, Le32, Le64, on_disk};

/// Offset of the superblock, bytes. The bytes before it are free for boot loaders.
pub const OFFSET: u64 = 1024;
/// First four bytes of the superblock, as a number.
pub const MAGIC: u32 = 0xe0f5_e1e2;
/// Bytes of an extension slot.
pub const EXTSLOT_LEN: u64 = 16;
/// Offset of the checksum in the superblock, bytes.
pub const CHECKSUM_OFFSET: usize = 4;
/// Smallest and largest block, as powers of two.
pub const BLOCK_BITS: std::ops::RangeInclusive<u8> = 9..=16;

on_disk! {
    /// The part of the superblock that every image has.
    pub struct RawSuperblock: 128 {
        /// [`MAGIC`].
        pub magic: Le32,
        /// CRC-32C without the final inversion, of the block after byte 1024 with this field zero.
        pub checksum: Le32,
        /// Bits that a reader may ignore.
        pub feature_compat: Le32,
        /// log2 of the block size.
        pub blkszbits: u8,
        /// Extension slots after this structure.
        pub sb_extslots: u8,
        /// Root inode; with 48-bit addresses bits 32 to 47 of the number of blocks.
        pub rootnid_2b: Le16,
        /// Number of inodes; may be zero.
        pub inos: Le64,
        /// Base of the times of compact inodes, seconds since 1970; signed.
        pub epoch: Le64,
        /// Nanoseconds of the times of compact inodes.
        pub fixed_nsec: Le32,
        /// Number of blocks; may be zero.
        pub blocks_lo: Le32,
        /// First block of the inodes.
        pub meta_blkaddr: Le32,
        /// First block of shared attributes.
        pub xattr_blkaddr: Le32,
        /// The volume's identity.
        pub uuid: [u8; 16],
        /// The volume's name, padded with NULs.
        pub volume_name: [u8; 16],
        /// Bits that a reader must know.
        pub feature_incompat: Le32,
        /// Algorithms, one bit each, if there are configuration records; else the window of LZ4.
        pub u1: Le16,
        /// Slots in the device table.
        pub extra_devices: Le16,
        /// Offset of the device table, in slots.
        pub devt_slotoff: Le16,
        /// log2 of blocks in a directory block: 0.
        pub dirblkbits: u8,
        /// Number of long prefixes of attribute names.
        pub xattr_prefix_count: u8,
        /// Offset of the long prefixes, in steps of 4 bytes.
        pub xattr_prefix_start: Le32,
        /// Inode of the packed file; zero if there is none.
        pub packed_nid: Le64,
        /// If not zero, filters of attribute names are to be ignored.
        pub xattr_filter_reserved: u8,
        /// Number of the long prefix that is the name of the attribute of
        /// [`ISHARE_XATTRS`](super::features::compat::ISHARE_XATTRS).
        pub ishare_xattr_prefix_id: u8,
        /// Zero.
        pub reserved1: Le16,
        /// Time of the image's creation, seconds after `epoch`.
        pub build_time: Le32,
        /// Root inode, with 48-bit addresses.
        pub rootnid_8b: Le64,
        /// Zero.
        pub reserved2: Le64,
    }
}

on_disk! {
    /// The first extension slot, of images with a metabox.
    pub struct RawMetaboxSlot: 16 {
        /// Inode of the metabox.
        pub metabox_nid: Le64,
        /// Zero.
        pub reserved: Le64,
    }
}
