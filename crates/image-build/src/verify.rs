//! Comparing a finished image with the tree that it was built from, through the reader.
//!
//! The builder hashes contents while it reads them, so the source is not read a second time: a source that changed
//! after it was read does not matter. Of files in chunks only the chunks with data are hashed, in order.

use super::content_hash::ContentHash;
use super::plan::{Plan, Planned};
use super::table::{Spill, Table};
use super::tree::{InodeId, Tree};
use crate::{BuildError, Result};
use pagefold_image::read::{FileKind, Mapping};
use pagefold_image::{Image, ImageError, Node};
use std::ops::ControlFlow;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes that are read at once.
const STEP_BYTES: usize = 1 << 20;

/// Hashes of the contents of regular files.
#[derive(Debug)]
pub struct Digests(Table<Known>);

/// The hash of a file, if it is known.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Known {
    digest: [u8; 16],
    is_known: u64,
}

impl Default for Digests {
    fn default() -> Self {
        Digests::new(&Spill::none())
    }
}

impl Digests {
    /// None so far.
    pub(super) fn new(spill: &Spill) -> Self {
        Digests(Table::new(spill))
    }

    /// Remembers the hash of a file.
    pub(super) fn insert(&mut self, id: InodeId, digest: u128) -> Result<()> {
        self.0.put(id.index(), Known { digest: digest.to_le_bytes(), is_known: 1 }, Known::default())
    }

    /// The hash of a file.
    pub(super) fn get(&self, id: InodeId) -> Option<u128> {
        let known = self.0.get_or(id.index(), Known::default());
        (known.is_known != 0).then(|| u128::from_le_bytes(known.digest))
    }
}

/// A difference between an image and its tree.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A file of the image is not what went in.
    #[error("'{}' is not in the image as it was read: its {what} differs", String::from_utf8_lossy(.path))]
    Differs {
        /// The path in the image.
        path: Vec<u8>,
        /// The part that differs.
        what: &'static str,
    },
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The tree cannot be read in the order of the image.
    #[error(transparent)]
    Plan(#[from] BuildError),
    /// The caller ended it.
    #[error("interrupted")]
    Interrupted,
}

/// Compares an image with the tree and the hashes of [`Summary::digests`](super::Summary::digests). `on_progress` is
/// called with the number of bytes that were read since the last call.
pub fn verify(
    image: &Image,
    tree: &Tree,
    digests: &Digests,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<(), VerifyError> {
    let plan = Plan::new(tree, None, false)?;
    // No inode has number 0.
    let mut numbers = Table::filled(tree.spill(), tree.len(), 0)?;
    for planned in plan.directories.iter().chain(plan.others.iter()) {
        let path = planned.path(tree);
        let node = image.find(&path)?;
        numbers.set(planned.id.index(), node.nid().0);
        let check = |same, what| check(same, &path, what);
        compare_metadata(tree, &plan, &planned, &node, &check)?;
        if let Some(wanted) = digests.get(planned.id) {
            check(digest(&node, on_progress)? == Some(wanted), "contents")?;
        }
    }
    tree.spill().check()?;
    // Names come last: a hard link is a name of an inode that was seen.
    for planned in plan.directories.iter() {
        compare_names(image, tree, &planned, &numbers)?;
    }
    Ok(())
}

fn check(same: bool, path: &[u8], what: &'static str) -> Result<(), VerifyError> {
    match same {
        true => Ok(()),
        false => Err(VerifyError::Differs { path: path.to_vec(), what }),
    }
}

fn compare_metadata(
    tree: &Tree,
    plan: &Plan,
    planned: &Planned,
    node: &Node,
    check: &impl Fn(bool, &'static str) -> Result<(), VerifyError>,
) -> Result<(), VerifyError> {
    let (id, found) = (planned.id, node.inode());
    let metadata = tree.metadata(id);
    check(found.kind == tree.kind(id), "type")?;
    check(found.mode & 0o7777 == metadata.permissions, "mode")?;
    check((found.uid, found.gid) == (metadata.uid, metadata.gid), "owner")?;
    check(found.mtime == metadata.mtime, "time")?;
    check(found.nlink == plan.nlink(id), "number of links")?;
    let xattrs = node.xattrs()?;
    let mut xattrs: Vec<_> = xattrs.iter().map(|x| (x.name.as_slice(), x.value.as_slice())).collect();
    xattrs.sort_unstable();
    let same = xattrs.iter().copied().eq(metadata.xattrs.iter().map(|(name, value)| (&**name, &**value)));
    check(same, "attributes")?;
    if let Some(target) = tree.link_target(id) {
        check(*node.read_link()? == *target, "target")?;
    }
    if let Some(number) = tree.device(id) {
        check(found.device == Some(number), "device number")?;
    }
    match tree.kind(id) {
        FileKind::Regular => check(found.size == tree.content_bytes(id), "length"),
        _ => Ok(()),
    }
}

fn compare_names(
    image: &Image,
    tree: &Tree,
    planned: &Planned,
    numbers: &Table<u64>,
) -> Result<(), VerifyError> {
    let path = planned.path(tree);
    let mut wanted = tree.entries(planned.id);
    for entry in image.find(&path)?.entries()? {
        let entry = entry?;
        if matches!(entry.name.as_slice(), b"." | b"..") {
            continue;
        }
        let same = wanted
            .next()
            .is_some_and(|(name, id)| *name == *entry.name && numbers.get(id.index()) == entry.nid.0);
        check(same, &path, "list of names")?;
    }
    check(wanted.next().is_none(), &path, "list of names")
}

/// Hashes the contents of a file; of one in chunks, without its holes. `None`: it ends before its length.
fn digest(
    node: &Node,
    on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<u128>, VerifyError> {
    debug_assert_eq!(node.kind(), FileKind::Regular);
    let mut hash = ContentHash::new();
    let mut buf = vec![0; STEP_BYTES.min(node.len_bytes() as usize)];
    for range in data_ranges(node)? {
        let mut at = range.start;
        while at < range.end {
            let want = ((range.end - at) as usize).min(buf.len());
            let len = node.read_at(at, &mut buf[..want])?;
            hash.write(&buf[..len]);
            at += len as u64;
            if len == 0 {
                return Ok(None);
            }
            if on_progress(len as u64).is_break() {
                return Err(VerifyError::Interrupted);
            }
        }
    }
    Ok(Some(hash.finish()))
}

fn data_ranges(node: &Node) -> Result<Vec<std::ops::Range<u64>>, ImageError> {
    match node.inode().layout {
        pagefold_image::read::Layout::Chunks { .. } => node
            .extents()
            .filter(|extent| !matches!(extent, Ok(extent) if extent.mapping == Mapping::Hole))
            .map(|extent| extent.map(|extent| extent.start..extent.end()))
            .collect(),
        _ => Ok(vec![std::ops::Range { start: 0, end: node.len_bytes() }]),
    }
}
