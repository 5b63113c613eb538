//! Builds small images byte by byte, with contents that no image builder would write.
#![allow(dead_code, reason = "several test files compile this, and none uses all of it")]

/// Bytes of a block.
const BLOCK: usize = 4096;

/// File types in directory entries.
pub const REGULAR: u8 = 1;
pub const DIRECTORY: u8 = 2;
pub const CHAR_DEVICE: u8 = 3;
pub const FIFO: u8 = 5;
pub const SYMLINK: u8 = 7;

/// An inode of 64 bytes, with uncompressed contents.
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

    pub fn fifo() -> Self {
        File::of(0o010_666, 1, Vec::new())
    }

    /// A directory of one block with these entries, unchecked: name, number of the file, type.
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

    /// A file whose `size` bytes are a hole.
    pub fn hole(mode: u16, size: u64) -> Self {
        File { mode, nlink: if mode & 0o040_000 != 0 { 2 } else { 1 }, size, contents: None }
    }

    fn of(mode: u16, nlink: u32, contents: Vec<u8>) -> Self {
        File { mode, nlink, size: contents.len() as u64, contents: Some(contents) }
    }
}

/// The inode number of a file: each inode takes two slots.
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
        put_file(&mut bytes, number, file);
        bytes[inode_at(number) + 16..][..4].copy_from_slice(&start.to_le_bytes());
    }
    let blocks = (bytes.len() / BLOCK) as u32;
    let superblock = &mut bytes[1024..1152];
    superblock[0..4].copy_from_slice(&0xe0f5_e1e2u32.to_le_bytes());
    superblock[12] = 12;
    superblock[0x24..0x28].copy_from_slice(&blocks.to_le_bytes());
    superblock[0x28..0x2c].copy_from_slice(&1u32.to_le_bytes());
    bytes
}

/// Writes the inode of a file, without a place of its contents.
pub fn put_file(bytes: &mut [u8], number: usize, file: &File) {
    let inode = &mut bytes[inode_at(number)..][..64];
    inode[0] = 1;
    inode[4..6].copy_from_slice(&file.mode.to_le_bytes());
    inode[8..16].copy_from_slice(&file.size.to_le_bytes());
    inode[44..48].copy_from_slice(&file.nlink.to_le_bytes());
}

/// A length that no file system can store.
pub const HUGE: u64 = 1 << 62;

/// An image with these files in its root, and an unused inode after each, as room for 64 bytes.
pub fn image_of(entries: &[(&str, u8)], files: Vec<File>) -> Vec<u8> {
    let mut named = vec![(".", 0, DIRECTORY), ("..", 0, DIRECTORY)];
    named.extend(entries.iter().enumerate().map(|(n, (name, kind))| (*name, 1 + 2 * n, *kind)));
    let mut all = vec![File::directory(2, &named)];
    for file in files {
        all.extend([file, unused()]);
    }
    image(&all)
}

/// An inode without a name. Its bytes are room for data that belongs after the previous inode.
pub fn unused() -> File {
    File::hole(0o100_644, 0)
}

/// Number of [`unused`] inodes that a file needs for `len` bytes after its inode.
pub fn unused_after(len: usize) -> usize {
    len.div_ceil(64)
}

fn inode_at(file: usize) -> usize {
    BLOCK + file * 64
}

/// Writes bytes after an inode, over the unused inodes that follow it.
pub fn put_after(bytes: &mut [u8], file: usize, data: &[u8]) {
    bytes[inode_at(file) + 64..][..data.len()].copy_from_slice(data);
}

/// The attribute area of one inode: numbers of shared attributes, and inline ones, made by [`xattr`].
pub fn xattr_area(shared: &[u32], own: &[Vec<u8>]) -> Vec<u8> {
    let mut area = vec![0; 12];
    area[4] = shared.len() as u8;
    area.extend(shared.iter().flat_map(|id| id.to_le_bytes()));
    area.extend(own.iter().flatten());
    area
}

/// An attribute in its stored form, with the number of its prefix.
pub fn xattr(prefix: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut entry = vec![name.len() as u8, prefix];
    entry.extend((value.len() as u16).to_le_bytes());
    entry.extend([name, value].concat());
    entry.resize(entry.len().next_multiple_of(4), 0);
    entry
}

/// Writes the attribute area of a file.
pub fn put_xattrs(bytes: &mut [u8], file: usize, area: &[u8]) {
    let count = (area.len() - 12) / 4 + 1;
    bytes[inode_at(file) + 2..][..2].copy_from_slice(&(count as u16).to_le_bytes());
    put_after(bytes, file, area);
}

/// Appends shared attributes to the image, and returns their numbers.
pub fn put_shared(bytes: &mut Vec<u8>, all: &[Vec<u8>]) -> Vec<u32> {
    let start = bytes.len();
    bytes[1024 + 0x2c..][..4].copy_from_slice(&((start / BLOCK) as u32).to_le_bytes());
    let mut ids = Vec::new();
    for entry in all {
        ids.push(((bytes.len() - start) / 4) as u32);
        bytes.extend(entry);
    }
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    let blocks = (bytes.len() / BLOCK) as u32;
    bytes[1024 + 0x24..][..4].copy_from_slice(&blocks.to_le_bytes());
    ids
}

/// Makes `packed` the packed file of the image.
pub fn set_packed(bytes: &mut [u8], packed: usize) {
    bytes[1024 + 0x50..][..4].copy_from_slice(&0x20u32.to_le_bytes());
    bytes[1024 + 0x60..][..8].copy_from_slice(&nid(packed).to_le_bytes());
}

/// Makes a file a fragment: all its contents are in the packed file, from `offset` on. An unused inode must follow it.
pub fn make_fragment(bytes: &mut [u8], file: usize, offset: u64) {
    bytes[inode_at(file)] = 1 | 1 << 1;
    put_after(bytes, file, &(1 << 63 | offset).to_le_bytes());
}

/// Makes a file one LZ4 cluster in block `block`. An unused inode must follow it.
pub fn make_compressed(bytes: &mut [u8], file: usize, block: u32) {
    bytes[inode_at(file)] = 1 | 1 << 1;
    let mut index = [0; 24];
    index[16] = 1;
    index[20..].copy_from_slice(&block.to_le_bytes());
    put_after(bytes, file, &index);
}

/// Makes a file consist of chunks of one block, with this array of block numbers. [`unused`] inodes for the array must
/// follow the file.
pub fn put_chunks(bytes: &mut [u8], file: usize, array: &[u8]) {
    // The feature of files in chunks.
    bytes[1024 + 0x50] |= 4;
    bytes[inode_at(file)] = 1 | 4 << 1;
    bytes[inode_at(file) + 16..][..4].fill(0);
    put_after(bytes, file, array);
}

/// Bytes of the index of [`put_clusters`] for `len` bytes of contents.
pub fn index_len(len: usize) -> usize {
    16 + len.div_ceil(BLOCK) * 8
}

/// Makes a file consist of LZ4 clusters of one block each, appended to the image: the stored stream of each, and the
/// whole blocks that it decodes to. [`unused`] inodes for [`index_len`] bytes must follow the file.
pub fn put_clusters(bytes: &mut Vec<u8>, file: usize, clusters: &[(Vec<u8>, usize)]) {
    // The feature of padding before a stream.
    bytes[1024 + 0x50] |= 1;
    bytes[inode_at(file)] = 1 | 1 << 1;
    let mut index = vec![0; 16];
    for (stream, decoded_blocks) in clusters {
        let block = (bytes.len() / BLOCK) as u32;
        index.extend([1, 0, 0, 0]);
        index.extend(block.to_le_bytes());
        for n in 1..*decoded_blocks {
            index.extend([2, 0, 0, 0]);
            index.extend([(n as u16).to_le_bytes(), ((decoded_blocks - n) as u16).to_le_bytes()].concat());
        }
        bytes.resize(bytes.len() + BLOCK - stream.len(), 0);
        bytes.extend(stream);
    }
    put_after(bytes, file, &index);
    let (size, blocks) = (clusters.iter().map(|c| c.1 * BLOCK).sum::<usize>(), bytes.len() / BLOCK);
    bytes[inode_at(file) + 8..][..8].copy_from_slice(&(size as u64).to_le_bytes());
    bytes[1024 + 0x24..][..4].copy_from_slice(&(blocks as u32).to_le_bytes());
}

/// Compresses to an LZ4 block. Looks for matches at these distances only.
pub fn lz4(raw: &[u8], distances: &[usize]) -> Vec<u8> {
    let (mut out, mut literals, mut at) = (Vec::new(), 0, 0);
    // The last five bytes are literals, and the last match begins twelve bytes before the end.
    while at + 12 < raw.len() {
        let matched =
            |d: usize| raw[at..raw.len() - 5].iter().zip(&raw[at - d..]).take_while(|(a, b)| a == b).count();
        let found = distances.iter().filter(|d| **d <= at).map(|d| (matched(*d), *d)).max();
        match found {
            Some((len, distance)) if len >= 4 => {
                put_sequence(&mut out, &raw[literals..at], Some((len, distance)));
                at += len;
                literals = at;
            }
            _ => at += 1,
        }
    }
    put_sequence(&mut out, &raw[literals..], None);
    out
}

/// Appends literals, and a match with its length and distance unless it is the last sequence.
pub fn put_sequence(out: &mut Vec<u8>, literals: &[u8], matched: Option<(usize, usize)>) {
    let (literal_len, match_len) = (literals.len(), matched.map_or(0, |(len, _)| len - 4));
    let put_rest = |out: &mut Vec<u8>, len: usize| {
        if len >= 15 {
            out.extend(std::iter::repeat_n(255, (len - 15) / 255));
            out.push(((len - 15) % 255) as u8);
        }
    };
    out.push((literal_len.min(15) << 4 | match_len.min(15)) as u8);
    put_rest(out, literal_len);
    out.extend(literals);
    if let Some((_, distance)) = matched {
        out.extend((distance as u16).to_le_bytes());
        put_rest(out, match_len);
    }
}

/// Sets the size of a file.
pub fn set_size(bytes: &mut [u8], file: usize, size: u64) {
    bytes[inode_at(file) + 8..][..8].copy_from_slice(&size.to_le_bytes());
}

/// Sets the link count of a file.
pub fn set_nlink(bytes: &mut [u8], file: usize, nlink: u32) {
    bytes[inode_at(file) + 44..][..4].copy_from_slice(&nlink.to_le_bytes());
}

/// Makes the chunks of a file consist of 2^`bits` blocks.
pub fn set_chunk_bits(bytes: &mut [u8], file: usize, bits: u8) {
    bytes[inode_at(file) + 16] = bits;
}

/// A directory with `.`, `..` and these names of one file, which ascend, in as many blocks as they need.
pub fn multi_block_directory(names: impl Iterator<Item = String>, file: usize) -> File {
    let mut names = [".".into(), "..".into()].into_iter().chain(names).peekable();
    let mut contents: Vec<u8> = Vec::new();
    while names.peek().is_some() {
        let mut block: Vec<String> = Vec::new();
        let mut len = 0;
        while let Some(name) = names.next_if(|name| len + 12 + name.len() <= BLOCK) {
            len += 12 + name.len();
            block.push(name);
        }
        let entry = |name: &'_ String| match name.as_str() {
            "." | ".." => (0, DIRECTORY),
            _ => (file, REGULAR),
        };
        let entries: Vec<_> =
            block.iter().map(|name| (name.as_str(), entry(name).0, entry(name).1)).collect();
        contents.resize(contents.len().next_multiple_of(BLOCK), 0);
        contents.extend(File::directory(2, &entries).contents.unwrap_or_default());
    }
    File::of(0o040_755, 2, contents)
}

/// An image whose root, an empty directory, lies in a metabox. These are the records of the metabox's index: position, and
/// stored bytes from block 2 on. Without records the metabox is plain.
pub fn metabox_image(size: u64, records: &[(u64, u32)]) -> Vec<u8> {
    let mut bytes = image(&[File::hole(0o040_755, 0), File::hole(0o100_644, size), unused(), unused()]);
    // The bytes of the metabox: the root again.
    let root = bytes[inode_at(0)..][..64].to_vec();
    bytes.resize(3 * BLOCK, 0);
    bytes[2 * BLOCK..][..64].copy_from_slice(&root);
    let metabox = inode_at(1);
    bytes[metabox + 16..][..4].copy_from_slice(&2u32.to_le_bytes());
    if !records.is_empty() {
        bytes[metabox] = 1 | 1 << 1;
        // Records of 32 bytes, which begin at a multiple of that.
        let (header, array) = (metabox + 64, (metabox + 72).next_multiple_of(32));
        bytes[header..][..8].copy_from_slice(&(records.len() as u64 | 7 << 32).to_le_bytes());
        for (n, (start, stored)) in records.iter().enumerate() {
            let record = [*stored, 2 * BLOCK as u32, 0, *start as u32, (*start >> 32) as u32];
            for (field, value) in record.iter().enumerate() {
                bytes[array + n * 32 + field * 4..][..4].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    let superblock = &mut bytes[1024..];
    // A slot behind the superblock has the metabox; 48-bit addresses, the metabox and chunks are used.
    superblock[13] = 1;
    superblock[0x24..][..4].copy_from_slice(&3u32.to_le_bytes());
    superblock[0x50..][..4].copy_from_slice(&(0x80u32 | 0x100).to_le_bytes());
    superblock[0x70..][..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    superblock[128..][..8].copy_from_slice(&nid(1).to_le_bytes());
    bytes
}

/// A directory whose chunks are 20000 times the same block.
pub fn repeated_block(block: &[u8]) -> Vec<u8> {
    const BLOCKS: usize = 20_000;
    let mut files = vec![File::hole(0o040_755, (BLOCKS * BLOCK) as u64)];
    files.extend((0..unused_after(BLOCKS * 4)).map(|_| unused()));
    files.push(File::regular(block));
    let mut bytes = image(&files);
    let last = (bytes.len() / BLOCK - 1) as u32;
    put_chunks(&mut bytes, 0, &last.to_le_bytes().repeat(BLOCKS));
    bytes
}

/// A block whose entries have all the same name, at the end of the block.
pub fn block_of_names(name: &[u8]) -> Vec<u8> {
    let count = (BLOCK - name.len()) / (12 + name.len());
    let mut block = vec![0; BLOCK];
    for n in 0..count {
        let at = count * 12 + n * name.len();
        block[n * 12 + 8..][..2].copy_from_slice(&(at as u16).to_le_bytes());
        block[n * 12 + 10] = REGULAR;
        block[at..][..name.len()].copy_from_slice(name);
    }
    block
}
