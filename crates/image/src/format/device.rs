//! The table of further devices.

use super::le::{Le16, Le32, on_disk};

on_disk! {
    /// A further device.
    pub struct RawDeviceSlot: 128 {
        /// Whatever names it: a path or a digest.
        pub tag: [u8; 64],
        /// Blocks of it, bits 0 to 31.
        pub blocks_lo: Le32,
        /// Its first block in the address space that all devices share, bits 0 to 31; zero if it has none.
        pub uniaddr_lo: Le32,
        /// Blocks of it, bits 32 to 47.
        pub blocks_hi: Le16,
        /// Its first block in the shared address space, bits 32 to 47.
        pub uniaddr_hi: Le16,
        /// Zero.
        pub reserved: [u8; 52],
    }
}
