//! [`clean_up`], which removes the loop device and the mount of a server that died.
//!
//! The loop device is still attached to the file and the file system is still mounted; both return errors. The order of
//! the steps matters. The FUSE connection is aborted first: until then a dying server can hang in a request to itself,
//! and reading the loop device's status can hang behind that request. Then the loop device is detached. The mount is
//! removed last, because its device number identifies loop devices that the server did not live to record.

use crate::export_error::ExportError;
use pagefold_fuse::MOUNT_NAME;
use pagefold_sys::loopdev::{self, AttachedLoop, Detach, Detached, LoopIdentity};
use pagefold_sys::{SysError, blockuse, fusedev};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a detach waits for other processes to close the device: udev and blkid open new devices for a moment.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The loop devices and the mount that [`clean_up`] removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanUp {
    /// Loop devices that are detached.
    pub detached: Vec<PathBuf>,
    /// Loop devices that a process still has open. The kernel detaches each when its last user closes it.
    pub open: Vec<PathBuf>,
    /// Whether a mount was removed.
    pub unmounted: bool,
}

/// Removes the loop device and the mount of a dead server.
///
/// The caller has made sure that the server is dead: under a living one, users of the disk would lose data.
/// `mount_point` is the server's mount point, and `recorded` the identity of its loop device, if the server lived to
/// report one.
///
/// While users have the loop device mounted or use it as swap, this fails with [`ExportError::InUse`]; the caller may
/// repeat it later. If nothing is left to remove, it succeeds.
pub fn clean_up(mount_point: &Path, recorded: Option<LoopIdentity>) -> Result<CleanUp, ExportError> {
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
        // The abort itself removes a mount that nothing uses, so look again.
        if fusedev::mounted(&mount_point, MOUNT_NAME)?.is_some_and(|m| m.device == mount.device) {
            fusedev::abort_and_unmount(&mount_point)?;
        }
        done.unmounted = true;
    }
    detach_all(recorded, None, &mut done)?;
    Ok(done)
}

/// Resolves links in all of the path but its last component, on which a dead file system may be mounted.
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
) -> Result<(), ExportError> {
    let is_ours = |a: &AttachedLoop| {
        recorded == Some(a.identity) || mount.is_some_and(|m| m.device == a.identity.file_system())
    };
    for device in loopdev::attached()?.into_iter().filter(is_ours) {
        match detach_and_wait(&device, Detach::IfUnclaimed)? {
            Detached::Now => done.detached.push(device.path),
            Detached::WhenClosed if done.open.contains(&device.path) => {}
            Detached::WhenClosed => done.open.push(device.path),
            Detached::NotOurs => {}
            Detached::Claimed => return Err(in_use(&device.path)),
        }
    }
    Ok(())
}

/// Detaches, and waits at most [`CLOSE_TIMEOUT`] for the processes that have the device open to close it.
pub(super) fn detach_and_wait(device: &AttachedLoop, how: Detach) -> Result<Detached, SysError> {
    let AttachedLoop { path, identity, .. } = device;
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    let mut detached = loopdev::detach_if(path, *identity, how)?;
    while detached == Detached::WhenClosed && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        if loopdev::identity(path)? != Some(*identity) {
            detached = Detached::Now;
        }
    }
    Ok(detached)
}

pub(super) fn in_use(path: &Path) -> ExportError {
    let uses = blockuse::claims(path).unwrap_or_default();
    ExportError::InUse { device: path.to_path_buf(), uses }
}
