//! A file, directory or anything else of an image.

use crate::clusters::{Part, Unit};
use crate::core::Contents;
use crate::image::Image;
use crate::read::dir::{Directory, Entry};
use crate::read::inode::Inode;
use crate::read::xattr::{self, Xattr};
use crate::read::{Cursor, Extent, FileKind, Place};
use crate::{ImageError, Nid, Space};
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

/// Positions in a directory: the number of the block, and in this many low bits the index of the entry in it. A block of 64 KiB
/// has 5461 entries at most.
const INDEX_BITS: u32 = 13;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;

/// The longest target that a symbolic link may have, bytes.
pub const MAX_LINK_BYTES: u64 = 4095;

/// An inode of an image. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Node {
    image: Image,
    contents: Contents,
}

impl Node {
    pub(crate) fn open(image: &Image, nid: Nid) -> Result<Self, ImageError> {
        let core = &image.0.core;
        let inode = Inode::read(core, &core.superblock, nid)?;
        let contents = core.contents(inode)?;
        Ok(Node { image: image.clone(), contents })
    }

    /// The image that it is in.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Everything that the inode says: kind, mode, owner, times, layout.
    pub fn inode(&self) -> &Inode {
        &self.contents.inode
    }

    /// Its number.
    pub fn nid(&self) -> Nid {
        self.contents.inode.nid
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.contents.inode.kind
    }

    /// The length of its contents, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.contents.inode.size
    }

    /// Fills `buf` with the contents from `offset` on, and returns how many bytes that were: fewer than `buf` has only at the
    /// end of the file. What `buf` has behind them is undefined then.
    ///
    /// Waits for memory if the budget is spent. A part that cannot be read fails the whole read.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, ImageError> {
        self.read_with_room(offset, buf.len(), buf)
    }

    /// As [`Node::read_at`], for the first `len` bytes of `buf`; the rest is room for decoding in place.
    pub(crate) fn read_with_room(
        &self,
        offset: u64,
        len: usize,
        buf: &mut [u8],
    ) -> Result<usize, ImageError> {
        let left = self.len_bytes().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return Ok(0);
        }
        if !self.kind().has_contents() {
            return Err(ImageError::NoContents { nid: self.nid(), kind: self.kind().name() });
        }
        let (begun, core) = (Instant::now(), &self.image.0.core);
        let seen = self.image.0.streams.see(self.nid(), offset..offset + len as u64, self.len_bytes());
        self.read_ahead(seen.ahead);
        let counters = &core.clusters.counters;
        counters.reads.add(1);
        let part = Part { from: offset, len_bytes: len, more_follows: seen.more_follows };
        let read = core.read_with_room(&self.contents, part, buf);
        core.clusters.latency.record(begun.elapsed());
        match read {
            Ok(()) => counters.asked_bytes.add(len as u64),
            Err(_) => counters.errors.add(1),
        }
        read.map(|()| len)
    }

    /// Queues the clusters of a range that a reader in order will come to. What is wrong with them he will be told then.
    fn read_ahead(&self, range: Range<u64>) {
        let (Some(ahead), core) = (&self.image.0.ahead, &self.image.0.core) else { return };
        let (mut at, mut cursor) = (range.start, Cursor::default());
        while at < range.end {
            let Ok(extent) = core.extent_near(&self.contents, at, &mut cursor) else { return };
            at = extent.end();
            let Place::Compressed(cluster) = extent.place else { continue };
            let unit = Unit { cluster, decoded_bytes: extent.len_bytes };
            if cluster.at.space != Space::Metabox && !ahead.push(unit) {
                core.clusters.counters.readahead_dropped.add(1);
            }
        }
    }

    /// Where byte `offset` lies: the extent that holds it. `None` at or behind the end.
    pub fn extent_at(&self, offset: u64) -> Result<Option<Extent>, ImageError> {
        match self.kind().has_contents() && offset < self.len_bytes() {
            true => self.image.0.core.extent_at(&self.contents, offset).map(Some),
            false => Ok(None),
        }
    }

    /// The extents of a file, from its beginning to its end; none if it has no contents. Ends after an error.
    ///
    /// One after the other costs less than asking for each with [`Node::extent_at`]: some indexes have to be summed up
    /// from their beginning.
    pub fn extents(&self) -> Extents<'_> {
        let end = if self.kind().has_contents() { self.len_bytes() } else { 0 };
        Extents { node: self, at: 0, end, cursor: Cursor::default() }
    }

    /// The target of a symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>, ImageError> {
        if self.kind() != FileKind::Symlink {
            return Err(ImageError::NoContents { nid: self.nid(), kind: self.kind().name() });
        }
        if self.len_bytes() > MAX_LINK_BYTES {
            let what = format!("a symbolic link of {} bytes", self.len_bytes());
            return Err(ImageError::corrupt(self.contents.inode.address, what));
        }
        let mut target = vec![0; self.len_bytes() as usize];
        self.image.0.core.read(&self.contents, 0, &mut target, false)?;
        Ok(target)
    }

    /// The entry of this name in a directory.
    pub fn lookup(&self, name: &[u8]) -> Result<Node, ImageError> {
        match self.lookup_nid(name)? {
            Some(nid) => self.image.node(nid),
            None => Err(ImageError::NotFound { name: name.to_vec() }),
        }
    }

    /// The number of the inode of this name in a directory.
    pub(crate) fn lookup_nid(&self, name: &[u8]) -> Result<Option<Nid>, ImageError> {
        let directory = Directory::of(self.image.superblock(), self.inode())?;
        let found =
            directory.lookup(name, &mut Vec::new(), &mut |number, block| self.read_block(number, block))?;
        Ok(found.map(|found| found.nid))
    }

    /// Hands the entries of a directory from `position` on (0: all) to `visit`, as they lie there, `.` and `..` among
    /// them, until it breaks. With each comes the position behind it.
    ///
    /// An entry that is broken comes as an error, and the others follow. A block that is broken ends the walk with an error;
    /// what was before it has been handed over.
    pub fn visit_entries(
        &self,
        position: u64,
        mut visit: impl FnMut(u64, Result<Entry<'_>, ImageError>) -> ControlFlow<()>,
    ) -> Result<(), ImageError> {
        let directory = Directory::of(self.image.superblock(), self.inode())?;
        let (first_block, mut index) = (position >> INDEX_BITS, (position & INDEX_MASK) as usize);
        let mut buffer = Vec::new();
        for number in first_block..directory.blocks() {
            let mut read = |number, block: &mut [u8]| self.read_block(number, block);
            let block = directory.read_block(number, &mut buffer, &mut read)?;
            while index < block.count() {
                let next = if index + 1 < block.count() {
                    (number << INDEX_BITS) | (index as u64 + 1)
                } else {
                    (number + 1) << INDEX_BITS
                };
                if visit(next, block.entry(index)).is_break() {
                    return Ok(());
                }
                index += 1;
            }
            index = 0;
        }
        Ok(())
    }

    /// The names in a directory and what they stand for, without `.` and `..`, one block in memory at a time.
    pub fn entries(&self) -> Result<Entries<'_>, ImageError> {
        Directory::of(self.image.superblock(), self.inode())?;
        Ok(Entries { node: self, position: Some(0), ready: VecDeque::new() })
    }

    /// Fills `block` with the directory's block `number`, which is that long.
    pub(crate) fn read_block(&self, number: u64, block: &mut [u8]) -> Result<(), ImageError> {
        let start = number * u64::from(self.image.superblock().block_bytes());
        self.image.0.core.read(&self.contents, start, block, true)
    }

    /// All extended attributes.
    pub fn xattrs(&self) -> Result<Vec<Xattr>, ImageError> {
        let core = &self.image.0.core;
        xattr::list(core, &core.superblock, &core.prefixes, &self.contents.inode)
    }

    /// Hands the extended attributes to `visit`, one at a time, each with whether the inode's filter says that there is none of
    /// that name: then a search by name does not find it.
    pub(crate) fn visit_xattrs(&self, visit: impl FnMut(Xattr, bool)) -> Result<(), ImageError> {
        let core = &self.image.0.core;
        xattr::visit_filtered(core, &core.superblock, &core.prefixes, &self.contents.inode, visit)
    }

    /// The names of all extended attributes, in the order of [`Node::xattrs`].
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>, ImageError> {
        let core = &self.image.0.core;
        xattr::names(core, &core.superblock, &core.prefixes, &self.contents.inode)
    }

    /// The value of one extended attribute.
    pub fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>, ImageError> {
        let core = &self.image.0.core;
        xattr::get(core, &core.superblock, &core.prefixes, &self.contents.inode, name)
    }
}

/// An entry of a directory, by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, 1 to 255 bytes without `/` and NUL.
    pub name: Vec<u8>,
    /// The inode.
    pub nid: Nid,
    /// What the entry says that it is; the inode decides.
    pub kind: Option<FileKind>,
}

/// The extents of a file; see [`Node::extents`].
pub struct Extents<'a> {
    node: &'a Node,
    at: u64,
    end: u64,
    cursor: Cursor,
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let core = &self.node.image.0.core;
        let found = core.extent_near(&self.node.contents, self.at, &mut self.cursor);
        self.at = found.as_ref().map_or(self.end, Extent::end);
        Some(found)
    }
}

/// The entries of a directory; see [`Node::entries`]. One that is broken is an error among the others; a block that is broken
/// is an error after which nothing follows.
pub struct Entries<'a> {
    node: &'a Node,
    position: Option<u64>,
    ready: VecDeque<Result<DirEntry, ImageError>>,
}

impl Entries<'_> {
    fn read_block(&mut self, position: u64) -> Result<(), ImageError> {
        let block = position >> INDEX_BITS;
        self.position = None;
        let (ready, next_position) = (&mut self.ready, &mut self.position);
        self.node.visit_entries(position, |next, entry| {
            if !entry.as_ref().is_ok_and(|entry| entry.name == b"." || entry.name == b"..") {
                ready.push_back(entry.map(|entry| DirEntry {
                    name: entry.name.to_vec(),
                    nid: entry.nid,
                    kind: entry.kind,
                }));
            }
            if next >> INDEX_BITS == block {
                return ControlFlow::Continue(());
            }
            *next_position = Some(next);
            ControlFlow::Break(())
        })
    }
}

impl Iterator for Entries<'_> {
    type Item = Result<DirEntry, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                return Some(entry);
            }
            if let Err(error) = self.read_block(self.position?) {
                self.position = None;
                return Some(Err(error));
            }
        }
    }
}
