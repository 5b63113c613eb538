//! Writes the image of a planned tree.
//!
//! The image has, in this order: the superblock, the contents of files in the order of the plan, blocks of large
//! directories, shared attributes, and the inodes. Inodes come last because the length of an index is known only when
//! its file is compressed; they stay in memory until then. Directories are placed first, because the root's number must
//! be small and because the length of a directory depends on names alone; they are filled in at the end, when all
//! numbers are known.
//!
//! `contents` reads files and passes them to the compressing threads; this module places what comes back.

use super::BuildError;
use super::compress::index::Index;
use super::compress::segment::{Extent, INLINE_BYTES_MAX, Segment, Stored};
use super::compress::workers;
use super::metadata::directory::{self, Entry, with_dots};
use super::metadata::inode::{Fields, Storage};
use super::metadata::space::Space;
use super::metadata::xattr::Pool;
use super::options::{BLOCK_BYTES, Compression, Options};
use super::output::Output;
use super::plan::{Plan, Planned};
use super::progress::{OnProgress, Progress, Summary};
use super::superblock::{Head, Used};
use super::tree::{Body, InodeId, Tree};
use crate::format::inode::{
    LAYOUT_CHUNK_BASED, LAYOUT_COMPRESSED_COMPACT, LAYOUT_FLAT_INLINE, LAYOUT_FLAT_PLAIN, SLOT_LEN,
};
use crate::format::zmap::{HEADER_BYTES, MapHeader};
use crate::read::FileKind;
use std::ops::Range;
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// First block of an inode without blocks.
const NO_BLOCK: u32 = u32::MAX;

/// A regular file whose segments are being appended.
#[derive(Debug, Default)]
pub struct OpenFile {
    extents: Vec<Extent>,
    /// First block.
    first_block: u64,
    /// Blocks so far.
    blocks: u64,
    tail: Vec<u8>,
    elapsed: Duration,
}

/// The image while it is written.
pub struct Writer<'a> {
    pub tree: &'a Tree,
    pub plan: &'a Plan,
    pub options: &'a Options,
    pool: Pool<'a>,
    pub out: Output<'a>,
    space: Space,
    /// Position of each inode of the tree in the area of inodes.
    places: Vec<u64>,
    used: Used,
    summary: Summary,
    progress: Progress,
    on_progress: &'a mut OnProgress<'a>,
}

/// A directory that is placed but not filled in.
struct PlacedDirectory {
    len_bytes: u64,
    /// Whether the last block lies behind the inode.
    inline: bool,
    /// First of its blocks, counted from the first block of directories.
    first_block: u64,
}

impl<'a> Writer<'a> {
    /// Begins an image.
    pub fn new(
        tree: &'a Tree,
        plan: &'a Plan,
        options: &'a Options,
        out: Output<'a>,
        on_progress: &'a mut OnProgress<'a>,
    ) -> Self {
        let ids: Vec<InodeId> = plan.ids().collect();
        let total_bytes = plan.others.iter().map(|planned| content_bytes(tree, planned.id)).sum();
        Writer {
            tree,
            plan,
            options,
            pool: Pool::collect(tree, &ids),
            out,
            space: Space::new(),
            places: vec![0; tree.len()],
            used: Used {
                xattrs: ids.iter().any(|id| !tree.inode(*id).metadata.xattrs.is_empty()),
                ..Used::default()
            },
            summary: Summary::new(options.target),
            progress: Progress { total_bytes, ..Progress::default() },
            on_progress,
        }
    }

    /// Writes everything; `fill` appends the contents of all inodes that are no directories.
    pub fn write(
        mut self,
        fill: impl FnOnce(&mut Self) -> Result<(), BuildError>,
    ) -> Result<Summary, BuildError> {
        let directories = self.place_directories()?;
        fill(&mut self)?;
        self.finish(&directories)
    }

    /// Appends an inode that has no contents in blocks: a link, a device, a pipe, a socket, or an empty file.
    pub fn put_small(&mut self, planned: &Planned) -> Result<(), BuildError> {
        let tree = self.tree;
        match &tree.inode(planned.id).body {
            Body::Symlink(target) => {
                let full = target.len() > INLINE_BYTES_MAX;
                let tail = if full { Vec::new() } else { target.to_vec() };
                let first_block = self.out.next_block();
                if full {
                    self.append_padded(target)?;
                }
                let file = OpenFile { first_block, blocks: full.into(), tail, ..OpenFile::default() };
                self.put_plain(planned, target.len() as u64, file)
            }
            Body::CharDevice(number) | Body::BlockDevice(number) => {
                self.put_record(planned, 0, Storage::device(Some(*number)), &[], 0..0)
            }
            Body::Fifo | Body::Socket => self.put_record(planned, 0, Storage::device(None), &[], 0..0),
            Body::Regular(_) | Body::Directory(_) => self.put_plain(planned, 0, OpenFile::default()),
        }
    }

    /// Appends a segment of a file.
    pub fn append_segment(
        &mut self,
        file: &mut OpenFile,
        segment: Segment,
        elapsed: Duration,
    ) -> Result<(), BuildError> {
        if file.blocks == 0 {
            file.first_block = self.out.next_block();
        }
        file.blocks += segment.blocks.len() as u64 / BLOCK;
        file.extents.extend(segment.extents);
        file.tail = segment.tail;
        file.elapsed += elapsed;
        self.out.append(&segment.blocks)
    }

    /// Ends a file whose segments are appended.
    pub fn put_file(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        compression: Option<Compression>,
        file: OpenFile,
    ) -> Result<(), BuildError> {
        self.summary.count_time(&planned.path, file.elapsed);
        let is_compressed = |extent: &Extent| {
            matches!(extent.stored, Stored::Compressed { .. } | Stored::Inline { compressed: true })
        };
        let stored_bytes = file.blocks * BLOCK + file.tail.len() as u64;
        match compression.filter(|_| file.extents.iter().any(is_compressed)) {
            Some(compression) => {
                self.summary.count(Some(compression), len_bytes, stored_bytes);
                self.put_compressed(planned, len_bytes, compression, &file)
            }
            None => {
                self.summary.count(None, len_bytes, stored_bytes);
                self.put_plain(planned, len_bytes, file)
            }
        }
    }

    /// Ends a file that is stored in chunks: `entries` has the first block of each, and the format word of the inode
    /// says how long they are.
    pub fn put_chunks(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        format: u32,
        entries: &[u8],
        stored_bytes: u64,
    ) -> Result<(), BuildError> {
        self.used.chunks = true;
        self.summary.count(None, len_bytes, stored_bytes);
        let storage = Storage { layout: LAYOUT_CHUNK_BASED, u: format };
        self.put_record(planned, len_bytes, storage, entries, 0..0)
    }

    /// Remembers the hash of a file's contents.
    pub fn add_digest(&mut self, planned: &Planned, digest: Option<u128>) {
        if let Some(digest) = digest {
            self.summary.add_digest(planned.id, digest);
        }
    }

    /// Tells the caller how far the builder is.
    pub fn report(&mut self, further_bytes: u64) -> Result<(), BuildError> {
        self.progress.done_bytes += further_bytes;
        self.progress.image_bytes = self.out.next_block() * BLOCK;
        match (self.on_progress)(self.progress) {
            std::ops::ControlFlow::Continue(()) => Ok(()),
            std::ops::ControlFlow::Break(()) => Err(BuildError::Interrupted),
        }
    }

    fn put_compressed(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        compression: Compression,
        file: &OpenFile,
    ) -> Result<(), BuildError> {
        let algorithm = compression.method.algorithm() as u8;
        let big = self.options.cluster_bytes > BLOCK_BYTES;
        let index = Index { extents: &file.extents, len_bytes, first_block: file.first_block, big };
        let header = MapHeader::of_clusters(index.advice(), algorithm, file.tail.len() as u16);
        let fields_end = self.fields(planned, len_bytes)?.0.next_multiple_of(HEADER_BYTES);
        let mut behind = vec![0; (fields_end - self.fields(planned, len_bytes)?.0) as usize];
        behind.extend(header.encode());
        behind.extend(index.encode(fields_end + HEADER_BYTES));
        let tail = behind.len()..behind.len() + file.tail.len();
        behind.extend(&file.tail);
        self.used.formats.insert(algorithm, workers::format(compression, self.options));
        self.used.big_clusters |= big;
        self.used.tail_packing |= !tail.is_empty();
        let storage = Storage { layout: LAYOUT_COMPRESSED_COMPACT, u: file.blocks as u32 };
        self.put_record(planned, len_bytes, storage, &behind, tail)
    }

    /// Ends a file of consecutive blocks, and what is shorter than a block behind the inode.
    fn put_plain(&mut self, planned: &Planned, len_bytes: u64, mut file: OpenFile) -> Result<(), BuildError> {
        if file.tail.len() > INLINE_BYTES_MAX {
            if file.blocks == 0 {
                file.first_block = self.out.next_block();
            }
            let tail = std::mem::take(&mut file.tail);
            self.append_padded(&tail)?;
            file.blocks += 1;
        }
        let u = if file.blocks == 0 { NO_BLOCK } else { file.first_block as u32 };
        let layout = if file.tail.is_empty() { LAYOUT_FLAT_PLAIN } else { LAYOUT_FLAT_INLINE };
        self.put_record(planned, len_bytes, Storage { layout, u }, &file.tail, 0..file.tail.len())
    }

    /// Places an inode with its attributes, and `behind` them what its layout has there; the bytes `inline` of that
    /// lie within a block.
    fn put_record(
        &mut self,
        planned: &Planned,
        len_bytes: u64,
        storage: Storage,
        behind: &[u8],
        inline: Range<usize>,
    ) -> Result<(), BuildError> {
        let (head_bytes, xattrs) = self.fields(planned, len_bytes)?;
        let inline = head_bytes + inline.start as u64..head_bytes + inline.end as u64;
        let at = self.space.reserve(head_bytes + behind.len() as u64, inline);
        self.places[planned.id.index()] = at;
        self.write_head(planned, len_bytes, at, storage, &xattrs);
        self.space.write(at + head_bytes, behind);
        Ok(())
    }

    fn write_head(&mut self, planned: &Planned, len_bytes: u64, at: u64, storage: Storage, xattrs: &[u8]) {
        self.summary.inodes += 1;
        let fields =
            Fields { ino: self.summary.inodes as u32, ..self.raw_fields(planned, len_bytes, xattrs) };
        let inode = fields.encode(self.plan.epoch, storage);
        self.space.write(at, &inode);
        self.space.write(at + inode.len() as u64, xattrs);
    }

    /// Returns the bytes of an inode with its attributes, and the attributes.
    fn fields(&self, planned: &Planned, len_bytes: u64) -> Result<(u64, Vec<u8>), BuildError> {
        let xattrs = self.pool.encode(self.tree, planned.id, &planned.path)?;
        Ok((self.raw_fields(planned, len_bytes, &xattrs).head_bytes(self.plan.epoch), xattrs))
    }

    fn raw_fields(&self, planned: &Planned, len_bytes: u64, xattrs: &[u8]) -> Fields<'a> {
        let inode = self.tree.inode(planned.id);
        Fields {
            metadata: &inode.metadata,
            kind: inode.body.kind(),
            nlink: self.plan.nlinks[planned.id.index()],
            ino: 0,
            len_bytes,
            xattr_bytes: xattrs.len(),
        }
    }

    fn append_padded(&mut self, bytes: &[u8]) -> Result<(), BuildError> {
        let mut block = bytes.to_vec();
        block.resize(block.len().next_multiple_of(BLOCK as usize), 0);
        self.out.append(&block)
    }
}

/// Bytes of contents of a regular file; 0 for others.
pub fn content_bytes(tree: &Tree, id: InodeId) -> u64 {
    match &tree.inode(id).body {
        Body::Regular(content) => content.len_bytes(),
        _ => 0,
    }
}

impl Writer<'_> {
    /// Places all directories: the root first.
    fn place_directories(&mut self) -> Result<Vec<PlacedDirectory>, BuildError> {
        let plan = self.plan;
        let mut next_block = 0;
        let mut placed = Vec::with_capacity(plan.directories.len());
        for planned in &plan.directories {
            let entries = self.tree.directory(planned.id).into_iter().flat_map(|d| d.entries());
            let names = with_dots(entries, planned.id, planned.parent);
            let len_bytes = directory::len_bytes(names.iter().map(|(name, _)| *name));
            let (head_bytes, _) = self.fields(planned, len_bytes)?;
            let tail = len_bytes % BLOCK;
            let inline = tail != 0 && tail <= INLINE_BYTES_MAX as u64;
            let tail = if inline { tail } else { 0 };
            let at = self.space.reserve(head_bytes + tail, head_bytes..head_bytes + tail);
            self.places[planned.id.index()] = at;
            placed.push(PlacedDirectory { len_bytes, inline, first_block: next_block });
            next_block += (len_bytes - tail).div_ceil(BLOCK);
        }
        Ok(placed)
    }

    /// Appends directories, shared attributes and inodes, and writes the superblock.
    fn finish(mut self, directories: &[PlacedDirectory]) -> Result<Summary, BuildError> {
        let first_block = self.out.next_block();
        for (planned, placed) in self.plan.directories.iter().zip(directories) {
            self.put_directory(planned, placed, first_block)?;
        }
        let xattr_block = self.out.next_block();
        let shared = self.pool.bytes();
        self.out.append(&shared)?;
        let meta_block = self.out.next_block();
        let space = std::mem::replace(&mut self.space, Space::new());
        self.out.append(&space.into_bytes())?;
        debug_assert!(self.used.is_in(self.options.target), "{:?}", self.used);
        let blocks = self.out.next_block();
        let hash = self.out.flush_all()?;
        let too_large =
            |_| BuildError::TooLarge { what: "16 TiB is the most that this version writes".into() };
        let head = Head {
            root_nid: u16::try_from(self.places[InodeId::ROOT.index()] / SLOT_LEN).map_err(too_large)?,
            meta_block: u32::try_from(meta_block).map_err(too_large)?,
            xattr_block: u32::try_from(xattr_block).map_err(too_large)?,
            blocks: u32::try_from(blocks).map_err(too_large)?,
            inodes: self.summary.inodes,
            epoch: self.plan.epoch,
            build_time: self.options.build_time.unwrap_or(self.plan.newest.seconds),
            hash,
        };
        self.out.finish(&head.encode(&self.used, self.options))?;
        self.summary.directories = directories.len() as u64;
        self.summary.image_bytes = blocks * BLOCK;
        self.summary.metadata_bytes = (blocks - first_block) * BLOCK;
        Ok(self.summary)
    }

    fn put_directory(
        &mut self,
        planned: &Planned,
        placed: &PlacedDirectory,
        first_block: u64,
    ) -> Result<(), BuildError> {
        let tree = self.tree;
        let entries = tree.directory(planned.id).into_iter().flat_map(|d| d.entries());
        let entries: Vec<_> = with_dots(entries, planned.id, planned.parent)
            .into_iter()
            .map(|(name, id)| self.entry(name, id))
            .collect();
        let mut encoded = directory::encode(&entries);
        let full = if placed.inline { encoded.len() as u64 / BLOCK * BLOCK } else { encoded.len() as u64 };
        let tail = encoded.split_off(full as usize);
        self.append_padded(&encoded)?;
        let u = if encoded.is_empty() { NO_BLOCK } else { (first_block + placed.first_block) as u32 };
        let layout = if placed.inline { LAYOUT_FLAT_INLINE } else { LAYOUT_FLAT_PLAIN };
        let (head_bytes, xattrs) = self.fields(planned, placed.len_bytes)?;
        let at = self.places[planned.id.index()];
        self.write_head(planned, placed.len_bytes, at, Storage { layout, u }, &xattrs);
        self.space.write(at + head_bytes, &tail);
        Ok(())
    }

    fn entry<'n>(&self, name: &'n [u8], id: InodeId) -> Entry<'n> {
        let kind: FileKind = self.tree.inode(id).body.kind();
        Entry { name, nid: self.places[id.index()] / SLOT_LEN, kind }
    }
}
