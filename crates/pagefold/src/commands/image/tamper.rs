//! Whether somebody other than root can change a file after it was checked.
//!
//! The kernel goes on reading a mounted image: a check says something only about bytes that stay as they were. So the file
//! must be root's, nobody else may write it, nobody may have it open for writing, and the same holds for the file
//! that a loop device stands on. What root does is root's own affair, and directories on the way do not matter: the image is
//! mounted by its open file.

use crate::failure::{Exit, Failure, Outcome};
use pagefold_sys::{lease, loopdev};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// What statfs(2) says of a FUSE file system.
const FUSE_MAGIC: u64 = 0x6573_5546;
/// Loop devices on files on loop devices, so many.
const MAX_NESTED: usize = 8;

/// Refuses a file or block device that others than root can change.
pub fn refuse_changeable(path: &Path, file: &File) -> Outcome<()> {
    match who_can_change(file, None)? {
        None => Ok(()),
        Some(reason) => Err(Failure::new(
            Exit::Failed,
            format!(
                "'{0}': {reason}, so it could change after the check, and the kernel is not to read it; give the file to \
                 root alone (chown root, chmod go-w), mount it without --kernel, or trust it with --trusted",
                path.display()
            ),
        )),
    }
}

/// Who can, in words that follow the file's name. `under`: a loop device stands on the file, and so many more may be nested.
fn who_can_change(file: &File, under: Option<usize>) -> Outcome<Option<String>> {
    let failed = |e: std::io::Error| Failure::io("asking who can change a file", &e);
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != 0 {
        return Ok(Some(format!("user {} owns it", metadata.uid())));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Ok(Some("everybody may write to it".into()));
    }
    if metadata.file_type().is_block_device() {
        return device(file, &metadata, under.unwrap_or(MAX_NESTED));
    }
    // With an access list, these bits say what anyone on the list has at most.
    if metadata.mode() & GROUP_WRITES != 0 {
        return Ok(Some(format!("group {}, or users on its access list, may write to it", metadata.gid())));
    }
    let file_system = rustix::fs::fstatfs(file).map_err(|e| failed(e.into()))?;
    if file_system.f_type as u64 == FUSE_MAGIC {
        return Ok(Some("a FUSE server provides it".into()));
    }
    if under.is_some() {
        // The loop device itself may have it open for writing.
        return Ok(None);
    }
    match lease::is_open_for_writing(file).map_err(|e| Failure::failed(e.to_string()))? {
        Some(true) => Ok(Some("a program has it open for writing".into())),
        Some(false) | None => Ok(None),
    }
}

/// Of a block device of root's. The group of disks may write to all of them, and is as good as root: only an access list
/// names others.
fn device(device: &File, metadata: &Metadata, nested: usize) -> Outcome<Option<String>> {
    let lists = rustix::fs::fgetxattr(device, "system.posix_acl_access", &mut [0u8; 0][..]);
    if metadata.mode() & GROUP_WRITES != 0 && lists.is_ok_and(|len| len > 0) {
        return Ok(Some("users on its access list may write to it".into()));
    }
    let on_file = loopdev::backing_of(device).map_err(|e| Failure::failed(e.to_string()))?;
    let Some((identity, path)) = on_file else { return Ok(None) };
    let unknown = || format!("the file '{}' that it stands on cannot be found", path.display());
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let Ok(backing) = opened else { return Ok(Some(unknown())) };
    let found = backing.metadata().map_err(|e| Failure::io("asking who can change a file", &e))?;
    if (found.dev(), found.ino()) != (identity.lo_device, identity.lo_inode) || nested == 0 {
        return Ok(Some(unknown()));
    }
    let shown = path.display();
    let reason = who_can_change(&backing, Some(nested - 1))?;
    Ok(reason.map(|reason| format!("it is a loop device on '{shown}', and {reason}")))
}
