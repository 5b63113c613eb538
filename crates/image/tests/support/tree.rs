//! A simple reader of an image in memory, without compressed contents: walks the tree by reading every block of every
//! directory.

use pagefold_image::read::dir::Directory;
use pagefold_image::read::xattr::{Prefixes, Xattrs};
use pagefold_image::read::{Bytes, Extent, FileKind, Inode, Layout, Mapping, Superblock, chunk, flat};
use pagefold_image::{Address, ImageError, Nid, Space};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// All devices of an image, in memory.
pub struct Devices(Vec<Vec<u8>>);

impl Bytes for Devices {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        let device = match at.space {
            Space::Device(number) => self.0.get(usize::from(number)).map_or(&[][..], Vec::as_slice),
            Space::Metabox => &[],
        };
        let start = usize::try_from(at.offset).unwrap_or(usize::MAX);
        match device.get(start..start.saturating_add(buf.len())) {
            Some(found) => buf.copy_from_slice(found),
            None => {
                let (len_bytes, end) = (buf.len() as u64, device.len() as u64);
                return Err(ImageError::Truncated { at, len_bytes, end });
            }
        }
        Ok(())
    }
}

/// An open image.
pub struct Image {
    pub bytes: Devices,
    pub sb: Superblock,
    pub prefixes: Prefixes,
}

/// A file of an image.
pub struct Node {
    pub inode: Inode,
    /// Contents, unless they are compressed.
    pub data: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Image {
    /// The image at `path`, and further devices.
    pub fn open(path: &Path, further: &[&Path]) -> Self {
        let devices = std::iter::once(&path).chain(further).map(|path| fs::read(path).unwrap()).collect();
        let bytes = Devices(devices);
        let sb = Superblock::read(&bytes).unwrap();
        let prefixes = Prefixes::read_from(&bytes, &sb.prefixes).unwrap();
        Image { bytes, sb, prefixes }
    }

    pub fn inode(&self, nid: Nid) -> Inode {
        Inode::read(&self.bytes, &self.sb, nid).unwrap()
    }

    /// The extent of a byte; `None` if the file is compressed.
    fn extent_at(&self, inode: &Inode, offset: u64) -> Option<Extent> {
        match inode.layout {
            Layout::Plain { .. } | Layout::Inline { .. } => {
                Some(flat::extent_at(&self.bytes, &self.sb, inode, offset).unwrap())
            }
            Layout::Chunks { .. } => Some(chunk::extent_at(&self.bytes, &self.sb, inode, offset).unwrap()),
            Layout::CompressedFull | Layout::CompressedCompact => None,
        }
    }

    /// A file's contents, unless they are compressed.
    pub fn data(&self, inode: &Inode) -> Option<Vec<u8>> {
        let mut data = vec![0; inode.size as usize];
        let mut offset = 0;
        while offset < inode.size {
            let extent = self.extent_at(inode, offset)?;
            assert!(extent.len_bytes > 0 && extent.start <= offset && extent.end() > offset, "{extent:?}");
            assert!(extent.end() <= inode.size, "{extent:?}");
            match extent.mapping {
                Mapping::Hole => {}
                Mapping::Plain(at) => {
                    let range = extent.start as usize..extent.end() as usize;
                    self.bytes.read_at(at, &mut data[range]).unwrap();
                }
                other => panic!("{other:?} in a flat file"),
            }
            offset = extent.end();
        }
        Some(data)
    }

    /// Opens directory `nid`, and reads its contents.
    pub fn directory(&self, nid: Nid) -> (Directory, Vec<u8>) {
        let inode = self.inode(nid);
        (Directory::of(&self.sb, &inode).unwrap(), self.data(&inode).unwrap())
    }

    /// All files by their paths.
    pub fn walk(&self) -> BTreeMap<Vec<u8>, Node> {
        let mut found = BTreeMap::new();
        let mut stack = vec![(b"/".to_vec(), self.sb.root_nid)];
        while let Some((path, nid)) = stack.pop() {
            let inode = self.inode(nid);
            if inode.kind == FileKind::Directory {
                self.push_entries(&path, nid, &mut stack);
            }
            let listed = Xattrs::open(&self.bytes, &self.sb, &self.prefixes, &inode).unwrap().list().unwrap();
            let xattrs = listed.into_iter().map(|xattr| (xattr.name, xattr.value)).collect();
            let node = Node { data: self.data(&inode), inode, xattrs };
            assert!(found.insert(path, node).is_none());
        }
        found
    }

    fn push_entries(&self, path: &[u8], nid: Nid, stack: &mut Vec<(Vec<u8>, Nid)>) {
        let (directory, data) = self.directory(nid);
        let mut previous = Vec::new();
        let mut block = Vec::new();
        for number in 0..directory.blocks() {
            let mut read = block_of(&data, self.sb.block_bits);
            for entry in directory.read_block(number, &mut block, &mut read).unwrap().entries() {
                let entry = entry.unwrap();
                assert!(previous.as_slice() < entry.name, "{:?}", String::from_utf8_lossy(entry.name));
                previous = entry.name.to_vec();
                let kind = self.inode(entry.nid).kind;
                assert_eq!(entry.kind, Some(kind));
                if entry.name != b"." && entry.name != b".." {
                    let slash: &[u8] = if path == b"/" { b"" } else { b"/" };
                    stack.push(([path, slash, entry.name].concat(), entry.nid));
                }
            }
        }
    }
}

/// Returns a closure that reads blocks of a directory with the contents `data`.
pub fn block_of(data: &[u8], block_bits: u8) -> impl FnMut(u64, &mut [u8]) -> Result<(), ImageError> {
    move |number, buf| {
        let start = (number << block_bits) as usize;
        buf.copy_from_slice(&data[start..start + buf.len()]);
        Ok(())
    }
}
