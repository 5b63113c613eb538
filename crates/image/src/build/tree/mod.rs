//! The tree that an image is built from: names, metadata, and where contents come from.
//!
//! Sources fill a [`Tree`], and the builder turns it into an image. An inode may have several names (hard links); a
//! directory has one. The entries of a directory are sorted by the bytes of their names, as the format has them, so the
//! order in which a source adds them does not matter.
//!
//! A tree takes about 150 bytes for an inode with a name, in tables that may [spill](Spill) to a file. Sets of attributes
//! are in memory, equal ones once. Contents are not in the tree: a source gives for each file some words, from which its
//! [`Contents`] finds them again, or a [`Content`].
//!
//! | module | contents |
//! |---|---|
//! | `record` | what is stored for an inode |
//! | `names` | the entries of directories |
//! | `paths` | paths and patterns |

mod names;
mod paths;
mod record;

pub use names::Entries;
pub use paths::split;

use super::content::{Bytes, Content, Contents, Stored};
use super::error::{BuildError, path_of};
use super::table::{Spill, Table};
use crate::format::dirent::NAME_LEN_MAX;
use crate::read::FileKind;
use crate::read::inode::{DeviceNumber, Timestamp};
pub(super) use names::Name;
use names::{NO_NODE, Names};
use record::{Detail, Record};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Longest target of a symbolic link, bytes: Linux resolves no longer ones.
pub const LINK_LEN_MAX: usize = 4095;
/// Longest value of an attribute, bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 65535;
/// Numbers of contents from here on are those of [`Content`]s; the others are positions in the table of stored words.
const OWN_CONTENT: u64 = 1 << 63;
/// The number of empty contents.
const NO_CONTENT: u64 = u64::MAX;

/// The number of an inode in a [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct InodeId(u32);

impl InodeId {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(0);

    /// The position in tables with an entry for each inode.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }

    /// The inode at a position in such tables.
    pub(crate) fn at(index: usize) -> Self {
        InodeId(index as u32)
    }
}

/// An extended attribute: full name, and value.
pub type Xattr = (Box<[u8]>, Box<[u8]>);

/// Metadata that every inode has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Permissions, with the bits for set-user-id, set-group-id and sticky: `0o7777`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Extended attributes, access lists among them, as Linux encodes them; sorted by name.
    pub xattrs: Vec<Xattr>,
}

impl Default for Metadata {
    /// A directory or program of root that all may read and execute, of 1970.
    fn default() -> Self {
        let mtime = Timestamp { seconds: 0, nanoseconds: 0 };
        Metadata { permissions: 0o755, uid: 0, gid: 0, mtime, xattrs: Vec::new() }
    }
}

/// The type of an inode, with all that belongs only to this type.
#[derive(Debug, Clone)]
pub enum Body {
    /// A directory.
    Directory(Directory),
    /// A regular file.
    Regular(Arc<dyn Content>),
    /// A regular file whose contents the tree's [`Contents`] finds by these words.
    Stored(Stored),
    /// A symbolic link, with its target.
    Symlink(Box<[u8]>),
    /// A character device.
    CharDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Body {
    /// The type of file.
    pub fn kind(&self) -> FileKind {
        match self {
            Body::Directory(_) => FileKind::Directory,
            Body::Regular(_) | Body::Stored(_) => FileKind::Regular,
            Body::Symlink(_) => FileKind::Symlink,
            Body::CharDevice(_) => FileKind::CharDevice,
            Body::BlockDevice(_) => FileKind::BlockDevice,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
        }
    }
}

/// A directory that is added: it is empty.
#[derive(Debug, Clone, Copy, Default)]
pub struct Directory {}

/// A tree of files.
///
/// A clone is in memory.
#[derive(Debug, Clone)]
pub struct Tree {
    inodes: Table<Record>,
    names: Names,
    stored: Table<Stored>,
    contents: Option<Arc<dyn Contents>>,
    own_contents: Vec<Arc<dyn Content>>,
    /// The sets of attributes: the first is empty.
    xattrs: Vec<Arc<[Xattr]>>,
    xattr_numbers: HashMap<Arc<[Xattr]>, u32>,
}

impl Tree {
    /// Makes a tree of nothing but a root directory. It is in memory.
    pub fn new(root: Metadata) -> Self {
        Tree::with_spill(root, &Spill::none())
    }

    /// Makes a tree of nothing but a root directory, which spills.
    pub fn with_spill(root: Metadata, spill: &Spill) -> Self {
        let mut tree = Tree {
            inodes: Table::new(spill),
            names: Names::new(spill),
            stored: Table::new(spill),
            contents: None,
            own_contents: Vec::new(),
            xattrs: vec![Arc::default()],
            xattr_numbers: HashMap::from([(Arc::default(), 0)]),
        };
        let xattrs = tree.xattr_number(&root);
        // The first records of a table are in memory.
        let _ = tree.inodes.push(Record::new(&root, xattrs, Detail::Directory(NO_NODE)));
        tree
    }

    /// Sets what finds the contents of files that are [`Body::Stored`].
    pub fn set_contents(&mut self, contents: Arc<dyn Contents>) {
        self.contents = Some(contents);
    }

    /// Where the tree spills to.
    pub fn spill(&self) -> &Spill {
        self.inodes.spill()
    }

    /// Returns the metadata of an inode.
    pub fn metadata(&self, id: InodeId) -> Metadata {
        let record = self.record(id);
        Metadata { xattrs: self.xattrs[record.xattrs as usize].to_vec(), ..record.metadata() }
    }

    /// Returns the metadata of an inode, without attributes.
    pub(super) fn plain_metadata(&self, id: InodeId) -> Metadata {
        self.record(id).metadata()
    }

    /// Returns the extended attributes of an inode.
    pub fn xattrs(&self, id: InodeId) -> &[Xattr] {
        &self.xattrs[self.record(id).xattrs as usize]
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

    /// Returns the metadata of an inode, to be changed.
    pub fn metadata_mut(&mut self, id: InodeId) -> MetadataMut<'_> {
        let metadata = self.metadata(id);
        MetadataMut { tree: self, id, metadata }
    }

    /// Changes the metadata of all inodes.
    pub fn change_metadata(&mut self, mut change: impl FnMut(&mut Metadata)) {
        for index in 0..self.inodes.len() {
            change(&mut self.metadata_mut(InodeId::at(index)));
        }
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
    pub fn add(
        &mut self,
        parent: InodeId,
        name: &[u8],
        metadata: Metadata,
        body: Body,
    ) -> Result<InodeId, BuildError> {
        check(name, &body)?;
        let id = u32::try_from(self.inodes.len())
            .map(InodeId)
            .map_err(|_| BuildError::TooLarge { what: "2^32 inodes".into() })?;
        // The name comes last: an inode without one does no harm if it cannot be entered.
        let detail = self.detail(body)?;
        let record = Record::new(&metadata, self.xattr_number(&metadata), detail);
        self.inodes.push(record)?;
        let name = self.enter(parent, name, id)?;
        self.inodes.set(id.index(), record.at(parent, name));
        Ok(id)
    }

    /// Gives an inode, which is no directory, a further name.
    pub fn link(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<(), BuildError> {
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

    fn detail(&mut self, body: Body) -> Result<Detail, BuildError> {
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

    /// The number of a set of attributes, which is added if it is new.
    fn xattr_number(&mut self, metadata: &Metadata) -> u32 {
        let xattrs = metadata.xattrs.as_slice();
        if let Some(number) = self.xattr_numbers.get(xattrs) {
            return *number;
        }
        // There are no more sets than inodes, and changes of these.
        let (number, shared): (_, Arc<[Xattr]>) = (self.xattrs.len() as u32, xattrs.into());
        self.xattrs.push(shared.clone());
        self.xattr_numbers.insert(shared, number);
        number
    }

    fn enter(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<Name, BuildError> {
        let Some(root) = self.root_node(parent) else {
            return Err(BuildError::refused(name, "its parent is no directory"));
        };
        let (root, name) = self.names.enter(root, name, id)?;
        self.set_detail(parent, Detail::Directory(root));
        Ok(name)
    }
}

/// The metadata of an inode, which is written back when this is dropped.
#[derive(Debug)]
pub struct MetadataMut<'t> {
    tree: &'t mut Tree,
    id: InodeId,
    metadata: Metadata,
}

impl Deref for MetadataMut<'_> {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        &self.metadata
    }
}

impl DerefMut for MetadataMut<'_> {
    fn deref_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }
}

impl Drop for MetadataMut<'_> {
    fn drop(&mut self) {
        let xattrs = self.tree.xattr_number(&self.metadata);
        let record = self.tree.record(self.id).with_metadata(&self.metadata, xattrs);
        self.tree.inodes.set(self.id.index(), record);
    }
}

fn check(name: &[u8], body: &Body) -> Result<(), BuildError> {
    check_name(name)?;
    match body {
        Body::Symlink(target) if target.is_empty() => Err(BuildError::refused(name, "an empty link")),
        Body::Symlink(target) if target.len() > LINK_LEN_MAX => Err(BuildError::refused(
            name,
            format!("a link of {} bytes; Linux has {LINK_LEN_MAX}", target.len()),
        )),
        Body::Symlink(target) if target.contains(&0) => {
            Err(BuildError::refused(name, "a link with a NUL byte"))
        }
        Body::CharDevice(number) | Body::BlockDevice(number)
            if number.major > 0xfff || number.minor > 0xf_ffff =>
        {
            let DeviceNumber { major, minor } = number;
            Err(BuildError::refused(name, format!("device {major}:{minor}; Linux has up to 4095:1048575")))
        }
        _ => Ok(()),
    }
}

fn check_name(name: &[u8]) -> Result<(), BuildError> {
    let what = match name {
        b"" => "an empty name",
        b"." | b".." => "a name of a directory itself",
        name if name.len() > NAME_LEN_MAX => "a name of more than 255 bytes",
        name if name.contains(&b'/') => "a name with a slash",
        name if name.contains(&0) => "a name with a NUL byte",
        _ => return Ok(()),
    };
    Err(BuildError::Refused { path: path_of(name), what: what.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::rules::Pattern;

    #[test]
    fn entries_are_sorted_and_the_last_of_a_name_stays() {
        let mut tree = Tree::new(Metadata::default());
        tree.add_bytes(b"/b/two", *b"2").unwrap();
        let first = tree.add_bytes(b"a", *b"1").unwrap();
        let second = tree.add_bytes(b"a", *b"again").unwrap();
        assert_ne!(first, second);
        assert_eq!(
            tree.entries(InodeId::ROOT).map(|(name, _)| name.to_vec()).collect::<Vec<_>>(),
            [b"a", b"b"]
        );
        assert_eq!(tree.find(b"a"), Some(second));
        assert_eq!(tree.find(b"./b//two/"), tree.find(b"b/two"));
    }

    #[test]
    fn what_matches_a_pattern_is_removed_with_all_below_it() {
        let mut tree = Tree::new(Metadata::default());
        for path in ["a/b.o", "a/b.c", "sub/a/x", "sub/x.o/deep", "keep"] {
            tree.add_bytes(path.as_bytes(), *b"").unwrap();
        }
        let all = tree.clone();
        tree.exclude(&[]);
        assert!(tree.find(b"a/b.o").is_some());
        tree.exclude(&["*.o", "sub/a"].map(|text| Pattern::parse(text).unwrap()));
        let is_there = |path: &str| tree.find(path.as_bytes()).is_some();
        assert!(is_there("a/b.c") && is_there("sub") && is_there("keep"));
        assert!(!is_there("a/b.o") && !is_there("sub/a") && !is_there("sub/x.o"));
        assert!(all.find(b"sub/x.o/deep").is_some());
    }

    #[test]
    fn names_that_no_directory_can_have_are_refused() {
        let mut tree = Tree::new(Metadata::default());
        for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(tree.add(InodeId::ROOT, name, Metadata::default(), Body::Fifo).is_err(), "{name:?}");
        }
        assert!(tree.add(InodeId::ROOT, &[b'x'; 255], Metadata::default(), Body::Fifo).is_ok());
        assert!(tree.make_directories(b"a/../b", &Metadata::default()).is_err());
        let file = tree.add_bytes(b"file", *b"").unwrap();
        assert!(tree.make_directories(b"file/x", &Metadata::default()).is_err());
        assert!(
            tree.link(file, b"x", file).is_err() && tree.link(InodeId::ROOT, b"x", InodeId::ROOT).is_err()
        );
    }
}
