//! The tree that an image is built from: names, metadata, and where contents come from.
//!
//! Sources fill a [`Tree`], and the builder turns it into an image. An inode may have several names (hard links); a
//! directory has one. The entries of a directory are sorted by the bytes of their names, as the format has them, so the
//! order in which a source adds them does not matter.
//!
//! A tree takes about 150 bytes for an inode with a name, in tables that may [spill](Spill) to a file, and equal attributes
//! once. Contents are not in the tree: a source gives for each file some words, from which its [`Contents`] finds them
//! again, or a [`Content`].
//!
//! | module | contents |
//! |---|---|
//! | `inode` | inodes as sources give them, and what the format can store of them |
//! | `record` | what is stored for an inode |
//! | `attributes` | extended attributes |
//! | `names` | the entries of directories |
//! | `paths` | paths and patterns |
//! | `entries` | visits of all names |

mod attributes;
mod entries;
mod inode;
mod names;
mod paths;
mod record;

pub use inode::{Body, InodeId, LINK_LEN_MAX, Metadata, XATTR_VALUE_LEN_MAX, Xattr};
pub use names::Entries;
pub use paths::split;

use super::content::{Bytes, Content, Contents, Stored};
use super::table::{Spill, Table};
use crate::{BuildError, Result};
use attributes::{Attributes, NO_ATTRIBUTES};
pub(super) use entries::Entry;
use inode::{check, check_name};
pub(super) use names::Name;
use names::{NO_NODE, Names};
use pagefold_image::read::FileKind;
use pagefold_image::read::inode::{DeviceNumber, Timestamp};
use record::{Detail, Record};
use std::sync::Arc;

/// Numbers of contents from here on are those of [`Content`]s; the others are positions in the table of stored words.
const OWN_CONTENT: u64 = 1 << 63;
/// The number of empty contents.
const NO_CONTENT: u64 = u64::MAX;

/// A tree of files.
#[derive(Debug)]
pub struct Tree {
    inodes: Table<Record>,
    names: Names,
    stored: Table<Stored>,
    contents: Option<Arc<dyn Contents>>,
    own_contents: Vec<Arc<dyn Content>>,
    attributes: Attributes,
}

impl Tree {
    /// Makes a tree of nothing but a root directory. It is in memory.
    pub fn new(root: Metadata) -> Self {
        let mut tree = Tree::empty(&Spill::none());
        // Only a spill can fail.
        let _ = tree.change(InodeId::ROOT, |metadata| *metadata = root);
        tree
    }

    /// Makes a tree of nothing but a root directory, which spills.
    pub fn with_spill(root: Metadata, spill: &Spill) -> Result<Self> {
        let mut tree = Tree::empty(spill);
        tree.change(InodeId::ROOT, |metadata| *metadata = root)?;
        Ok(tree)
    }

    fn empty(spill: &Spill) -> Self {
        let mut tree = Tree {
            inodes: Table::new(spill),
            names: Names::new(spill),
            stored: Table::new(spill),
            contents: None,
            own_contents: Vec::new(),
            attributes: Attributes::new(spill),
        };
        let root = Record::new(&Metadata::default(), NO_ATTRIBUTES, Detail::Directory(NO_NODE));
        // The first records of a table are in memory.
        let _ = tree.inodes.push(root);
        tree
    }

    /// Sets what finds the contents of files that are [`Body::Stored`].
    pub fn set_contents(&mut self, contents: Arc<dyn Contents>) {
        self.contents = Some(contents);
    }

    /// The finder of the contents of files that are [`Body::Stored`].
    pub(super) fn contents(&self) -> Option<&Arc<dyn Contents>> {
        self.contents.as_ref()
    }

    /// Where the tree spills to.
    pub fn spill(&self) -> &Spill {
        self.inodes.spill()
    }

    /// Returns the metadata of an inode.
    pub fn metadata(&self, id: InodeId) -> Metadata {
        Metadata { xattrs: self.xattrs(id), ..self.record(id).metadata() }
    }

    /// Returns the metadata of an inode, without attributes.
    pub(super) fn plain_metadata(&self, id: InodeId) -> Metadata {
        self.record(id).metadata()
    }

    /// Returns the extended attributes of an inode.
    pub fn xattrs(&self, id: InodeId) -> Vec<Xattr> {
        self.attribute_numbers(id).map(|number| self.attributes.get(number)).collect()
    }

    /// Whether an inode has extended attributes.
    pub(super) fn has_xattrs(&self, id: InodeId) -> bool {
        self.record(id).xattrs != NO_ATTRIBUTES
    }

    /// The numbers of the attributes of an inode, in [`attributes`](Self::attributes).
    pub(super) fn attribute_numbers(&self, id: InodeId) -> impl Iterator<Item = u32> + '_ {
        self.attributes.members(self.record(id).xattrs)
    }

    /// The different attributes, those without an inode included.
    pub(super) fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns the time of the last change of an inode.
    pub fn mtime(&self, id: InodeId) -> Timestamp {
        self.record(id).mtime()
    }

    /// Returns the type of an inode.
    pub fn kind(&self, id: InodeId) -> FileKind {
        self.record(id).kind()
    }

    /// Returns the length of a regular file, bytes; 0 for others.
    pub fn content_bytes(&self, id: InodeId) -> u64 {
        match self.record(id).detail() {
            Detail::Regular(NO_CONTENT) => 0,
            Detail::Regular(number) if number >= OWN_CONTENT => self.own_content(number).len_bytes(),
            Detail::Regular(number) => self.stored.get(number as usize).len_bytes,
            _ => 0,
        }
    }

    /// Returns what finds the contents of a regular file that is [`Body::Stored`] and not empty; `None` for others.
    pub(super) fn stored(&self, id: InodeId) -> Option<Stored> {
        match self.record(id).detail() {
            Detail::Regular(number) if number < OWN_CONTENT => Some(self.stored.get(number as usize)),
            _ => None,
        }
    }

    /// Returns the contents of a regular file; `None` for others. `path` is one of its paths.
    pub fn content(&self, id: InodeId, path: &[u8]) -> Option<Arc<dyn Content>> {
        match self.record(id).detail() {
            Detail::Regular(NO_CONTENT) => Some(Arc::new(Bytes(Arc::default()))),
            Detail::Regular(number) if number >= OWN_CONTENT => Some(self.own_content(number).clone()),
            Detail::Regular(number) => {
                let stored = self.stored.get(number as usize);
                self.contents.as_ref().map(|contents| contents.content(&stored, path))
            }
            _ => None,
        }
    }

    /// Returns the target of a symbolic link; `None` for others.
    pub fn link_target(&self, id: InodeId) -> Option<&[u8]> {
        match self.record(id).detail() {
            Detail::Symlink(target) => Some(self.names.get(target)),
            _ => None,
        }
    }

    /// Returns the number of a device; `None` for others.
    pub fn device(&self, id: InodeId) -> Option<DeviceNumber> {
        match self.record(id).detail() {
            Detail::Device(_, number) => Some(number),
            _ => None,
        }
    }

    /// Whether an inode, with or without a name, is the device of this number.
    pub(super) fn has_device(&self, kind: FileKind, number: DeviceNumber) -> bool {
        (0..self.inodes.len()).any(|index| self.inodes.get(index).detail() == Detail::Device(kind, number))
    }

    /// Changes the metadata of an inode.
    pub fn change(&mut self, id: InodeId, change: impl FnOnce(&mut Metadata)) -> Result<()> {
        let mut metadata = self.metadata(id);
        change(&mut metadata);
        let xattrs = self.attributes.number_of_set(&metadata.xattrs)?;
        let record = self.record(id).with_metadata(&metadata, xattrs);
        self.inodes.set(id.index(), record);
        Ok(())
    }

    /// Changes the metadata of all inodes that have a name, and of the root.
    pub fn change_metadata(&mut self, mut change: impl FnMut(&mut Metadata)) -> Result<()> {
        self.change(InodeId::ROOT, &mut change)?;
        self.visit(|tree, entry, is_first| match is_first {
            true => tree.change(entry.id, &mut change),
            false => Ok(()),
        })
    }

    /// Number of inodes, those without a name included.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether the tree has no inode; never, because it has a root.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Whether an inode is a directory.
    pub fn is_directory(&self, id: InodeId) -> bool {
        self.root_node(id).is_some()
    }

    /// Returns the entries of a directory, without `.` and `..`; none for another type of file.
    pub fn entries(&self, id: InodeId) -> Entries<'_> {
        self.names.entries(self.root_node(id).unwrap_or(NO_NODE))
    }

    /// Returns the entry `name` of directory `parent`.
    pub fn child(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        self.names.find(self.root_node(parent)?, name)
    }

    /// Adds an inode under `name`. An inode that had this name before loses it.
    pub fn add(&mut self, parent: InodeId, name: &[u8], metadata: Metadata, body: Body) -> Result<InodeId> {
        check(name, &body)?;
        // The name comes last: an inode without one does no harm if it cannot be entered.
        let id = self.add_nameless(metadata, body)?;
        let name = self.enter(parent, name, id)?;
        let record = self.record(id).at(parent, name);
        self.inodes.set(id.index(), record);
        Ok(id)
    }

    /// Adds an inode without a name, which is not in the image unless [`link`](Self::link) gives it one.
    pub(super) fn add_nameless(&mut self, metadata: Metadata, body: Body) -> Result<InodeId> {
        let detail = self.detail(body)?;
        let xattrs = self.attributes.number_of_set(&metadata.xattrs)?;
        self.push(Record::new(&metadata, xattrs, detail))
    }

    fn push(&mut self, record: Record) -> Result<InodeId> {
        let id = u32::try_from(self.inodes.len()).map(InodeId);
        let id = id.map_err(|_| BuildError::TooLarge { what: "2^32 inodes".into() })?;
        self.inodes.push(record)?;
        Ok(id)
    }

    /// Makes an inode, which is no directory, an empty regular file, under all its names.
    pub(super) fn make_empty_file(&mut self, id: InodeId) {
        if !self.is_directory(id) {
            self.set_detail(id, Detail::Regular(NO_CONTENT));
        }
    }

    /// Gives an inode, which is no directory, a further name.
    pub fn link(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<()> {
        check_name(name)?;
        if self.is_directory(id) {
            return Err(BuildError::refused(name, "a hard link to a directory"));
        }
        self.enter(parent, name, id)?;
        Ok(())
    }

    /// Removes a name. Returns whether it was there.
    pub fn remove(&mut self, parent: InodeId, name: &[u8]) -> bool {
        let root = self.root_node(parent).and_then(|root| self.names.remove(root, name));
        if let Some(root) = root {
            self.set_detail(parent, Detail::Directory(root));
        }
        root.is_some()
    }

    /// Removes all names of a directory.
    pub fn clear(&mut self, id: InodeId) {
        if self.is_directory(id) {
            self.set_detail(id, Detail::Directory(NO_NODE));
        }
    }

    /// The bytes of a name of the tree.
    pub(super) fn name(&self, name: Name) -> &[u8] {
        self.names.get(name)
    }

    fn record(&self, id: InodeId) -> Record {
        self.inodes.get(id.index())
    }

    fn set_detail(&mut self, id: InodeId, detail: Detail) {
        let record = self.record(id).with_detail(detail);
        self.inodes.set(id.index(), record);
    }

    fn root_node(&self, id: InodeId) -> Option<u32> {
        match self.record(id).detail() {
            Detail::Directory(root) => Some(root),
            _ => None,
        }
    }

    fn own_content(&self, number: u64) -> &Arc<dyn Content> {
        &self.own_contents[(number - OWN_CONTENT) as usize]
    }

    fn detail(&mut self, body: Body) -> Result<Detail> {
        if let Some(detail) = Detail::of(&body) {
            return Ok(detail);
        }
        Ok(match body {
            Body::Symlink(target) => Detail::Symlink(self.names.add(&target)?),
            Body::Stored(stored) if stored.len_bytes > 0 => Detail::Regular(self.stored.push(stored)? as u64),
            Body::Regular(content) => {
                self.own_contents.push(content);
                Detail::Regular(OWN_CONTENT + self.own_contents.len() as u64 - 1)
            }
            _ => Detail::Regular(NO_CONTENT),
        })
    }

    fn enter(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<Name> {
        let Some(root) = self.root_node(parent) else {
            return Err(BuildError::refused(name, "its parent is no directory"));
        };
        let (root, name) = self.names.enter(root, name, id)?;
        self.set_detail(parent, Detail::Directory(root));
        Ok(name)
    }
}

#[cfg(test)]
mod tests;
