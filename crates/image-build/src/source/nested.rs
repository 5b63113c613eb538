//! Whiteouts and attributes of an overlay mount that is part of the source itself, as in the storage of a container engine or
//! of ostree.
//!
//! If the image becomes a lower layer of an overlay mount, that mount acts on them: names disappear, directories become
//! opaque. Escaped, they reach a mount inside of it ("Nesting overlayfs mounts" in the kernel's documentation of
//! overlayfs; Linux 6.7 and later):
//!
//! - An attribute `trusted.overlay.NAME` becomes `trusted.overlay.overlay.NAME`; a mount removes one `overlay.`.
//! - A device 0:0 cannot be escaped. An empty regular file with the attribute `overlay.whiteout` has the same meaning, in a
//!   directory whose attribute `overlay.opaque` is `x`; Linux 6.7 had `overlay.whiteouts` in place of that. In an opaque
//!   directory (`y`) overlayfs does not look for such files; whiteouts have no effect there, and are removed.
//!
//! Mounts with the option `userxattr` read `user.overlay.*` and pass `trusted.overlay.*` through, and mounts of root the
//! other way round. So the attributes of the one kind of mounts that the image is for are escaped, and whiteouts also get
//! the unescaped attributes of the other kind, for mounts of that kind inside. `mkcomposefs` does the same.

use super::Scanned;
use super::whiteouts::{self, DEVICE, TRUSTED, USER, Whiteouts, is_device, is_marked};
use crate::Result;
use crate::table::Table;
use crate::tree::{Entry, InodeId, Tree};
use crate::xattrs::{XattrFilter, insert};
use pagefold_image::read::FileKind;

/// After the prefix of overlayfs, this begins the names of attributes that are escaped.
const ESCAPE: &[u8] = b"overlay.";

/// The treatment of whiteouts (devices 0:0) and attributes of overlayfs that the source has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NestedOverlay {
    /// They stay: the source is a layer.
    #[default]
    Keep,
    /// They are escaped: the source has an overlay mount of itself inside.
    Escape,
    /// They are left out, and so are the empty files that an attribute makes whiteouts.
    Strip,
}

/// Whiteouts and attributes of overlayfs in a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverlayFound {
    /// Names of devices 0:0.
    pub whiteouts: u64,
    /// Attributes that are not escaped.
    pub xattrs: u64,
}

/// Removes the attributes of a source that do not stay, treats what it has of overlayfs, and then converts the whiteouts of
/// the layer that it is.
pub(super) fn convert(
    scanned: &mut Scanned,
    xattrs: &XattrFilter,
    nested: NestedOverlay,
    whiteouts: Whiteouts,
) -> Result<()> {
    // Before the whiteouts of the layer, which would look like those of the source. Stripping goes by attributes
    // that the filter may remove.
    if nested == NestedOverlay::Strip {
        treat(scanned, nested, whiteouts)?;
        xattrs.apply_to(&mut scanned.tree)?;
    } else {
        xattrs.apply_to(&mut scanned.tree)?;
        treat(scanned, nested, whiteouts)?;
    }
    whiteouts::convert(&mut scanned.tree, whiteouts, nested)
}

/// Counts what is in a tree, and treats it.
fn treat(scanned: &mut Scanned, nested: NestedOverlay, whiteouts: Whiteouts) -> Result<()> {
    let tree = &mut scanned.tree;
    if !has_any(tree) {
        return Ok(());
    }
    let mut found =
        OverlayFound { xattrs: treat_xattrs(tree, InodeId::ROOT, nested, whiteouts)?, whiteouts: 0 };
    let mut marked = Table::new(&tree.spill().clone());
    tree.visit(|tree, entry, is_first| {
        if nested == NestedOverlay::Strip && is_marked(tree, entry.id, is_mark) {
            // Without its attribute it would be a file that the mount does not show.
            marked.push(entry)?;
            return Ok(());
        }
        if is_first {
            found.xattrs += treat_xattrs(tree, entry.id, nested, whiteouts)?;
        }
        if is_device(tree, entry.id) {
            found.whiteouts += 1;
        }
        Ok(())
    })?;
    found.whiteouts += marked.len() as u64;
    for Entry { name, parent, .. } in marked.iter() {
        let name = tree.name(name).to_vec();
        tree.remove(parent, &name);
    }
    if nested != NestedOverlay::Keep {
        treat_whiteouts(tree, nested, whiteouts)?;
    }
    scanned.overlay = found;
    Ok(())
}

/// Whether a tree has an attribute of overlayfs or a whiteout, maybe without a name.
fn has_any(tree: &Tree) -> bool {
    let attributes = tree.attributes();
    let is_overlay = |number: usize| is_overlay(&attributes.name(number as u32).0);
    tree.has_device(FileKind::CharDevice, DEVICE) || (0..attributes.count()).any(is_overlay)
}

/// Whether an attribute makes its file a whiteout, of this mount or, escaped, of one inside.
fn is_mark(name: &[u8]) -> bool {
    name == b"whiteout" || name.ends_with(b"overlay.whiteout")
}

fn is_overlay(name: &[u8]) -> bool {
    name.starts_with(TRUSTED) || name.starts_with(USER)
}

/// Counts the attributes of an inode that are not escaped, and treats all of them.
fn treat_xattrs(tree: &mut Tree, id: InodeId, nested: NestedOverlay, whiteouts: Whiteouts) -> Result<u64> {
    let xattrs = tree.xattrs(id);
    let is_active = |name: &[u8]| {
        [TRUSTED, USER]
            .iter()
            .any(|prefix| name.strip_prefix(*prefix).is_some_and(|rest| !rest.starts_with(ESCAPE)))
    };
    let count = xattrs.iter().filter(|(name, _)| is_active(name)).count() as u64;
    if nested == NestedOverlay::Keep || !xattrs.iter().any(|(name, _)| is_overlay(name)) {
        return Ok(count);
    }
    let prefix = whiteouts.prefix();
    tree.change(id, |metadata| {
        metadata.xattrs.clear();
        for (name, value) in xattrs {
            match (name.strip_prefix(prefix), nested) {
                (Some(rest), NestedOverlay::Escape) => {
                    insert(&mut metadata.xattrs, &[prefix, ESCAPE, rest].concat(), &value);
                }
                _ if nested == NestedOverlay::Strip && is_overlay(&name) => {}
                _ => insert(&mut metadata.xattrs, &name, &value),
            }
        }
    })?;
    Ok(count)
}

/// Makes the devices files with attributes, or removes them.
fn treat_whiteouts(tree: &mut Tree, nested: NestedOverlay, whiteouts: Whiteouts) -> Result<()> {
    let escaped = [whiteouts.prefix(), ESCAPE].concat();
    let kinds = [escaped.as_slice(), whiteouts.other_prefix()];
    let opaque = [&escaped, b"opaque".as_slice()].concat();
    let mut devices = Table::new(&tree.spill().clone());
    tree.visit(|tree, entry, _| {
        if is_device(tree, entry.id) {
            devices.push(entry)?;
        }
        Ok(())
    })?;
    for Entry { name, id, parent } in devices.iter() {
        let is_opaque = tree.xattrs(parent).iter().any(|(name, value)| **name == *opaque && **value == *b"y");
        if nested == NestedOverlay::Strip || is_opaque {
            let name = tree.name(name).to_vec();
            tree.remove(parent, &name);
            continue;
        }
        if is_device(tree, id) {
            tree.make_empty_file(id);
            let mark = |xattrs: &mut Vec<_>, kind: &[u8]| insert(xattrs, &[kind, b"whiteout"].concat(), b"");
            tree.change(id, |metadata| kinds.iter().for_each(|kind| mark(&mut metadata.xattrs, kind)))?;
        }
        tree.change(parent, |metadata| {
            for kind in kinds {
                let opaque = [kind, b"opaque"].concat();
                insert(&mut metadata.xattrs, &[kind, b"whiteouts"].concat(), b"");
                if !metadata.xattrs.iter().any(|(name, _)| **name == *opaque) {
                    insert(&mut metadata.xattrs, &opaque, b"x");
                }
            }
        })?;
    }
    Ok(())
}
