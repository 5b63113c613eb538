//! Extended attributes: the structures after an inode, and the hash of the name filter.

use super::le::{Le16, Le32, on_disk};
use twox_hash::XxHash32;

on_disk! {
    /// The header of the attributes after an inode.
    pub struct RawXattrHeader: 12 {
        /// A Bloom filter of names: bit `n` is set if no name has hash `n`.
        pub name_filter: Le32,
        /// Count of the numbers of shared attributes after the header, 4 bytes each.
        pub shared_count: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }
}

on_disk! {
    /// An attribute, followed by its name and its value. Attributes begin at multiples of 4.
    pub struct RawXattrEntry: 4 {
        /// Bytes of the name, without its prefix.
        pub name_len: u8,
        /// Number of the prefix.
        pub name_index: u8,
        /// Bytes of the value.
        pub value_size: Le16,
    }
}

/// Attributes and numbers of shared ones begin at multiples of this.
pub const ALIGN: u64 = 4;
/// Bit of a name index: its other bits are the number of a long prefix.
pub const INDEX_LONG_PREFIX: u8 = 0x80;
/// Long prefixes of an image at most.
pub const LONG_PREFIX_COUNT_MAX: u8 = 128;

/// Bytes of the length, a `u16`, before a long prefix.
pub const LONG_PREFIX_HEADER_LEN: usize = 2;

/// Most bytes of attributes after an inode.
pub const fn xattr_area_len_max() -> u64 {
    super::inode::xattr_area_len(u16::MAX) as u64
}

/// Returns the short prefix of a name index. `None`: names with this index are not listed.
pub const fn short_prefix(index: u8) -> Option<&'static str> {
    match index {
        1 => Some("user."),
        2 => Some("system.posix_acl_access"),
        3 => Some("system.posix_acl_default"),
        4 => Some("trusted."),
        6 => Some("security."),
        _ => None,
    }
}

/// Name indexes that [`short_prefix`] has a prefix for, longest prefixes first.
pub const SHORT_PREFIX_INDEXES: [u8; 5] = [3, 2, 6, 4, 1];

/// Number that, added to the name index, is the seed of the filter's hash.
pub const FILTER_SEED: u32 = 0x25bb_e08f;

/// Returns the filter's bit of a name: short prefix number `base_index`, then `rest`.
pub fn filter_bit(base_index: u8, rest: &[u8]) -> u32 {
    1 << (XxHash32::oneshot(FILTER_SEED.wrapping_add(u32::from(base_index)), rest) & 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash of these bytes is 0x5f83b9c1 by the reference implementation (xxHash 0.8).
    #[test]
    fn the_filter_bit_is_that_of_the_seeded_hash() {
        assert_eq!(filter_bit(0, &[0, 1, 2]), 1 << 1);
    }
}
