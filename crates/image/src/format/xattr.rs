//! Extended attributes: what stands behind an inode, and the hash of their filter.

use super::le::{Le16, Le32, on_disk};

on_disk! {
    /// What the attributes behind an inode begin with.
    pub struct RawXattrHeader: 12 {
        /// A bit for each of 32 hashes that no name has.
        pub name_filter: Le32,
        /// Numbers of shared attributes behind this, 4 bytes each.
        pub shared_count: u8,
        /// Zero.
        pub reserved: [u8; 7],
    }
}

on_disk! {
    /// An attribute; name and value stand behind it. Attributes begin at multiples of 4.
    pub struct RawXattrEntry: 4 {
        /// Bytes of the name, without its prefix.
        pub name_len: u8,
        /// Which prefix.
        pub name_index: u8,
        /// Bytes of the value.
        pub value_size: Le16,
    }
}

/// Attributes and numbers of shared ones begin at multiples of this.
pub const ALIGN: u64 = 4;
/// Bit of a name index: the rest of it is the number of a long prefix.
pub const INDEX_LONG_PREFIX: u8 = 0x80;
/// Long prefixes that an image may have.
pub const LONG_PREFIX_COUNT_MAX: u8 = 128;

/// The short prefix of a name index. `None`: names with it are not shown.
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

/// What is added to the name index to seed the filter's hash.
pub const FILTER_SEED: u32 = 0x25bb_e08f;

/// The filter's bit of a name: `rest` is all of it that is not short prefix number `base_index`.
pub fn filter_bit(base_index: u8, rest: &[u8]) -> u32 {
    1 << (xxh32(rest, FILTER_SEED.wrapping_add(u32::from(base_index))) & 31)
}

const PRIME1: u32 = 0x9e37_79b1;
const PRIME2: u32 = 0x85eb_ca77;
const PRIME3: u32 = 0xc2b2_ae3d;
const PRIME4: u32 = 0x27d4_eb2f;
const PRIME5: u32 = 0x1656_67b1;

/// XXH32, after its specification (xxHash fast digest algorithm, version 0.1.1).
pub fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = if stripes.is_empty() {
        seed.wrapping_add(PRIME5)
    } else {
        let mut lanes = [
            seed.wrapping_add(PRIME1).wrapping_add(PRIME2),
            seed.wrapping_add(PRIME2),
            seed,
            seed.wrapping_sub(PRIME1),
        ];
        for stripe in stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<4>().0) {
                let mixed = lane.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME2));
                *lane = mixed.rotate_left(13).wrapping_mul(PRIME1);
            }
        }
        let [a, b, c, d] = lanes;
        (a.rotate_left(1).wrapping_add(b.rotate_left(7)))
            .wrapping_add(c.rotate_left(12).wrapping_add(d.rotate_left(18)))
    };
    hash = hash.wrapping_add(bytes.len() as u32);
    let (words, tail) = rest.as_chunks::<4>();
    for word in words {
        let mixed = hash.wrapping_add(u32::from_le_bytes(*word).wrapping_mul(PRIME3));
        hash = mixed.rotate_left(17).wrapping_mul(PRIME4);
    }
    for byte in tail {
        let mixed = hash.wrapping_add(u32::from(*byte).wrapping_mul(PRIME5));
        hash = mixed.rotate_left(11).wrapping_mul(PRIME1);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(PRIME2);
    hash = (hash ^ (hash >> 13)).wrapping_mul(PRIME3);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation (xxHash 0.8), for every way through the function.
    #[test]
    fn xxh32_agrees_with_the_reference_implementation() {
        let bytes: [u8; 101] = std::array::from_fn(|i| i as u8);
        for (len, seed, hash) in [
            (0, 0, 0x02cc_5d05),
            (1, 0, 0xcf65_b03e),
            (3, FILTER_SEED, 0x5f83_b9c1),
            (4, 7, 0x9db7_3bfa),
            (15, 1, 0xd49d_17c6),
            (16, 0, 0xb728_37f4),
            (17, u32::MAX, 0xe6cb_4d35),
            (31, 5, 0x594b_62e6),
            (32, 5, 0xd8ce_fc39),
            (101, PRIME1, 0x37b3_52ee),
        ] {
            assert_eq!(xxh32(&bytes[..len], seed), hash, "{len} bytes, seed {seed:#x}");
        }
        assert_eq!(xxh32(b"abc", 0), 0x32d1_53ff);
    }
}
