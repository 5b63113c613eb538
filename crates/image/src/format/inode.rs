//! Inodes: the compact form has 32 bytes, the extended form 64.

use super::le::{Le16, Le32, Le64, on_disk};

/// Inodes begin at multiples of this, bytes.
pub const SLOT_LEN: u64 = 32;
/// Bit of a [`Nid`](crate::Nid): the inode is in the metabox.
pub const NID_METABOX: u64 = 1 << 63;

/// Bit of `i_format`: the extended form.
pub const FORMAT_EXTENDED: u16 = 1;
/// Position of the data layout in `i_format`, bits.
pub const FORMAT_LAYOUT_SHIFT: u16 = 1;
/// Mask of the data layout, after the shift.
pub const FORMAT_LAYOUT_MASK: u16 = 7;
/// Bit of `i_format`: in a compact inode that is no directory, there is one link and `i_nb` holds the upper
/// bits of an address; in a directory, the entry `.` was left out.
pub const FORMAT_NLINK_1_OR_DOT_OMITTED: u16 = 1 << 4;
/// Bits of `i_format` that are zero.
pub const FORMAT_RESERVED: u16 = !0x1f;

/// Data layout: consecutive blocks.
pub const LAYOUT_FLAT_PLAIN: u16 = 0;
/// Data layout: compressed, with index entries of 8 bytes.
pub const LAYOUT_COMPRESSED_FULL: u16 = 1;
/// Data layout: consecutive blocks, and the rest after the inode.
pub const LAYOUT_FLAT_INLINE: u16 = 2;
/// Data layout: compressed, with a packed index.
pub const LAYOUT_COMPRESSED_COMPACT: u16 = 3;
/// Data layout: chunks.
pub const LAYOUT_CHUNK_BASED: u16 = 4;

/// `S_IFMT` of a mode: its file type.
pub const MODE_TYPE_MASK: u16 = 0o170_000;

on_disk! {
    /// The compact form.
    pub struct RawCompactInode: 32 {
        /// Form, layout and a flag.
        pub i_format: Le16,
        /// Length of the attributes, encoded: see [`xattr_area_len`].
        pub i_xattr_icount: Le16,
        /// File type and permissions.
        pub i_mode: Le16,
        /// Links, or upper bits of an address.
        pub i_nb: Le16,
        /// Bytes of contents.
        pub i_size: Le32,
        /// Seconds after the superblock's epoch.
        pub i_mtime: Le32,
        /// By layout: first block, number of blocks, chunk format, or device number.
        pub i_u: Le32,
        /// The number that `stat` shows.
        pub i_ino: Le32,
        /// Owner.
        pub i_uid: Le16,
        /// Group.
        pub i_gid: Le16,
        /// Zero.
        pub reserved: Le32,
    }
}

on_disk! {
    /// The extended form.
    pub struct RawExtendedInode: 64 {
        /// Form, layout and a flag.
        pub i_format: Le16,
        /// Length of the attributes, encoded: see [`xattr_area_len`].
        pub i_xattr_icount: Le16,
        /// File type and permissions.
        pub i_mode: Le16,
        /// Upper bits of an address.
        pub i_nb: Le16,
        /// Bytes of contents.
        pub i_size: Le64,
        /// By layout: first block, number of blocks, chunk format, or device number.
        pub i_u: Le32,
        /// The number that `stat` shows.
        pub i_ino: Le32,
        /// Owner.
        pub i_uid: Le32,
        /// Group.
        pub i_gid: Le32,
        /// Seconds since 1970; signed.
        pub i_mtime: Le64,
        /// Nanoseconds.
        pub i_mtime_nsec: Le32,
        /// Links.
        pub i_nlink: Le32,
        /// Zero.
        pub reserved: [u8; 16],
    }
}

/// Returns the bytes of attributes after an inode whose `i_xattr_icount` is `icount`.
pub const fn xattr_area_len(icount: u16) -> u32 {
    match icount {
        0 => 0,
        n => 12 + 4 * (n as u32 - 1),
    }
}

/// Splits the 32 bits of a device number into major and minor number.
pub const fn decode_rdev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00))
}

/// Packs major and minor number of a device; the inverse of [`decode_rdev`].
pub const fn encode_rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_split_as_linux_packs_them() {
        assert_eq!(decode_rdev(0x0103), (1, 3));
        // 259:1000: 1000 is 0x3e8; its upper bits lie above the major number.
        assert_eq!(decode_rdev(0xe8 | (259 << 8) | (0x300 << 12)), (259, 1000));
        assert_eq!(decode_rdev(u32::MAX), (0xfff, 0xf_ffff));
        for rdev in [0, 0x0103, 0x8765_4321, u32::MAX] {
            let (major, minor) = decode_rdev(rdev);
            assert_eq!(encode_rdev(major, minor), rdev);
        }
    }

    #[test]
    fn attributes_are_counted_from_the_twelve_bytes_of_their_header() {
        assert_eq!(xattr_area_len(0), 0);
        assert_eq!(xattr_area_len(1), 12);
        assert_eq!(xattr_area_len(2), 16);
        assert_eq!(xattr_area_len(u16::MAX), 262_148);
    }
}
