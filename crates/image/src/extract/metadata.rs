//! Applies owner, extended attributes, mode and times to an extracted file.
//!
//! The order matters. Changing the owner clears set-id bits and capabilities, so it comes first. Setting `user.`
//! attributes needs write permission, which the mode may take away, so they come before the mode. Access control lists
//! contain the mode, so they come after it. The times come last.
//!
//! A step that fails is recorded, and the other steps still run: a file that lacks an attribute has its mode and times.
//! Attributes that the target's file system does not support are counted, and reported once for all files.

use super::shared::Shared;
use crate::Node;
use crate::finding::FileError;
use crate::read::FileKind;
use crate::read::xattr::Xattr;
use pagefold_sys::SysError;
use pagefold_sys::beneath::{self, Folder};
use pagefold_sys::pathhandle::PathHandle;
use std::fs::File;

/// Bits of a mode that let others act as the owner, and as the group.
const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const SET_ID: u16 = SET_UID | SET_GID;

/// Failures of one file that are reported in full; more are only counted.
const MAX_MESSAGES: usize = 8;

/// The steps that failed for one file.
#[derive(Default)]
struct Failures {
    messages: Vec<String>,
    omitted: u64,
    is_damage: bool,
}

impl Failures {
    fn add(&mut self, error: FileError) {
        self.is_damage |= error.is_damage;
        if self.messages.len() < MAX_MESSAGES {
            self.messages.push(error.what);
        } else {
            self.omitted += 1;
        }
    }

    /// Records a failure, if it is one.
    fn record(&mut self, done: Result<(), SysError>) {
        done.unwrap_or_else(|e| self.add(e.into()));
    }

    /// Joins all failures into one message.
    fn into_result(mut self) -> Result<(), FileError> {
        match (self.messages.is_empty(), self.omitted) {
            (true, _) => return Ok(()),
            (false, 0) => {}
            (false, more) => self.messages.push(format!("and {more} more")),
        }
        Err(FileError { what: self.messages.join("; "), is_damage: self.is_damage })
    }
}

/// A file to which metadata is applied: an open one, or an `O_PATH` handle. Nothing is set by name, so that no other
/// user can redirect a change by replacing the name.
trait MetadataTarget {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError>;
    fn found_owner(&self) -> Result<(u32, u32), SysError>;
    fn mode(&self, mode: u16) -> Result<(), SysError>;
    fn time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError>;
    fn xattr(&self, name: &[u8], value: &[u8]) -> Result<(), SysError>;
}

impl<T: std::os::fd::AsFd> MetadataTarget for T {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError> {
        beneath::set_owner(self, uid, gid)
    }
    fn found_owner(&self) -> Result<(u32, u32), SysError> {
        beneath::owner_of(self)
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

/// A symbolic link or a special file. These are not opened: opening a device or a FIFO has side effects.
struct Unopened<'a>(&'a PathHandle);

impl MetadataTarget for Unopened<'_> {
    fn owner(&self, uid: u32, gid: u32) -> Result<(), SysError> {
        self.0.set_owner(uid, gid)
    }
    fn found_owner(&self) -> Result<(u32, u32), SysError> {
        beneath::owner_of(self.0)
    }
    fn mode(&self, mode: u16) -> Result<(), SysError> {
        self.0.set_mode(mode)
    }
    fn time(&self, seconds: i64, nanoseconds: u32) -> Result<(), SysError> {
        self.0.set_time(seconds, nanoseconds)
    }
    fn xattr(&self, name: &[u8], value: &[u8]) -> Result<(), SysError> {
        self.0.set_xattr(name, value)
    }
}

/// The mode for creating a file: the final one, unless attributes have to be set first. If the umask takes nothing
/// away, this saves a `chmod`.
pub(super) fn creation_mode(node: &Node) -> u16 {
    match node.inode().xattr_bytes {
        0 => node.inode().mode & 0o777,
        _ => 0o600,
    }
}

/// Applies the metadata of `node` to a file that was created with [`creation_mode`].
pub(super) fn apply_to_file(file: &File, node: &Node, shared: &Shared<'_>) -> Result<(), FileError> {
    let mode = node.inode().mode & 0o7777;
    let made = creation_mode(node) & !shared.umask;
    apply_metadata(file, node, shared, Some(made) != Some(mode))
}

/// Applies the metadata of `node` to a directory.
pub(super) fn apply_to_dir(folder: &Folder, node: &Node, shared: &Shared<'_>) -> Result<(), FileError> {
    apply_metadata(folder, node, shared, true)
}

/// Applies the metadata of `node` to a symbolic link or a special file.
pub(super) fn apply_to_unopened(
    handle: &PathHandle,
    node: &Node,
    shared: &Shared<'_>,
) -> Result<(), FileError> {
    apply_metadata(&Unopened(handle), node, shared, true)
}

fn apply_metadata(
    target: &impl MetadataTarget,
    node: &Node,
    shared: &Shared<'_>,
    set_mode: bool,
) -> Result<(), FileError> {
    let (inode, options) = (node.inode(), shared.options);
    let mut failures = Failures::default();
    let change_owner = options.owners && shared.root && Some((inode.uid, inode.gid)) != shared.made_as;
    if change_owner {
        match target.owner(inode.uid, inode.gid) {
            // The call has no other invalid argument: the numbers are those of the image.
            Err(e) if e.errno == libc::EINVAL => {
                shared.counters.unmapped_owners.add(1);
                failures.add(FileError::outside(unmapped(inode.uid, inode.gid)));
            }
            set => failures.record(set),
        }
    }
    let has_lists = apply_xattrs(target, node, shared, XattrClass::Other, &mut failures);
    if set_mode && node.kind() != FileKind::Symlink {
        let set_id = allowed_set_id(target, node, shared);
        failures.record(target.mode(inode.mode & 0o7777 & !SET_ID | set_id));
    }
    if has_lists {
        apply_xattrs(target, node, shared, XattrClass::AccessLists, &mut failures);
    }
    if options.times {
        failures.record(target.time(inode.mtime.seconds, inode.mtime.nanoseconds));
    }
    failures.into_result()
}

/// The error of an owner that cannot be set in this user namespace.
fn unmapped(uid: u32, gid: u32) -> String {
    format!("setting the owner {uid}:{gid}: this user namespace does not map both numbers")
}

/// Which attributes a pass over the attributes of an inode sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum XattrClass {
    /// Access control lists.
    AccessLists,
    Other,
}

/// Sets the attributes of one class, and returns whether there are others. Holds one attribute in memory at a time: an
/// inode may have 16 MiB of them.
fn apply_xattrs(
    target: &impl MetadataTarget,
    node: &Node,
    shared: &Shared<'_>,
    which: XattrClass,
    failures: &mut Failures,
) -> bool {
    if !shared.options.xattrs || node.inode().xattr_bytes == 0 {
        return false;
    }
    let mut others = false;
    let visited = node.visit_xattrs(&shared.work.limit(), |xattr, _| {
        let kind =
            if xattr.name.starts_with(b"system.") { XattrClass::AccessLists } else { XattrClass::Other };
        if kind == which {
            apply_xattr(target, &xattr, shared, failures);
        } else {
            others = true;
        }
    });
    if let Err(error) = visited {
        failures.add(error.into());
        return false;
    }
    others
}

fn apply_xattr(target: &impl MetadataTarget, xattr: &Xattr, shared: &Shared<'_>, failures: &mut Failures) {
    let is_of_system = xattr.name.starts_with(b"security.") || xattr.name.starts_with(b"trusted.");
    if is_of_system && !shared.options.privileged {
        shared.counters.skipped_xattrs.add(1);
        return;
    }
    match target.xattr(&xattr.name, &xattr.value) {
        Err(e) if e.errno == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
            shared.counters.unsupported_xattrs.add(1);
        }
        Err(e) => failures.add(FileError::outside(format!("attribute '{}': {e}", xattr.name.escape_ascii()))),
        Ok(()) => {}
    }
}

/// The set-id bits to set. Drops and counts those that the options do not allow. Without the image's owner they would
/// grant the rights of another user, such as root's, whether the owner was not to be set or could not be: the bits of a file
/// with another owner or group are dropped too.
fn allowed_set_id(target: &impl MetadataTarget, node: &Node, shared: &Shared<'_>) -> u16 {
    let inode = node.inode();
    let wanted = inode.mode & SET_ID;
    if wanted == 0 {
        return 0;
    }
    let found = target.found_owner().ok().filter(|_| shared.options.privileged);
    let allowed = found.map_or(0, |(uid, gid)| {
        let uid_bit = if uid == inode.uid { SET_UID } else { 0 };
        let gid_bit = if gid == inode.gid { SET_GID } else { 0 };
        uid_bit | gid_bit
    });
    if wanted & !allowed != 0 {
        shared.counters.skipped_set_id.add(1);
    }
    wanted & allowed
}
