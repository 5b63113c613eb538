//! Small images made by hand, so that they can say what no builder would.

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Types that directory entries name.
pub const REGULAR: u8 = 1;
pub const DIRECTORY: u8 = 2;
pub const SYMLINK: u8 = 7;

/// An inode of 64 bytes, stored flat.
pub struct File {
    pub mode: u16,
    pub nlink: u32,
    pub size: u64,
    /// `None`: a hole.
    pub contents: Option<Vec<u8>>,
}

impl File {
    pub fn regular(contents: &[u8]) -> Self {
        File::of(0o100_644, 1, contents.to_vec())
    }

    pub fn symlink(target: &str) -> Self {
        File::of(0o120_777, 1, target.into())
    }

    /// A directory of one block with these entries as they are: name, number of the file, type.
    pub fn directory(nlink: u32, entries: &[(&str, usize, u8)]) -> Self {
        let (mut heads, mut names) = (Vec::new(), Vec::new());
        for (name, file, kind) in entries {
            heads.extend(nid(*file).to_le_bytes());
            heads.extend(((entries.len() * 12 + names.len()) as u16).to_le_bytes());
            heads.extend([*kind, 0]);
            names.extend(name.as_bytes());
        }
        File::of(0o040_755, nlink, [heads, names].concat())
    }

    /// A file that says it has `size` bytes, in a hole.
    pub fn hole(mode: u16, size: u64) -> Self {
        File { mode, nlink: if mode & 0o040_000 != 0 { 2 } else { 1 }, size, contents: None }
    }

    fn of(mode: u16, nlink: u32, contents: Vec<u8>) -> Self {
        File { mode, nlink, size: contents.len() as u64, contents: Some(contents) }
    }
}

/// Inodes are two slots each.
fn nid(file: usize) -> u64 {
    2 * file as u64
}

/// An image of these files; the first is the root.
pub fn image(files: &[File]) -> Vec<u8> {
    let inode_blocks = (files.len() * 64).div_ceil(BLOCK);
    let mut bytes = vec![0; BLOCK * (1 + inode_blocks)];
    for (number, file) in files.iter().enumerate() {
        let start = match &file.contents {
            Some(contents) => {
                let start = bytes.len() / BLOCK;
                bytes.extend(contents);
                bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
                start as u32
            }
            None => u32::MAX,
        };
        let inode = &mut bytes[BLOCK + number * 64..][..64];
        inode[0] = 1;
        inode[4..6].copy_from_slice(&file.mode.to_le_bytes());
        inode[8..16].copy_from_slice(&file.size.to_le_bytes());
        inode[16..20].copy_from_slice(&start.to_le_bytes());
        inode[44..48].copy_from_slice(&file.nlink.to_le_bytes());
    }
    let blocks = (bytes.len() / BLOCK) as u32;
    let superblock = &mut bytes[1024..1152];
    superblock[0..4].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    superblock[12] = 12;
    superblock[0x24..0x28].copy_from_slice(&blocks.to_le_bytes());
    superblock[0x28..0x2c].copy_from_slice(&1u32.to_le_bytes());
    bytes
}
