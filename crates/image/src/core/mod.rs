//! An open image without its threads: the superblock, the packed file, the metabox, and the mapping of each file's
//! bytes.
//!
//! Two internal files of the image take part in reading: the packed file holds the ends of files (fragments), and the
//! metabox may hold metadata. Neither may refer to itself: the packed file has no fragments, and the metabox lies
//! outside itself, so reading recurses twice at most.
//!
//! A read: `contents` walks the extents of the range (the lookup is [`FileReader::extent_near`], through `read::{flat,
//! chunk, zmap}`) and fills the caller's buffer; `metadata` reads inodes, indexes and directories through the cache;
//! compressed bytes come from [`crate::clusters`]. All of it runs in the reader's thread. [`Core`] is immutable and
//! has no locks; those of `clusters` are described there. Read-ahead is started in [`crate::image`].

mod contents;
mod metabox;
mod metadata;

pub(crate) use contents::FileReader;

use crate::clusters::Clusters;
use crate::read::inode::{Inode, Layout};
use crate::read::superblock::{PrefixPlace, Superblock};
use crate::read::xattr::Prefixes;
use crate::read::zmap::{IndexForm, ZContext, ZMap};
use crate::read::{Cursor, Extent, FileKind, Mapping, chunk, flat};
use crate::source::Source;
use crate::work::WorkLimit;
use crate::{Address, ImageError, Result};
use std::sync::Arc;

/// Records of an index that cost a step of work where a lookup sums them up: as many as are read at once.
const SUMMED_PER_STEP: u64 = 128;

/// An open image.
pub(crate) struct Core {
    pub(crate) source: Arc<Source>,
    pub(crate) superblock: Superblock,
    pub(crate) clusters: Arc<Clusters>,
    pub(crate) prefixes: Prefixes,
    metabox: Option<Contents>,
    packed: Option<Contents>,
    stored_bytes: u64,
}

/// A file that can be read: its inode, and the header of its index if it is compressed.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    pub(crate) inode: Inode,
    index: Option<ZMap>,
}

impl Contents {
    /// Address of the end of the index or of the array of chunks; the end of the attributes if there is neither. An
    /// inline extent begins there.
    pub(crate) fn index_end(&self) -> Address {
        let tail = self.inode.tail;
        let end = match &self.index {
            Some(index) => index.end().ok(),
            None => chunk::array_end(&self.inode),
        };
        Address { offset: end.unwrap_or(tail.offset), ..tail }
    }

    /// The part of the contents that is stored after the inode: the position in the file, and the stored length, bytes.
    pub(crate) fn inline_part(&self) -> Option<(u64, u64)> {
        let size = self.inode.size;
        match (&self.index, self.inode.layout) {
            (Some(index), _) => index.inline_tail().map(|tail| match tail.mapping {
                Mapping::Compressed(cluster) => (tail.start, u64::from(cluster.len_bytes)),
                _ => (tail.start, tail.len_bytes),
            }),
            (None, Layout::Inline { tail_bytes, .. }) if tail_bytes > 0 => {
                Some((size - u64::from(tail_bytes), u64::from(tail_bytes)))
            }
            (None, _) => None,
        }
    }

    /// Whether stored bytes may begin and end inside a block.
    pub(crate) fn has_byte_addresses(&self) -> bool {
        self.index.as_ref().is_some_and(ZMap::has_records)
    }
}

impl Core {
    /// Opens the packed file and the metabox, and reads the table of long attribute prefixes.
    pub(crate) fn new(source: Arc<Source>, superblock: Superblock, clusters: Arc<Clusters>) -> Result<Self> {
        let (metabox_nid, packed_nid) = (superblock.metabox_nid, superblock.packed_nid);
        let prefixes = Prefixes::default();
        let stored_bytes = stored_bytes(&source, &superblock);
        let mut core =
            Core { source, superblock, clusters, prefixes, metabox: None, packed: None, stored_bytes };
        let internal_file = |core: &Core, nid| {
            let contents = core.contents(Inode::read(core, &core.superblock, nid)?)?;
            match contents.inode.kind {
                FileKind::Regular => Ok(contents),
                _ => Err(ImageError::corrupt(
                    contents.inode.address,
                    "a packed file or metabox that is no regular file",
                )),
            }
        };
        core.metabox = metabox_nid.map(|nid| internal_file(&core, nid)).transpose()?;
        core.packed = packed_nid.map(|nid| internal_file(&core, nid)).transpose()?;
        core.check_metabox()?;
        core.prefixes = core.read_prefixes()?;
        Ok(core)
    }

    /// Stored bytes of the image and its devices, as far as it uses them.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    fn read_prefixes(&self) -> Result<Prefixes> {
        let table = &self.superblock.prefixes;
        match (table.place, &self.packed) {
            (PrefixPlace::Packed, Some(packed)) => {
                Prefixes::read(table, |offset, buf| match offset.checked_add(buf.len() as u64) {
                    Some(end) if end <= packed.inode.size => {
                        let work = WorkLimit::of_image(self.stored_bytes);
                        self.reader(packed, &work).read(offset, buf, false)
                    }
                    _ => Err(ImageError::corrupt(
                        packed.inode.address,
                        "long prefixes past the end of the packed file",
                    )),
                })
            }
            _ => Prefixes::read_from(self, table),
        }
    }

    /// Reads the header of the index of `inode`, if it has one, so that its contents can be read.
    pub(crate) fn contents(&self, inode: Inode) -> Result<Contents> {
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

    /// A reader of a file within `work`.
    pub(crate) fn reader<'a>(&'a self, contents: &'a Contents, work: &'a WorkLimit) -> FileReader<'a> {
        FileReader { core: self, contents, work }
    }

    /// Finds the extent of the packed file that contains byte `offset`, which belongs to a fragment of `inode`.
    pub(crate) fn packed_extent_at(&self, inode: &Inode, offset: u64, work: &WorkLimit) -> Result<Extent> {
        let packed = self.packed_for(inode)?;
        match offset < packed.inode.size {
            true => self.reader(packed, work).extent_near(offset, &mut Cursor::default()),
            false => Err(ImageError::corrupt(inode.address, "a fragment past the end of the packed file")),
        }
    }

    /// Whether the packed file may have holes. A compressed one without 48-bit addresses has none.
    pub(crate) fn packed_may_have_holes(&self) -> bool {
        self.packed.as_ref().is_some_and(|packed| match packed.inode.layout {
            Layout::Plain { start } | Layout::Inline { start, .. } => start.is_none(),
            Layout::Chunks { .. } => true,
            Layout::CompressedFull | Layout::CompressedCompact => self.superblock.wide_addresses,
        })
    }

    /// Returns the packed file for a fragment of `inode`. Fails if `inode` is the packed file itself.
    pub(crate) fn packed_for(&self, inode: &Inode) -> Result<&Contents> {
        self.packed.as_ref().filter(|packed| packed.inode.nid != inode.nid).ok_or_else(|| {
            ImageError::corrupt(inode.address, "a fragment, but there is no packed file that may hold it")
        })
    }
}

impl FileReader<'_> {
    /// Finds the extent that contains byte `offset` of the file; `offset` is less than the file's size.
    ///
    /// Some indexes hold lengths only and must be summed up: a cursor keeps the sum between lookups of a caller that walks
    /// the file from its beginning.
    pub(crate) fn extent_near(&self, offset: u64, cursor: &mut Cursor) -> Result<Extent> {
        let (core, inode) = (self.core, &self.contents.inode);
        self.work.step()?;
        match (&self.contents.index, inode.layout) {
            (Some(index), _) => {
                let before = *cursor;
                let extent = index.extent_near(core, offset, cursor);
                self.work.steps(cursor.summed_since(&before) / SUMMED_PER_STEP)?;
                extent
            }
            (None, Layout::Chunks { .. }) => chunk::extent_at(core, &core.superblock, inode, offset),
            (None, _) => flat::extent_at(core, &core.superblock, inode, offset),
        }
    }
}

fn stored_bytes(source: &Source, superblock: &Superblock) -> u64 {
    let used = superblock.blocks.saturating_mul(superblock.block_bytes().into());
    let own = source.len_bytes(0).unwrap_or(0);
    // A device may be much longer than the image on it. Devices behind an image are part of it.
    let unused = if superblock.blocks == 0 || source.is_flat() { 0 } else { own.saturating_sub(used) };
    source.media_bytes().saturating_sub(unused)
}
