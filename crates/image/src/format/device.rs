//! The table of further devices.

use super::le::{Le16, Le32, on_disk};

on_disk! {
    /// A further device.
    pub struct RawDeviceSlot: 128 {
        /// Name of the device: a path or a digest.
        pub tag: [u8; 64],
        /// Number of blocks, bits 0 to 31.
        pub blocks_lo: Le32,
        /// First block in the address space that all devices share, bits 0 to 31; zero if the device is not in it.
        pub uniaddr_lo: Le32,
        /// Number of blocks, bits 32 to 47.
        pub blocks_hi: Le16,
        /// First block in the shared address space, bits 32 to 47.
        pub uniaddr_hi: Le16,
        /// Zero.
        pub reserved: [u8; 52],
    }
}
