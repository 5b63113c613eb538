//! Reading the contents of files into a caller's buffer.
//!
//! Uncompressed bytes are read from the medium straight into the caller's buffer, compressed ones through
//! [`Clusters`](crate::clusters::Clusters), and fragments through the packed file.

use super::{Contents, Core};
use crate::clusters::{ClusterExtent, ReadRange};
use crate::read::bytes::advance;
use crate::read::inode::{Inode, Layout};
use crate::read::{Bytes, Cluster, Cursor, Extent, FileKind, Mapping};
use crate::work::WorkLimit;
use crate::{Address, ImageError, Result, Space};

impl Core {
    /// Fills `dst` with the contents at `offset`; the range must end inside the file. `more_follows`: the reader will
    /// probably read on from its end.
    pub(crate) fn read(
        &self,
        contents: &Contents,
        offset: u64,
        dst: &mut [u8],
        more_follows: bool,
        work: &WorkLimit,
    ) -> Result<()> {
        let range = ReadRange { from: offset, len_bytes: dst.len(), more_follows };
        self.read_with_scratch(contents, range, dst, work)
    }

    /// Fills the beginning of `dst` with a range that ends inside the file. The rest of `dst` is scratch.
    pub(crate) fn read_with_scratch(
        &self,
        contents: &Contents,
        range: ReadRange,
        dst: &mut [u8],
        work: &WorkLimit,
    ) -> Result<()> {
        let (mut done, mut cursor) = (0, Cursor::default());
        while done < range.len_bytes {
            let at = range.from + done as u64;
            let extent = self.extent_near(contents, at, &mut cursor, work)?;
            let (within, left) = (at - extent.start, extent.end() - at);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(range.len_bytes - done);
            // The buffer after these `len` bytes is scratch for decoding in place: later extents fill it.
            let here = ReadRange { from: within, len_bytes: len, ..range };
            self.read_extent(contents, &extent, here, &mut dst[done..], work)?;
            done += len;
        }
        Ok(())
    }

    fn read_extent(
        &self,
        contents: &Contents,
        extent: &Extent,
        range: ReadRange,
        dst: &mut [u8],
        work: &WorkLimit,
    ) -> Result<()> {
        let here = &mut dst[..range.len_bytes];
        match extent.mapping {
            Mapping::Hole => here.fill(0),
            Mapping::Plain(at) => self.read_plain(contents, extent, advance(at, range.from)?, here)?,
            Mapping::Interlaced { at, len_bytes } => {
                self.read_rotated(extent.start + range.from, at, u64::from(len_bytes), here)?;
            }
            Mapping::Compressed(cluster) => {
                work.cluster(cluster.len_bytes)?;
                self.read_cluster(extent, cluster, range, dst)?;
            }
            Mapping::Fragment { offset } => self.read_fragment(&contents.inode, offset, range, dst, work)?,
        }
        Ok(())
    }

    /// Reads a fragment, which begins at byte `offset` of the packed file.
    fn read_fragment(
        &self,
        inode: &Inode,
        offset: u64,
        range: ReadRange,
        dst: &mut [u8],
        work: &WorkLimit,
    ) -> Result<()> {
        let packed = self.packed_for(inode)?;
        let start = offset.checked_add(range.from);
        let end = start.and_then(|start| start.checked_add(range.len_bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= packed.inode.size => {
                self.read_with_scratch(packed, ReadRange { from: start, ..range }, dst, work)
            }
            _ => Err(ImageError::corrupt(inode.address, "a fragment past the end of the packed file")),
        }
    }

    /// Reads uncompressed bytes. Directories, links and tails lie among metadata, so they are read through the
    /// metadata cache.
    fn read_plain(&self, contents: &Contents, extent: &Extent, at: Address, here: &mut [u8]) -> Result<()> {
        let inode = &contents.inode;
        let is_tail = matches!(inode.layout, Layout::Inline { .. })
            && extent.end() == inode.size
            && extent.len_bytes < u64::from(self.superblock.block_bytes());
        let own = at.space != Space::Metabox && self.source.is_own(at);
        if at.space == Space::Metabox || (own && (is_tail || inode.kind != FileKind::Regular)) {
            return self.read_at(at, here);
        }
        self.clusters.decoding.counters.plain_bytes.add(here.len() as u64);
        self.source.read_at(at, here)
    }

    /// Reads interlaced blocks: the byte at position `p` of the file is stored at `p` modulo the length of the blocks.
    fn read_rotated(
        &self,
        mut position: u64,
        at: Address,
        len_bytes: u64,
        mut here: &mut [u8],
    ) -> Result<()> {
        while !here.is_empty() {
            let within = position % len_bytes;
            let len = here.len().min((len_bytes - within) as usize);
            let (now, rest) = here.split_at_mut(len);
            self.clusters.decoding.counters.plain_bytes.add(len as u64);
            match at.space {
                Space::Metabox => self.read_at(advance(at, within)?, now)?,
                Space::Device(_) => self.source.read_at(advance(at, within)?, now)?,
            }
            (here, position) = (rest, position + len as u64);
        }
        Ok(())
    }

    fn read_cluster(
        &self,
        extent: &Extent,
        cluster: Cluster,
        range: ReadRange,
        dst: &mut [u8],
    ) -> Result<()> {
        let cluster_extent = ClusterExtent { cluster, decoded_bytes: extent.len_bytes };
        match cluster.at.space {
            Space::Device(_) => self.clusters.read(&*self.source, &cluster_extent, range, dst),
            Space::Metabox => {
                // An inline cluster of a block at most. It is read before it is decoded, because reading the metabox
                // may wait for a grant, and decoding holds one.
                let mut stored = vec![0; cluster.len_bytes as usize];
                self.read_at(cluster.at, &mut stored)?;
                self.clusters.read(&Stored { at: cluster.at, bytes: &stored }, &cluster_extent, range, dst)
            }
        }
    }
}

/// Stored bytes that have been read into memory, as a source for decoding.
struct Stored<'a> {
    at: Address,
    bytes: &'a [u8],
}

impl Bytes for Stored<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<()> {
        let start = at.offset.checked_sub(self.at.offset).and_then(|start| usize::try_from(start).ok());
        let found = start.and_then(|start| self.bytes.get(start..start.checked_add(buf.len())?));
        match found {
            Some(found) => {
                buf.copy_from_slice(found);
                Ok(())
            }
            None => {
                let end = self.at.offset + self.bytes.len() as u64;
                Err(ImageError::Truncated { at, len_bytes: buf.len() as u64, end })
            }
        }
    }
}
