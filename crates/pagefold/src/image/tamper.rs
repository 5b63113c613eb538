//! Checks that only root can change an image after `mount --kernel` has checked it.
//!
//! The kernel reads a mounted image as long as it is mounted, so a check is worthless if the file can change. The file
//! must belong to root, only root may have write permission, and no process may have it open for writing. The same
//! holds for the file behind a loop device. Changes by root are not prevented. The directories of the path do not
//! matter, because the open file is mounted.

use pagefold_control::error::{CliError, Exit, Result};
use pagefold_sys::{lease, loopdev};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// The type of a FUSE file system in statfs(2).
const FUSE_MAGIC: u64 = 0x6573_5546;
/// Most loop devices on top of each other.
const MAX_NESTED: usize = 8;

/// Fails if users other than root can change a file or block device.
pub fn refuse_changeable(path: &Path, file: &File) -> Result<()> {
    match change_risk(file, None)? {
        None => Ok(()),
        Some(reason) => Err(CliError::new(
            Exit::Failed,
            format!(
                "'{0}': {reason}, so it could change after the check; give the file to root alone (chown root, chmod \
                 go-w), mount it without --kernel, or use --trusted",
                path.display()
            ),
        )),
    }
}

/// The reason that users other than root can change the file, as the end of a message; `None` if they cannot. `under`:
/// the file is behind a loop device, and this many more may follow.
fn change_risk(file: &File, under: Option<usize>) -> Result<Option<String>> {
    let failed = |e: std::io::Error| CliError::io("checking who can change the image", &e);
    let metadata = file.metadata().map_err(failed)?;
    if metadata.uid() != 0 {
        return Ok(Some(format!("user {} owns it", metadata.uid())));
    }
    if metadata.mode() & OTHERS_WRITE != 0 {
        return Ok(Some("everybody may write to it".into()));
    }
    if metadata.file_type().is_block_device() {
        return device_change_risk(file, &metadata, under.unwrap_or(MAX_NESTED));
    }
    // With an access list, the group bits are the mask of all its entries.
    if metadata.mode() & GROUP_WRITES != 0 {
        return Ok(Some(format!("group {}, or users on its access list, may write to it", metadata.gid())));
    }
    let file_system = rustix::fs::fstatfs(file).map_err(|e| failed(e.into()))?;
    if file_system.f_type as u64 == FUSE_MAGIC {
        return Ok(Some("a FUSE server provides it".into()));
    }
    if under.is_some() {
        // The loop device itself may have it open for writing, so the check would say nothing.
        return Ok(None);
    }
    match lease::is_open_for_writing(file).map_err(|e| CliError::failed(e.to_string()))? {
        Some(true) => Ok(Some("a program has it open for writing".into())),
        Some(false) | None => Ok(None),
    }
}

/// The same for a block device that belongs to root. Members of its group can write to all disks and are as powerful as
/// root, so only an access list is a risk.
fn device_change_risk(device: &File, metadata: &Metadata, nested: usize) -> Result<Option<String>> {
    let lists = rustix::fs::fgetxattr(device, "system.posix_acl_access", &mut [0u8; 0][..]);
    if metadata.mode() & GROUP_WRITES != 0 && lists.is_ok_and(|len| len > 0) {
        return Ok(Some("users on its access list may write to it".into()));
    }
    let on_file = loopdev::backing_of(device).map_err(|e| CliError::failed(e.to_string()))?;
    let Some((identity, path)) = on_file else { return Ok(None) };
    let unknown = || format!("it is a loop device whose file '{}' cannot be found", path.display());
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let Ok(backing) = opened else { return Ok(Some(unknown())) };
    let found = backing.metadata().map_err(|e| CliError::io("checking who can change the image", &e))?;
    if (found.dev(), found.ino()) != (identity.lo_device, identity.lo_inode) || nested == 0 {
        return Ok(Some(unknown()));
    }
    let shown = path.display();
    let reason = change_risk(&backing, Some(nested - 1))?;
    Ok(reason.map(|reason| format!("it is a loop device on '{shown}', and {reason}")))
}
