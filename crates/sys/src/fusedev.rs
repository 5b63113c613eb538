//! Mounting, aborting and unmounting a FUSE file system with the system calls themselves.
//!
//! Direct calls rather than the `fusermount` helper: the caller is root, learns the errno of each
//! step, and can undo each of them. Options are fixed to what a private file system needs: no
//! devices, no set-user-id, no programs, and never `allow_other`, so that only the mounting user
//! gets in. Reference: fuse(4) and the kernel's Documentation/filesystems/fuse.rst.

use crate::SysError;
use crate::mounts::{self, DeviceNumber, Mount};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// The kernel's FUSE device.
pub const DEVICE: &str = "/dev/fuse";

/// Opens a new, unconnected FUSE channel.
pub fn open() -> Result<File, SysError> {
    let opened = OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map_err(|e| SysError::io(format!("opening {DEVICE}"), &e))
}

/// Mounts the file system that `channel` will serve at the directory `mount_point`.
///
/// The mount table shows `name` as its source and `fuse.name` as its type; `max_read_bytes` bounds one
/// read request. The kernel's first request is then waiting in the channel.
pub fn mount(channel: &File, mount_point: &Path, name: &str, max_read_bytes: usize) -> Result<(), SysError> {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={max_read_bytes}",
        channel.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let what = || format!("mounting a FUSE file system at {}", mount_point.display());
    let data = std::ffi::CString::new(data).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount(name, mount_point, format!("fuse.{name}"), flags, data.as_c_str())
        .map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// The FUSE mount at `mount_point` if there is one and it was mounted as `name`.
///
/// The path is absolute and free of links; the file system is not touched, so it may be dead.
pub fn mounted(mount_point: &Path, name: &str) -> Result<Option<Mount>, SysError> {
    let found = mounts::at(mount_point)?;
    Ok(found.filter(|m| m.fs_type == format!("fuse.{name}") && m.source == name))
}

/// The device number of the file system that `path` is the root of, or lies on.
///
/// Answered from what the kernel knows, without asking a FUSE server and without a descriptor: works
/// when the server is dead, and when a process has run out of descriptors and must clean up.
pub fn device_at(path: &Path) -> Result<DeviceNumber, SysError> {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::INO) {
        Ok(found) => Ok(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor }),
        Err(e) => {
            Err(SysError::new(format!("asking which file system {} is on", path.display()), e.raw_os_error()))
        }
    }
}

/// Breaks the connection to the server: every waiting and later request fails.
///
/// The mount stays. Harmless if the server is dead, fatal to its users if it is not. This is the
/// way out for a process that waits for an answer that will not come, even one that is exiting.
pub fn abort(mount_point: &Path) -> Result<(), SysError> {
    match rustix::mount::unmount(mount_point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // Busy: aborted, and still in use. Otherwise unmounted at once, which serves as well.
        Ok(()) | Err(rustix::io::Errno::BUSY) => Ok(()),
        Err(e) => {
            Err(SysError::new(format!("aborting the FUSE mount {}", mount_point.display()), e.raw_os_error()))
        }
    }
}

/// Breaks the connection as [`abort`] and takes the mount out of the tree, in use or not.
///
/// Nothing mounted there is success, so that it can be repeated.
pub fn abort_and_unmount(mount_point: &Path) -> Result<(), SysError> {
    use rustix::io::Errno;
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mount_point, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => Err(SysError::new(
            format!("unmounting the FUSE mount {}", mount_point.display()),
            e.raw_os_error(),
        )),
    }
}
