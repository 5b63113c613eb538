//! Whiteouts: how a layer of a container, or the upper directory of an overlay mount, says that it removes a name of a
//! lower one.
//!
//! In archives they are files `.wh.NAME` (the form of AUFS and of OCI layers); the kernel's overlayfs reads character
//! devices 0:0 and attributes. The conversion works on a finished tree, because a name that a layer removes and makes again
//! stays, in whatever order its members come.
//!
//! overlayfs hides the devices of a directory that it merges from several layers. In one that only this layer has, or that
//! is opaque, it hides them if the directory has an attribute `origin`, which may be empty: without it `readdir` lists names
//! that do not exist for any other call. So each directory that holds a whiteout gets the attribute, as in images of
//! `mkfs.erofs --aufs`. The upper directories that overlayfs itself writes have it.

use super::nested::NestedOverlay;
use crate::Result;
use crate::error::BuildError;
use crate::table::Table;
use crate::tree::{Body, InodeId, Metadata, Name, Tree, Xattr};
use crate::xattrs::insert;
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::DeviceNumber;

/// Begins the names of whiteouts.
pub(super) const PREFIX: &[u8] = b".wh.";
/// Begins the names of files that describe the layer itself.
const META: &[u8] = b".wh..wh.";
/// Marks its directory as opaque.
pub(super) const OPAQUE: &[u8] = b".wh..wh..opq";
/// The number of a device that is a whiteout of overlayfs.
pub(super) const DEVICE: DeviceNumber = DeviceNumber { major: 0, minor: 0 };
/// The attributes of overlayfs in mounts of root, and in those with the option `userxattr`.
pub(super) const TRUSTED: &[u8] = b"trusted.overlay.";
pub(super) const USER: &[u8] = b"user.overlay.";

/// The meaning of files `.wh.NAME`, by which layers of containers remove files of the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// They are files like others.
    #[default]
    Files,
    /// They become what overlayfs understands: the character device 0:0 with the name that is removed, and of
    /// `.wh..wh..opq` the attribute `trusted.overlay.opaque` of the directory. Attributes `user.overlay.*` of the source are
    /// renamed to `trusted.overlay.*`.
    Overlay,
    /// The same for mounts with the option `userxattr`, which read attributes `user.overlay.*` in place of
    /// `trusted.overlay.*`. Those of the source are renamed too.
    OverlayUser,
}

impl Whiteouts {
    /// Whether the image is a layer of an overlay mount.
    pub fn is_overlay(self) -> bool {
        self != Whiteouts::Files
    }

    /// Where the attributes of overlayfs begin.
    pub(super) fn prefix(self) -> &'static [u8] {
        match self {
            Whiteouts::Files | Whiteouts::Overlay => TRUSTED,
            Whiteouts::OverlayUser => USER,
        }
    }

    /// Where the attributes of overlayfs begin that are renamed.
    pub(super) fn other_prefix(self) -> &'static [u8] {
        match self {
            Whiteouts::Files | Whiteouts::Overlay => USER,
            Whiteouts::OverlayUser => TRUSTED,
        }
    }
}

/// The kind of a name that begins as those of whiteouts do.
pub(super) enum WhiteoutName<'n> {
    /// The whiteout of this name.
    Of(&'n [u8]),
    /// The mark of an opaque directory.
    Opaque,
    /// A file that describes the layer, and that no other layer and no program needs.
    Meta,
    /// A whiteout of no name.
    Nothing,
}

impl<'n> WhiteoutName<'n> {
    /// Recognizes a name; `None` if it is not that of a whiteout.
    pub(super) fn of(name: &'n [u8]) -> Option<Self> {
        Some(match name.strip_prefix(PREFIX)? {
            _ if name == OPAQUE => WhiteoutName::Opaque,
            _ if name.starts_with(META) => WhiteoutName::Meta,
            b"" | b"." | b".." => WhiteoutName::Nothing,
            of => WhiteoutName::Of(of),
        })
    }
}

/// Whether a file is a whiteout by an attribute of overlayfs, as inside of another overlay. `is_mark` tells by the name of an
/// attribute, without its beginning.
pub(super) fn is_marked(tree: &Tree, id: InodeId, is_mark: fn(&[u8]) -> bool) -> bool {
    tree.kind(id) == FileKind::Regular
        && tree.content_bytes(id) == 0
        && tree.has_xattrs(id)
        && tree.xattrs(id).iter().any(|(name, _)| of_overlay(name).is_some_and(is_mark))
}

/// The name of an attribute of overlayfs, without its beginning.
pub(super) fn of_overlay(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(TRUSTED).or_else(|| name.strip_prefix(USER))
}

/// Converts the whiteouts of a tree, and marks the directories that hold some. Attributes are renamed only if they are those
/// of the layer.
pub(super) fn convert(tree: &mut Tree, whiteouts: Whiteouts, nested: NestedOverlay) -> Result<()> {
    if whiteouts == Whiteouts::Files && !tree.has_device(FileKind::CharDevice, DEVICE) {
        return Ok(());
    }
    let renames = whiteouts != Whiteouts::Files && nested == NestedOverlay::Keep;
    let mut stack = Table::new(tree.spill());
    stack.push(InodeId::ROOT)?;
    while let Some(id) = stack.pop() {
        let mut holds_device = false;
        let mut names = Table::new(tree.spill());
        let mut renamed = Table::new(tree.spill());
        let mut entries = tree.entries(id);
        while let Some((name, child)) = entries.next_entry() {
            if whiteouts != Whiteouts::Files && tree.name(name).starts_with(PREFIX) {
                names.push(name)?;
                continue;
            }
            holds_device |= is_device(tree, child);
            if renames && tree.has_xattrs(child) {
                renamed.push(child)?;
            }
        }
        for child in renamed.iter() {
            rename_attributes(tree, child, whiteouts)?;
        }
        holds_device |= convert_names(tree, id, &names, whiteouts)?;
        if id == InodeId::ROOT && renames {
            rename_attributes(tree, id, whiteouts)?;
        }
        if holds_device {
            mark_origin(tree, id, whiteouts)?;
        }
        let mut entries = tree.entries(id);
        while let Some((_, child)) = entries.next_entry() {
            if tree.is_directory(child) {
                stack.push(child)?;
            }
        }
    }
    Ok(())
}

/// Converts the whiteouts of a directory. Returns whether it got a device.
fn convert_names(tree: &mut Tree, id: InodeId, names: &Table<Name>, whiteouts: Whiteouts) -> Result<bool> {
    let mut has_device = false;
    for name in names.iter() {
        let name = tree.name(name).to_vec();
        let found = tree.child(id, &name).map(|child| tree.plain_metadata(child));
        tree.remove(id, &name);
        match (WhiteoutName::of(&name), found) {
            (Some(WhiteoutName::Opaque), _) => mark_opaque(tree, id, whiteouts)?,
            (Some(WhiteoutName::Of(of)), Some(metadata)) => match tree.child(id, of) {
                // The layer removes a directory and makes another one.
                Some(child) if tree.is_directory(child) => mark_opaque(tree, child, whiteouts)?,
                Some(_) => {}
                None => {
                    tree.add(id, of, Metadata { permissions: 0, ..metadata }, Body::CharDevice(DEVICE))?;
                    has_device = true;
                }
            },
            (Some(WhiteoutName::Nothing), _) => {
                let path = [tree.directory_path(id), name].join(b"/".as_slice());
                return Err(BuildError::refused(&path, "a whiteout of no name"));
            }
            _ => {}
        }
    }
    Ok(has_device)
}

pub(super) fn is_device(tree: &Tree, id: InodeId) -> bool {
    tree.kind(id) == FileKind::CharDevice && tree.device(id) == Some(DEVICE)
}

fn mark_opaque(tree: &mut Tree, id: InodeId, whiteouts: Whiteouts) -> Result<()> {
    let name = [whiteouts.prefix(), b"opaque"].concat();
    tree.change(id, |metadata| insert(&mut metadata.xattrs, &name, b"y"))
}

/// Marks a directory that holds whiteouts, unless it has a mark. That of the other kind of mounts suffices if the source has
/// it and the user made no choice.
fn mark_origin(tree: &mut Tree, id: InodeId, whiteouts: Whiteouts) -> Result<()> {
    let origins = [TRUSTED, USER].map(|prefix| [prefix, b"origin"].concat());
    let wanted = [whiteouts.prefix(), b"origin"].concat();
    let suffices = |name: &[u8]| match whiteouts {
        Whiteouts::Files => origins.iter().any(|origin| name == origin),
        Whiteouts::Overlay | Whiteouts::OverlayUser => name == wanted,
    };
    if tree.xattrs(id).iter().any(|(name, _)| suffices(name)) {
        return Ok(());
    }
    tree.change(id, |metadata| insert(&mut metadata.xattrs, &wanted, b""))
}

/// Renames the attributes of overlayfs to those of the chosen kind of mounts. An attribute that has the new name already
/// stays. Types of files that cannot have attributes of users lose them, and need none.
fn rename_attributes(tree: &mut Tree, id: InodeId, whiteouts: Whiteouts) -> Result<()> {
    let (old, new) = (whiteouts.other_prefix(), whiteouts.prefix());
    if !tree.xattrs(id).iter().any(|(name, _)| name.starts_with(old)) {
        return Ok(());
    }
    let is_allowed = new == TRUSTED || matches!(tree.kind(id), FileKind::Directory | FileKind::Regular);
    tree.change(id, |metadata| {
        let (renamed, mut xattrs): (Vec<_>, Vec<_>) =
            metadata.xattrs.drain(..).partition(|(name, _)| name.starts_with(old));
        for (name, value) in renamed.iter().filter(|_| is_allowed) {
            let name = [new, &name[old.len()..]].concat();
            if !xattrs.iter().any(|(other, _): &Xattr| **other == *name) {
                insert(&mut xattrs, &name, value);
            }
        }
        metadata.xattrs = xattrs;
    })
}
