//! Rules of the blocks of directories. Order, `.`, `..` and types are checked by the walk.

use super::context::Strict;
use pagefold_image::format::dirent::RawDirent;
use pagefold_image::{Address, Nid, rules};

/// Blocks with faults after which the rest of a directory is not judged.
const FAULTY_BLOCKS_MAX: u64 = 64;

/// Judges all blocks of a directory. The reader decodes its contents, if they are compressed.
pub(super) fn check(strict: &mut Strict<'_>, nid: Nid) {
    let Ok(node) = strict.image.node(nid) else { return };
    let at = node.inode().address;
    let (len, block_bytes) = (node.len_bytes(), strict.block_bytes());
    let (mut block, mut faulty) = (Vec::new(), 0);
    for number in 0..len.div_ceil(block_bytes) {
        block.resize(block_bytes.min(len - number * block_bytes) as usize, 0);
        // The walk reports a block that cannot be read, and stops after some faults. So does this loop.
        let read = node.read_block(number, &mut block, strict.bytes.work);
        if read.is_err() || faulty >= FAULTY_BLOCKS_MAX {
            strict.has_missed_inodes = true;
            return;
        }
        let is_in_order = check_block(&block, number, at, node.inode().dot_omitted, strict);
        strict.has_missed_inodes |= !is_in_order;
        faulty += u64::from(!is_in_order);
    }
}

/// Judges a block; false if the walk cannot find all of its names.
fn check_block(block: &[u8], number: u64, at: Address, dot_omitted: bool, strict: &Strict<'_>) -> bool {
    let raw = |index: usize| Some(RawDirent::parse(block.get(index * RawDirent::LEN..)?.first_chunk()?));
    let names = raw(0).map_or(0, |first| usize::from(first.nameoff.get()));
    if names == 0 || !names.is_multiple_of(RawDirent::LEN) || names >= block.len() {
        let what =
            format!("the names of block {number}, which has {} bytes, begin at byte {names}", block.len());
        strict.fault(&rules::DIR_BLOCK, at, what);
        return false;
    }
    let count = names / RawDirent::LEN;
    let mut start = names;
    for index in 0..count {
        let Some(entry) = raw(index) else { return false };
        let end = match index + 1 < count {
            true => raw(index + 1).map_or(0, |next| usize::from(next.nameoff.get())),
            false => block[start..].iter().position(|byte| *byte == 0).map_or(block.len(), |len| start + len),
        };
        if usize::from(entry.nameoff.get()) != start || end <= start || end > block.len() {
            let what = format!("entry {index} of block {number} has its name at {start} to {end}");
            strict.fault(&rules::DIR_BLOCK, at, what);
            return false;
        }
        if entry.reserved != 0 {
            strict.fault(
                &rules::DIR_FILL,
                at,
                format!("byte 11 of entry {index} of block {number} is not zero"),
            );
        }
        if dot_omitted && &block[start..end] == b"." {
            strict.fault(&rules::DIR_DOTS, at, "'.' is present, and bit 4 of the inode's format is set");
        }
        start = end;
    }
    if let Some(first) = block[start..].iter().position(|byte| *byte != 0) {
        let what = format!("block {number} has bytes after its names, from {} on", start + first);
        strict.fault(&rules::DIR_FILL, at, what);
    }
    true
}
