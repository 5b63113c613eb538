//! The parts of a memory budget that hold what servers sent.
//!
//! The caches of all sources on servers, and the slots through which their bytes pass to the process that decodes, have half
//! of the budget together, and the image has the rest. Merkle trees are
//! a 127th of their images, so a tree has an eighth of what an image has. Each cache has a floor, below which it would
//! be of no use: with a budget of a few MiB they have more than half.

use super::media::tree_location;
use pagefold_control::media::{Location, MediaConfig};
use pagefold_remote::stores::Store;

/// The least memory for ranges of an image or device, and of a tree, bytes.
const IMAGE_FLOOR_BYTES: u64 = 1 << 20;
const TREE_FLOOR_BYTES: u64 = 128 << 10;
/// The most memory for either: with more blocks, looking for the oldest one takes too long.
const CEILING_BYTES: u64 = 256 << 20;

/// The slots for bytes on their way, and so the reads that are under way at once.
pub const SLOTS: usize = 16;
/// The least and the most memory of a slot, bytes.
const SLOT_FLOOR_BYTES: u64 = 16 << 10;
const SLOT_CEILING_BYTES: u64 = 512 << 10;
/// The part of the budget that all slots have.
const SLOTS_PART: u64 = 16;
/// Slots begin at pages.
const PAGE_BYTES: u64 = 4096;

/// The memory of the caches, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheShares {
    /// For each image or device on a server.
    pub image_bytes: usize,
    /// For each Merkle tree on a server.
    pub tree_bytes: usize,
    /// For each slot.
    pub slot_bytes: usize,
    /// For all of them.
    pub total_bytes: u64,
}

impl CacheShares {
    /// Divides `memory_bytes` among the media of a configuration and their Merkle trees, as far as they are on servers.
    pub fn of_media(config: &MediaConfig, memory_bytes: u64) -> Self {
        let is_remote = |location: &Location| matches!(location, Location::Url(_));
        let has_remote_tree = |(n, location): &(usize, &Location)| match (&config.verity, location) {
            (Some(verity), _) => is_remote(&tree_location(verity, *n, location)),
            // Its manifest may name one.
            (None, Location::Url(name)) => Store::of(name) == Some(Store::Oci),
            (None, Location::File(_)) => false,
        };
        let images = config.all().filter(|location| is_remote(location)).count();
        Self::of(memory_bytes, images, config.all().enumerate().filter(has_remote_tree).count())
    }

    /// Divides `memory_bytes` among this many images and trees on servers.
    pub fn of(memory_bytes: u64, images: usize, trees: usize) -> Self {
        let (images, trees) = (images as u64, trees as u64);
        if images + trees == 0 {
            return CacheShares::default();
        }
        let slots = SLOTS as u64;
        let slot = (memory_bytes / SLOTS_PART / slots).clamp(SLOT_FLOOR_BYTES, SLOT_CEILING_BYTES);
        let slot = slot / PAGE_BYTES * PAGE_BYTES;
        let caches = (memory_bytes / 2).saturating_sub(slots * slot);
        let eighths = 8 * images + trees;
        let share =
            |eighths_each: u64, floor: u64| (caches / eighths * eighths_each).clamp(floor, CEILING_BYTES);
        let (image, tree) = (share(8, IMAGE_FLOOR_BYTES), share(1, TREE_FLOOR_BYTES));
        let total_bytes = images * image + trees * tree + slots * slot;
        let [image_bytes, tree_bytes, slot_bytes] = [image, tree, slot].map(|bytes| bytes as usize);
        CacheShares { image_bytes, tree_bytes, slot_bytes, total_bytes }
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
                let sum = sum + SLOTS * shares.slot_bytes;
                assert_eq!(shares.total_bytes, sum as u64);
                assert!(shares.total_bytes <= memory_bytes / 2, "{memory_mib} {images} {trees}: {shares:?}");
            }
        }
        assert_eq!(CacheShares::of(64 << 20, 1, 0).image_bytes, 28 << 20);
        assert_eq!(CacheShares::of(64 << 20, 0, 0).total_bytes, 0);
        let small = CacheShares::of(1 << 20, 2, 1);
        assert_eq!((small.image_bytes, small.tree_bytes, small.slot_bytes), (1 << 20, 128 << 10, 16 << 10));
        assert_eq!(CacheShares::of(u64::MAX, 1, 1).image_bytes, 256 << 20);
    }
}
