//! Cleaning up after a server that died.
//!
//! Its loop device still stands on its file, and its mount is still in the tree; both answer with
//! errors. The order in which they go matters. The connection is aborted first: until then a dying
//! server can hang in a request to itself, and looking at the loop device can hang behind it. Then the
//! loop device goes, and the mount last, because it is what leads to loop devices that the server had
//! no time to tell anyone about.

use super::DoorError;
use crate::fuse::MOUNT_NAME;
use pagefold_sys::loopdev::{self, AttachedLoop, Detach, Detached, LoopIdentity};
use pagefold_sys::{SysError, fusedev};
use std::path::{Path, PathBuf};

/// What was cleaned up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanUp {
    /// Loop devices that are free again.
    pub detached: Vec<PathBuf>,
    /// Loop devices that some process has open; the kernel frees them when it closes them.
    pub open: Vec<PathBuf>,
    /// Whether there was a mount to take away.
    pub unmounted: bool,
}

/// Takes away the loop device and the mount of a dead server.
///
/// The caller has made sure that the server is dead: a living one loses its users their data here.
/// `mount_point` is where it mounted; `recorded` is its loop device as it reported it, if it lived
/// long enough. Users' mounts and swap are their own business: while there are any, this fails with
/// [`DoorError::InUse`] and can be repeated. Finding nothing to do is success.
pub fn clean_up(mount_point: &Path, recorded: Option<LoopIdentity>) -> Result<CleanUp, DoorError> {
    let mut done = CleanUp::default();
    let mount_point = match resolved(mount_point) {
        Ok(path) => path,
        Err(e) if e.errno == libc::ENOENT => {
            detach_all(recorded, None, &mut done)?;
            return Ok(done);
        }
        Err(e) => return Err(e.into()),
    };
    while let Some(mount) = fusedev::mounted(&mount_point, MOUNT_NAME)? {
        fusedev::abort(&mount_point)?;
        detach_all(recorded, Some(&mount), &mut done)?;
        // Aborting takes an unused mount away at once, so look again.
        if fusedev::mounted(&mount_point, MOUNT_NAME)?.is_some_and(|m| m.device == mount.device) {
            fusedev::abort_and_unmount(&mount_point)?;
        }
        done.unmounted = true;
    }
    detach_all(recorded, None, &mut done)?;
    Ok(done)
}

/// Resolves links in all of the path but its end, which is a dead file system that answers nothing.
fn resolved(mount_point: &Path) -> Result<PathBuf, SysError> {
    let what = || format!("looking for the mount point {}", mount_point.display());
    let (Some(parent), Some(name)) = (mount_point.parent(), mount_point.file_name()) else {
        return Err(SysError::new(what(), libc::EINVAL));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok(parent.canonicalize().map_err(|e| SysError::io(what(), &e))?.join(name))
}

fn detach_all(
    recorded: Option<LoopIdentity>,
    mount: Option<&pagefold_sys::mounts::Mount>,
    done: &mut CleanUp,
) -> Result<(), DoorError> {
    let is_ours = |a: &AttachedLoop| {
        recorded == Some(a.identity) || mount.is_some_and(|m| m.device == a.identity.file_system())
    };
    for device in loopdev::attached()?.into_iter().filter(is_ours) {
        match super::detach_and_wait(&device, Detach::IfUnclaimed)? {
            Detached::Now => done.detached.push(device.path),
            Detached::WhenClosed if done.open.contains(&device.path) => {}
            Detached::WhenClosed => done.open.push(device.path),
            Detached::NotOurs => {}
            Detached::Claimed => return Err(super::in_use(&device.path)),
        }
    }
    Ok(())
}
