//! Owner, attributes, mode and time, in the order in which one does not undo another.
//!
//! A change of owner clears set-id bits and capabilities, so it is first. Attributes of users need the right to write, which the
//! mode may take away, so they come before it; access control lists contain the mode, so they come after it. The time is last.
//!
//! What cannot be set is noted, and the rest is set all the same: a file without one attribute keeps its mode and time. Attributes
//! that the file system of the target does not have are counted, and told once for all files.

use super::Shared;
use crate::Node;
use crate::finding::with_causes;
use crate::read::FileKind;
use crate::read::xattr::Xattr;
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
use pagefold_sys::pathhandle::PathHandle;
use std::fs::File;
use std::sync::atomic::Ordering;

/// Bits of a mode that let others act as the owner.
const SET_ID: u16 = 0o6000;

/// Failures of one file that are told; the others are counted.
const MAX_TOLD: usize = 8;

/// What could not be set on one file.
#[derive(Default)]
struct Failures {
    told: Vec<String>,
    more: u64,
}

impl Failures {
    fn add(&mut self, what: String) {
        if self.told.len() < MAX_TOLD { self.told.push(what) } else { self.more += 1 }
    }

    /// Notes a failure; returns whether it went well.
    fn note(&mut self, done: Result<(), SysError>) -> bool {
        let is_done = done.is_ok();
        done.unwrap_or_else(|e| self.add(e.to_string()));
        is_done
    }

    /// All in one.
    fn into_result(mut self) -> Result<(), String> {
        match (self.told.is_empty(), self.more) {
            (true, _) => return Ok(()),
            (false, 0) => {}
            (false, more) => self.told.push(format!("and {more} more")),
        }
        Err(self.told.join("; "))
    }
}

/// An open file, or one that is only held: what is set on it is the same. Nothing is set by name.
trait Dressed {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError>;
    fn mode(&self, mode: u16) -> Result<(), SysError>;
    fn time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError>;
    fn xattr(&self, name: &[u8], value: &[u8]) -> Result<(), SysError>;
}

impl<T: std::os::fd::AsFd> Dressed for T {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError> {
        beneath::set_owner(self, uid, gid)
    }
    fn mode(&self, mode: u16) -> Result<(), SysError> {
        beneath::set_mode(self, mode)
    }
    fn time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
        beneath::set_time(self, seconds, nanoseconds)
    }
    fn xattr(&self, name: &[u8], value: &[u8]) -> Result<(), SysError> {
        beneath::set_xattr(self, name, value)
    }
}

/// A symbolic link or a special file, which is not opened.
struct Unopened<'a> {
    handle: &'a PathHandle,
    is_link: bool,
}

impl Dressed for Unopened<'_> {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError> {
        self.handle.set_owner(uid, gid)
    }
    fn mode(&self, mode: u16) -> Result<(), SysError> {
        if self.is_link { Ok(()) } else { self.handle.set_mode(mode) }
    }
    fn time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
        self.handle.set_time(seconds, nanoseconds)
    }
    fn xattr(&self, name: &[u8], value: &[u8]) -> Result<(), SysError> {
        self.handle.set_xattr(name, value)
    }
}

/// The mode that a new file may be made with, so that nothing needs to be set if the mask takes nothing away.
pub(super) fn creation_mode(node: &Node) -> u16 {
    match node.inode().xattr_bytes {
        0 => node.inode().mode & 0o777,
        _ => 0o600,
    }
}

/// A file that was made with [`creation_mode`].
pub(super) fn file(file: &File, node: &Node, shared: &Shared<'_>) -> Result<(), String> {
    let mode = node.inode().mode & 0o7777;
    let made = creation_mode(node) & !shared.umask;
    dress(file, node, shared, Some(made) != Some(mode))
}

/// A directory.
pub(super) fn folder(folder: &Folder, node: &Node, shared: &Shared<'_>) -> Result<(), String> {
    dress(folder, node, shared, true)
}

/// A symbolic link or a special file.
pub(super) fn unopened(handle: &PathHandle, node: &Node, shared: &Shared<'_>) -> Result<(), String> {
    let is_link = node.kind() == FileKind::Symlink;
    dress(&Unopened { handle, is_link }, node, shared, true)
}

fn dress(target: &impl Dressed, node: &Node, shared: &Shared<'_>, set_mode: bool) -> Result<(), String> {
    let (inode, options) = (node.inode(), shared.options);
    let mut failures = Failures::default();
    let gives_away = options.owners && shared.root && Some((inode.uid, inode.gid)) != shared.made_as;
    let owned = !gives_away || failures.note(target.owner(inode.uid, inode.gid));
    let has_lists = set_xattrs(target, node, shared, Which::AllButLists, &mut failures);
    if set_mode && node.kind() != FileKind::Symlink {
        let mode = mode(node, shared);
        // Set-id bits give the rights of the owner that the image names, not of another.
        failures.note(target.mode(if owned { mode } else { mode & !SET_ID }));
    }
    if has_lists {
        set_xattrs(target, node, shared, Which::Lists, &mut failures);
    }
    if options.times {
        failures.note(target.time(inode.mtime.seconds, inode.mtime.nanoseconds));
    }
    failures.into_result()
}

/// Which attributes are set in one go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Access control lists.
    Lists,
    AllButLists,
}

/// Sets attributes, one at a time: an inode may have 16 MiB of them. Returns whether there are any that were not asked for.
fn set_xattrs(
    target: &impl Dressed,
    node: &Node,
    shared: &Shared<'_>,
    which: Which,
    failures: &mut Failures,
) -> bool {
    if !shared.options.xattrs || node.inode().xattr_bytes == 0 {
        return false;
    }
    let mut others = false;
    let visited = node.visit_xattrs(|xattr, _| {
        let kind = if xattr.name.starts_with(b"system.") { Which::Lists } else { Which::AllButLists };
        if kind == which {
            set_xattr(target, &xattr, shared, failures);
        } else {
            others = true;
        }
    });
    if let Err(error) = visited {
        failures.add(with_causes(&error));
        return false;
    }
    others
}

fn set_xattr(target: &impl Dressed, xattr: &Xattr, shared: &Shared<'_>, failures: &mut Failures) {
    let is_of_system = xattr.name.starts_with(b"security.") || xattr.name.starts_with(b"trusted.");
    if is_of_system && !shared.options.privileged {
        shared.skipped_xattrs.fetch_add(1, Ordering::Relaxed);
        return;
    }
    match target.xattr(&xattr.name, &xattr.value) {
        Err(e) if e.errno == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
            shared.unsupported_xattrs.fetch_add(1, Ordering::Relaxed);
        }
        Err(e) => failures.add(format!("attribute '{}': {e}", xattr.name.escape_ascii())),
        Ok(()) => {}
    }
}

/// The permissions that are set: without set-id bits unless asked for.
fn mode(node: &Node, shared: &Shared<'_>) -> u16 {
    let mode = node.inode().mode & 0o7777;
    if mode & SET_ID == 0 || shared.options.privileged {
        return mode;
    }
    shared.skipped_set_id.fetch_add(1, Ordering::Relaxed);
    mode & !SET_ID
}
