//! Damages an image: anywhere, or in its structures.
//!
//! The positions of structures come from the undamaged image: its superblock, and the inode numbers that `image ls`
//! prints. The data after an inode (attributes, index, the tail of a file) is not parsed: values of all widths are
//! written there.

use crate::random::Random;

const SUPERBLOCK: usize = 1024;
/// Offset of the superblock's checksum.
const CHECKSUM: usize = SUPERBLOCK + 4;
/// Bytes after an inode that are a target of damage.
const AFTER_INODE: usize = 256;

/// Offsets and lengths of an image's structures, in bytes.
#[derive(Debug)]
pub struct StructureMap {
    block: usize,
    inodes: Vec<(usize, usize)>,
    after_inodes: Vec<(usize, usize)>,
    directories: Vec<(usize, usize)>,
    nids: Vec<u64>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..at + N).unwrap_or_default();
    field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl StructureMap {
    /// A map without structures, for a device.
    pub fn none() -> Self {
        let (inodes, after_inodes, directories) = (Vec::new(), Vec::new(), Vec::new());
        StructureMap { block: 4096, inodes, after_inodes, directories, nids: Vec::new() }
    }

    /// The map of this image, with inodes of these numbers.
    pub fn new(bytes: &[u8], nids: &[u64]) -> Self {
        let block = 1 << bytes.get(SUPERBLOCK + 12).copied().unwrap_or(12).clamp(9, 16);
        let start = number::<4>(bytes, SUPERBLOCK + 0x28) as usize * block;
        let mut map = StructureMap { block, nids: nids.to_vec(), ..StructureMap::none() };
        for nid in nids.iter().filter(|nid| **nid < 1 << 40) {
            let at = start + *nid as usize * 32;
            let format = number::<2>(bytes, at);
            let is_extended = format & 1 == 1;
            let len = if is_extended { 64 } else { 32 };
            map.inodes.push((at, len));
            map.after_inodes.push((at + len, AFTER_INODE));
            if number::<2>(bytes, at + 4) & 0o170_000 == 0o040_000 {
                let first = number::<4>(bytes, at + 16) as usize * block;
                let size = if is_extended { number::<8>(bytes, at + 8) } else { number::<4>(bytes, at + 8) };
                map.directories.push(match format >> 1 & 7 {
                    // The whole directory is in blocks.
                    0 => (first, size as usize),
                    // The tail, in most directories all of it, follows the inode and its attributes.
                    _ => (at + len + xattr_bytes(number::<2>(bytes, at + 2)), size as usize % block),
                });
            }
        }
        map
    }
}

fn xattr_bytes(count: u64) -> usize {
    if count == 0 { 0 } else { 12 + 4 * (count as usize - 1) }
}

/// Damages an image at random positions. Returns a description.
pub fn damage(random: &mut Random, bytes: &mut Vec<u8>, map: &StructureMap) -> String {
    let mut descriptions = Vec::new();
    for _ in 0..random.pick(&[1, 1, 1, 2, 4, 16]) {
        descriptions.push(damage_once(random, bytes, map));
    }
    // Without this, most images with a damaged superblock would be refused because of the checksum.
    if random.percent(50) && fix_checksum(bytes) {
        descriptions.push("checksum corrected".into());
    }
    descriptions.join(", ")
}

fn damage_once(random: &mut Random, bytes: &mut Vec<u8>, map: &StructureMap) -> String {
    let len = bytes.len().max(1);
    match random.below(20) {
        0 => {
            let at = random.below(len as u64) as usize;
            let bit = random.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of {at}")
        }
        1 => {
            let at = random.below(len as u64) as usize;
            change_number(random, bytes, map, (at, 8))
        }
        2 => {
            let len_left = random.below(len as u64) as usize;
            bytes.truncate(len_left.max(SUPERBLOCK + 256).min(len));
            format!("cut to {}", bytes.len())
        }
        3 => {
            let more = random.below(1 << 20) as usize;
            bytes.resize(len + more, random.next() as u8);
            format!("{more} bytes more")
        }
        4 | 5 => damage_blocks(random, bytes, map.block),
        6..=8 => change_number(random, bytes, map, (SUPERBLOCK, 144)),
        9..=12 => damage_one_of(random, bytes, map, &map.inodes),
        13..=15 => damage_one_of(random, bytes, map, &map.after_inodes),
        _ => damage_one_of(random, bytes, map, &map.directories),
    }
}

fn damage_one_of(
    random: &mut Random,
    bytes: &mut [u8],
    map: &StructureMap,
    spots: &[(usize, usize)],
) -> String {
    match spots.len() {
        0 => change_number(random, bytes, map, (SUPERBLOCK, 144)),
        count => {
            let spot = spots[random.below(count as u64) as usize];
            change_number(random, bytes, map, spot)
        }
    }
}

/// Changes a number within a range of bytes: to an extreme value, to a value near the old one, or to any value.
fn change_number(
    random: &mut Random,
    bytes: &mut [u8],
    map: &StructureMap,
    (start, len): (usize, usize),
) -> String {
    let width = random.pick(&[1, 1, 2, 2, 4, 8]);
    let positions = (len.max(1) as u64).div_ceil(width as u64);
    let at = start + random.below(positions) as usize * width;
    let Some(field) = bytes.get_mut(at..at + width) else { return format!("nothing at {at}") };
    let old = field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let blocks = 1 << 20;
    let new = match random.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << random.below(width as u64 * 8),
        5 => 1 << random.below(width as u64 * 8),
        6 => (1_u64 << random.between(1, width as u64 * 8 - 1)) - 1,
        7 if !map.nids.is_empty() => map.nids[random.below(map.nids.len() as u64) as usize],
        8 => random.below(blocks),
        _ => random.next(),
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
    format!("{width} bytes at {at}: {old:#x} to {new:#x}")
}

/// Damages whole blocks.
fn damage_blocks(random: &mut Random, bytes: &mut [u8], block: usize) -> String {
    let count = (bytes.len() / block.max(1)) as u64;
    if count < 2 {
        return "nothing".into();
    }
    // Not the first block: without the superblock almost nothing can be read.
    let (a, b) = (random.between(1, count - 1) as usize * block, random.below(count) as usize * block);
    let change = match random.below(4) {
        0 => {
            bytes[a..a + block].fill(0);
            "zeroed"
        }
        1 => {
            random.fill(&mut bytes[a..a + block]);
            "random"
        }
        2 => {
            bytes.copy_within(b..b + block, a);
            "replaced by another"
        }
        _ => {
            let (low, high) = (a.min(b), a.max(b));
            if low != high && low > 0 {
                let (left, right) = bytes.split_at_mut(high);
                left[low..low + block].swap_with_slice(&mut right[..block]);
            }
            "swapped with another"
        }
    };
    format!("block at {a} {change} ({b})")
}

/// Corrects the superblock's checksum. Returns false if there is none.
fn fix_checksum(bytes: &mut [u8]) -> bool {
    let block = 1 << bytes.get(SUPERBLOCK + 12).copied().unwrap_or(12).clamp(9, 16);
    let len = if block > SUPERBLOCK { block - SUPERBLOCK } else { block };
    if number::<4>(bytes, SUPERBLOCK + 8) & 1 == 0 || bytes.len() < SUPERBLOCK + len {
        return false;
    }
    bytes[CHECKSUM..CHECKSUM + 4].fill(0);
    let sum = crc32c(&bytes[SUPERBLOCK..SUPERBLOCK + len]);
    bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum.to_le_bytes());
    true
}

/// CRC-32C without the final inversion, as in the superblock.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::features;

    #[test]
    fn damage_depends_on_the_seed_only_and_an_intact_checksum_does_not_change() {
        let feature = features::get(0).unwrap();
        let mut same = feature.bytes.clone();
        assert!(fix_checksum(&mut same) && same == feature.bytes);
        let root = number::<2>(&feature.bytes, SUPERBLOCK + 14);
        let map = StructureMap::new(&feature.bytes, &[root]);
        assert_eq!((map.inodes.len(), map.directories.len()), (1, 1));
        for seed in 0..200 {
            let mut damaged = [feature.bytes.clone(), feature.bytes.clone()];
            let [a, b] = damaged.each_mut().map(|bytes| damage(&mut Random::new(seed), bytes, &map));
            assert!(a == b && damaged[0] == damaged[1]);
        }
    }
}
