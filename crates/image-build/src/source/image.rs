//! A tree from another image, to build it again: with another compression, for another kernel.
//!
//! The image is not trusted. A fault that a check would report as an error ends the scan, or the build when contents are
//! read: an image that is built is complete.

use super::{NestedOverlay, OnEntry, Scanned, Whiteouts, nested};
use crate::content::{Content, Contents, DeviceRun, Reader, SourceDevice, Stored};
use crate::error::path_of;
use crate::rules::Pattern;
use crate::table::{Hashes, Spill};
use crate::tree::{Body, InodeId, Metadata, Tree, Xattr};
use crate::xattrs::XattrFilter;
use crate::{BuildError, Result};
use pagefold_image::format::xattr::xattr_area_len_max;
use pagefold_image::read::inode::DeviceNumber;
use pagefold_image::read::{Cursor, FileKind};
use pagefold_image::walk::{self, Limits, Link, Visit, Visitor};
use pagefold_image::work::{SharedWork, WorkLimit};
use pagefold_image::{Finding, Image, ImageError, Nid, Node, Severity, runs};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Ranges of data of a file with holes at most. Beyond that the file is read as if it had none.
const RANGES_MAX: usize = 1 << 20;
/// Length of all files at most: 128 TiB. An image of some KiB can claim any length.
const CONTENT_BYTES_MAX: u64 = 1 << 47;

/// The choice of what is taken from an image.
#[derive(Debug, Clone, Default)]
pub struct ImageOptions {
    /// Names that are left out, with all below them.
    pub exclude: Vec<Pattern>,
    /// How files that stand for removed ones become part of the image.
    pub whiteouts: Whiteouts,
    /// The treatment of an overlay mount inside.
    pub nested: NestedOverlay,
    /// The attributes that stay.
    pub xattrs: XattrFilter,
    /// Where the tree goes if it is large.
    pub spill: Spill,
}

/// Reads the names and metadata of an image. Names that match a pattern are left out, with all below them.
pub fn scan(image: &Image, exclude: &[Pattern]) -> Result<Scanned> {
    let options = ImageOptions { exclude: exclude.to_vec(), ..ImageOptions::default() };
    scan_watched(image, &options, &mut |_| ControlFlow::Continue(()))
}

/// Like [`scan`]. `on_entry` is called for each name with the number of inodes so far, and may end it:
/// [`BuildError::Interrupted`].
pub fn scan_watched(image: &Image, options: &ImageOptions, on_entry: &mut OnEntry<'_>) -> Result<Scanned> {
    let spill = &options.spill;
    let mut repack = Repack {
        exclude: &options.exclude,
        on_entry,
        scanned: Scanned::new(Tree::with_spill(Metadata::default(), spill)?),
        directories: Vec::new(),
        inodes: Hashes::new(spill),
        content_bytes: 0,
        failed: None,
    };
    repack.scanned.tree.set_contents(Arc::new(Nodes {
        image: image.clone(),
        work: SharedWork::of_image(image.stored_bytes()).into(),
    }));
    walk::walk(image, &Limits::default(), &mut repack).map_err(|e| failed(b"/", e))?;
    if let Some(error) = repack.failed {
        return Err(error);
    }
    nested::convert(&mut repack.scanned, &options.xattrs, options.nested, options.whiteouts)?;
    Ok(repack.scanned)
}

fn failed(path: &[u8], source: ImageError) -> BuildError {
    BuildError::Image { path: path_of(path), source }
}

struct Repack<'p, 'f> {
    exclude: &'p [Pattern],
    on_entry: &'p mut OnEntry<'f>,
    scanned: Scanned,
    /// The directory that is being visited, after those that it is in.
    directories: Vec<InodeId>,
    /// Inodes that may have further names.
    inodes: Hashes,
    content_bytes: u64,
    failed: Option<BuildError>,
}

impl Repack<'_, '_> {
    fn add(&mut self, visit: &Visit<'_>) -> Result<InodeId> {
        let node = visit.node;
        let metadata = metadata(node, visit.path)?;
        let Some(&parent) = self.directories.last() else {
            self.scanned.tree.change(InodeId::ROOT, |root| *root = metadata)?;
            return Ok(InodeId::ROOT);
        };
        let nid = Hashes::key_of(node.nid().0, 0);
        if let Link::Again(_) = visit.link
            && let Some(id) = self.inodes.get(&nid)
        {
            let id = InodeId::at(id as usize);
            self.scanned.tree.link(parent, visit.name, id)?;
            return Ok(id);
        }
        let body = self.body(node, visit.path)?;
        let id = self.scanned.tree.add(parent, visit.name, metadata, body)?;
        if node.kind() != FileKind::Directory && node.inode().nlink != 1 {
            self.inodes.get_or_insert(&nid, id.index() as u64)?;
        }
        Ok(id)
    }

    fn body(&mut self, node: &Node, path: &[u8]) -> Result<Body> {
        let number = node.inode().device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
        Ok(match node.kind() {
            FileKind::Directory => Body::Directory,
            FileKind::Symlink => Body::Symlink(node.read_link().map_err(|e| failed(path, e))?.into()),
            FileKind::CharDevice => Body::CharDevice(number),
            FileKind::BlockDevice => Body::BlockDevice(number),
            FileKind::Fifo => Body::Fifo,
            FileKind::Socket => Body::Socket,
            FileKind::Regular => {
                let len_bytes = node.len_bytes();
                let sum = self.content_bytes.checked_add(len_bytes).filter(|sum| *sum <= CONTENT_BYTES_MAX);
                self.content_bytes = sum.ok_or_else(|| {
                    let what = format!("with its {len_bytes} bytes the files have more than 2^47");
                    BuildError::image_fault(path, what)
                })?;
                Body::Stored(Stored { len_bytes, words: [node.nid().0, 0, 0, 0, 0] })
            }
        })
    }

    fn visit<T>(
        &mut self,
        visit: &Visit<'_>,
        then: impl FnOnce(&mut Self, InodeId) -> T,
    ) -> ControlFlow<(), T> {
        if (self.on_entry)(self.scanned.tree.len() as u64).is_break() {
            self.failed.get_or_insert(BuildError::Interrupted);
        }
        if self.failed.is_none() {
            match self.add(visit) {
                Ok(id) => return ControlFlow::Continue(then(self, id)),
                Err(error) => self.failed = Some(error),
            }
        }
        ControlFlow::Break(())
    }
}

impl Visitor for Repack<'_, '_> {
    fn wants(&mut self, path: &[u8]) -> bool {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        path.is_empty() || !Pattern::any_matches(self.exclude, path)
    }

    fn enter(&mut self, visit: &Visit<'_>) -> ControlFlow<(), bool> {
        self.visit(visit, |repack, id| {
            repack.directories.push(id);
            true
        })
    }

    fn leave(&mut self, _visit: &Visit<'_>, _directories: u64) -> ControlFlow<()> {
        self.directories.pop();
        ControlFlow::Continue(())
    }

    fn file(&mut self, visit: &Visit<'_>) -> ControlFlow<()> {
        self.visit(visit, |_, _| ())
    }

    fn finding(&mut self, finding: Finding) {
        if finding.severity == Severity::Error && self.failed.is_none() {
            self.failed = Some(BuildError::image_fault(&finding.path, finding.what));
        }
    }
}

fn metadata(node: &Node, path: &[u8]) -> Result<Metadata> {
    let inode = node.inode();
    if u64::from(inode.xattr_bytes) > xattr_area_len_max() {
        return Err(BuildError::refused(path, "its attributes take more than 256 KiB"));
    }
    let xattrs = node.xattrs().map_err(|e| failed(path, e))?;
    let mut xattrs: Vec<Xattr> =
        xattrs.into_iter().map(|xattr| (xattr.name.into(), xattr.value.into())).collect();
    xattrs.sort_unstable();
    Ok(Metadata {
        permissions: inode.mode & 0o7777,
        uid: inode.uid,
        gid: inode.gid,
        mtime: inode.mtime,
        xattrs,
    })
}

/// The contents of all files of the image.
#[derive(Debug)]
struct Nodes {
    image: Image,
    /// The limit of work for reading all contents.
    work: Arc<SharedWork>,
}

impl Contents for Nodes {
    fn content(&self, file: &Stored, path: &[u8]) -> Arc<dyn Content> {
        let (image, work, nid) = (self.image.clone(), self.work.clone(), Nid(file.words[0]));
        Arc::new(NodeContent { image, work, nid, path: path.into(), len_bytes: file.len_bytes })
    }

    fn devices(&self) -> Vec<SourceDevice> {
        let superblock = self.image.superblock();
        let mut tag = [0; 64];
        let uuid: String = superblock.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        tag[..uuid.len()].copy_from_slice(uuid.as_bytes());
        let (len_bytes, block_bytes) = (self.image.own_bytes(), superblock.block_bytes());
        vec![SourceDevice { tag, len_bytes, block_bytes }]
    }
}

/// The contents of a file of the image.
#[derive(Debug)]
struct NodeContent {
    image: Image,
    work: Arc<SharedWork>,
    nid: Nid,
    path: Box<[u8]>,
    len_bytes: u64,
}

impl NodeContent {
    fn failed(&self, source: ImageError) -> BuildError {
        failed(&self.path, source)
    }
}

impl Content for NodeContent {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn device_runs(&self) -> Result<Option<Vec<DeviceRun>>> {
        let node = self.image.node(self.nid).map_err(|e| self.failed(e))?;
        let (mut runs, mut at, mut cursor) = (Vec::<DeviceRun>::new(), 0, Cursor::default());
        let work = self.work.limit();
        while let Some(run) = runs::at(&node, at, &mut cursor, &work).map_err(|e| self.failed(e))? {
            if let Some(beyond) = run.beyond(&node) {
                return Err(BuildError::image_fault(&self.path, beyond.what));
            }
            let range = run.start..run.end;
            at = run.end;
            let place = match run.stored {
                runs::Stored::Nothing => continue,
                runs::Stored::Encoded => return Ok(None),
                runs::Stored::Plain(address) => match self.image.own_address(address) {
                    Ok((0, at)) => at,
                    _ => return Ok(None),
                },
            };
            match runs.last_mut() {
                Some(last)
                    if last.range.end == range.start
                        && last.at + (last.range.end - last.range.start) == place =>
                {
                    last.range.end = range.end;
                }
                _ => runs.push(DeviceRun { range, at: place }),
            }
            if runs.len() > RANGES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(runs))
    }

    fn open(&self) -> Result<Box<dyn Reader + '_>> {
        let node = self.image.node(self.nid).map_err(|e| self.failed(e))?;
        Ok(Box::new(NodeReader { content: self, node, work: self.work.limit() }))
    }
}

struct NodeReader<'c> {
    content: &'c NodeContent,
    node: Node,
    work: WorkLimit,
}

impl Reader for NodeReader<'_> {
    fn data_ranges(&self) -> Result<Option<Vec<Range<u64>>>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut has_holes = false;
        let (mut at, mut cursor) = (0, Cursor::default());
        while let Some(run) =
            runs::at(&self.node, at, &mut cursor, &self.work).map_err(|e| self.content.failed(e))?
        {
            // Such a file would have to be read for ever before the error is met.
            if let Some(beyond) = run.beyond(&self.node) {
                return Err(BuildError::image_fault(&self.content.path, beyond.what));
            }
            match ranges.last_mut() {
                _ if run.is_hole() => has_holes = true,
                Some(last) if last.end == run.start => last.end = run.end,
                _ => ranges.push(run.start..run.end),
            }
            if ranges.len() > RANGES_MAX {
                return Ok(None);
            }
            at = run.end;
        }
        Ok(has_holes.then_some(ranges))
    }

    fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let decoded = self.work.decoded(buf.len() as u64);
        let read = decoded.and_then(|()| self.node.read_within(at, buf, &self.work));
        let read = read.map_err(|e| self.content.failed(e))?;
        match read == buf.len() {
            true => Ok(()),
            false => Err(BuildError::image_fault(&self.content.path, "it ends before its length")),
        }
    }
}
