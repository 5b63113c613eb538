//! Chunk-based files: the format word in the inode, and the entries after it.

use super::le::{Le16, Le32, on_disk};

/// Bits of the chunk format that hold log2 of a chunk in blocks.
pub const FORMAT_BITS_MASK: u16 = 0x1f;
/// Bit of the chunk format: entries of 8 bytes.
pub const FORMAT_INDEXES: u16 = 0x20;
/// Bit of the chunk format: addresses of 48 bits.
pub const FORMAT_WIDE: u16 = 0x40;
/// Bits of the chunk format that are zero.
pub const FORMAT_RESERVED: u16 = !0x7f;

/// Block number that marks a hole, in entries of 4 bytes (which hold only the block) and of 8 bytes.
pub const HOLE: u32 = u32::MAX;
/// Block number of 48 bits that marks a hole.
pub const HOLE_WIDE: u64 = (1 << 48) - 1;
/// Bytes of an entry without a device.
pub const BLOCK_ENTRY_LEN: usize = 4;

on_disk! {
    /// An entry with a device.
    pub struct RawChunkIndex: 8 {
        /// Bits 32 to 47 of the block.
        pub startblk_hi: Le16,
        /// Device: 0 is the image, others are slots of the device table, from 1.
        pub device_id: Le16,
        /// Bits 0 to 31 of the block.
        pub startblk_lo: Le32,
    }
}
