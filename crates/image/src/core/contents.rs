//! Reading the contents of files into a caller's buffer.
//!
//! Uncompressed bytes are read from the medium straight into the caller's buffer, compressed ones through
//! [`Clusters`](crate::clusters::Clusters), and fragments through the packed file.

use super::{Contents, Core};
use crate::clusters::{ClusterExtent, ReadRange};
use crate::read::bytes::advance;
use crate::read::inode::Layout;
use crate::read::{Bytes, Cluster, Cursor, Extent, FileKind, Mapping, SliceBytes};
use crate::work::WorkLimit;
use crate::{Address, ImageError, Result, Space};

/// A file that is read within a limit of work.
#[derive(Clone, Copy)]
pub(crate) struct FileReader<'a> {
    pub(crate) core: &'a Core,
    pub(crate) contents: &'a Contents,
    pub(crate) work: &'a WorkLimit,
}

impl FileReader<'_> {
    /// Fills `dst` with the contents at `offset`; the range must end inside the file. `more_follows`: the reader will
    /// probably read on from its end.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8], more_follows: bool) -> Result<()> {
        self.read_with_scratch(ReadRange { from: offset, len_bytes: dst.len(), more_follows }, dst)
    }

    /// Fills the beginning of `dst` with a range that ends inside the file. The rest of `dst` is scratch.
    pub(crate) fn read_with_scratch(&self, range: ReadRange, dst: &mut [u8]) -> Result<()> {
        let (mut done, mut cursor) = (0, Cursor::default());
        while done < range.len_bytes {
            let at = range.from + done as u64;
            let extent = self.extent_near(at, &mut cursor)?;
            let (within, left) = (at - extent.start, extent.end() - at);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(range.len_bytes - done);
            // The buffer after these `len` bytes is scratch for decoding in place: later extents fill it.
            let here = ReadRange { from: within, len_bytes: len, ..range };
            self.read_extent(&extent, here, &mut dst[done..])?;
            done += len;
        }
        Ok(())
    }

    fn read_extent(&self, extent: &Extent, range: ReadRange, dst: &mut [u8]) -> Result<()> {
        let here = &mut dst[..range.len_bytes];
        match extent.mapping {
            Mapping::Hole => here.fill(0),
            Mapping::Plain(at) => self.read_plain(extent, advance(at, range.from)?, here)?,
            Mapping::Interlaced { at, len_bytes } => {
                self.core.read_rotated(extent.start + range.from, at, u64::from(len_bytes), here)?;
            }
            Mapping::Compressed(cluster) => {
                self.work.cluster(cluster.len_bytes)?;
                self.core.read_cluster(extent, cluster, range, dst)?;
            }
            Mapping::Fragment { offset } => self.read_fragment(offset, range, dst)?,
        }
        Ok(())
    }

    /// Reads a fragment, which begins at byte `offset` of the packed file.
    fn read_fragment(&self, offset: u64, range: ReadRange, dst: &mut [u8]) -> Result<()> {
        let inode = &self.contents.inode;
        let packed = self.core.packed_for(inode)?;
        let start = offset.checked_add(range.from);
        let end = start.and_then(|start| start.checked_add(range.len_bytes as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= packed.inode.size => {
                let packed = FileReader { contents: packed, ..*self };
                packed.read_with_scratch(ReadRange { from: start, ..range }, dst)
            }
            _ => Err(ImageError::corrupt(inode.address, "a fragment past the end of the packed file")),
        }
    }

    /// Reads uncompressed bytes. Directories, links and tails lie among metadata, so they are read through the
    /// metadata cache.
    fn read_plain(&self, extent: &Extent, at: Address, here: &mut [u8]) -> Result<()> {
        let (core, inode) = (self.core, &self.contents.inode);
        let is_tail = matches!(inode.layout, Layout::Inline { .. })
            && extent.end() == inode.size
            && extent.len_bytes < u64::from(core.superblock.block_bytes());
        let own = at.space != Space::Metabox && core.source.is_own(at);
        if at.space == Space::Metabox || (own && (is_tail || inode.kind != FileKind::Regular)) {
            return core.read_at(at, here);
        }
        core.clusters.decoding.counters.plain_bytes.add(here.len() as u64);
        core.source.read_at(at, here)
    }
}

impl Core {
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
                self.clusters.read(
                    &SliceBytes { at: cluster.at, bytes: &stored },
                    &cluster_extent,
                    range,
                    dst,
                )
            }
        }
    }
}
