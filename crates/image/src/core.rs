//! An open image without its threads: metadata through the cache, contents from wherever they lie.
//!
//! Metadata is read in units of [`META_UNIT_BYTES`], kept in the cache; if the budget has no room it is read past it.
//! Contents that are stored as they are go from the medium to the reader without a copy here; compressed
//! ones come by way of [`Clusters`]. Two files of the image's own take part: the packed file, which ends of files are in,
//! and the metabox, which metadata may be in. Neither may refer to itself: the packed file has no fragments, and the
//! metabox lies outside itself, so reading nests twice at most.

use crate::clusters::{Clusters, Key, Part, Piece, Unit};
use crate::read::inode::{Inode, Layout};
use crate::read::superblock::{PrefixPlace, Superblock};
use crate::read::xattr::Prefixes;
use crate::read::zmap::{IndexForm, ZContext, ZMap};
use crate::read::{Bytes, Cluster, Cursor, Extent, FileKind, Place, chunk, flat};
use crate::source::Source;
use crate::{Address, ImageError, Space};
use pagefold_backing::{Budget, Demand};
use std::sync::Arc;

/// Metadata is read and kept in pieces of this many bytes.
const META_UNIT_BYTES: u64 = 16 << 10;

/// An open image.
pub(crate) struct Core {
    pub(crate) source: Arc<Source>,
    pub(crate) superblock: Superblock,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) prefixes: Prefixes,
    metabox: Option<Contents>,
    packed: Option<Contents>,
}

/// A file, ready to be read: its inode, and the header of its index if it is compressed.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    pub(crate) inode: Inode,
    index: Option<ZMap>,
}

impl Bytes for Source {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        Source::read_at(self, at, buf)
    }
}

/// Metadata, through the cache.
impl Bytes for Core {
    fn read_at(&self, mut at: Address, mut buf: &mut [u8]) -> Result<(), ImageError> {
        while !buf.is_empty() {
            let within = at.offset % META_UNIT_BYTES;
            let len = buf.len().min((META_UNIT_BYTES - within) as usize);
            let (here, rest) = buf.split_at_mut(len);
            self.read_unit(Address { offset: at.offset - within, ..at }, within as usize, here)?;
            at = at
                .checked_add(len as u64)
                .ok_or_else(|| ImageError::corrupt(at, "an address beyond all numbers"))?;
            buf = rest;
        }
        Ok(())
    }
}

impl Core {
    /// Opens the two files of the image's own, and reads the names of long attribute prefixes.
    pub(crate) fn new(
        source: Arc<Source>,
        superblock: Superblock,
        clusters: Arc<Clusters>,
    ) -> Result<Self, ImageError> {
        let (metabox_nid, packed_nid) = (superblock.metabox_nid, superblock.packed_nid);
        let prefixes = Prefixes::default();
        let mut core = Core { source, superblock, clusters, prefixes, metabox: None, packed: None };
        let own_file = |core: &Core, nid| {
            let contents = core.contents(Inode::read(core, &core.superblock, nid)?)?;
            match contents.inode.kind {
                FileKind::Regular => Ok(contents),
                _ => Err(ImageError::corrupt(
                    contents.inode.address,
                    "a packed file or metabox that is no regular file",
                )),
            }
        };
        core.metabox = metabox_nid.map(|nid| own_file(&core, nid)).transpose()?;
        core.packed = packed_nid.map(|nid| own_file(&core, nid)).transpose()?;
        core.prefixes = core.read_prefixes()?;
        Ok(core)
    }

    fn read_prefixes(&self) -> Result<Prefixes, ImageError> {
        let table = &self.superblock.prefixes;
        match (table.place, &self.packed) {
            (PrefixPlace::Packed, Some(packed)) => {
                Prefixes::read(table, |offset, buf| match offset.checked_add(buf.len() as u64) {
                    Some(end) if end <= packed.inode.size => self.read(packed, offset, buf, false),
                    _ => Err(ImageError::corrupt(
                        packed.inode.address,
                        "long prefixes past the end of the packed file",
                    )),
                })
            }
            _ => Prefixes::read_from(self, table),
        }
    }

    /// What reading the contents of `inode` takes.
    pub(crate) fn contents(&self, inode: Inode) -> Result<Contents, ImageError> {
        let form = match inode.layout {
            Layout::CompressedFull => IndexForm::Full,
            Layout::CompressedCompact => IndexForm::Compact,
            _ => return Ok(Contents { inode, index: None }),
        };
        if inode.size == 0 {
            return Ok(Contents { inode, index: None });
        }
        let index = ZMap::open(self, &self.index_context(&inode), form, inode.tail, inode.size)?;
        Ok(Contents { inode, index: Some(index) })
    }

    fn index_context(&self, inode: &Inode) -> ZContext {
        let superblock = &self.superblock;
        ZContext {
            block_bits: superblock.block_bits,
            zero_padding: superblock.zero_padding,
            extent_records: superblock.wide_addresses,
            fragments: superblock.packed_nid.is_some_and(|nid| nid != inode.nid),
            algorithms: superblock.algorithms.bits(),
            max_cluster_bytes: superblock.max_lz4_cluster_bytes(),
            nid_for_errors: inode.nid,
        }
    }

    /// The extent that byte `offset` of a file is in; `offset` is less than its size.
    pub(crate) fn extent_at(&self, contents: &Contents, offset: u64) -> Result<Extent, ImageError> {
        self.extent_near(contents, offset, &mut Cursor::default())
    }

    /// The same for who goes through the file from its beginning on: an index of lengths alone is summed up once for all
    /// of the extents that one cursor finds, and not once for each.
    pub(crate) fn extent_near(
        &self,
        contents: &Contents,
        offset: u64,
        cursor: &mut Cursor,
    ) -> Result<Extent, ImageError> {
        let inode = &contents.inode;
        match (&contents.index, inode.layout) {
            (Some(index), _) => index.extent_near(self, offset, cursor),
            (None, Layout::Chunks { .. }) => chunk::extent_at(self, &self.superblock, inode, offset),
            (None, _) => flat::extent_at(self, &self.superblock, inode, offset),
        }
    }

    /// Fills `dst` with what is at `offset`; all of it is inside the file. `more_follows`: the reader goes on from there.
    pub(crate) fn read(
        &self,
        contents: &Contents,
        offset: u64,
        dst: &mut [u8],
        more_follows: bool,
    ) -> Result<(), ImageError> {
        self.read_with_room(contents, Part { from: offset, len_bytes: dst.len(), more_follows }, dst)
    }

    /// Fills the first bytes of `dst` with a part of a file, all of which is inside it. What `dst` has behind them is scratch.
    pub(crate) fn read_with_room(
        &self,
        contents: &Contents,
        part: Part,
        dst: &mut [u8],
    ) -> Result<(), ImageError> {
        let (mut done, mut cursor) = (0, Cursor::default());
        while done < part.len_bytes {
            let at = part.from + done as u64;
            let extent = self.extent_near(contents, at, &mut cursor)?;
            let (within, left) = (at - extent.start, extent.end() - at);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(part.len_bytes - done);
            // Behind `len` bytes is room that later extents fill: scratch for decoding in place.
            let here = Part { from: within, len_bytes: len, ..part };
            self.read_extent(contents, &extent, here, &mut dst[done..])?;
            done += len;
        }
        Ok(())
    }

    /// The extent of the packed file that its byte `offset` is in, on behalf of `inode`, whose fragment it is.
    pub(crate) fn packed_extent_at(&self, inode: &Inode, offset: u64) -> Result<Extent, ImageError> {
        let Some(packed) = self.packed.as_ref().filter(|packed| packed.inode.nid != inode.nid) else {
            return Err(ImageError::corrupt(inode.address, "a fragment, and no packed file to hold it"));
        };
        match offset < packed.inode.size {
            true => self.extent_at(packed, offset),
            false => Err(ImageError::corrupt(inode.address, "a fragment past the end of the packed file")),
        }
    }

    /// Whether the packed file may have holes; a compressed one without 48-bit addresses has none.
    pub(crate) fn packed_may_have_holes(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| match packed.inode.layout {
            Layout::Plain { start } | Layout::Inline { start, .. } => start.is_none(),
            Layout::Chunks { .. } => true,
            Layout::CompressedFull | Layout::CompressedCompact => self.superblock.wide_addresses,
        })
    }

    fn read_extent(
        &self,
        contents: &Contents,
        extent: &Extent,
        part: Part,
        dst: &mut [u8],
    ) -> Result<(), ImageError> {
        let here = &mut dst[..part.len_bytes];
        match extent.place {
            Place::Hole => here.fill(0),
            Place::Plain(at) => self.read_plain(contents, extent, offset_by(at, part.from)?, here)?,
            Place::Interlaced { at, len_bytes } => {
                self.read_rotated(extent.start + part.from, at, u64::from(len_bytes), here)?;
            }
            Place::Compressed(cluster) => self.read_cluster(extent, cluster, part, dst)?,
            Place::Fragment { offset } => {
                let Some(packed) =
                    self.packed.as_ref().filter(|packed| packed.inode.nid != contents.inode.nid)
                else {
                    return Err(ImageError::corrupt(
                        contents.inode.address,
                        "a fragment, and no packed file to hold it",
                    ));
                };
                let start = offset.checked_add(part.from);
                let end = start.and_then(|start| start.checked_add(part.len_bytes as u64));
                match (start, end) {
                    (Some(start), Some(end)) if end <= packed.inode.size => {
                        self.read_with_room(packed, Part { from: start, ..part }, dst)?;
                    }
                    _ => {
                        return Err(ImageError::corrupt(
                            contents.inode.address,
                            "a fragment past the end of the packed file",
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes as they are. Directories, links and tails lie among metadata, and are read as metadata.
    fn read_plain(
        &self,
        contents: &Contents,
        extent: &Extent,
        at: Address,
        here: &mut [u8],
    ) -> Result<(), ImageError> {
        let inode = &contents.inode;
        let is_tail = matches!(inode.layout, Layout::Inline { .. })
            && extent.end() == inode.size
            && extent.len_bytes < u64::from(self.superblock.block_bytes());
        let own = at.space != Space::Metabox && self.source.is_own(at);
        if at.space == Space::Metabox || (own && (is_tail || inode.kind != FileKind::Regular)) {
            return self.read_at(at, here);
        }
        self.clusters.counters.plain_bytes.add(here.len() as u64);
        self.source.read_at(at, here)
    }

    /// Bytes of blocks that are rotated: that of position `p` in the file is at `p` modulo the length of the blocks.
    fn read_rotated(
        &self,
        mut position: u64,
        at: Address,
        len_bytes: u64,
        mut here: &mut [u8],
    ) -> Result<(), ImageError> {
        while !here.is_empty() {
            let within = position % len_bytes;
            let len = here.len().min((len_bytes - within) as usize);
            let (now, rest) = here.split_at_mut(len);
            self.clusters.counters.plain_bytes.add(len as u64);
            match at.space {
                Space::Metabox => self.read_at(offset_by(at, within)?, now)?,
                Space::Device(_) => self.source.read_at(offset_by(at, within)?, now)?,
            }
            (here, position) = (rest, position + len as u64);
        }
        Ok(())
    }

    fn read_cluster(
        &self,
        extent: &Extent,
        cluster: Cluster,
        part: Part,
        dst: &mut [u8],
    ) -> Result<(), ImageError> {
        let unit = Unit { cluster, decoded_bytes: extent.len_bytes };
        match cluster.at.space {
            Space::Device(_) => self.clusters.read(&*self.source, &unit, part, dst),
            Space::Metabox => {
                // Inline, so a block at most. Read beforehand: while a cluster holds its grant, nothing may wait for another.
                let mut stored = vec![0; cluster.len_bytes as usize];
                self.read_at(cluster.at, &mut stored)?;
                self.clusters.read(&Stored { at: cluster.at, bytes: &stored }, &unit, part, dst)
            }
        }
    }

    /// Part of a unit of metadata, from the cache or into it.
    fn read_unit(&self, unit: Address, within: usize, dst: &mut [u8]) -> Result<(), ImageError> {
        let end = within + dst.len();
        let key = Key::Meta(unit);
        if let Some(piece) = self.clusters.cache.get(&key, within..end) {
            dst.copy_from_slice(&piece.bytes()[within..end]);
            return Ok(());
        }
        let space_end = self.space_end(unit.space)?;
        let len = space_end.saturating_sub(unit.offset).min(META_UNIT_BYTES) as usize;
        let at = Address { offset: unit.offset + within as u64, ..unit };
        if end > len {
            return Err(ImageError::Truncated { at, len_bytes: dst.len() as u64, end: space_end });
        }
        // The metabox comes by way of clusters, for which this would have to wait: not while it holds a grant.
        let beforehand = match unit.space {
            Space::Metabox => {
                let mut bytes = vec![0; len];
                self.read_uncached(unit, &mut bytes)?;
                Some(bytes)
            }
            Space::Device(_) => None,
        };
        let grant = self.clusters.budget.grant(Budget::footprint(len), Demand::BestEffort);
        let buffer = grant.ok().and_then(|mut grant| grant.buffer(len));
        match (buffer, beforehand) {
            (None, None) => return self.read_uncached(at, dst),
            (None, Some(bytes)) => dst.copy_from_slice(&bytes[within..end]),
            (Some(mut buffer), bytes) => {
                match bytes {
                    Some(bytes) => buffer.copy_from_slice(&bytes),
                    None => self.read_uncached(unit, &mut buffer)?,
                }
                dst.copy_from_slice(&buffer[within..end]);
                self.clusters.keep_as(key, Piece { buffer, len_bytes: len });
            }
        }
        Ok(())
    }

    fn read_uncached(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
        match (at.space, &self.metabox) {
            (Space::Metabox, Some(metabox)) => self.read(metabox, at.offset, buf, false),
            (Space::Metabox, None) => {
                Err(ImageError::corrupt(at, "an address in the metabox, and there is none"))
            }
            (Space::Device(device), _) => {
                self.clusters.counters.metadata_bytes.add(buf.len() as u64);
                self.source.read_own(device, at.offset, buf)
            }
        }
    }

    /// How many bytes there are from `at` to the end of what it lies on.
    pub(crate) fn room_at(&self, at: Address) -> Result<u64, ImageError> {
        match at.space {
            Space::Metabox => Ok(self.space_end(at.space)?.saturating_sub(at.offset)),
            Space::Device(_) => self.source.room_at(at),
        }
    }

    fn space_end(&self, space: Space) -> Result<u64, ImageError> {
        match (space, &self.metabox) {
            (Space::Metabox, Some(metabox)) => Ok(metabox.inode.size),
            (Space::Metabox, None) => Err(ImageError::corrupt(
                Address { space, offset: 0 },
                "an address in the metabox, and there is none",
            )),
            (Space::Device(device), _) => self.source.len_bytes(device),
        }
    }
}

/// Bytes of one place that have been read already.
struct Stored<'a> {
    at: Address,
    bytes: &'a [u8],
}

impl Bytes for Stored<'_> {
    fn read_at(&self, at: Address, buf: &mut [u8]) -> Result<(), ImageError> {
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

fn offset_by(at: Address, len_bytes: u64) -> Result<Address, ImageError> {
    at.checked_add(len_bytes).ok_or_else(|| ImageError::corrupt(at, "an address beyond all numbers"))
}
