//! Feature bits of an image: their names, and the first kernel that reads each.
//!
//! Two features that came with the same kernel may share a bit; its name has both.

use super::config::Algorithm;
use std::fmt;

/// A version of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelVersion {
    /// As in *6*.12.
    pub major: u8,
    /// As in 6.*12*.
    pub minor: u8,
}

impl KernelVersion {
    const fn new(major: u8, minor: u8) -> Self {
        KernelVersion { major, minor }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The first kernel with this format.
pub const FIRST_KERNEL: KernelVersion = KernelVersion::new(5, 4);

/// A feature bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// The bit, as a mask.
    pub bit: u32,
    /// The name, as erofs-utils and the kernel have it.
    pub name: &'static str,
    /// The first kernel that reads images with the feature; for bits that a reader may ignore, [`FIRST_KERNEL`].
    pub kernel: KernelVersion,
}

const fn feature(bit: u32, name: &'static str, major: u8, minor: u8) -> Feature {
    Feature { bit, name, kernel: KernelVersion::new(major, minor) }
}

/// Bits that a reader must know.
pub mod incompat {
    use super::{Feature, feature};

    /// Compressed streams stand at the end of their cluster, after zeroes.
    pub const ZERO_PADDING: u32 = 0x001;
    /// Configuration records of algorithms after the superblock.
    pub const COMPR_CFGS: u32 = 0x002;
    /// Clusters of more than a block.
    pub const BIG_PCLUSTER: u32 = 0x002;
    /// Files in chunks.
    pub const CHUNKED_FILE: u32 = 0x004;
    /// Further devices.
    pub const DEVICE_TABLE: u32 = 0x008;
    /// A second algorithm in one file.
    pub const COMPR_HEAD2: u32 = 0x008;
    /// The last cluster of a file with its metadata.
    pub const ZTAILPACKING: u32 = 0x010;
    /// Tails of files together in the packed file.
    pub const FRAGMENTS: u32 = 0x020;
    /// Clusters that several extents use.
    pub const DEDUPE: u32 = 0x020;
    /// Long prefixes of attribute names.
    pub const XATTR_PREFIXES: u32 = 0x040;
    /// Block addresses of 48 bits.
    pub const WIDE_ADDRESSES: u32 = 0x080;
    /// Compressed metadata in a file.
    pub const METABOX: u32 = 0x100;

    /// All known features, in order of their bits.
    pub const ALL: [Feature; 9] = [
        feature(ZERO_PADDING, "lz4_0padding", 5, 4),
        feature(COMPR_CFGS, "compr_cfgs/big_pcluster", 5, 13),
        feature(CHUNKED_FILE, "chunked_file", 5, 15),
        feature(DEVICE_TABLE, "device_table/compr_head2", 5, 16),
        feature(ZTAILPACKING, "ztailpacking", 5, 17),
        feature(FRAGMENTS, "fragments/dedupe", 6, 1),
        feature(XATTR_PREFIXES, "xattr_prefixes", 6, 4),
        feature(WIDE_ADDRESSES, "48bit", 6, 15),
        feature(METABOX, "metabox", 6, 17),
    ];
}

/// Bits that a reader may ignore.
pub mod compat {
    use super::{Feature, feature};

    /// The superblock has a checksum.
    pub const SB_CHKSUM: u32 = 0x01;
    /// Times are modification times.
    pub const MTIME: u32 = 0x02;
    /// Filters of attribute names.
    pub const XATTR_FILTER: u32 = 0x04;
    /// Shared attributes lie in the metabox.
    pub const SHARED_EA_IN_METABOX: u32 = 0x08;
    /// Long prefixes of attribute names lie in the image, uncompressed.
    pub const PLAIN_XATTR_PFX: u32 = 0x10;
    /// Files with an equal value of a certain attribute have equal contents.
    pub const ISHARE_XATTRS: u32 = 0x20;
    /// Made by nydus.
    pub const RAFS_V6: u32 = 0x4000_0000;

    /// All known features, in order of their bits.
    pub const ALL: [Feature; 7] = [
        feature(SB_CHKSUM, "sb_chksum", 5, 4),
        feature(MTIME, "mtime", 5, 4),
        feature(XATTR_FILTER, "xattr_filter", 5, 4),
        feature(SHARED_EA_IN_METABOX, "shared_ea_in_metabox", 5, 4),
        feature(PLAIN_XATTR_PFX, "plain_xattr_pfx", 5, 4),
        feature(ISHARE_XATTRS, "ishare_xattrs", 5, 4),
        feature(RAFS_V6, "rafs_v6", 5, 4),
    ];
}

/// Splits `bits` into the features of `table` whose bits are set, and the unknown rest.
pub fn split(bits: u32, table: &[Feature]) -> (Vec<Feature>, u32) {
    let known: Vec<Feature> = table.iter().copied().filter(|f| bits & f.bit != 0).collect();
    let unknown = known.iter().fold(bits, |left, f| left & !f.bit);
    (known, unknown)
}

/// The first kernel that has all these features of [`incompat`].
pub fn first_kernel(bits: u32) -> KernelVersion {
    let features = incompat::ALL.iter().filter(|feature| bits & feature.bit != 0);
    features.map(|feature| feature.kernel).fold(FIRST_KERNEL, KernelVersion::max)
}

/// Blocks that all kernels read, as a power of two in bytes.
const USUAL_BLOCK_BITS: u8 = 12;
/// The first kernel that finds the contents of all devices behind the image, in one file.
pub const FLAT_DEVICES_KERNEL: KernelVersion = KernelVersion::new(6, 4);

/// The first kernel that reads blocks of 2^`block_bits` bytes, if pages have 4096 bytes or, for longer blocks, as many as a
/// block.
pub fn block_kernel(block_bits: u8, is_compressed: bool) -> KernelVersion {
    match (block_bits < USUAL_BLOCK_BITS, is_compressed) {
        (true, true) => KernelVersion::new(6, 8),
        (true, false) => KernelVersion::new(6, 4),
        (false, _) => FIRST_KERNEL,
    }
}

/// The first kernel that decodes `algorithm`.
pub fn algorithm_kernel(algorithm: Algorithm) -> KernelVersion {
    match algorithm {
        Algorithm::Lz4 => FIRST_KERNEL,
        Algorithm::MicroLzma => KernelVersion::new(5, 16),
        Algorithm::Deflate => KernelVersion::new(6, 6),
        Algorithm::Zstd => KernelVersion::new(6, 10),
    }
}

/// Options of the kernel's configuration that EROFS has.
pub mod option {
    use crate::format::config::Algorithm;

    /// The file system itself.
    pub const EROFS: &str = "CONFIG_EROFS_FS";
    /// Compressed files, with LZ4.
    pub const ZIP: &str = "CONFIG_EROFS_FS_ZIP";
    /// Attributes.
    pub const XATTR: &str = "CONFIG_EROFS_FS_XATTR";
    /// Attributes `security.*`.
    pub const SECURITY: &str = "CONFIG_EROFS_FS_SECURITY";
    /// Access lists.
    pub const POSIX_ACL: &str = "CONFIG_EROFS_FS_POSIX_ACL";
    /// Mounting files without a loop device, from Linux 6.12.
    pub const BACKED_BY_FILE: &str = "CONFIG_EROFS_FS_BACKED_BY_FILE";

    /// The option of an algorithm. That of LZ4 is the option of compressed files.
    pub fn of_algorithm(algorithm: Algorithm) -> &'static str {
        match algorithm {
            Algorithm::Lz4 => ZIP,
            Algorithm::MicroLzma => "CONFIG_EROFS_FS_ZIP_LZMA",
            Algorithm::Deflate => "CONFIG_EROFS_FS_ZIP_DEFLATE",
            Algorithm::Zstd => "CONFIG_EROFS_FS_ZIP_ZSTD",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_one_bit_of_its_own() {
        for table in [incompat::ALL.as_slice(), compat::ALL.as_slice()] {
            let mut seen = 0u32;
            for row in table {
                assert_eq!(row.bit.count_ones(), 1, "{}", row.name);
                assert_eq!(seen & row.bit, 0, "{}", row.name);
                seen |= row.bit;
            }
        }
    }

    #[test]
    fn unknown_bits_are_returned() {
        let (known, unknown) = split(0x8000_0021, &incompat::ALL);
        assert_eq!(known.iter().map(|f| f.name).collect::<Vec<_>>(), ["lz4_0padding", "fragments/dedupe"]);
        assert_eq!(unknown, 0x8000_0000);
    }
}
