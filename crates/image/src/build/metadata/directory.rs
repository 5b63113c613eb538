//! Blocks of directory entries.
//!
//! Entries are in the order of their names' bytes, `.` and `..` among them, over the whole directory. An entry begins a
//! new block if it does not fit into the one before.

use crate::build::options::BLOCK_BYTES;
use crate::format::dirent::{self, RawDirent};
use crate::read::FileKind;

const BLOCK: usize = BLOCK_BYTES as usize;

/// An entry.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Number of the inode.
    pub nid: u64,
    /// Type of file.
    pub kind: FileKind,
}

/// Adds `.` and `..` to the entries of a directory, which are sorted, at their places.
pub fn with_dots<'a, T: Copy>(
    entries: impl Iterator<Item = (&'a [u8], T)>,
    own: T,
    parent: T,
) -> Vec<(&'a [u8], T)> {
    let mut all: Vec<_> = entries.chain([(b".".as_slice(), own), (b"..".as_slice(), parent)]).collect();
    // Names differ, so the order does not depend on the algorithm.
    all.sort_unstable_by_key(|(name, _)| *name);
    all
}

/// Returns the length of a directory with entries of these names, in bytes. The last block counts as far as it is used.
pub fn len_bytes<'a>(names: impl Iterator<Item = &'a [u8]>) -> u64 {
    let (mut full, mut used) = (0, 0);
    for name in names {
        let len = RawDirent::LEN + name.len();
        if used + len > BLOCK {
            full += BLOCK as u64;
            used = 0;
        }
        used += len;
    }
    full + used as u64
}

/// Encodes a directory, which has at least one entry.
pub fn encode(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = entries;
    while !rest.is_empty() {
        let mut used = 0;
        let fits = |entry: &&Entry<'_>| {
            used += RawDirent::LEN + entry.name.len();
            used <= BLOCK
        };
        let count = rest.iter().take_while(fits).count();
        let (block, later) = rest.split_at(count);
        encode_block(block, &mut out);
        rest = later;
        if !rest.is_empty() {
            out.resize(out.len().next_multiple_of(BLOCK), 0);
        }
    }
    out
}

fn encode_block(entries: &[Entry<'_>], out: &mut Vec<u8>) {
    let mut nameoff = entries.len() * RawDirent::LEN;
    for entry in entries {
        let raw = RawDirent {
            nid: entry.nid.into(),
            nameoff: (nameoff as u16).into(),
            file_type: dirent_type(entry.kind),
            reserved: 0,
        };
        out.extend(raw.encode());
        nameoff += entry.name.len();
    }
    entries.iter().for_each(|entry| out.extend(entry.name));
}

fn dirent_type(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => dirent::TYPE_REGULAR,
        FileKind::Directory => dirent::TYPE_DIRECTORY,
        FileKind::Symlink => dirent::TYPE_SYMLINK,
        FileKind::CharDevice => dirent::TYPE_CHAR_DEVICE,
        FileKind::BlockDevice => dirent::TYPE_BLOCK_DEVICE,
        FileKind::Fifo => dirent::TYPE_FIFO,
        FileKind::Socket => dirent::TYPE_SOCKET,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_dots_stand_where_their_bytes_sort_them() {
        let names = [b"!".as_slice(), b"-", b".a", b"0"];
        let all = with_dots(names.iter().map(|name| (*name, 1)), 2, 3);
        let sorted = [b"!".as_slice(), b"-", b".", b"..", b".a", b"0"];
        assert_eq!(all.iter().map(|(name, _)| *name).collect::<Vec<_>>(), sorted);
    }

    proptest! {
        #[test]
        fn the_length_is_that_of_the_encoded_directory(
            names in proptest::collection::btree_set(proptest::collection::vec(1u8.., 1..256), 1..200),
        ) {
            let entries: Vec<_> =
                names.iter().map(|name| Entry { name, nid: 1, kind: FileKind::Regular }).collect();
            let encoded = encode(&entries);
            prop_assert_eq!(encoded.len() as u64, len_bytes(names.iter().map(Vec::as_slice)));
        }
    }
}
