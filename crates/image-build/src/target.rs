//! The kernel that an image is built for, and the features that the image may use then.
//!
//! A version is not a configuration: a kernel may be built without some algorithms. Below 6.12 the builder therefore
//! takes LZ4, which every EROFS has, unless the user names another one, or the configuration of the running kernel is
//! known (`running_kernel`). The versions are those of [`features`](pagefold_image::format::features).

use crate::{BuildError, Result};
use pagefold_image::format::config::Algorithm;
use pagefold_image::format::features::{self, KernelVersion, incompat};
use std::fmt;

/// The oldest kernel that has to mount the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target(pub KernelVersion);

/// Versions that the command line offers: long-term kernels.
pub const TARGETS: [Target; 7] = [
    Target::new(5, 4),
    Target::new(5, 10),
    Target::new(5, 15),
    Target::new(6, 1),
    Target::new(6, 6),
    Target::new(6, 12),
    Target::new(6, 18),
];

/// Most blocks of an image: their numbers have 48 bits, and all ones mean no block.
const BLOCKS_MAX: u64 = (1 << 48) - 1;
/// First version for which the builder takes other algorithms than LZ4 by itself.
const ALL_BY_DEFAULT: Target = Target::new(6, 12);

impl Target {
    /// The target of kernel `major.minor`.
    pub const fn new(major: u8, minor: u8) -> Self {
        Target(KernelVersion { major, minor })
    }

    /// Parses `5.10`; more, as in `6.12.94-amd64`, is ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-']);
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Target::new(major, minor))
    }

    /// Whether the kernel has the feature of this bit of `feature_incompat`.
    pub fn has(self, bit: u32) -> bool {
        incompat::ALL.iter().any(|feature| feature.bit == bit && feature.kernel <= self.0)
    }

    /// Whether the kernel can have this algorithm.
    pub fn decodes(self, algorithm: Algorithm) -> bool {
        features::algorithm_kernel(algorithm) <= self.0
    }

    /// Whether a cluster may have more than a block.
    pub fn has_big_clusters(self) -> bool {
        self.has(incompat::BIG_PCLUSTER)
    }

    /// Whether inodes may be compressed.
    pub fn has_metabox(self) -> bool {
        self.has(incompat::METABOX)
    }

    /// Fails if an image of this many blocks cannot be mounted.
    pub fn check_blocks(self, blocks: u64) -> Result<()> {
        let what = match self.has(incompat::WIDE_ADDRESSES) {
            false if blocks > u32::MAX.into() => {
                let first = features::first_kernel(incompat::WIDE_ADDRESSES);
                format!(
                    "Linux {self} mounts images of up to 16 TiB, and Linux {first} and later mount larger ones"
                )
            }
            true if blocks > BLOCKS_MAX => "an image has up to 1 EiB".into(),
            _ => return Ok(()),
        };
        Err(BuildError::TooLarge { what })
    }

    /// Whether the builder may choose this algorithm by itself: whether most kernels of the version have it.
    pub fn usually_decodes(self, algorithm: Algorithm) -> bool {
        self.decodes(algorithm) && (algorithm == Algorithm::Lz4 || self >= ALL_BY_DEFAULT)
    }

    /// The algorithm that the builder takes if the user names none.
    pub fn default_algorithm(self) -> Algorithm {
        match self >= ALL_BY_DEFAULT {
            true => Algorithm::Zstd,
            false => Algorithm::Lz4,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed_by_their_first_two_numbers() {
        assert_eq!(Target::parse("6.12.94-amd64"), Some(Target::new(6, 12)));
        assert_eq!(Target::parse("7.2-rc1"), Some(Target::new(7, 2)));
        assert_eq!((Target::parse("6"), Target::parse("x.y")), (None, None));
    }

    #[test]
    fn old_kernels_have_one_block_clusters_of_lz4() {
        let old = Target::new(5, 10);
        assert!(old.has(incompat::ZERO_PADDING) && !old.has_big_clusters());
        assert!(old.decodes(Algorithm::Lz4) && !old.decodes(Algorithm::MicroLzma));
        assert_eq!(Target::new(6, 6).default_algorithm(), Algorithm::Lz4);
        assert_eq!(Target::new(6, 12).default_algorithm(), Algorithm::Zstd);
    }
}
