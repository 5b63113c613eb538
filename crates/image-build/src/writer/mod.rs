//! Writes the image of a planned tree.
//!
//! The image has, in this order: the superblock, the contents of files in the order of the plan, blocks of large
//! directories, shared attributes, and the inodes. Inodes come last because the length of an index is known only when
//! its file is compressed; they stay in memory until then. Directories are placed first, because the root's number must
//! be small and because the length of a directory depends on names alone; they are filled in at the end, when all
//! numbers are known. Compressed directories lie in the packed file, the last of all contents.
//!
//! `contents` reads files and passes them to the compressing threads; this module places what comes back. `open_file` is a
//! file while its segments come, `references` has what it shares with others, and `originals` the files whose contents
//! others share. `record` places an inode and what stands after it, and `compressed` has the inodes with an index.
//! `placed` and `directories` have the directories, `metabox` and `inodes` all inodes, and `finish` the end of the image.
//!
//! An image of 16 TiB and more has addresses of 48 bits: directories and files that need such an address are extended
//! inodes, chunks have wide entries, and indexes consist of records. The numbers of shared attributes count from a
//! block of 32 bits; so these attributes come first in an image that may become so large.

mod compressed;
mod directories;
mod finish;
mod inodes;
mod metabox;
mod open_file;
mod originals;
mod placed;
mod record;
mod references;

use super::compress::buffers::Buffer;
use super::compress::stored::{INLINE_BYTES_MAX, Segment};
use super::compression::Compression;
use super::content::Content;
use super::devices::Geometry;
use super::metadata::inode::Storage;
use super::metadata::space::Space;
use super::metadata::xattr::Pool;
use super::options::Options;
use super::output::Output;
use super::plan::{Plan, Planned};
use super::progress::{OnProgress, Phase, Progress, Summary};
use super::superblock::{PREFIX_BYTES_MAX, Used};
use super::table::Hashes;
use super::tree::{InodeId, Tree};
use crate::{BuildError, Result};
use metabox::Metabox;
use open_file::BLOCK;
use originals::Originals;
use pagefold_image::format::features::incompat;
use pagefold_image::format::inode::{LAYOUT_FLAT_INLINE, LAYOUT_FLAT_PLAIN};
use pagefold_image::read::FileKind;
use placed::{Directories, Numbers};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use open_file::OpenFile;

/// Contents of more bytes may make an image of 16 TiB: neither padding nor metadata, which is in memory, doubles them.
const LARGE_BYTES: u64 = 8 << 40;

/// The image while it is written.
pub struct Writer<'a> {
    pub tree: &'a Tree,
    pub plan: &'a Plan,
    pub options: &'a Options,
    pub geometry: Geometry,
    pool: Pool,
    pub out: Output<'a>,
    /// The area of inodes that are not in the metabox.
    space: Space,
    metabox: Option<Metabox>,
    /// Whether addresses may need more than 32 bits, as far as that is known before contents are read.
    is_large: bool,
    /// Where each inode of the tree is.
    numbers: Numbers,
    directories: Directories,
    /// Files whose contents later ones may share.
    originals: Originals,
    /// The first block of each chunk, by its contents.
    pub chunks: Hashes,
    /// Position of the packed file's inode in that area, if there is one.
    packed_place: Option<u64>,
    /// First block of shared attributes.
    xattr_block: u64,
    used: Used,
    summary: Summary,
    progress: Progress,
    on_progress: &'a mut OnProgress<'a>,
}

impl<'a> Writer<'a> {
    /// Begins an image.
    pub fn new(
        tree: &'a Tree,
        plan: &'a Plan,
        options: &'a Options,
        geometry: Geometry,
        out: Output<'a>,
        on_progress: &'a mut OnProgress<'a>,
    ) -> Result<Self> {
        let spill = tree.spill();
        // The table of devices has their place.
        let has_prefixes = !geometry.is_index() && options.target.has(incompat::XATTR_PREFIXES);
        let prefix_bytes = if has_prefixes { PREFIX_BYTES_MAX } else { 0 };
        let total_bytes: u64 = plan.others.iter().map(|planned| tree.content_bytes(planned.id)).sum();
        let end_bytes = options.first_data_block.saturating_mul(BLOCK).saturating_add(total_bytes);
        let is_large =
            !geometry.is_index() && options.target.has(incompat::WIDE_ADDRESSES) && end_bytes > LARGE_BYTES;
        let pool = Pool::collect(
            tree,
            plan.ids(),
            prefix_bytes,
            options.form.xattr_shared_min,
            geometry.block_bytes,
        )?;
        let metabox = Metabox::new(options, plan.count(), is_large, &pool.prefixes().encode(), spill)?;
        Ok(Writer {
            tree,
            plan,
            options,
            pool,
            out,
            space: Space::new(spill, geometry.block_bytes),
            metabox,
            is_large,
            numbers: Numbers::new(tree, geometry.block_bytes)?,
            directories: Directories::new(options, plan.count(), is_large, spill),
            geometry,
            originals: Originals::new(spill),
            chunks: Hashes::new(spill),
            packed_place: None,
            xattr_block: 0,
            used: Used { xattrs: plan.ids().any(|id| tree.has_xattrs(id)), ..Used::default() },
            summary: Summary::new(options.target, spill),
            progress: Progress { total_bytes, ..Progress::default() },
            on_progress,
        })
    }

    /// Writes everything; `fill` appends the contents of all inodes that are no directories.
    pub fn write(mut self, fill: impl FnOnce(&mut Self) -> Result<()>) -> Result<Summary> {
        self.place_directories()?;
        if self.is_large {
            self.put_shared_attributes()?;
        }
        self.out.skip_to(self.options.first_data_block)?;
        fill(&mut self)?;
        self.finish()
    }

    /// The contents of a regular file.
    pub fn content(&self, planned: &Planned) -> Option<Arc<dyn Content>> {
        self.tree.content(planned.id, &planned.path(self.tree))
    }

    /// Returns the bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.progress.total_bytes
    }

    /// The table of long prefixes of attribute names, unless it is in the metabox.
    pub fn prefixes(&self) -> Vec<u8> {
        if self.metabox.is_some() { Vec::new() } else { self.pool.prefixes().encode() }
    }

    /// Bytes of the files that are in the image.
    pub fn done_bytes(&self) -> u64 {
        self.progress.done_bytes
    }

    /// Whether files can share blocks. Not those of images of 16 TiB and more, whose ends of files are stored otherwise.
    pub fn can_share(&self) -> bool {
        !self.is_large
    }

    /// The length of an inode that is no directory.
    fn len_bytes(&self, planned: &Planned) -> u64 {
        let target = self.tree.link_target(planned.id);
        target.map_or_else(|| self.tree.content_bytes(planned.id), |target| target.len() as u64)
    }

    /// Appends an inode that has no contents in blocks: a link, a device, a pipe, a socket, or an empty file.
    pub fn put_bare(&mut self, planned: &Planned) -> Result<()> {
        let tree = self.tree;
        match (tree.link_target(planned.id), tree.device(planned.id), tree.kind(planned.id)) {
            (Some(target), ..) => {
                let full = target.len() > self.geometry.inline_bytes_max();
                let tail = if full { Vec::new() } else { target.to_vec() };
                let mut file = OpenFile { tail, ..OpenFile::default() };
                if full {
                    let blocks = (target.len() as u64).div_ceil(self.geometry.block_bytes.into());
                    file.add_blocks(self.out.next_block(), blocks);
                    self.out.append_padded(target.to_vec())?;
                }
                self.put_plain(planned, &file)?;
            }
            (None, _, FileKind::Regular | FileKind::Directory) => {
                self.put_plain(planned, &OpenFile::default())?;
            }
            (None, number, _) => {
                self.put_record(planned, Storage::device(number), [].as_slice(), 0..0)?;
            }
        }
        Ok(())
    }

    /// Appends a segment of a file. Returns the memory of its blocks, which is free.
    pub fn append_segment(
        &mut self,
        file: &mut OpenFile,
        segment: Segment,
        elapsed: Duration,
    ) -> Result<Buffer> {
        let block = self.out.next_block();
        self.out.append(&segment.blocks)?;
        file.add_segment(segment, block, elapsed)
    }

    /// Ends a file whose segments are appended. `is_original`: later files may have the same contents, or refer to them.
    pub fn put_file(
        &mut self,
        planned: &Planned,
        compression: Option<Compression>,
        mut file: OpenFile,
        is_original: bool,
    ) -> Result<()> {
        self.summary.count_time(|| planned.path(self.tree), file.elapsed);
        let (len_bytes, stored_bytes) =
            (self.len_bytes(planned), file.blocks * BLOCK + file.tail.len() as u64);
        let needs_index = file.is_cut || file.shared_bytes > 0 || file.extents.needs_index();
        let compression = compression.filter(|_| needs_index);
        self.summary.count(compression, len_bytes, stored_bytes);
        if file.shared_bytes > 0 {
            self.summary.shared_parts.add(file.shared_bytes, 0);
        }
        let tail = self.put_stored(planned, compression, &mut file)?;
        if is_original {
            self.originals.add(planned.id, compression, &file, tail)?;
        }
        Ok(())
    }

    /// Ends a file whose contents lie in whole blocks from byte `at` of the image on.
    pub fn put_placed(&mut self, planned: &Planned, at: u64, len_bytes: u64) -> Result<()> {
        let mut file = OpenFile::default();
        file.add_blocks(at / BLOCK, len_bytes.div_ceil(BLOCK));
        self.put_file(planned, None, file, false)
    }

    /// Ends a file with the contents of `original`, which [`put_file`](Self::put_file) ended as one.
    pub fn put_duplicate(&mut self, planned: &Planned, original: InodeId) -> Result<()> {
        let Some(original) = self.originals.get(original) else {
            // Only if its holes changed between two readings.
            let path = super::error::path_of(&planned.path(self.tree));
            return Err(BuildError::Changed { path });
        };
        let compression = original.compression();
        let mut file = original.open_file(self.space.read(original.tail()))?;
        let (len_bytes, stored_bytes) = (self.len_bytes(planned), file.tail.len() as u64);
        self.summary.count(compression, len_bytes, stored_bytes);
        self.summary.duplicates.add(len_bytes, stored_bytes);
        self.used.shared_clusters |= compression.is_some() && (file.blocks > 0 || file.shared_bytes > 0);
        self.put_stored(planned, compression, &mut file)?;
        Ok(())
    }

    /// Places the inode of a file whose blocks are written. Returns the place of its tail in the area of inodes.
    fn put_stored(
        &mut self,
        planned: &Planned,
        compression: Option<Compression>,
        file: &mut OpenFile,
    ) -> Result<Range<u64>> {
        match compression {
            Some(compression) => self.put_compressed(planned, compression, file),
            None => {
                self.append_long_tail(file)?;
                self.put_plain(planned, file)
            }
        }
    }

    /// Ends a file that is stored in chunks: `entries` has the first block of each, and the format word of the inode
    /// says how long they are. An entry takes `entry_bytes`.
    pub fn put_chunks(
        &mut self,
        planned: &Planned,
        format: u16,
        (entries, entry_bytes): (&[u8], usize),
        stored_bytes: u64,
    ) -> Result<()> {
        self.used.chunks = true;
        let len_bytes = self.len_bytes(planned);
        self.summary.count(None, len_bytes, stored_bytes);
        let (head_bytes, _) = self.fields(planned, len_bytes, false)?;
        let gap = (head_bytes as usize).next_multiple_of(entry_bytes) - head_bytes as usize;
        let mut after = vec![0; gap];
        after.extend(entries);
        self.put_record(planned, Storage::chunks(format), after.as_slice(), 0..0)?;
        Ok(())
    }

    /// Remembers the hash of a file's contents.
    pub fn add_digest(&mut self, planned: &Planned, digest: Option<u128>) -> Result<()> {
        digest.map_or(Ok(()), |digest| self.summary.digests.insert(planned.id, digest))
    }

    /// Remembers that a file has the contents of `original`.
    pub fn copy_digest(&mut self, planned: &Planned, original: InodeId) -> Result<()> {
        self.add_digest(planned, self.summary.digests.get(original))
    }

    /// Tells the caller how far the builder is, which has written further bytes of contents.
    pub fn report(&mut self, further_bytes: u64) -> Result<()> {
        self.progress.done_bytes += further_bytes;
        self.progress.image_bytes = self.out.next_block() * u64::from(self.geometry.block_bytes);
        self.call_back(self.progress)
    }

    /// Tells the caller how many bytes of contents were looked at before they are written.
    pub fn report_scan(&mut self, done_bytes: u64, total_bytes: u64) -> Result<()> {
        self.call_back(Progress { phase: Phase::Scanning, done_bytes, total_bytes, ..self.progress })
    }

    fn call_back(&mut self, progress: Progress) -> Result<()> {
        match (self.on_progress)(progress) {
            std::ops::ControlFlow::Continue(()) => Ok(()),
            std::ops::ControlFlow::Break(()) => Err(BuildError::Interrupted),
        }
    }

    /// Appends a tail that is too long to stand after the inode.
    fn append_long_tail(&mut self, file: &mut OpenFile) -> Result<()> {
        let inline_bytes_max = if self.options.form.inline_data { INLINE_BYTES_MAX } else { 0 };
        if file.tail.len() > inline_bytes_max {
            file.add_blocks(self.out.next_block(), 1);
            self.out.append_padded(std::mem::take(&mut file.tail))?;
        }
        Ok(())
    }

    /// Places the inode of a file of consecutive blocks, and what is shorter than a block after it.
    fn put_plain(&mut self, planned: &Planned, file: &OpenFile) -> Result<Range<u64>> {
        let layout = if file.tail.is_empty() { LAYOUT_FLAT_PLAIN } else { LAYOUT_FLAT_INLINE };
        let storage = Storage::blocks(layout, file.first_block);
        self.put_record(planned, storage, file.tail.as_slice(), 0..file.tail.len() as u64)
    }
}
