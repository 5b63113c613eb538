//! Mounting, aborting and unmounting a FUSE file system by system calls, as root.
//!
//! Unlike with the program `fusermount3`, the caller learns the errno of each step and can undo each of them. The
//! default of a [`Request`] is a private mount: no devices, no set-user-id, no execution, and access only for the
//! mounting user. Reference: fuse(4) and the kernel's Documentation/filesystems/fuse.rst.

use crate::mounts::{self, DeviceNumber, Mount, MountTarget};
use crate::{SysError, done};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr};
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

/// `FUSE_DEV_IOC_CLONE` of the kernel's `include/uapi/linux/fuse.h`.
const CLONE: libc::Ioctl = 0x8004_E500_u32 as libc::Ioctl;

/// Makes `cloned`, a channel from [`open`], another channel of the file system that `channel` is mounted with. Each thread
/// can read requests from a channel that no other uses.
pub fn clone_channel(channel: &File, cloned: File) -> Result<File, SysError> {
    let source = channel.as_raw_fd().cast_unsigned();
    // SAFETY: the call reads the four bytes of `source`, and stores nothing in this process.
    done(
        unsafe { libc::ioctl(cloned.as_raw_fd(), CLONE, &raw const source) },
        || "cloning the FUSE channel (FUSE_DEV_IOC_CLONE)",
    )
    .map(|()| cloned)
}

/// The options of a FUSE mount.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The type in the mount table, after `fuse.`.
    pub name: &'a str,
    /// The source in the mount table.
    pub source: &'a OsStr,
    /// The longest read request, bytes.
    pub max_read_bytes: usize,
    /// Mounts read-only.
    pub read_only: bool,
    /// Lets users other than the mounting one access the file system.
    pub allow_other: bool,
    /// Makes the kernel check modes, owners and access control lists (`default_permissions`). Otherwise the kernel asks
    /// the server, and allows the access if the server does not implement the check.
    pub checks_modes: bool,
    /// Allows the execution of programs (no `noexec`).
    pub programs: bool,
    /// Honours set-user-id bits (no `nosuid`).
    pub suid: bool,
    /// Lets device nodes open devices (no `nodev`).
    pub devices: bool,
}

impl<'a> Request<'a> {
    /// A private writable mount, with `name` as type and source.
    pub fn private(name: &'a str, max_read_bytes: usize) -> Self {
        Request {
            name,
            source: OsStr::new(name),
            max_read_bytes,
            read_only: false,
            allow_other: false,
            checks_modes: false,
            programs: false,
            suid: false,
            devices: false,
        }
    }

    fn flags(&self) -> MountFlags {
        let unless = |allowed: bool, flag| if allowed { MountFlags::empty() } else { flag };
        let flags = MountFlags::NOATIME | unless(!self.read_only, MountFlags::RDONLY);
        let flags = flags | unless(self.programs, MountFlags::NOEXEC);
        flags | unless(self.suid, MountFlags::NOSUID) | unless(self.devices, MountFlags::NODEV)
    }
}

/// Mounts a FUSE file system at the directory `mount_point`, an absolute path without symbolic links; its server reads
/// requests from `channel`.
///
/// The kernel's first request waits in the channel when this returns.
pub fn mount(channel: &File, mount_point: &Path, request: &Request<'_>) -> Result<(), SysError> {
    let others = if request.allow_other { ",allow_other" } else { "" };
    let checks = if request.checks_modes { ",default_permissions" } else { "" };
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={}{others}{checks}",
        channel.as_fd().as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
        request.max_read_bytes,
    );
    let what = || format!("mounting a FUSE file system at {}", mount_point.display());
    let data = CString::new(data).map_err(|_| SysError::new(what(), libc::EINVAL))?;
    let fs_type = format!("fuse.{}", request.name);
    let target = MountTarget::open(mount_point)?;
    rustix::mount::mount(request.source, target.path(), fs_type, request.flags(), data.as_c_str())
        .map_err(|e| SysError::new(what(), e.raw_os_error()))
}

/// Sets the read-ahead of the kernel for files of a FUSE mount, KiB. Needs root.
pub fn set_read_ahead(device: DeviceNumber, kib: u64) -> Result<(), SysError> {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    std::fs::write(&file, kib.to_string()).map_err(|e| SysError::io(format!("setting {file}"), &e))
}

/// The FUSE mount at `mount_point`; `None` if there is none or its name is not `name`.
///
/// The path is absolute and free of symbolic links. The call does not access the file system, so its server may be
/// dead.
pub fn mounted(mount_point: &Path, name: &str) -> Result<Option<Mount>, SysError> {
    let found = mounts::at(mount_point)?;
    Ok(found.filter(|m| m.fs_type == format!("fuse.{name}") && m.source == name))
}

/// The device number of the file system of `path`; for a mount point, that of the mounted file system.
///
/// The kernel answers from its own state, without a request to a FUSE server and without a descriptor. So it works when
/// the server is dead, and when this process has run out of descriptors and must clean up.
pub fn device_at(path: &Path) -> Result<DeviceNumber, SysError> {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let error = match rustix::fs::statx(CWD, path, flags, StatxFlags::INO) {
        Ok(found) => return Ok(DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor }),
        Err(error) => error,
    };
    // A sandbox may refuse the call. The list of mounts has the numbers, too.
    if matches!(error, Errno::NOSYS | Errno::PERM)
        && let Some(mount) = mounts::at(path)?
    {
        return Ok(mount.device);
    }
    let what = format!("asking which file system {} is on (statx)", path.display());
    Err(SysError::new(what, error.raw_os_error()))
}

/// Aborts the connection to the server: all waiting and later requests fail.
///
/// The mount stays. Users of a live server get errors from then on. Processes that wait for a reply that will never
/// come continue, even those that are exiting.
pub fn abort(mount_point: &Path) -> Result<(), SysError> {
    match rustix::mount::unmount(mount_point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // EBUSY: the connection is aborted, and the mount is in use. Otherwise the mount is gone, which also aborts it.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(e) => {
            Err(SysError::new(format!("aborting the FUSE mount {}", mount_point.display()), e.raw_os_error()))
        }
    }
}

/// Aborts a connection as [`abort`] does, through a mounted fusectl file system, as root or as the user who mounted. Does
/// nothing without fusectl.
pub(crate) fn abort_by_control(device: DeviceNumber) {
    // The name of a connection is the minor number of the file system's device.
    let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", device.minor), "1");
}

/// Aborts the connection as [`abort`] does and unmounts, even if the mount is in use (MNT_DETACH).
///
/// Root of a user namespace may unmount, but needs fusectl to abort: without it, the server goes on serving processes with
/// open files. Succeeds if nothing is mounted there, so that it can be repeated.
pub fn abort_and_unmount(mount_point: &Path) -> Result<(), SysError> {
    use rustix::io::Errno;
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    let unmounted = match rustix::mount::unmount(mount_point, flags | UnmountFlags::FORCE) {
        // Only root of the initial user namespace may force. The control file belongs to the user who mounted.
        Err(Errno::PERM) => {
            if let Some(mount) = mounts::at(mount_point)? {
                abort_by_control(mount.device);
            }
            rustix::mount::unmount(mount_point, flags)
        }
        unmounted => unmounted,
    };
    match unmounted {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => Err(SysError::new(
            format!("unmounting the FUSE mount {}", mount_point.display()),
            e.raw_os_error(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_mount_forbids_programs_suid_and_devices() {
        let private = Request::private("x", 4096);
        let forbidden = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        assert_eq!(private.flags(), forbidden | MountFlags::NOATIME);
        let open = Request { read_only: true, programs: true, suid: true, devices: true, ..private };
        assert_eq!(open.flags(), MountFlags::RDONLY | MountFlags::NOATIME);
    }
}
