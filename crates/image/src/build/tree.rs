//! The tree that an image is built from: names, metadata, and where contents come from.
//!
//! Sources fill a [`Tree`], and the builder turns it into an image. An inode may have several names (hard links); a
//! directory has one. The entries of a directory are sorted by the bytes of their names, as the format has them, so the
//! order in which a source adds them does not matter.
//!
//! The tree is in memory: about 200 bytes an inode, and the names. Contents are not.

use super::content::Content;
use super::error::{BuildError, path_of};
use super::rules::Pattern;
use crate::format::dirent::NAME_LEN_MAX;
use crate::read::FileKind;
use crate::read::inode::{DeviceNumber, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Longest target of a symbolic link, bytes: Linux resolves no longer ones.
pub const LINK_LEN_MAX: usize = 4095;
/// Longest value of an attribute, bytes.
pub const XATTR_VALUE_LEN_MAX: usize = 65535;

/// The number of an inode in a [`Tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeId(u32);

impl InodeId {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(0);

    /// The position in tables with an entry for each inode.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
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
            Body::Regular(_) => FileKind::Regular,
            Body::Symlink(_) => FileKind::Symlink,
            Body::CharDevice(_) => FileKind::CharDevice,
            Body::BlockDevice(_) => FileKind::BlockDevice,
            Body::Fifo => FileKind::Fifo,
            Body::Socket => FileKind::Socket,
        }
    }
}

/// The entries of a directory, without `.` and `..`.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    entries: BTreeMap<Box<[u8]>, InodeId>,
}

impl Directory {
    /// The entries in order of their names.
    pub fn entries(&self) -> impl Iterator<Item = (&[u8], InodeId)> {
        self.entries.iter().map(|(name, &id)| (name.as_ref(), id))
    }
}

/// An inode.
#[derive(Debug, Clone)]
pub struct Inode {
    /// Metadata.
    pub metadata: Metadata,
    /// Type of file, and contents.
    pub body: Body,
}

/// A tree of files.
#[derive(Debug, Clone)]
pub struct Tree {
    inodes: Vec<Inode>,
}

impl Tree {
    /// Makes a tree of nothing but a root directory.
    pub fn new(root: Metadata) -> Self {
        Tree { inodes: vec![Inode { metadata: root, body: Body::Directory(Directory::default()) }] }
    }

    /// Returns an inode.
    pub fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.index()]
    }

    /// Returns the metadata of an inode, to be changed.
    pub fn metadata_mut(&mut self, id: InodeId) -> &mut Metadata {
        &mut self.inodes[id.index()].metadata
    }

    /// Changes the metadata of all inodes.
    pub fn change_metadata(&mut self, mut change: impl FnMut(&mut Metadata)) {
        self.inodes.iter_mut().for_each(|inode| change(&mut inode.metadata));
    }

    /// Number of inodes, those without a name included.
    pub fn len(&self) -> usize {
        self.inodes.len()
    }

    /// Whether the tree has no inode; never, because it has a root.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    /// Returns the directory `id`; `None` if it is another type of file.
    pub fn directory(&self, id: InodeId) -> Option<&Directory> {
        match &self.inode(id).body {
            Body::Directory(directory) => Some(directory),
            _ => None,
        }
    }

    /// Returns the entry `name` of directory `parent`.
    pub fn child(&self, parent: InodeId, name: &[u8]) -> Option<InodeId> {
        self.directory(parent)?.entries.get(name).copied()
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
        self.enter(parent, name, id)?;
        self.inodes.push(Inode { metadata, body });
        Ok(id)
    }

    /// Gives an inode, which is no directory, a further name.
    pub fn link(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<(), BuildError> {
        check_name(name)?;
        if self.directory(id).is_some() {
            return Err(BuildError::refused(name, "a hard link to a directory"));
        }
        self.enter(parent, name, id)
    }

    /// Removes a name. Returns whether it was there.
    pub fn remove(&mut self, parent: InodeId, name: &[u8]) -> bool {
        match &mut self.inodes[parent.index()].body {
            Body::Directory(directory) => directory.entries.remove(name).is_some(),
            _ => false,
        }
    }

    /// Removes all names of a directory.
    pub fn clear(&mut self, id: InodeId) {
        if let Body::Directory(directory) = &mut self.inodes[id.index()].body {
            directory.entries.clear();
        }
    }

    /// Removes the names that match a pattern, with all below them.
    pub fn exclude(&mut self, patterns: &[Pattern]) {
        let mut stack = vec![(InodeId::ROOT, Vec::new())];
        while let Some((id, path)) = stack.pop().filter(|_| !patterns.is_empty()) {
            let Some(directory) = self.directory(id) else { continue };
            let mut excluded: Vec<Box<[u8]>> = Vec::new();
            for (name, child) in directory.entries() {
                let below = join(&path, name);
                match patterns.iter().any(|pattern| pattern.matches(&below)) {
                    true => excluded.push(name.into()),
                    false if self.directory(child).is_some() => stack.push((child, below)),
                    false => {}
                }
            }
            excluded.iter().for_each(|name| {
                self.remove(id, name);
            });
        }
    }

    /// Returns the directory at `path`, and makes the directories that are missing with this metadata. A name that
    /// another type of file has is an error. Empty names and `.` are passed over; `..` is refused.
    pub fn make_directories(&mut self, path: &[u8], metadata: &Metadata) -> Result<InodeId, BuildError> {
        let mut id = InodeId::ROOT;
        for name in names(path) {
            id = match self.child(id, name) {
                Some(child) if self.directory(child).is_some() => child,
                Some(_) => return Err(BuildError::refused(path, "a name in its path is no directory")),
                None => self.add(id, name, metadata.clone(), Body::Directory(Directory::default()))?,
            };
        }
        Ok(id)
    }

    /// Returns the inode at `path`. Symbolic links are not followed.
    pub fn find(&self, path: &[u8]) -> Option<InodeId> {
        names(path).try_fold(InodeId::ROOT, |id, name| self.child(id, name))
    }

    /// Adds a regular file at `path`, from memory, and the directories that are missing.
    pub fn add_bytes(&mut self, path: &[u8], contents: impl Into<Arc<[u8]>>) -> Result<InodeId, BuildError> {
        let (parent, name) = split(path)?;
        let parent = self.make_directories(parent, &Metadata::default())?;
        let metadata = Metadata { permissions: 0o644, ..Metadata::default() };
        self.add(parent, name, metadata, Body::Regular(Arc::new(super::content::Bytes(contents.into()))))
    }

    fn enter(&mut self, parent: InodeId, name: &[u8], id: InodeId) -> Result<(), BuildError> {
        match &mut self.inodes[parent.index()].body {
            Body::Directory(directory) => {
                directory.entries.insert(name.into(), id);
                Ok(())
            }
            _ => Err(BuildError::refused(name, "its parent is no directory")),
        }
    }
}

fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash = if directory.is_empty() { b"".as_slice() } else { b"/" };
    [directory, slash, name].concat()
}

/// Splits a path into its directory and its last name.
pub fn split(path: &[u8]) -> Result<(&[u8], &[u8]), BuildError> {
    let trimmed = path.trim_ascii_end_matching(b'/');
    let cut = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    match &trimmed[cut..] {
        b"" | b"." => Err(BuildError::refused(path, "it has no name")),
        name => Ok((&trimmed[..cut], name)),
    }
}

/// The names of a path; `.` and empty ones are left out.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

trait TrimEnd {
    fn trim_ascii_end_matching(&self, byte: u8) -> &[u8];
}

impl TrimEnd for [u8] {
    fn trim_ascii_end_matching(&self, byte: u8) -> &[u8] {
        let end = self.iter().rposition(|&b| b != byte).map_or(0, |last| last + 1);
        &self[..end]
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

    #[test]
    fn entries_are_sorted_and_the_last_of_a_name_stays() {
        let mut tree = Tree::new(Metadata::default());
        tree.add_bytes(b"/b/two", *b"2").unwrap();
        let first = tree.add_bytes(b"a", *b"1").unwrap();
        let second = tree.add_bytes(b"a", *b"again").unwrap();
        assert_ne!(first, second);
        let root = tree.directory(InodeId::ROOT).unwrap();
        assert_eq!(root.entries().map(|(name, _)| name.to_vec()).collect::<Vec<_>>(), [b"a", b"b"]);
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
