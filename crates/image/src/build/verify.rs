//! Comparing a finished image with the tree that it was built from, through the reader.
//!
//! The builder hashes contents while it reads them, so the source is not read a second time: a source that changed
//! after it was read does not matter. Of files in chunks only the chunks with data are hashed, in order.

use super::plan::{Plan, Planned};
use super::tree::{Body, InodeId, Tree};
use crate::read::{FileKind, Mapping};
use crate::{Image, ImageError, Node};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use twox_hash::XxHash3_128;

/// Bytes that are read at once.
const STEP_BYTES: usize = 1 << 20;

/// Hashes of the contents of regular files.
#[derive(Debug, Clone, Default)]
pub struct Digests(pub(super) BTreeMap<InodeId, u128>);

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
    let plan = Plan::new(tree, None);
    let mut numbers = BTreeMap::new();
    for planned in plan.directories.iter().chain(&plan.others) {
        let node = image.find(&planned.path)?;
        numbers.insert(planned.id, node.nid());
        compare_metadata(tree, &plan, planned, &node)?;
        if let Some(wanted) = digests.0.get(&planned.id) {
            let same = digest(&node, on_progress)? == *wanted;
            check(same, planned, "contents")?;
        }
    }
    // Names come last: a hard link is a name of an inode that was seen.
    for planned in &plan.directories {
        compare_names(image, tree, planned, &numbers)?;
    }
    Ok(())
}

fn check(same: bool, planned: &Planned, what: &'static str) -> Result<(), VerifyError> {
    match same {
        true => Ok(()),
        false => Err(VerifyError::Differs { path: planned.path.to_vec(), what }),
    }
}

fn compare_metadata(tree: &Tree, plan: &Plan, planned: &Planned, node: &Node) -> Result<(), VerifyError> {
    let (wanted, found) = (tree.inode(planned.id), node.inode());
    let metadata = &wanted.metadata;
    check(found.kind == wanted.body.kind(), planned, "type")?;
    check(found.mode & 0o7777 == metadata.permissions, planned, "mode")?;
    check((found.uid, found.gid) == (metadata.uid, metadata.gid), planned, "owner")?;
    check(found.mtime == metadata.mtime, planned, "time")?;
    check(found.nlink == plan.nlinks[planned.id.index()], planned, "number of links")?;
    let xattrs = node.xattrs()?;
    let mut xattrs: Vec<_> = xattrs.iter().map(|x| (x.name.as_slice(), x.value.as_slice())).collect();
    xattrs.sort_unstable();
    let same = xattrs.iter().copied().eq(metadata.xattrs.iter().map(|(name, value)| (&**name, &**value)));
    check(same, planned, "attributes")?;
    match &wanted.body {
        Body::Symlink(target) => check(*node.read_link()? == **target, planned, "target"),
        Body::CharDevice(number) | Body::BlockDevice(number) => {
            check(found.device == Some(*number), planned, "device number")
        }
        Body::Regular(content) => check(found.size == content.len_bytes(), planned, "length"),
        Body::Directory(_) | Body::Fifo | Body::Socket => Ok(()),
    }
}

fn compare_names(
    image: &Image,
    tree: &Tree,
    planned: &Planned,
    numbers: &BTreeMap<InodeId, crate::Nid>,
) -> Result<(), VerifyError> {
    let mut wanted = tree.directory(planned.id).into_iter().flat_map(|directory| directory.entries());
    for entry in image.find(&planned.path)?.entries()? {
        let entry = entry?;
        if matches!(entry.name.as_slice(), b"." | b"..") {
            continue;
        }
        let same = wanted.next().is_some_and(|(name, id)| {
            *name == *entry.name && numbers.get(&id).is_some_and(|nid| *nid == entry.nid)
        });
        check(same, planned, "list of names")?;
    }
    check(wanted.next().is_none(), planned, "list of names")
}

/// Hashes the contents of a file; of one in chunks, without its holes.
fn digest(node: &Node, on_progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<u128, VerifyError> {
    debug_assert_eq!(node.kind(), FileKind::Regular);
    let mut hash = XxHash3_128::new();
    let mut buf = vec![0; STEP_BYTES.min(node.len_bytes() as usize)];
    for range in data_ranges(node)? {
        let mut at = range.start;
        while at < range.end {
            let want = ((range.end - at) as usize).min(buf.len());
            let len = node.read_at(at, &mut buf[..want])?;
            hash.write(&buf[..len]);
            at += len as u64;
            if len == 0 || on_progress(len as u64).is_break() {
                return Err(VerifyError::Interrupted);
            }
        }
    }
    Ok(hash.finish_128())
}

fn data_ranges(node: &Node) -> Result<Vec<std::ops::Range<u64>>, ImageError> {
    match node.inode().layout {
        crate::read::Layout::Chunks { .. } => node
            .extents()
            .filter(|extent| !matches!(extent, Ok(extent) if extent.mapping == Mapping::Hole))
            .map(|extent| extent.map(|extent| extent.start..extent.end()))
            .collect(),
        _ => Ok(vec![std::ops::Range { start: 0, end: node.len_bytes() }]),
    }
}
