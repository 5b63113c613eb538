//! Damages an image: anywhere, or in its structures.
//!
//! The positions of structures come from the undamaged image: its superblock, and the inode numbers that `image ls`
//! prints. The data after an inode (attributes, index, the tail of a file) is not parsed: values of all widths are
//! written there.

use crate::random::Random;
use serde_json::Value;

const SUPERBLOCK: usize = 1024;
const BLOCK: usize = 4096;
/// Bytes after an inode that are a target of damage.
const AFTER_INODE: usize = 256;

/// Offsets and lengths of an image's structures, in bytes.
#[derive(Debug)]
pub struct StructureMap {
    /// The superblock, inodes, the bytes after inodes, and directories.
    spots: [Vec<(usize, usize)>; 4],
    nids: Vec<u64>,
}

/// The number of so many bytes at an offset; those beyond the end are zeroes.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let field = bytes.iter().skip(at).take(width);
    field.rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

impl StructureMap {
    /// The map of this image, which `ls` lists so.
    pub fn new(bytes: &[u8], listed: &Value) -> Self {
        let entries = listed["entries"].as_array().into_iter().flatten();
        let nids: Vec<u64> =
            entries.filter_map(|entry| entry["nid"].as_u64()).filter(|nid| nid >> 40 == 0).collect();
        let (mut inodes, mut after_inodes, mut directories) = (Vec::new(), Vec::new(), Vec::new());
        let start = number(bytes, SUPERBLOCK + 0x28, 4) as usize * BLOCK;
        for at in nids.iter().map(|nid| start + *nid as usize * 32) {
            let format = number(bytes, at, 2);
            let (len, width) = if format & 1 == 1 { (64, 8) } else { (32, 4) };
            inodes.push((at, len));
            after_inodes.push((at + len, AFTER_INODE));
            if number(bytes, at + 4, 2) & 0o170_000 == 0o040_000 {
                let (size, xattrs) =
                    (number(bytes, at + 8, width) as usize, number(bytes, at + 2, 2) as usize);
                let tail = at + len + if xattrs == 0 { 0 } else { 8 + 4 * xattrs };
                directories.push(match format >> 1 & 7 {
                    // The whole directory is in blocks.
                    0 => (number(bytes, at + 16, 4) as usize * BLOCK, size),
                    // The tail, in most directories all of it, follows the inode and its attributes.
                    _ => (tail, size % BLOCK),
                });
            }
        }
        StructureMap { spots: [vec![(SUPERBLOCK, 144)], inodes, after_inodes, directories], nids }
    }
}

/// Damages an image at random positions. Returns a description.
pub fn damage(random: &mut Random, bytes: &mut Vec<u8>, map: &StructureMap) -> String {
    let count = random.pick(&[1, 1, 1, 2, 4, 16]);
    let mut done: Vec<_> = (0..count).map(|_| damage_once(random, bytes, map)).collect();
    // Without this, most images with a damaged superblock would be refused because of the checksum.
    if random.percent(50) && fix_checksum(bytes) {
        done.push("checksum corrected".into());
    }
    done.join(", ")
}

fn damage_once(random: &mut Random, bytes: &mut Vec<u8>, map: &StructureMap) -> String {
    let len = bytes.len().max(1);
    let anywhere = random.below(len as u64) as usize;
    let unit = [(anywhere, 8)];
    let spots = match random.below(20) {
        0 | 1 => &unit[..],
        2 => {
            bytes.truncate(anywhere.max(SUPERBLOCK + 256).min(len));
            return format!("cut to {}", bytes.len());
        }
        3 => {
            bytes.resize(len + random.below(1 << 20) as usize, random.next() as u8);
            return format!("longer: {}", bytes.len());
        }
        4 | 5 => return damage_block(random, bytes),
        n => &map.spots[(n as usize - 5) / 4],
    };
    let Some(spot) = spots.get(random.below(spots.len() as u64) as usize) else { return "nothing".into() };
    change_number(random, bytes, map, *spot)
}

/// Changes a number within a range of bytes: to an extreme value, to a value near the old one, or to any value.
fn change_number(
    random: &mut Random,
    bytes: &mut [u8],
    map: &StructureMap,
    (start, len): (usize, usize),
) -> String {
    let width = random.pick(&[1, 1, 2, 2, 4, 8]);
    let (at, bits) = (start + random.below(len.div_ceil(width) as u64) as usize * width, width as u64 * 8);
    let old = number(bytes, at, width);
    let Some(field) = bytes.get_mut(at..at + width) else { return format!("nothing at {at}") };
    let new = match random.below(10) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 => old ^ 1 << random.below(bits),
        5 => 1 << random.below(bits),
        6 => (1_u64 << random.between(1, bits - 1)) - 1,
        7 if !map.nids.is_empty() => map.nids[random.below(map.nids.len() as u64) as usize],
        8 => random.below(1 << 20),
        _ => random.next(),
    };
    field.copy_from_slice(&new.to_le_bytes()[..width]);
    format!("{width} bytes at {at}: {old:#x} to {new:#x}")
}

/// Damages a block, but not the first one: without the superblock almost nothing can be read.
fn damage_block(random: &mut Random, bytes: &mut [u8]) -> String {
    let count = (bytes.len() / BLOCK) as u64;
    if count < 2 {
        return "nothing".into();
    }
    let (to, from) = (random.between(1, count - 1) as usize * BLOCK, random.below(count) as usize * BLOCK);
    let kind = random.below(3);
    match kind {
        0 => bytes[to..to + BLOCK].fill(0),
        1 => random.fill(&mut bytes[to..to + BLOCK]),
        _ => bytes.copy_within(from..from + BLOCK, to),
    }
    format!("block at {to} {}", ["zeroed", "random", "replaced by another"][kind as usize])
}

/// Corrects the superblock's checksum: CRC-32C without the final inversion. Returns false if there is none.
fn fix_checksum(bytes: &mut [u8]) -> bool {
    if number(bytes, SUPERBLOCK + 8, 4) & 1 == 0 || bytes.len() < BLOCK {
        return false;
    }
    let covered = &mut bytes[SUPERBLOCK..BLOCK];
    covered[4..8].fill(0);
    let sum = covered.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1)))
    });
    covered[4..8].copy_from_slice(&sum.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_depends_on_the_seed_only_and_a_corrected_checksum_is_that_of_images() {
        let image = include_bytes!("../../../../crates/image/tests/fixtures/app.erofs");
        let mut same = image.to_vec();
        assert!(fix_checksum(&mut same) && same == image);
        let root = number(image, SUPERBLOCK + 14, 2);
        let map = StructureMap::new(image, &serde_json::json!({"entries": [{"nid": root}]}));
        assert_eq!(map.spots.each_ref().map(Vec::len), [1; 4]);
        for seed in 0..200 {
            let mut damaged = [image.to_vec(), image.to_vec()];
            let [a, b] = damaged.each_mut().map(|bytes| damage(&mut Random::new(seed), bytes, &map));
            assert!(a == b && damaged[0] == damaged[1]);
        }
    }
}
