//! Trees of files as maps from paths, read from a directory and from an image, for comparison.

use crate::support::walk::contents;
use pagefold_image::read::FileKind;
use pagefold_image::{Image, Node};
use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The properties of a file that a test compares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Type of file, with the target of a link, the number of a device or the contents.
    pub kind: Kind,
    /// Permissions, owner, group; 0 for the permissions of a symbolic link.
    pub access: (u32, u32, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// The first path of the same inode, unless it is a directory.
    pub first: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File(Vec<u8>),
    Symlink(Vec<u8>),
    /// Of characters or not, and its number.
    Device(bool, u32, u32),
    Fifo,
}

impl Debug for Kind {
    /// Contents are shown as runs of equal bytes.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Directory => write!(f, "directory"),
            Kind::File(contents) => {
                let runs = contents.chunk_by(|a, b| a == b);
                let runs = runs.map(|run| format!("{}*'{}'", run.len(), run[0].escape_ascii()));
                write!(f, "file [{}]", runs.collect::<Vec<_>>().join(" "))
            }
            Kind::Symlink(target) => write!(f, "link to '{}'", target.escape_ascii()),
            Kind::Device(is_char, major, minor) => {
                write!(f, "device {} {major}:{minor}", if *is_char { 'c' } else { 'b' })
            }
            Kind::Fifo => write!(f, "pipe"),
        }
    }
}

/// Files by path, without a slash at the beginning; the root is empty.
pub type Files = BTreeMap<Vec<u8>, Found>;

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Replaces numbers of inodes by the first path of each.
fn named<I: Ord + Copy>(found: BTreeMap<Vec<u8>, (Found, I)>) -> Files {
    let mut first: BTreeMap<I, Vec<u8>> = BTreeMap::new();
    let mut files = Files::new();
    for (path, (mut file, inode)) in found {
        if file.kind != Kind::Directory {
            file.first = Some(first.entry(inode).or_insert_with(|| path.clone()).clone());
        }
        files.insert(path, file);
    }
    files
}

/// The files of a directory, without those whose name in it is `without`.
pub fn of_directory(root: &Path, without: &str) -> Files {
    let mut found = BTreeMap::new();
    let mut stack = vec![(Vec::new(), root.to_path_buf())];
    while let Some((path, at)) = stack.pop() {
        let metadata = at.symlink_metadata().unwrap();
        let is = metadata.file_type();
        let device = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        let kind = match () {
            () if is.is_dir() => Kind::Directory,
            () if is.is_symlink() => {
                Kind::Symlink(fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec())
            }
            () if is.is_file() => Kind::File(fs::read(&at).unwrap()),
            () if is.is_fifo() => Kind::Fifo,
            () => Kind::Device(is.is_char_device(), device.0, device.1),
        };
        if kind == Kind::Directory {
            for entry in fs::read_dir(&at).unwrap() {
                let entry = entry.unwrap();
                if entry.file_name() != without {
                    stack.push((join(&path, entry.file_name().as_bytes()), entry.path()));
                }
            }
        }
        let permissions = if is.is_symlink() { 0 } else { metadata.mode() & 0o7777 };
        let file = Found {
            kind,
            access: (permissions, metadata.uid(), metadata.gid()),
            mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
            first: None,
        };
        found.insert(path, (file, (metadata.dev(), metadata.ino())));
    }
    named(found)
}

/// The files of an image.
pub fn of_image(image: &Image) -> Files {
    let mut found = BTreeMap::new();
    let mut stack = vec![(Vec::new(), image.root().unwrap())];
    while let Some((path, node)) = stack.pop() {
        if node.kind() == FileKind::Directory {
            for entry in node.entries().unwrap() {
                let entry = entry.unwrap();
                stack.push((join(&path, &entry.name), image.node(entry.nid).unwrap()));
            }
        }
        found.insert(path, (of_node(&node), node.nid()));
    }
    named(found)
}

fn of_node(node: &Node) -> Found {
    let inode = node.inode();
    let device =
        |is_char| inode.device.map(|device| Kind::Device(is_char, device.major, device.minor)).unwrap();
    let kind = match node.kind() {
        FileKind::Directory => Kind::Directory,
        FileKind::Regular => Kind::File(contents(node, 4096).unwrap()),
        FileKind::Symlink => Kind::Symlink(node.read_link().unwrap()),
        FileKind::CharDevice => device(true),
        FileKind::BlockDevice => device(false),
        _ => Kind::Fifo,
    };
    let permissions = if node.kind() == FileKind::Symlink { 0 } else { u32::from(inode.mode) & 0o7777 };
    Found {
        kind,
        access: (permissions, inode.uid, inode.gid),
        mtime: (inode.mtime.seconds, inode.mtime.nanoseconds),
        first: None,
    }
}

/// The differences of two trees, for a message; empty if they are equal.
pub fn differences(found: &Files, wanted: &Files) -> String {
    let mut text = String::new();
    for path in found.keys().chain(wanted.keys().filter(|path| !found.contains_key(*path))) {
        let (found, wanted) = (found.get(path), wanted.get(path));
        if found != wanted {
            text += &format!("{}: found {found:?}, wanted {wanted:?}\n", path.escape_ascii());
        }
    }
    text
}
