//! A minimal, unchecked parser of images, sufficient for finding their indexes.

use pagefold_image::read::{IndexForm, ZContext};
use pagefold_image::{Address, Nid};

pub struct Image {
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
pub struct Inode {
    pub nid: u64,
    pub layout: u16,
    pub mode: u16,
    pub size: u64,
    pub block: u32,
    /// The first byte after the inode and its attributes.
    pub tail: u64,
}

impl Inode {
    pub fn form(&self) -> Option<IndexForm> {
        match self.layout {
            1 => Some(IndexForm::Full),
            3 => Some(IndexForm::Compact),
            _ => None,
        }
    }
}

impl Image {
    pub fn number(&self, at: u64, len: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&self.data[at as usize..][..len]);
        u64::from_le_bytes(bytes)
    }

    pub fn block_bits(&self) -> u8 {
        self.data[1024 + 12]
    }

    pub fn packed_nid(&self) -> u64 {
        self.number(1024 + 0x60, 8)
    }

    pub fn context(&self, nid: u64) -> ZContext {
        let incompat = self.number(1024 + 0x50, 4);
        let (mut algorithms, mut max_cluster_bytes) = (1, 1 << 20);
        if incompat & 2 != 0 {
            algorithms = self.number(1024 + 0x54, 2) as u16;
            if algorithms & 1 != 0 {
                let config = 1024 + 128 + 16 * u64::from(self.data[1024 + 13]);
                max_cluster_bytes = (self.number(config + 4, 2).max(1) << self.block_bits()) as u32;
            }
        }
        ZContext {
            block_bits: self.block_bits(),
            zero_padding: incompat & 1 != 0,
            extent_records: incompat & 0x80 != 0,
            fragments: incompat & 0x20 != 0 && self.packed_nid() != 0 && self.packed_nid() != nid,
            algorithms,
            max_cluster_bytes,
            nid_for_errors: Nid(nid),
        }
    }

    pub fn inode(&self, nid: u64) -> Inode {
        let at = (self.number(1024 + 0x28, 4) << self.block_bits()) + 32 * nid;
        let format = self.number(at, 2) as u16;
        let (len, size_len) = if format & 1 == 0 { (32, 4) } else { (64, 8) };
        let xattrs = self.number(at + 2, 2);
        let xattr_bytes = if xattrs == 0 { 0 } else { 12 + 4 * (xattrs - 1) };
        Inode {
            nid,
            layout: format >> 1 & 7,
            mode: self.number(at + 4, 2) as u16,
            size: self.number(at + 8, size_len),
            block: self.number(at + 16, 4) as u32,
            tail: at + len + xattr_bytes,
        }
    }

    /// The contents of an uncompressed inode (layout 0 or 2).
    pub fn flat(&self, inode: &Inode) -> Vec<u8> {
        let mut blocks_bytes = inode.size;
        if inode.layout == 2 {
            blocks_bytes &= u64::MAX << self.block_bits();
        }
        let from = (u64::from(inode.block) << self.block_bits()) as usize;
        let mut data = Vec::new();
        if blocks_bytes > 0 {
            data.extend_from_slice(&self.data[from..][..blocks_bytes as usize]);
        }
        data.extend_from_slice(&self.data[inode.tail as usize..][..(inode.size - blocks_bytes) as usize]);
        data
    }

    /// Every path with its inode; the packed file has the path `None`.
    pub fn inodes(&self) -> Vec<(Option<String>, Inode)> {
        let mut found = Vec::new();
        if self.packed_nid() != 0 {
            found.push((None, self.inode(self.packed_nid())));
        }
        let mut todo = vec![(String::new(), self.number(1024 + 14, 2))];
        while let Some((path, nid)) = todo.pop() {
            let inode = self.inode(nid);
            if inode.mode & 0o170000 == 0o040000 {
                for (name, child) in self.entries(&inode) {
                    todo.push((format!("{path}/{name}"), child));
                }
            }
            found.push((Some(path), inode));
        }
        found
    }

    fn entries(&self, inode: &Inode) -> Vec<(String, u64)> {
        let mut entries = Vec::new();
        for block in self.flat(inode).chunks(1 << self.block_bits()) {
            let count = u16::from_le_bytes([block[8], block[9]]) as usize / 12;
            let name_at = |i: usize| u16::from_le_bytes([block[12 * i + 8], block[12 * i + 9]]) as usize;
            for i in 0..count {
                let end = if i + 1 < count { name_at(i + 1) } else { block.len() };
                let name = block[name_at(i)..end].split(|&b| b == 0).next().unwrap();
                let name = String::from_utf8_lossy(name).into_owned();
                if name != "." && name != ".." {
                    entries.push((name, u64::from_le_bytes(block[12 * i..][..8].try_into().unwrap())));
                }
            }
        }
        entries
    }
}

impl Inode {
    pub fn tail_address(&self) -> Address {
        Address::image(self.tail)
    }
}
