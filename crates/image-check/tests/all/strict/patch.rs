//! An image to damage: its bytes, and where its structures are.

use crate::support::features::{feature, features, memory, source, tree};
use crate::support::{manifest, reference_image};
use pagefold_image::backing::ByteSource;
use pagefold_image::read::{FileKind, Inode, Layout, Mapping};
use pagefold_image::{Address, Image, Node, Options, Space};
use std::sync::Arc;

/// First byte of the superblock.
pub const SUPERBLOCK: usize = 1024;

/// A copy of a feature image, or of a reference image.
#[derive(Clone)]
pub struct Patch {
    pub bytes: Vec<u8>,
    devices: Vec<Vec<u8>>,
    paths: Vec<String>,
    pub block_bytes: usize,
}

impl Patch {
    pub fn new(name: &str) -> Self {
        let is_feature = features().iter().any(|feature| feature.name == name);
        let (bytes, devices, tree) = match is_feature {
            true => (feature(name).bytes.clone(), feature(name).devices.clone(), tree()),
            false => (std::fs::read(reference_image(name)).unwrap(), Vec::new(), manifest()),
        };
        let block_bytes = 1 << bytes[SUPERBLOCK + 12];
        let paths = tree.into_iter().map(|entry| entry.path).collect();
        Patch { bytes, devices, paths, block_bytes }
    }

    /// The image as a medium, with the right checksum.
    pub fn medium(&self) -> Arc<dyn ByteSource> {
        let len =
            if self.block_bytes > SUPERBLOCK { self.block_bytes - SUPERBLOCK } else { self.block_bytes };
        let mut bytes = self.bytes.clone();
        let field = SUPERBLOCK + 4..SUPERBLOCK + 8;
        bytes[field.clone()].fill(0);
        let sum = !crc32c::crc32c(&bytes[SUPERBLOCK..SUPERBLOCK + len]);
        bytes[field].copy_from_slice(&sum.to_le_bytes());
        memory(&bytes)
    }

    /// Appends blocks of zeroes, and returns the number of the first.
    pub fn append_blocks(&mut self, count: usize) -> u32 {
        let first = self.get32(SUPERBLOCK + 0x24);
        self.bytes.resize(first as usize * self.block_bytes, 0);
        self.bytes.resize((first as usize + count) * self.block_bytes, 0);
        self.put32(SUPERBLOCK + 0x24, first + count as u32);
        first
    }

    pub fn options(&self, options: Options) -> Options {
        Options { devices: self.devices.iter().map(|bytes| source(bytes)).collect(), ..options }
    }

    fn open(&self) -> Image {
        Image::open(self.medium(), self.options(Options::default())).unwrap()
    }

    /// The first file whose node is right.
    pub fn find(&self, mut is_right: impl FnMut(&Node) -> bool) -> Node {
        let image = self.open();
        let mut nodes = self.paths.iter().map(|path| image.find(path.as_bytes()).unwrap());
        nodes.find(|node| is_right(node)).unwrap()
    }

    /// The first regular file with one link of that layout.
    pub fn file(&self, mut is_right: impl FnMut(&Inode) -> bool) -> Inode {
        let is_file = |node: &Node| node.kind() == FileKind::Regular && node.inode().nlink == 1;
        self.find(|node| is_file(node) && is_right(node.inode())).inode().clone()
    }

    /// The offset in the image of the first cluster of more than `min_bytes` of some file.
    pub fn cluster(&self, min_bytes: u32) -> usize {
        let image = self.open();
        for path in &self.paths {
            let node = image.find(path.as_bytes()).unwrap();
            for extent in node.extents().flatten() {
                if let Mapping::Compressed(cluster) = extent.mapping
                    && cluster.len_bytes > min_bytes
                    && cluster.zero_padded
                {
                    return offset(cluster.at);
                }
            }
        }
        panic!("no such cluster in the image");
    }

    /// Offsets of the superblock, of inodes, attributes, tails, and of the first bytes of contents.
    pub fn places(&self) -> Vec<usize> {
        let image = self.open();
        let mut places = vec![SUPERBLOCK, SUPERBLOCK + 64, SUPERBLOCK + 128];
        let internal = [image.superblock().packed_nid, image.superblock().metabox_nid];
        let internal = internal.into_iter().flatten().map(|nid| image.node(nid).unwrap());
        let named = self.paths.iter().map(|path| image.find(path.as_bytes()).unwrap());
        for node in internal.chain(named) {
            let inode = node.inode();
            let first = node.extent_at(0).unwrap().map(|extent| match extent.mapping {
                Mapping::Plain(at) => at,
                Mapping::Compressed(cluster) => cluster.at,
                _ => inode.tail,
            });
            let all = [Some(inode.address), inode.xattr_address(), Some(inode.tail), first];
            let own = all.into_iter().flatten().filter(|at| at.space == Space::Device(0));
            places.extend(own.map(offset));
        }
        places
    }

    pub fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes[at..at + 2].try_into().unwrap())
    }

    pub fn get32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    /// Sets or clears bits of a byte of the superblock.
    pub fn superblock_bits(&mut self, field: usize, set: u8, clear: u8) {
        let byte = &mut self.bytes[SUPERBLOCK + field];
        *byte = (*byte & !clear) | set;
    }
}

/// The offset of an address in the image itself.
pub fn offset(at: Address) -> usize {
    assert_eq!(at.space, Space::Device(0));
    at.offset as usize
}

/// Whether contents are in consecutive whole blocks, and there are some.
pub fn is_plain(inode: &Inode) -> bool {
    matches!(inode.layout, Layout::Plain { start: Some(_) }) && inode.size > 0
}

/// Whether the file is compressed, and has an index.
pub fn is_compressed(inode: &Inode) -> bool {
    matches!(inode.layout, Layout::CompressedFull | Layout::CompressedCompact)
}
