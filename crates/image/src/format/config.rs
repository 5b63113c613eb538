//! Configuration records of compression algorithms.
//!
//! They follow the superblock and its extension slots: one for each algorithm of the image, in the order of their
//! numbers. A record is its length, a `u16` at a multiple of 4, and that many bytes.

use super::le::{Le16, Le32, on_disk};

/// A compression algorithm, with its number on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// LZ4 block.
    Lz4 = 0,
    /// LZMA1 with its properties in the first byte and no end mark.
    MicroLzma = 1,
    /// Raw deflate, RFC 1951.
    Deflate = 2,
    /// One zstd frame.
    Zstd = 3,
}

impl Algorithm {
    /// All algorithms, by number.
    pub const ALL: [Algorithm; 4] =
        [Algorithm::Lz4, Algorithm::MicroLzma, Algorithm::Deflate, Algorithm::Zstd];

    /// The algorithm with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Records' lengths begin at multiples of this.
pub const RECORD_ALIGN: u64 = 4;

on_disk! {
    /// LZ4.
    pub struct RawLz4Config: 14 {
        /// How far back a match reaches, bytes; 0 means 65535.
        pub max_distance: Le16,
        /// Blocks of the largest cluster; 0 means 1.
        pub max_pclusterblks: Le16,
        /// Zero.
        pub reserved: [u8; 10],
    }
}

on_disk! {
    /// LZMA.
    pub struct RawLzmaConfig: 14 {
        /// Bytes of the dictionary.
        pub dict_size: Le32,
        /// 0.
        pub format: Le16,
        /// Zero.
        pub reserved: [u8; 8],
    }
}

on_disk! {
    /// Deflate.
    pub struct RawDeflateConfig: 6 {
        /// log2 of the window.
        pub windowbits: u8,
        /// Zero.
        pub reserved: [u8; 5],
    }
}

on_disk! {
    /// Zstandard.
    pub struct RawZstdConfig: 6 {
        /// 0.
        pub format: u8,
        /// log2 of the window, less 10.
        pub windowlog: u8,
        /// Zero.
        pub reserved: [u8; 4],
    }
}

/// Valid sizes of LZMA's dictionary, bytes.
pub const LZMA_DICT_BYTES: std::ops::RangeInclusive<u32> = 4 << 10..=8 << 20;
/// Largest window of deflate, as a power of two.
pub const DEFLATE_WINDOW_BITS_MAX: u8 = 15;
/// Number that, added to `windowlog`, is log2 of the window.
pub const ZSTD_WINDOW_LOG_BASE: u8 = 10;
/// Largest `windowlog`.
pub const ZSTD_WINDOW_LOG_MAX: u8 = 10;
/// The window of LZ4 if the image has none, bytes.
pub const LZ4_WINDOW_BYTES_DEFAULT: u32 = 65535;
