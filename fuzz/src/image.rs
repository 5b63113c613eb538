//! Parts of images, and checks that hold for every image.

use pagefold_image::Image;
use pagefold_image::read::{Extent, Inode, SliceBytes, Superblock};
use std::sync::LazyLock;

/// The superblock and the root of a small image, for inputs that change fields of a copy.
pub static PLAIN: LazyLock<(Superblock, Inode)> = LazyLock::new(|| {
    let image = SliceBytes::image(include_bytes!("../seeds/plain.erofs"));
    let sb = Superblock::read(&image).expect("a seed");
    let inode = Inode::read(&image, &sb, sb.root_nid).expect("a root");
    (sb, inode)
});

/// The length of the superblock's block from the superblock on, which its checksum covers.
pub fn covered_bytes(block_bits: u8) -> usize {
    let block_bytes = 1_usize << block_bits.min(16);
    if block_bytes > 1024 { block_bytes - 1024 } else { block_bytes }
}

/// Corrects the superblock's checksum, if the image is long enough.
pub fn repair_checksum(image: &mut [u8]) {
    let len = covered_bytes(image[1024 + 12]);
    let Some(covered) = image.get_mut(1024..1024 + len).filter(|covered| covered.len() >= 8) else { return };
    covered[4..8].fill(0);
    let sum = !crc32c::crc32c(covered);
    covered[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// An extent contains the offset at which it was found, and lies inside its file.
pub fn check_extent(extent: &Extent, offset: u64, size: u64) {
    assert!(extent.start <= offset && offset < extent.end() && extent.end() <= size, "{extent:?}");
}

/// Reading has stayed within the budget.
pub fn check_budget(image: &Image) {
    let budget = image.stats().budget;
    assert!(budget.peak_bytes <= budget.limit_bytes, "{budget:?}");
}
