//! The parts of a memory budget that hold what servers sent.
//!
//! The caches of all sources on servers have half of the budget together, and the image has the rest. Merkle trees are
//! a 127th of their images, so a tree has an eighth of what an image has. Each cache has a floor, below which it would
//! be of no use: with a budget of a few MiB they have more than half.

/// The least memory for ranges of an image or device, and of a tree, bytes.
const IMAGE_FLOOR_BYTES: u64 = 1 << 20;
const TREE_FLOOR_BYTES: u64 = 128 << 10;
/// The most memory for either: with more blocks, looking for the oldest one takes too long.
const CEILING_BYTES: u64 = 256 << 20;

/// The memory of the caches, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheShares {
    /// For each image or device on a server.
    pub image_bytes: usize,
    /// For each Merkle tree on a server.
    pub tree_bytes: usize,
    /// For all of them.
    pub total_bytes: u64,
}

impl CacheShares {
    /// Divides `memory_bytes` among this many images and trees on servers.
    pub fn of(memory_bytes: u64, images: usize, trees: usize) -> Self {
        let (images, trees) = (images as u64, trees as u64);
        let eighths = (8 * images + trees).max(1);
        let share = |eighths_each: u64, floor: u64| {
            (memory_bytes / 2 / eighths * eighths_each).clamp(floor, CEILING_BYTES)
        };
        let (image, tree) = (share(8, IMAGE_FLOOR_BYTES), share(1, TREE_FLOOR_BYTES));
        let total_bytes = images * image + trees * tree;
        CacheShares { image_bytes: image as usize, tree_bytes: tree as usize, total_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_have_half_together_and_floors() {
        for memory_mib in [16, 64, 100, 1024_u64] {
            for (images, trees) in [(1, 0), (1, 1), (3, 3), (0, 1)] {
                let memory_bytes = memory_mib << 20;
                let shares = CacheShares::of(memory_bytes, images, trees);
                let sum = images * shares.image_bytes + trees * shares.tree_bytes;
                assert_eq!(shares.total_bytes, sum as u64);
                assert!(shares.total_bytes <= memory_bytes / 2, "{memory_mib} {images} {trees}: {shares:?}");
            }
        }
        assert_eq!(CacheShares::of(64 << 20, 1, 0).image_bytes, 32 << 20);
        assert_eq!(CacheShares::of(64 << 20, 0, 0).total_bytes, 0);
        let small = CacheShares::of(1 << 20, 2, 1);
        assert_eq!((small.image_bytes, small.tree_bytes), (1 << 20, 128 << 10));
        assert_eq!(CacheShares::of(u64::MAX, 1, 1).image_bytes, 256 << 20);
    }
}
